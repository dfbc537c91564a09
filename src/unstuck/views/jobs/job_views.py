"""Views of several jobs: lists with runs folded into lines, and facts that explain them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unstuck.coordinator.explain.explanation import FleetFacts, Idle
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.coordinator.store.job_queries import Queries
from unstuck.read_model.group import Member
from unstuck.read_model.job import JobInfo
from unstuck.tasks.protocol.token import split_member

if TYPE_CHECKING:
    from unstuck.coordinator.model.state import JobState


def folded(jobs: Sequence[JobInfo]) -> list[list[JobInfo]]:
    """Return ``jobs`` in lines: the runs of a backfill, and FINISHED runs of a schedule, share one.

    The newest run of each schedule has a line of its own.
    """
    lines: list[list[JobInfo]] = []
    folds: dict[tuple[str, str], list[JobInfo]] = {}
    schedules: set[str] = set()
    for job in jobs:
        is_newest = bool(job.schedule) and not job.backfill and job.schedule not in schedules
        if is_newest:
            schedules.add(job.schedule)
        is_repeat = job.status is Status.FINISHED and not is_newest
        is_folded = bool(job.schedule and (job.backfill or is_repeat))
        line = folds.setdefault((job.schedule, job.backfill), []) if is_folded else []
        if not line:
            lines.append(line)
        line.append(job)
    return lines


def timeout_revisions_after_claim(job: JobInfo, member: Member) -> list[int]:
    """Return the revisions whose timeouts an attempt of ``member`` got after its claim."""
    name = re.escape(split_member(member.id)[0])
    timeout = re.compile(rf"(groups\.{name}|defaults)\.timeout|groups\.{name}\.steps\.\d+\.timeout")
    return [
        number
        for number, alteration in enumerate(job.alterations, 1)
        if number > member.revision
        and (
            member.state in (GroupState.RUNNING, GroupState.CANCELING)
            or alteration.at < member.since
        )
        and any(timeout.fullmatch(change.path) for change in alteration.changes)
    ]


def idle(queries: Queries, at: float) -> Idle:
    """Return for how long, at ``at`` (the time of Redis), no coordinator has checked any job."""
    looked, period = queries.last_sweep()
    seconds = max(0.0, at - looked) if looked else 0.0
    return Idle(seconds, period) if period else Idle(seconds)


def fleet_facts(queries: Queries, state: JobState, at: float) -> FleetFacts:
    """Return whether coordinators check jobs, and where the steps of this job are.

    Args:
        at: the time of Redis.
    """
    return FleetFacts(idle=idle(queries, at), stacks=queries.stacks(state))
