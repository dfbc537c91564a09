"""The documents of schedules: how one stands, its explanation, its backfill, and what became of a
command.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ConfigDict

from unstuck.coordinator.model.backlog import Backlog
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import Backfill, Redo, ScheduleIntent, ScheduleStatus
from unstuck.coordinator.model.tick import TickOutcome
from unstuck.coordinator.schedules.explain import ScheduleExplanation
from unstuck.coordinator.schedules.schedule_facts import ScheduleResult
from unstuck.coordinator.schedules.schedule_view import BackfillTick, ScheduleView
from unstuck.documents.document import AnswerDocument, Document, Time, Word
from unstuck.read_model.job import JobInfo, json_of_list


class RunFailureDocument(Document):
    """A run that failed."""

    job: str
    tick: Time
    at: Time
    code: str
    text: str


class RunSuccessDocument(Document):
    """The last run that ended well; ``version`` is 0 if there was nothing to publish."""

    job: str
    tick: Time
    at: Time
    version: int
    rows: dict[str, int]
    left: int


class StreamDocument(Document):
    """The unread part of one stream."""

    stream: str
    new: int
    changed: int
    bytes: int
    looked: int
    ignored: str
    lag: dict[int, int]
    trouble: str
    reachable: bool
    oldest: Time
    position: Any


class BacklogDocument(Document):
    """The unread part of the streams of a schedule, when a coordinator looked last."""

    looked_at: Time
    oldest: Time
    streams: list[StreamDocument]

    @classmethod
    def of_backlog(cls, backlog: Backlog | None) -> BacklogDocument | None:
        if backlog is None:
            return None
        streams = [
            StreamDocument.of(
                stream,
                stream=address,
                oldest=stream.since,
                position=stream.next or stream.position or None,
            )
            for address, stream in backlog.streams.items()
        ]
        return cls(looked_at=backlog.at, oldest=backlog.since, streams=streams)


class BackfillDocument(Document):
    """Ticks of the past that a person asked for.

    A run that goes on and is not submitted yet is null.
    """

    status: str
    total: int
    done: int
    left: int
    failed: list[Time]
    in_order: bool
    parallel: int
    redo: Redo
    backwards: bool
    at: Time
    by: str
    paused_by: str
    halted: Reason | None
    last_error: RunFailureDocument | None
    first: Time
    last: Time
    runs_now: list[Word]


def _backfill_document(fill: Backfill) -> BackfillDocument:
    failed = [run.tick for run in fill.failed]
    return BackfillDocument.of(fill, failed=failed, runs_now=[run.job for run in fill.active])


class ScheduleDocument(Document):
    """How a schedule stands, with its next ticks, and the values that each gives to parameters of
    its job.

    A run that goes on and is not submitted yet is null.
    """

    name: str
    status: ScheduleStatus
    intent: ScheduleIntent
    since: Time
    set_at: Time
    set_by: str
    intent_at: Time
    intent_by: str
    intent_why: str
    failures: int
    halted: Reason | None
    trigger: str
    waits: str
    next: list[Time]
    next_params: list[dict[str, str]]
    runs_now: list[Word]
    backfill: BackfillDocument | None
    backlog: BacklogDocument | None
    next_try: Time
    last_success: RunSuccessDocument | None
    first_error: RunFailureDocument | None
    last_error: RunFailureDocument | None

    @classmethod
    def of_view(cls, view: ScheduleView, ticks: int = 1, **more: Any) -> ScheduleDocument:
        """``ticks``: so many of its next ones."""
        schedule, fill, following = view.schedule, view.schedule.backfill, view.next_ticks(ticks)
        return cls.of(
            schedule,
            waits=view.waits,
            next=[tick.timestamp() for tick in following],
            next_params=[view.params_at(tick) for tick in following],
            runs_now=[run.job for run in schedule.runs],
            backfill=fill and _backfill_document(fill),
            backlog=BacklogDocument.of_backlog(view.backlog),
            next_try=min((run.next_at for run in schedule.retries if run.next_at), default=None),
            **more,
        )


class ScheduleEventDocument(Document):
    """One event of a schedule. What else it has depends upon its ``kind``."""

    model_config = ConfigDict(extra="allow")

    kind: str
    at: Time


class WholeScheduleDocument(ScheduleDocument):
    """One schedule, with its last runs, the newest first, and its last events, the newest last."""

    runs: list[dict[str, Any]]
    events: list[ScheduleEventDocument]

    @classmethod
    def of_all(
        cls,
        view: ScheduleView,
        ticks: int,
        runs: Sequence[JobInfo],
        events: Sequence[dict[str, Any]],
    ) -> ScheduleDocument:
        return cls.of_view(view, ticks, runs=json_of_list(runs), events=events)


class FactDocument(Document):
    """One thing to know of a schedule."""

    what: str
    text: str
    at: Time


class ScheduleExplanationDocument(Document):
    """Why a schedule is where it is, since when, and what would help."""

    name: str
    status: ScheduleStatus
    what: str
    since: Time
    help: tuple[str, ...]
    facts: tuple[FactDocument, ...]
    backlog: BacklogDocument | None

    @classmethod
    def of_explanation(cls, explanation: ScheduleExplanation) -> ScheduleExplanationDocument:
        return cls.of(explanation, backlog=BacklogDocument.of_backlog(explanation.backlog))


class TickDocument(Document):
    """One tick of a backfill: the values that it gives to parameters, its current run, and its
    outcome.
    """

    tick: Time
    params: dict[str, str]
    had: Word
    outcome: TickOutcome

    @classmethod
    def of_tick(cls, backfill_tick: BackfillTick) -> TickDocument:
        return cls.of(backfill_tick, tick=backfill_tick.tick.timestamp())


class ScheduleAnswerDocument(AnswerDocument):
    """The answer of a command to one schedule.

    ``status``: null if it is removed; ``warnings``: of the spec that `set` has stored.
    """

    name: str
    status: ScheduleStatus | None = None
    warnings: tuple[str, ...] = ()

    @property
    def page(self) -> str:
        return "" if self.status is None else self.name

    @classmethod
    def of_result(cls, result: ScheduleResult) -> ScheduleAnswerDocument:
        return cls.of(result, name=result.schedule.name, status=result.schedule.status)
