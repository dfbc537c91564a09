"""One tick of a schedule: its outcome, and its text in keys and in the index of ticks. Pure."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

BY_HAND = "by-hand"  # ends the key of a run that has no tick


class TickOutcome(StrEnum):
    """The outcome of one tick: that of its current run, or a decision of a user."""

    DONE = "done"
    FAILED = "failed"
    RUNNING = "running"
    MISSING = "missing"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick of a schedule.

    Attributes:
        at: the tick, in seconds since the epoch.
        outcome: outcome of the current run; MISSING without a run.
        number: number of the current run, starting at 1; 0 without a run.
        job: id of the job of the current run.
        version: version of the warehouse that the current run published; 0 if none.
        redo: `Run.redo` of the current run.
    """

    at: float
    outcome: TickOutcome = TickOutcome.MISSING
    number: int = 0
    job: str = ""
    version: int = 0
    redo: str = ""

    def to_text(self) -> str:
        """Return the tick as a member of the index."""
        return (
            f"{tick_text(self.at)} {self.outcome} {self.number} {self.version} {self.job} "
            f"{self.redo}"
        )

    @classmethod
    def from_text(cls, text: str) -> Tick:
        at, outcome, number, version, job, redo = text.split(" ")
        seconds = datetime.datetime.fromisoformat(at).timestamp()
        return cls(seconds, TickOutcome(outcome), int(number), job, int(version), redo)


_OUTCOMES = {
    "RUN_SUBMITTED": TickOutcome.RUNNING,
    "RUN_STANDS": TickOutcome.RUNNING,
    "USER_SKIP": TickOutcome.SKIPPED,
}


def ticks_changed(events: Iterable[Mapping[str, Any]]) -> tuple[Tick, ...]:
    """Return the ticks whose outcome or current run the events of a commit change."""
    changed: dict[str, Tick] = {}
    for event in events:
        kind = str(event["kind"]).removeprefix("BACKFILL_")
        ended = TickOutcome.DONE if kind == "RUN_FINISHED" else TickOutcome.FAILED
        outcome = _OUTCOMES.get(kind, ended if kind.startswith("RUN_") else None)
        if outcome is None or "tick" not in event:
            continue
        at = datetime.datetime.fromisoformat(event["tick"]).timestamp()
        version = int(event.get("version", 0)) if outcome is TickOutcome.DONE else 0
        job, redo = event.get("job", ""), event.get("redo", "")
        changed[event["tick"]] = Tick(at, outcome, event.get("number", 0), job, version, redo)
    return tuple(changed.values())


_KEY_OF_TICK = re.compile(r".+@(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)(/.*)?", re.DOTALL)


def belongs_to_tick(key: str) -> bool:
    """Return whether ``key`` has the form of the key of a run."""
    return _KEY_OF_TICK.fullmatch(key) is not None


def is_by_hand(key: str) -> bool:
    """Return whether ``key`` belongs to a run that a user started, without a tick."""
    return key.endswith(f"/{BY_HAND}")


def tick_of_key(key: str) -> float | None:
    """Return the tick of the run with this key; None without one."""
    match = _KEY_OF_TICK.fullmatch(key)
    return (
        None
        if match is None or is_by_hand(key)
        else datetime.datetime.fromisoformat(match[1]).timestamp()
    )


def tick_text(tick: float) -> str:
    """Return the text of a tick in keys: ISO 8601 in UTC, with Z."""
    at = utc(tick)
    return at.isoformat(timespec="milliseconds" if at.microsecond else "seconds").replace(
        "+00:00", "Z"
    )


def utc(at: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at, datetime.UTC)
