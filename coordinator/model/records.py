"""Records of a job, of its groups and of their live attempts, as stored.

Records are values: ``store`` reads them, ``decide`` judges them, and nothing changes them in place.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from pydantic import BeforeValidator, TypeAdapter
from pydantic_core import to_jsonable_python

from unstuck.coordinator.errors import Damaged, NewerJob
from unstuck.coordinator.model.notice import Alert
from unstuck.coordinator.model.status import GroupState, Intent, Phase, Status
from unstuck.coordinator.model.tick import tick_of_key
from unstuck.tasks.errors import Malformed
from unstuck.tasks.json_fields import DEFERRED, Time
from unstuck.tasks.protocol.replaced import Replaced
from unstuck.tasks.protocol.report import Done, Failure, Outcome, OutcomeKind
from unstuck.tasks.protocol.texts import FIELD, unpack
from unstuck.tasks.protocol.token import Offer

if TYPE_CHECKING:
    from unstuck.coordinator.spec.plan import Plan


def compact(value: Any) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job or group is in its current state.

    Attributes:
        code: for programs to compare.
        text: a sentence for people.
    """

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The record of one group, or of one member of a fork.

    A missing record is read as these defaults.

    Attributes:
        epoch: number of the newest attempt; 0 before the first.
        since: when this state was entered, in seconds by the clock of Redis. A queue timeout counts
            from here, so a resume, or a clock that was set back, restarts it.
        next_at: when the next attempt may start (BACKOFF).
        revision: revision of the spec when the newest attempt was claimed.
        failures: failures of the user's code since the last success or resume.
        losses: number of workers lost in a row.
        releases: number of attempts handed back by workers that were shutting down.
        staging: folder of the attempt whose outputs count (SUCCEEDED).
        done: the result of that attempt if it has no outputs and so no folder.
        rejected: output with rules → rule → number of rows that violate it.
        zone: time zone of the newest attempt; empty until one has ended.
        troubled_since: when it first failed or was lost without a later success; 0 if it is well.
    """

    __pydantic_config__ = DEFERRED

    state: GroupState = GroupState.WAITING
    epoch: int = 0
    nonce: str = ""
    since: float = 0.0
    next_at: float = 0.0
    revision: int = 0
    failures: int = 0
    losses: int = 0
    releases: int = 0
    worker: str = ""
    started_at: float = 0.0
    staging: str = ""
    done: Done | None = None
    adopted: bool = False
    rows: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, dict[str, int]] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    reason: Reason | None = None
    first_error: Failure | None = None
    last_error: Failure | None = None
    zone: str = ""
    troubled_since: float = 0.0

    @property
    def recovering(self) -> bool:
        """Whether the group failed or was lost, and has not succeeded since."""
        return bool(self.failures or self.losses) and not self.state.terminal

    @property
    def marked(self) -> str:
        """The folder with the marker of the attempt that counts; empty if there is none."""
        return self.staging if self.state is GroupState.SUCCEEDED and self.done is None else ""

    def offer(self, job: str, group: str) -> Offer:
        return Offer(job, group, self.epoch, self.nonce)

    def to_json(self) -> str:
        """Return compact JSON without the fields that have their default."""
        return compact(_GROUP.dump_python(self, mode="json", exclude_defaults=True))

    @classmethod
    def from_json(cls, text: str) -> GroupRecord:
        """Read a record without the fields of later releases."""
        return _GROUP.validate_python(json.loads(text))

    @classmethod
    def readable(cls, text: str) -> GroupRecord | None:
        """Return the record in ``text``; None if it is damaged."""
        try:
            return cls.from_json(text)
        except Exception:  # noqa: BLE001 - damage may be of any kind
            return None


# Not pydantic's own JSON, which refuses half of a surrogate pair: a user's error may hold one.
_GROUP: TypeAdapter[GroupRecord] = TypeAdapter(GroupRecord)


def _outcome(text: Any) -> Any:
    """Read an outcome. Unreadable text is one, too, since the group would wait for ever."""
    try:
        return text if text is None else Outcome.from_json(text)
    except Malformed as error:
        return Outcome(OutcomeKind.FAILED, failure=Failure("OUTCOME_UNREADABLE", str(error)))


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """The live attempt of a group.

    The scripts of workers write it, and coordinators only read it.
    """

    __pydantic_config__ = DEFERRED

    epoch: int
    nonce: str
    claimant: str = ""
    worker: str = ""
    claimed_at: float = 0.0
    lease: float = 0.0
    progress: str = ""
    revision: int = 0  # how often the job had been altered when it was claimed
    pool: str = ""  # the pool of which it takes a slot
    spark: bool = False  # it runs on Spark, and so keeps to the Spark of its job
    # The host on which the group failed or was lost last, if others listen: they are asked first,.
    avoid: str = ""
    avoid_until: float = 0.0  # until this time
    instruction: str = ""  # sent to the runner at its next renewal: CANCEL or DRAIN
    outcome: Annotated[Outcome | None, BeforeValidator(_outcome)] = None
    outcome_at: float = 0.0
    stored: str = field(default="", compare=False, repr=False)  # the text that it was read from

    @classmethod
    def from_json(cls, text: str) -> AttemptRecord:
        return _ATTEMPT.validate_python({**json.loads(text), "stored": text})

    @property
    def shown_progress(self) -> dict[str, Any]:
        """The valid fields of the runner's last progress: ``step``, ``steps``, ``label``, ….

        A number that is not finite is left out; an unknown ``total`` is None.
        """
        try:
            progress = json.loads(self.progress or "{}")
        except (ValueError, RecursionError):
            return {}
        if not isinstance(progress, dict):
            return {}
        shown = {name: value for name, value in progress.items() if _can_be_shown(name, value)}
        total = shown.pop("total", 0)
        if "done" in shown:
            shown["total"] = total if total > 0 else None
        return shown

    def to_json(self) -> str:
        """Return the fields of a new attempt: offered, not claimed."""
        more = {
            "pool": self.pool,
            "spark": self.spark,
            "avoid": self.avoid,
            "avoid_until": self.avoid_until,
        }
        return compact(
            {
                "epoch": self.epoch,
                "nonce": self.nonce,
                **{name: value for name, value in more.items() if value},
            }
        )


_ATTEMPT: TypeAdapter[AttemptRecord] = TypeAdapter(AttemptRecord)
_COUNTS = frozenset({"step", "steps", "rows", "done", "total"})


def _can_be_shown(name: str, value: Any) -> bool:
    if isinstance(value, str):
        return name not in _COUNTS
    # In this form also of a whole number that is too large for a float.
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= sys.float_info.max
    )


JOB_SCHEMA = 1  # raised when an older coordinator could no longer decide what this one stores


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """The request of a user for one group, which the next decision applies first.

    Attributes:
        do: ``skip`` the group, ``rerun`` it and later groups, or ``restart`` its attempt with new
            values.
        group: a planned group, or one member of a fork.
    """

    do: Literal["skip", "rerun", "restart"]
    group: str


@dataclass(frozen=True, slots=True)
class AlteredValue:
    """One altered value of the spec; None means that the value was missing.

    Attributes:
        path: path of the value in the spec.
        old: the value before.
        new: the value after.
    """

    path: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class Alteration:
    """One ``alter`` command; the n-th one makes revision n of the spec.

    Attributes:
        at: when it was given, in seconds since the epoch by the clock of the user.
        by: who gave it.
        reason: why.
        changes: the altered values.
    """

    at: Time
    by: str
    reason: str
    changes: tuple[AlteredValue, ...]


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The record of the job itself.

    Attributes:
        commit: uuid of the last commit; the compare-and-set of every commit.
        spec: the spec as JSON, with references in place of long texts; see `written`.
        texts: long texts of the spec, by digest (``tasks.protocol.texts``), including those that an
            ``alter`` removed.
        phase: phase of publishing; not empty from "all groups done" until the package is in the
            warehouse log.
        publish_tries: number of failed or hanging tries to publish; ``publish_next``: when
            publishing is checked next.
        publish_troubled_since: when the first of these tries failed; 0 without one.
        publish_heard: the last sign of life of the active try to publish.
        base: newest entry of the warehouse log at the submit, before its own package; None if
            unknown, so that the whole log is searched.
        intent_at: when the user last changed the intent; ``intent_by``: who; ``intent_why``: why.
        pause_now: whether the pause interrupts running groups, without a charge to their budgets.
        reset_budgets: whether the next decision restores the retries of every group, after a
            resume.
        requests: requests of users for single groups that no decision has applied yet.
        revision: number of ``alterations`` of ``spec`` since the submit, which are listed in order.
        reruns: group that runs again by request, or follows such a group → a random word, which
            makes earlier results not count.
        adopts: jobs that this one retries, whose results count if their fingerprints match.
        any_code: whether those results count even if other code made them.
        paused_at: since when the job is PAUSED or HALTED; 0 if it is not.
        counted_from: start of its timeout: the first claim, plus the time in PAUSED or HALTED.
        timed_out: the reason with which the job ends after its timeout; None before that.
        halted: why the job cannot continue by itself; it is HALTED until a user resumes or ends it.
        schedule: name of the schedule of which it is a run; the end of the job makes the schedule
            due.
        package_id: as in `tasks.warehouse.log_entry.Entry`; empty for the id of the job.
        take_over: whether it becomes the owner of the datasets that it publishes.
        backfill: id of the backfill that submitted it; empty if none did.
        version: number of the job's package in the warehouse log, once published; 0 if nothing was
        to publish.
        published_at: the time of that entry, by the clock of the publisher.
        alerts: problems of which targets were notified, by condition.
        published: number of published rows by dataset; ``replaced``: replaced partitions by
            dataset.
        left: number of arrived files and offsets of its streams beyond the limit of one job.
    """

    id: str
    name: str
    spec: str
    commit: str
    status: Status = Status.PENDING
    intent: Intent = Intent.RUN
    submitted_at: float = 0.0
    submitted_by: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    phase: Phase = Phase.NONE
    publish_tries: int = 0
    publish_troubled_since: float = 0.0
    publish_next: float = 0.0
    publish_heard: float = 0.0
    base: int | None = None
    version: int = 0
    published_at: float = 0.0
    published: dict[str, int] = field(default_factory=dict)
    replaced: dict[str, Replaced] = field(default_factory=dict)
    left: int = 0
    warehouse: str = ""
    warehouse_id: str = ""
    reason: Reason | None = None
    halted: Reason | None = None
    intent_at: float = 0.0
    intent_by: str = ""
    intent_why: str = ""
    pause_now: bool = False
    reset_budgets: bool = False
    requests: tuple[GroupRequest, ...] = ()
    revision: int = 0
    alterations: tuple[Alteration, ...] = ()
    reruns: dict[str, str] = field(default_factory=dict)
    adopts: tuple[str, ...] = ()
    any_code: bool = False
    paused_at: float = 0.0
    counted_from: float = 0.0
    timed_out: Reason | None = None
    key: str = ""
    chain_key: str = ""
    retry_of: str = ""
    schedule: str = ""
    backfill: str = ""
    package_id: str = ""
    take_over: bool = False
    alerts: dict[str, Alert] = field(default_factory=dict)
    priority: str = "normal"  # as in ``spec``, like ``mixed``: the scripts read them here
    mixed: bool = False
    schema: int = JOB_SCHEMA
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def terminal(self) -> bool:
        """Whether the job has ended, also if the record has lost its status."""
        return self.status.terminal or self.ended_at > 0

    @property
    def at_rest(self) -> bool:
        """Whether the job has ended, or cannot continue by itself."""
        return self.terminal or (self.status is Status.HALTED and self.halted is not None)

    @property
    def user_key(self) -> str:
        """The key that a user gave to this job, or to the first job in its chain of retries."""
        return self.chain_key or ("" if self.retry_of else self.key)

    @property
    def tick(self) -> float | None:
        """The tick of this run, or of the run that this job retries; None for other jobs."""
        return tick_of_key(self.user_key)

    def group_plans(self, plan: Plan) -> dict[str, str]:
        """Return the stored plans for the runners of this job, whose compiled spec is ``plan``."""
        arguments = (self.warehouse, self.warehouse_id, self.reruns, self.adopts)
        return plan.group_plans(
            *arguments,
            any_code=self.any_code,
            base=self.base or 0,
            mixed=self.mixed,
            schedule=self.schedule,
            judged_at=self.tick,
        )

    def written(self) -> dict[str, Any]:
        """Return the parsed spec. Raises: Damaged."""
        try:
            return dict(unpack(json.loads(self.spec), self.texts))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise Damaged(
                f"the stored spec of job {self.id} cannot be read ({type(error).__name__}: {error})"
            ) from error

    def changed_fields(self, old: JobRecord) -> dict[str, str]:
        """Return the hash fields to write so that ``old`` becomes this record."""
        names = [name for name in _READ if getattr(self, name) != getattr(old, name)]
        changed = {name: _field_text(getattr(self, name), _DEFAULTS.get(name)) for name in names}
        return changed | {
            f"{FIELD}{digest}": text
            for digest, text in self.texts.items()
            if digest not in old.texts
        }

    def summary(self) -> dict[str, Any]:
        """Return the fields that users see and that are not empty, for the list of jobs."""
        values = {name: value for name in _SEEN if (value := getattr(self, name))}
        plain = dict(to_jsonable_python(values))
        return plain | {"key": self.user_key, "reruns": list(self.reruns)}

    def to_fields(self) -> dict[str, str]:
        """Return all hash fields. An empty field has its default and need not be stored."""
        plain = {name: _field_text(getattr(self, name), _DEFAULTS.get(name)) for name in _READ}
        return (
            plain
            | {"schema": str(self.schema)}
            | {f"{FIELD}{digest}": text for digest, text in self.texts.items()}
        )

    @classmethod
    def from_fields(cls, data: Mapping[str, str]) -> JobRecord:
        """Read a record. Raises: NewerJob; ValueError, TypeError, KeyError, …: it is damaged."""
        _check_schema(data)
        values = {
            name: read(data[name])
            for name, read in _READ.items()
            if name in _NEEDED or data.get(name)
        }
        return cls(**values, texts=_texts_in(data))

    @classmethod
    def salvaged(cls, job: str, data: Mapping[str, str]) -> JobRecord:
        """Return the readable fields of the record of ``job``; the others have their defaults.

        Raises: NewerJob.
        """
        with suppress(ValueError):
            _check_schema(data)
        values: dict[str, Any] = {"name": "", "spec": "", "commit": ""}
        for name in _READ.keys() & {name for name, text in data.items() if text}:
            with suppress(Exception):
                values[name] = _READ[name](data[name])
        return cls(**{**values, "id": job}, texts=_texts_in(data))


