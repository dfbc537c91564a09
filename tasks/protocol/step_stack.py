"""Define where the step of a running attempt is, as its watchdog saw it; for people only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unstuck.tasks.json_fields import Time


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack.

    Attributes:
        file: path of the source file.
        line: number of the line.
        function: name of the function.
        own: whether it belongs to the user's code.
        source: the line itself; empty if it is unknown, or the file has changed since.
        skipped: number of frames of libraries that are left out before this one.
        skipped_in: names of these libraries.
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
    """A stage that Spark runs.

    Attributes:
        id: of the stage.
        name: the call that it belongs to, such as ``count at /srv/etl.py:12``.
        tasks: number of its tasks.
        done: number of finished tasks.
        running: number of running tasks.
        failed: number of failed tasks, with those that were tried again.
        longest: seconds for which the longest running task has run; 0 if unknown.
        host: on which that task runs.
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
        at: when it was read.
        since: since when each read has found the same lines of the user's code.
        frames: those of the user's code, and the innermost call; the innermost last.
        stages: running stages of Spark.
    """

    at: Time
    since: Time
    frames: tuple[Frame, ...]  # one at least
    stages: tuple[SparkStage, ...] = ()

    @property
    def stood(self) -> float:
        """Seconds for which it had not moved when it was seen."""
        return max(0.0, self.at - self.since)
