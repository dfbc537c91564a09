"""Classifies reports by the record of their job, and the acks that a commit writes. Pure.

Only a report says whether its outcome was refused, because only ``finish`` knows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from unstuck.coordinator.model.decision import Acks
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState
from unstuck.tasks.protocol.report import Report, ReportKind

REFUSED = "REPORT_REFUSED"


class Applied(StrEnum):
    """The classification of a report."""

    APPLIED = "APPLIED"
    DUPLICATE = "DUPLICATE"
    STALE = "STALE"
    TERMINAL = "TERMINAL"


@dataclass(frozen=True, slots=True)
class Delivered:
    """A report with the id of its stream entry."""

    entry: str
    report: Report


def receipt(state: JobState, reports: Sequence[Delivered]) -> Acks:
    """Return the reports to acknowledge, their counts, and an event for each refused outcome."""
    counts: dict[str, int] = {}
    refused: dict[str, str] = {}
    for delivered in reports:
        kind = classify(state, delivered.report)
        counts[kind] = counts.get(kind, 0) + 1
        if delivered.report.refused:
            refused[delivered.entry] = json.dumps(
                refusal(state, delivered.report), separators=(",", ":")
            )
    return Acks(tuple(delivered.entry for delivered in reports), counts, refused)


def classify(state: JobState, report: Report) -> Applied:
    """Classify a report by the record of its group."""
    if state.job.terminal or report.refused == Applied.TERMINAL:
        return Applied.TERMINAL
    token = report.token
    record, attempt = state.record(token.group), state.attempts.get(token.group)
    anothers = attempt is not None and attempt.claimant not in ("", token.claimant)
    if report.refused or anothers or (token.epoch, token.nonce) != (record.epoch, record.nonce):
        return Applied.STALE
    if record.state is GroupState.QUEUED:
        return Applied.APPLIED
    if record.state in (GroupState.RUNNING, GroupState.CANCELING):
        return Applied.DUPLICATE if report.kind is ReportKind.CLAIMED else Applied.APPLIED
    return Applied.DUPLICATE


def refusal(state: JobState, report: Report) -> dict[str, Any]:
    """Return the event of an outcome that came too late and changed nothing."""
    token = report.token
    newest = state.record(token.group).epoch
    if report.refused == Applied.TERMINAL:
        when = (
            f"after the job was {state.job.status}"
            if state.job.terminal
            else "after the job had ended"
        )
    elif newest > token.epoch:
        when = f"after attempt {newest} had taken its place"
    else:
        when = "when it was no longer the live attempt"
    return {
        "kind": REFUSED,
        "at": report.at,
        "group": token.group,
        "epoch": token.epoch,
        "claimant": token.claimant,
        "reported": str(report.kind),
        "code": report.refused,
        "text": f"attempt {token.epoch} reported {report.kind} {when}: nothing changed",
    }
