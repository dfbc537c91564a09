"""Define where the step of a running attempt is, as its watchdog saw it; for people only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unstuck.tasks.json_fields import Time


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack.

    Attributes:
        own: it is of the user's code.
        source: the line itself; empty if it is not known, or the file has changed since.
        skipped: so many frames of libraries before this one are left out; ``skipped_in``: which
            libraries.
    """

    file: str
    line: int
    function: str
    own: bool = False
    source: str = ""
    skipped: int = 0
    skipped_in: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def own_frame(frames: Sequence[Frame]) -> Frame:
    """The innermost frame of the user's code; the innermost of all if there is none."""
    return next((frame for frame in reversed(frames) if frame.own), frames[-1])


@dataclass(frozen=True, slots=True)
class SparkStage:
    """One stage that Spark runs, with its tasks.

    Attributes:
        name: the call that it belongs to, such as ``count at /srv/etl.py:12``.
        tasks: of which so many are ``done``, ``running`` and, tried again or not, ``failed``.
        longest: seconds for which the longest of those that run has run, on ``host``; 0 if that is
            not known.
    """

    id: int
    name: str
    tasks: int
    done: int
    running: int
    failed: int
    longest: float = 0.0
    host: str = ""


@dataclass(frozen=True, slots=True)
class StepStack:
    """The stack of the thread that runs the step. Times are seconds by the clock of Redis.

    Attributes:
        at: when it was seen; ``since``: since when each look has found it at the same lines of the
            user's code.
        frames: those of the user's code, and where the innermost call stands; the innermost last.
    """

    at: Time
    since: Time
    frames: tuple[Frame, ...]  # one at least
    stages: tuple[SparkStage, ...] = ()

    @property
    def stood(self) -> float:
        """Seconds for which it had not moved when it was seen."""
        return max(0.0, self.at - self.since)
