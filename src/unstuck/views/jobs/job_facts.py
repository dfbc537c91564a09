"""A job and its groups as users see them: the documented fields of their records, and nothing that
fences or stores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unstuck.coordinator.command_table import Answer
from unstuck.coordinator.commands.job_commands import Commanded
from unstuck.coordinator.model.facts import facts_of
from unstuck.coordinator.model.records import (
    Alteration,
    AttemptRecord,
    GroupRecord,
    JobRecord,
    Reason,
)
from unstuck.coordinator.model.status import GroupState, Intent, Phase, Status
from unstuck.tasks.protocol.replaced import Replaced
from unstuck.tasks.protocol.report import Failure
from unstuck.tasks.protocol.token import split_member
from unstuck.tasks.spec.fields import ForkItem
from unstuck.tasks.spec.outputs import REJECTED


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One job. Times are seconds since the epoch; 0: not yet.

    Attributes:
        intent: what the user last asked for; ``intent_at`` when, ``intent_by`` who, ``intent_why``
            why.
        phase: of its publishing: not empty between "all groups done" and the package in the
            warehouse log.
        key: that a user gave to this job, or to the first of those that it retries; ``retry_of``:
            the job it retries.
        schedule: of which it is a run.
        reason: why it ended as it did; ``halted``: why it cannot go on by itself; ``timed_out``:
            that its time is over.
        paused_at: since when it stands PAUSED or HALTED.
        revision: how often it was altered, and ``alterations`` what each time, in order.
        version: of the warehouse, once it is published; 0 if nothing was to publish.
            ``published_at``: when.
        published: the rows of each dataset in it; ``replaced``: the partitions of each that it
            replaced.
        reruns: groups asked to run again, and those after them; ``any_code``: it takes over work of
            other code.
        left: files and offsets that have arrived for its streams, beyond the bound of one job.
        terminal: it has ended; ``at_rest``: that, or it cannot go on by itself.
    """

    id: str
    name: str
    status: Status
    intent: Intent
    intent_at: float
    intent_by: str
    intent_why: str
    phase: Phase
    reason: Reason | None
    halted: Reason | None
    timed_out: Reason | None
    submitted_at: float
    submitted_by: str
    started_at: float
    ended_at: float
    paused_at: float
    key: str
    retry_of: str
    schedule: str
    priority: str
    revision: int
    alterations: tuple[Alteration, ...]
    warehouse: str
    version: int
    published_at: float
    published: Mapping[str, int]
    replaced: Mapping[str, Replaced]
    reruns: tuple[str, ...]
    any_code: bool
    left: int
    terminal: bool
    at_rest: bool

    @classmethod
    def of(cls, record: JobRecord) -> JobFacts:
        return facts_of(cls, record, key=record.user_key, reruns=tuple(record.reruns))


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended: DONE, ALREADY or REFUSED, the job after it, and a sentence for
    people.
    """

    answer: Answer
    job: JobFacts
    text: str

    @classmethod
    def of(cls, judged: Commanded) -> CommandResult:
        return cls(judged.answer, JobFacts.of(judged.job), judged.text)


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group, or one member of a fork. Times are seconds since the epoch; 0: not yet.

    Attributes:
        value: of a member, that of its fork.
        progress: the last one of its runner: what of ``step``, ``steps``, ``label``, ``done``,
            ``total``, … is known.
        attempt: number of the newest attempt; 0 before the first. ``worker``: that has it, or had
            it.
        since: when its state was entered; ``next_at``: when the next attempt may start (BACKOFF).
        claimed_at: when its newest attempt was claimed, while that goes on.
        revision: how often the job had been altered when its newest attempt was claimed.
        failures: failures of the user's code since the last success or resume; ``losses``: workers
            lost in a row; ``releases``: attempts handed back by workers that were told to stop.
        recovering: it failed or was lost, and has not succeeded since.
        adopted: its work was taken over from another job.
        folder: of the attempt whose output counts, in the warehouse; empty if there is none.
        rows: of each output; ``rejected``: of each output with rules: by rule, how many rows did
            not meet it.
        results: what its steps recorded.
        zone: the time zone that its newest attempt ran with; empty until one has ended.
    """

    id: str
    value: ForkItem | dict[str, ForkItem] | None
    state: GroupState
    attempt: int
    worker: str
    since: float
    started_at: float
    next_at: float
    claimed_at: float
    revision: int
    failures: int
    losses: int
    releases: int
    recovering: bool
    adopted: bool
    folder: str
    rows: Mapping[str, int]
    rejected: Mapping[str, Mapping[str, int]]
    results: Mapping[str, Any]
    reason: Reason | None
    first_error: Failure | None
    last_error: Failure | None
    zone: str
    progress: Mapping[str, Any]

    @property
    def errors(self) -> dict[str, Failure]:
        """Its last error, and the first one where that was another, each with a word for it."""
        first, last = self.first_error, self.last_error
        if last is None:
            return {}
        return (
            {"error": last}
            if first is None or first == last
            else {"first error": first, "last error": last}
        )

    @property
    def quality(self) -> dict[str, dict[str, Any]]:
        """Of each output with rules: its good ``rows``, the ``rejected`` ones, and these by rule
        (``rules``).
        """
        rows = self.rows
        return {
            name: {
                "rows": rows.get(name, 0),
                "rejected": rows.get(name + REJECTED, 0),
                "rules": rules,
            }
            for name, rules in self.rejected.items()
        }

    @classmethod
    def of(
        cls,
        name: str,
        record: GroupRecord,
        attempt: AttemptRecord | None = None,
        value: ForkItem | dict[str, ForkItem] | None = None,
    ) -> GroupView:
        overrides: dict[str, Any] = {
            "id": name,
            "value": value,
            "attempt": record.epoch,
            "folder": record.marked,
        }
        overrides |= {"claimed_at": 0.0, "progress": {}}
        if attempt is not None:
            overrides |= {"claimed_at": attempt.claimed_at, "progress": attempt.shown_progress}
            overrides |= {"worker": attempt.worker or record.worker}
        return facts_of(cls, record, **overrides)


def altered_while_running(job: JobFacts, member: GroupView) -> list[int]:
    """The revisions whose timeouts an attempt of ``member`` was given after it had been claimed, by
    its watchdog.
    """
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
