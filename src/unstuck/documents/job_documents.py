"""The documents of jobs: of a listing, of one job, of its explanation, its alterations, its events
and its logs.
"""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from unstuck.coordinator.explain.explanation import Explanation
from unstuck.coordinator.model.listed_job import ListedJob
from unstuck.coordinator.model.records import AlteredValue, Reason
from unstuck.coordinator.model.status import GroupState, Intent, Phase, Status
from unstuck.coordinator.store.answers import Submitted
from unstuck.documents.document import AnswerDocument, Document, Time, Word, iso
from unstuck.tasks.protocol.replaced import Replaced
from unstuck.tasks.protocol.report import Failure
from unstuck.tasks.protocol.step_stack import Frame, SparkStage
from unstuck.views.jobs.job_facts import CommandResult, GroupView
from unstuck.views.jobs.job_views import ForkView, JobView


class ListedJobDocument(Document):
    """One line of ``list``; ``why``: what the job waits for.

    ``total`` is null while a dynamic fork is not expanded.
    """

    id: str
    name: str
    status: Status
    submitted_at: Time
    started_at: Time
    ended_at: Time
    done: int
    total: int | None
    groups: dict[str, int]
    version: int
    reason: Reason | None
    key: Word
    schedule: Word
    tick: Word
    backfill: Word
    why: Word

    @classmethod
    def of_line(cls, job: ListedJob, why: str = "") -> ListedJobDocument:
        return cls.of(job, why=why)


class LateJobDocument(Document):
    """One name of jobs that no schedule submits, late ``since`` the deadline that ``text`` names.

    ``since`` is null where the record of the name is damaged.
    """

    name: str
    since: Time
    text: str


class StackDocument(Document):
    """Where a step stands."""

    at: Time
    since: Time
    frames: tuple[Frame, ...]
    stages: tuple[SparkStage, ...]


class MemberDocument(Document):
    """One group that is not forked, or one member of a fork; ``why`` and ``stack`` where it is not
    done.
    """

    id: str
    value: Any
    progress: dict[str, Any]
    quality: dict[str, dict[str, Any]]
    state: GroupState
    reason: Reason | None
    since: Time
    started_at: Time
    next_at: Time
    failures: int
    losses: int
    releases: int
    adopted: bool
    rows: dict[str, int]
    results: dict[str, Any]
    first_error: Failure | None
    last_error: Failure | None
    attempt: int
    worker: str
    why: Word
    stack: StackDocument | None

    @classmethod
    def of_member(cls, view: JobView, member: GroupView) -> MemberDocument:
        stack = view.why[member.id].stack if member.id in view.why else None
        return cls.of(member, why=view.why_line(member.id), stack=stack)


class GroupDocument(Document):
    """One planned group with its members; those without a record are WAITING, and only counted in
    ``states``.
    """

    name: str
    needs: tuple[str, ...]
    join: str
    forked: bool
    expanded: bool
    total: int
    states: dict[str, int]
    why: Word
    members: list[MemberDocument]

    @classmethod
    def of_group(cls, view: JobView, group: ForkView) -> GroupDocument:
        members = [MemberDocument.of_member(view, member) for member in group.members]
        return cls.of(group, states=group.census, why=view.why_fork(group), members=members)


class JobDocument(Document):
    """Everything that ``show`` knows."""

    id: str
    name: str
    status: Status
    intent: Intent
    phase: Phase
    reason: Reason | None
    halted: Reason | None
    submitted_at: Time
    submitted_by: str
    started_at: Time
    ended_at: Time
    why: Word
    damage: Word
    due_at: Time
    key: Word
    retry_of: Word
    schedule: Word
    params: dict[str, Any]
    warehouse: str
    version: int
    published: dict[str, int]
    replaced: dict[str, Replaced]
    done: int
    total: int
    zones: list[str]
    groups: list[GroupDocument]

    @classmethod
    def of_view(cls, view: JobView) -> JobDocument:
        job = view.job
        more = {
            name: getattr(view, name) for name in ("damage", "params", "done", "total", "zones")
        }
        why = "" if job.terminal else view.why_line(job.id)
        groups = [GroupDocument.of_group(view, group) for group in view.groups]
        return cls.of(job, why=why, due_at=view.due, groups=groups, **more)


class ExplanationDocument(Document):
    """The answer of ``why`` about a job or one of its groups."""

    subject: str
    state: str
    what: str
    short: str
    timed: bool
    since: Time
    tried: str
    help: tuple[str, ...]
    next_at: Time
    next_what: str
    gives_up: str
    gives_up_at: Time
    stack: StackDocument | None

    @classmethod
    def of_explanation(cls, explanation: Explanation) -> ExplanationDocument:
        nexts = {"next_at": explanation.next.at, "next_what": explanation.next.what}
        return cls.of(
            explanation, **nexts, gives_up=explanation.ends.what, gives_up_at=explanation.ends.at
        )


class AlterationDocument(Document):
    """One ``alter``, which made the ``revision``."""

    revision: int
    at: Time
    by: str
    reason: str
    changes: tuple[AlteredValue, ...]


class ClaimedGroupDocument(Document):
    """The revision with which a group ran."""

    group: str
    state: GroupState
    attempt: int
    revision: int


class DiffDocument(Document):
    """The alterations in order, and for each group that was ever claimed the revision that it ran
    with.
    """

    id: str
    revision: int
    alterations: list[AlterationDocument]
    groups: list[ClaimedGroupDocument]

    @classmethod
    def of_view(cls, view: JobView) -> DiffDocument:
        return cls.of(
            view.job,
            alterations=[
                AlterationDocument.of(alteration, revision=n)
                for n, alteration in enumerate(view.job.alterations, 1)
            ],
            groups=[ClaimedGroupDocument.of(group, group=group.id) for group in view.claimed],
        )


class EventDocument(Document):
    """One event. ``entry`` is its place in the log. What else it has depends upon its ``kind``."""

    model_config = ConfigDict(extra="allow")

    entry: str
    kind: str
    at: Time

    @classmethod
    def of_event(cls, entry: str, event: dict[str, Any]) -> EventDocument:
        times = {"next_at": iso(event["next_at"])} if "next_at" in event else {}
        return cls.model_validate({"entry": entry, **event, **times})


class LogLineDocument(Document):
    """One line that an attempt logged or printed, and the file that has it."""

    group: str
    attempt: int
    file: str
    line: str


class JobAnswerDocument(AnswerDocument):
    """The answer of a command to one job."""

    id: str
    intent: Intent | None = None
    status: Status | None = None
    retry_of: Word = None

    @property
    def page(self) -> str:
        return self.id

    @classmethod
    def of_result(cls, result: CommandResult) -> JobAnswerDocument:
        return cls.of(result.job, answer=result.answer, text=result.text)


class SubmittedDocument(Document):
    """The answer to a submit. ``status``: of a job that was there; ``retried``: the job that is
    retried.
    """

    id: str
    name: str
    new: bool
    status: Status
    retried: Word
    warnings: tuple[str, ...]

    @classmethod
    def of_submitted(cls, submitted: Submitted, name: str) -> SubmittedDocument:
        return cls.of(submitted, name=name, status=submitted.found_as)
