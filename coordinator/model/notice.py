"""The notice of a change, as it is in the outbox and as it is sent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter

from unstuck.tasks.json_fields import DEFERRED, Time

# Seconds between two notices of a problem that comes back.
TOLD_AGAIN_AFTER = 1800.0


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice. Times are Unix seconds.

    Attributes:
        id: equal for repeats of the notice, so that receivers can drop these.
        to: names of the targets.
        event: ``failed``, ``halted``, ``retrying_for``, ``running_for``, ``late``, ``behind``,
            ``waiting_for_worker``, ``finished`` or ``recovered``.
        kind: ``job`` or ``schedule``.
        name: of the schedule, or of the job in its spec.
        job: id of the job, or of the last run of the schedule; empty if there is none.
        problem: equal for the notice of a problem and the notice of its end.
        at: when the change was committed.
        since: since when the problem lasts.
        status: the committed status.
        text: the sentence of ``why``.
        first_error: the first error since the last success; empty if there is none.
        next: what the system does next, and when.
        commands: commands that help.
        ends: the targets that are notified of the end of the problem.
    """

    __pydantic_config__ = DEFERRED

    id: str
    to: tuple[str, ...]
    event: str
    kind: str
    name: str
    job: str
    problem: str
    at: Time
    since: Time
    status: str
    text: str
    first_error: str = ""
    next: str = ""
    commands: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the notice as JSON, with ``?`` for half of a surrogate pair.

        The error of a step may have one; the scripts of Redis and many receivers refuse such JSON.
        """
        text = json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)
        return text.encode(errors="replace").decode()

    @classmethod
    def from_json(cls, text: str) -> Notice:
        """Fields that a later release added are dropped. Raises: ValueError."""
        return _NOTICE.validate_python(json.loads(text))


@dataclass(frozen=True, slots=True)
class Alert:
    """A problem that was told, on the record of its subject. Times are Unix seconds.

    Attributes:
        since: since when it stood; ``at``: when it was told.
        to: the targets that were told.
        over: when it ended; 0 while it stands.
        ends: of the targets, those that asked to be told of ends then.
    """

    since: float
    at: float
    to: tuple[str, ...]
    over: float = 0.0
    ends: tuple[str, ...] = ()

    def told_of_end(self, ask_now: Collection[str]) -> tuple[str, ...]:
        """Return the targets to notify of its end.

        These requested ends when they were notified, or request them now.
        """
        return tuple(target for target in self.to if target in self.ends or target in ask_now)


_NOTICE: TypeAdapter[Notice] = TypeAdapter(Notice)


def notice_id(*parts: str | float) -> str:
    """Return the id of a notice, which follows from its problem, the begin of it, and its phase."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
