"""Parked reports: looked at, put back onto the report stream, or dropped, because a person said so.

Nothing here applies a report: a coordinator does, as it does any other. Who did what stands in the job's event log,
where there is such a job, and for a day beside the dead stream.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

import redis

from unstuck.coordinator.errors import NoSuchReport
from unstuck.coordinator.store.reports import DeadReport, Fields, dead_report
from unstuck.tasks.errors import Malformed
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.lease import script
from unstuck.tasks.protocol.report import Report
from unstuck.tasks.protocol.token import Token

REMEMBERED = 86400  # seconds for which it is known what became of a parked report


class Treatment(StrEnum):
    """What came of a request."""

    REPLAYED = "REPLAYED"
    DROPPED = "DROPPED"
    ALREADY = "ALREADY"  # it was replayed or dropped before; nothing changed
    REFUSED = "REFUSED"
    GONE = "GONE"  # no such report is parked


@dataclass(frozen=True, slots=True)
class Treated:
    """What came of a request about one parked report, in a word and in a sentence."""

    id: str
    word: Treatment
    text: str


class Parked:
    """The dead stream of one Redis. ``client`` must decode responses."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._redis = client
        self._keys = keys
        self._replay = script(client, "unstuck.coordinator.store", "replay")
        self._drop = script(client, "unstuck.coordinator.store", "drop")

    def all(self) -> list[DeadReport]:
        """Every parked report, the oldest first."""
        return [dead_report(*entry) for entry in self._entries("-", "+")]

    def get(self, report: str) -> DeadReport:
        """One parked report, by its id on the dead stream.

        Raises: NoSuchReport: also where ``report`` is no id.
        """
        found = self._find(report)
        if found is None:
            raise NoSuchReport(_gone(report))
        return found

    def replay(self, report: str, by: str) -> Treated:
        """Put a report back for the coordinators to apply. Durable and idempotent: it goes back once.

        Refused where it would be parked again at once: it cannot be read, or its job is not in the store.
        """
        found = self._find(report)
        if found is not None and (why := unreadable(found)):
            return Treated(report, Treatment.REFUSED, f"report {report} stays parked, since it cannot be read: {why}")
        job = _job_of(found) if found is not None else ""
        keys = self._keys.of(job)
        word, *said = self._replay(
            keys=[
                *(self._keys.dead, self._keys.reports, self._keys.parked(report), self._keys.counters),
                *(keys.job, keys.events),
            ],
            args=[report, by, REMEMBERED],
        )
        if word == "UNKNOWN_JOB":
            text = (
                f"report {report} stays parked: no job {job} is in the store, so it would be parked again at once. "
                f"Replay it when the job is there, or drop it: unstuck dead drop {report}"
            )
            return Treated(report, Treatment.REFUSED, text)
        return _treated(report, word, said, f"is on its way to a coordinator again; `unstuck events {job}` shows it")

    def drop(self, report: str, by: str) -> Treated:
        """Remove a report for good. Idempotent."""
        found = self._find(report)
        job = _job_of(found) if found is not None else ""
        keys = [self._keys.dead, self._keys.parked(report), *([self._keys.of(job).events] if job else [])]
        word, *said = self._drop(keys=keys, args=[report, by, REMEMBERED])
        return _treated(report, word, said, "is gone for good")

    def _find(self, report: str) -> DeadReport | None:
        if not _is_id(report):
            return None
        found = self._entries(report, report)
        return dead_report(*found[0]) if found else None

    def _entries(self, low: str, high: str) -> list[tuple[str, Fields]]:
        return cast(list[tuple[str, Fields]], self._redis.xrange(self._keys.dead, low, high))


def unreadable(report: DeadReport) -> str:
    """Why no coordinator of this release can read a parked report; empty if it can."""
    try:
        Report.from_fields(report.fields)
    except Malformed as error:
        return str(error)
    return ""


def _job_of(report: DeadReport) -> str:
    """The job that a parked report names; empty if it names none."""
    try:
        return Token.parse(report.fields.get("token", "")).job
    except Malformed:
        return ""


def _treated(report: str, word: str, said: list[str], done: str) -> Treated:
    treatment = Treatment(word)
    if treatment is Treatment.GONE:
        return Treated(report, treatment, _gone(report))
    if treatment is Treatment.ALREADY:
        became = json.loads(said[0])
        text = f"report {report} was {became['what']} before, by {became['by']}; nothing changed"
        return Treated(report, treatment, text)
    return Treated(report, treatment, f"report {report} {done}")


def _gone(report: str) -> str:
    if not _is_id(report):
        return f"{report!r} is no id of a parked report; expected one like 1388534400000-0, from `unstuck dead list`"
    return f"no report {report} is parked; `unstuck dead list` shows which are"


def _is_id(text: str) -> bool:
    milliseconds, dash, sequence = text.partition("-")
    return bool(dash) and all(part.isascii() and part.isdecimal() for part in (milliseconds, sequence))