def _check_schema(data: Mapping[str, str]) -> None:
    schema = int(data.get("schema") or JOB_SCHEMA)
    if schema > JOB_SCHEMA:
        raise NewerJob(f"its schema is {schema}, this release reads up to {JOB_SCHEMA}")


def _texts_in(fields: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(FIELD): text for name, text in fields.items() if name.startswith(FIELD)
    }


def _field_text(value: Any, default: Any) -> str:
    if value is None or value is False or value == default:
        return ""
    if isinstance(value, str | int | float):
        return str(value)
    return compact(to_jsonable_python(value)) if value else ""


def _reader(kind: Any) -> Callable[[str], Any]:
    """Return the reader for the text of a hash field.

    Numbers, flags and words are stored as text, everything else as JSON.
    """
    adapter = TypeAdapter(kind, config=DEFERRED)
    if kind in (str, int, float, bool, int | None, Status, Intent, Phase):
        return adapter.validate_python
    return lambda text: adapter.validate_python(json.loads(text))


# Fields that only coordinators and workers read.
_INTERNAL = frozenset(
    (
        "spec",
        "commit",
        "publish_tries",
        "publish_troubled_since",
        "publish_next",
        "publish_heard",
        "base",
        "warehouse_id",
        "pause_now",
        "reset_budgets",
        "requests",
        "adopts",
        "counted_from",
        "chain_key",
        "package_id",
        "take_over",
        "alerts",
        "mixed",
        "schema",
        "texts",
    )
)
_SEEN = tuple(item.name for item in fields(JobRecord) if item.name not in _INTERNAL)
_NEEDED = ("id", "name", "spec", "commit", "status", "intent")
_DEFAULTS = {item.name: item.default for item in fields(JobRecord) if item.name not in _NEEDED}
_READ = {
    name: _reader(kind)
    for name, kind in get_type_hints(JobRecord).items()
    if name not in ("schema", "texts")
}
