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
    """Why a job or a group is where it is: a code to compare and a sentence to read.

    Attributes:
        code: for programs to compare.
        text: a sentence for people.
    """

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The record of one group, or of one member of a fork. An absent record reads as this default.

    Attributes:
        epoch: number of the newest attempt; 0 before the first.
        since: when this state was entered, seconds by Redis time; what may time out in a queue
            counts from here, so a resume and a clock that was set back start it again.
        next_at: when the next attempt may start (BACKOFF).
        revision: how often the job had been altered when its newest attempt was claimed.
        failures: failures of the user's code since the last success or resume.
        losses: workers lost in a row.
        releases: attempts handed back by workers that were told to stop.
        staging: folder of the attempt whose output counts (SUCCEEDED).
        done: as of an outcome: what that attempt did, if it made nothing and so has no folder.
        rejected: as of an outcome: of each output with rules: by rule, how many rows did not meet
            it.
        zone: the time zone that its newest attempt ran with; empty until one has ended.
        troubled_since: since when it fails or is lost without a success; 0 while it does not.
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
        """Failed or was lost, and has not succeeded since."""
        return bool(self.failures or self.losses) and not self.state.terminal

    @property
    def marked(self) -> str:
        """The folder of the marker that counts; empty if there is none."""
        return self.staging if self.state is GroupState.SUCCEEDED and self.done is None else ""

    def offer(self, job: str, group: str) -> Offer:
        return Offer(job, group, self.epoch, self.nonce)

    def to_json(self) -> str:
        """Compact JSON without what is at its default: one of these is kept per group."""
        return compact(_GROUP.dump_python(self, mode="json", exclude_defaults=True))

    @classmethod
    def from_json(cls, text: str) -> GroupRecord:
        """Fields that a later release added are dropped."""
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
    """The live attempt of a group, as the worker's scripts keep it. Coordinators only read it."""

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
        """The known part of the runner's last progress: ``step``, ``steps``, ``label``, ….

        A value that is not a finite number where it should be is left out; an unknown ``total`` is
        None.
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
    """The request of a user for one group. The next decision does it before anything else.

    Attributes:
        do: ``skip`` it; ``rerun`` it and what comes after it; ``restart`` its attempt, so that it
            uses new values.
        group: a planned group, or one member of a fork.
    """

    do: Literal["skip", "rerun", "restart"]
    group: str


@dataclass(frozen=True, slots=True)
class AlteredValue:
    """One value of the spec that was altered; None stands for a missing value.

    Attributes:
        path: of the value in the spec.
        old: the value before.
        new: the value after.
    """

    path: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class Alteration:
    """One ``alter``; the n-th makes revision n of the spec.

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
        spec: as JSON, with references in place of long texts; see `written`.
        texts: the long texts of the spec, by digest (``tasks.protocol.texts``). One that an
            ``alter`` took out stays.
        phase: of its publishing: not empty between "all groups done" and the package in the
            warehouse log.
        publish_tries: how often publishing brought trouble, or no answer; ``publish_next`` when it
            is looked at next.
        publish_troubled_since: when it did so first; 0 before.
        publish_heard: the last sign of life of the try of publishing that is under way.
        base: head of the warehouse log at submit, below its own package; None if unknown: the whole
            log is searched.
        intent_at: when the user last said what they want, ``intent_by`` who it was, ``intent_why``
            why.
        pause_now: the pause is to interrupt what runs, charging it to nobody.
        reset_budgets: the user resumed, and every group's retry budget is to be given back in full.
        requests: what the user asked of single groups, and no decision has done yet.
        revision: how often ``spec`` was altered since the submit, and ``alterations`` what each
            time, in order.
        reruns: groups that were asked to run again, or come after one that was → a word of their
            own for the last time, so that no marker of before counts.
        adopts: jobs whose markers stand for this one's, if their fingerprints fit: those that it
            retries.
        any_code: those markers count whatever code has made them.
        paused_at: since when the job stands PAUSED or HALTED; 0 while it does not.
        counted_from: from when its timeout counts: the first claimed attempt, moved on by whatever
            it stood so.
        timed_out: its time is over, and it ends; the reason that it ends with.
        halted: why the job cannot go on by itself, if so; it is HALTED until a person resumes or
            ends it.
        schedule: of which it is a run; its end makes the schedule due.
        package_id: as in `tasks.warehouse.log_entry.Entry`; empty: the job itself.
        take_over: it becomes the owner of the datasets that it publishes, whichever job owns them.
        backfill: when the backfill was given that submitted it; empty if none did.
        version: number of the job's package in the warehouse log, once published; 0 if nothing was
        to publish.
        published_at: the time of that entry, by the clock of the publisher.
        alerts: by condition, the problems that were notified.
        published: the rows of each dataset in it; ``replaced``: the partitions of each that it
        replaced.
        left: files and offsets that have arrived for its streams, beyond the bound of one job.
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
        """Also of a record that has lost its status."""
        return self.status.terminal or self.ended_at > 0

    @property
    def at_rest(self) -> bool:
        """It has ended, or cannot go on by itself."""
        return self.terminal or (self.status is Status.HALTED and self.halted is not None)

    @property
    def user_key(self) -> str:
        """The key that a user gave to this job, or to the first of those that it retries."""
        return self.chain_key or ("" if self.retry_of else self.key)

    @property
    def tick(self) -> float | None:
        """The tick of which it is a run, or retries one; None: of none."""
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
        """Hash fields to write so that ``old`` becomes this record."""
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
        """All hash fields. One that is empty need not be stored: it has its default."""
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
