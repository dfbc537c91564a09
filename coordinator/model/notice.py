"""The notice of a change, as it is stored in the outbox and sent."""

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
        id: the same for repeats of the notice, so that receivers can drop them.
        to: names of the targets.
        event: ``failed``, ``halted``, ``retrying_for``, ``running_for``, ``late``, ``behind``,
            ``waiting_for_worker``, ``finished`` or ``recovered``.
        kind: ``job`` or ``schedule``.
        name: name of the schedule or job.
        job: id of the job, or of the last run of the schedule; empty if there is none.
        problem: id of the problem, the same in the notices of its start and its end.
        at: when the change was committed.
        since: when the problem started.
        status: the status after the change.
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
        """Return the notice as JSON, with ``?`` in place of a lone surrogate.

        The error of a step may contain one; the scripts of Redis and many receivers refuse such
        JSON.
        """
        text = json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)
        return text.encode(errors="replace").decode()

    @classmethod
    def from_json(cls, text: str) -> Notice:
        """Read a notice without the fields of later releases. Raises: ValueError."""
        return _NOTICE.validate_python(json.loads(text))


@dataclass(frozen=True, slots=True)
class Alert:
    """A problem of which targets were notified, on the record of its subject.

    Times are Unix seconds.

    Attributes:
        since: when the problem started; ``at``: when targets were notified.
        to: targets that were notified.
        over: when the problem ended; 0 while it is open.
        ends: targets that subscribed to the end when they were notified.
    """

    since: float
    at: float
    to: tuple[str, ...]
    over: float = 0.0
    ends: tuple[str, ...] = ()

    def targets_of_end(self, ask_now: Collection[str]) -> tuple[str, ...]:
        """Return the targets to notify of the end: those that subscribed to it then or now."""
        return tuple(target for target in self.to if target in self.ends or target in ask_now)


_NOTICE: TypeAdapter[Notice] = TypeAdapter(Notice)


def notice_id(*parts: str | float) -> str:
    """Return the id of a notice, derived from the problem, its start, and its phase."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
