"""What tests do at failpoints: in their own process with ``armed``, in other processes by a folder
of orders.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from tests.support.paths import PYTHONPATH, SUPPORT
from unstuck.tasks.failpoints import Act, Point, arm

# What a runner passes from the first staged byte to its report.
OF_A_RUNNER = [
    Point.AFTER_OUTPUT,
    Point.BEFORE_MARKER,
    Point.AFTER_MARKER,
    Point.BEFORE_FINISH,
    Point.AFTER_FINISH,
]
# What one coordinator passes by itself.
OF_A_COORDINATOR = [
    Point.AFTER_READ,
    Point.AFTER_LOCK,
    Point.BEFORE_COMMIT,
    Point.AFTER_COMMIT,
    Point.BEFORE_WAKE_UPS,
    Point.AFTER_WAKE_UPS,
    Point.BEFORE_PACKAGE,
    Point.BEFORE_ENTRY,
    Point.AFTER_ENTRY,
    Point.AFTER_PUBLISH,
]


class Died(BaseException):
    """A death, as seen from inside. Not an Exception, so that nobody goes on after it."""


@contextmanager
def armed(act: Act) -> Iterator[None]:
    """``act`` is called at every point that this process reaches within the block."""
    before = arm(act)
    try:
        yield
    finally:
        arm(before)


class Route:
    """Writes down which points were reached, in order."""

    def __init__(self, points: Collection[Point] = tuple(Point)) -> None:
        self.points = points
        self.reached: list[Point] = []

    def __call__(self, point: Point, job: str) -> None:
        if point in self.points:
            self.reached.append(point)


class Once:
    """Calls ``do`` when for the ``nth`` time (from 0) one of ``points`` is reached, and never
    again.
    """

    def __init__(self, do: Callable[[], object], points: Collection[Point], nth: int = 0) -> None:
        self._do, self._points, self._left = do, points, nth
        self._mutex = threading.Lock()
        self.at: Point | None = None  # where it was

    def __call__(self, point: Point, job: str) -> None:
        with self._mutex:
            if point not in self._points or self.at is not None:
                return
            self._left -= 1
            if self._left >= 0:
                return
            self.at = point
        self._do()


class Death(Once):
    """The process dies there. What its ``finally`` blocks still try ends at the next point."""

    def __init__(self, points: Collection[Point], nth: int = 0) -> None:
        super().__init__(self._die, points, nth)

    def __call__(self, point: Point, job: str) -> None:
        if self.at is not None and point in self._points:
            raise Died(point)
        super().__call__(point, job)

    def _die(self) -> None:
        raise Died(self.at)


class Hold(Once):
    """Whoever comes there stands still until ``release``."""

    def __init__(self, points: Collection[Point], nth: int = 0) -> None:
        super().__init__(self._stand, points, nth)
        self.reached = threading.Event()
        self._go = threading.Event()

    def release(self) -> None:
        self._go.set()

    def _stand(self) -> None:
        self.reached.set()
        self._go.wait()


class Effect(StrEnum):
    """What an armed process does to itself at a failpoint."""

    KILL = "kill"  # SIGKILL
    FREEZE = "freeze"  # SIGSTOP; after SIGCONT the process goes on from here
    RAISE = "raise"  # an error that nobody expects
    PASS = "pass"  # nothing; the order stands, so that a test learns of all who passed
    # The error of redis-py when a reply is lost: what was asked of the store was done all the same.
    LOSE = "lose"


class Armed(RuntimeError):
    """The error that ``raise`` raises."""


def arming(folder: Path) -> dict[str, str]:
    """The environment in which every Python process takes orders from ``folder``."""
    return {
        "UNSTUCK_ARM": str(folder),
        "PYTHONPATH": os.pathsep.join((str(SUPPORT / "arming"), PYTHONPATH)),
    }


def arm_this_process(folder: str) -> None:
    """Obey the orders in ``folder``.

    A file there is an order for one shot: its name is ``POINT@JOB`` or, for any job, ``POINT``; its
    text is the effect. The first process that reaches the point takes the order by renaming the
    file to ``NAME.reached-by-PID``.
    """
    arm(lambda point, job: _reached(Path(folder), point, job))


def order(folder: Path, point: Point, effect: Effect, job: str = "") -> Path:
    """Order one shot, and return its file."""
    file = folder / (f"{point}@{job}" if job else str(point))
    written = folder / f".{file.name}.tmp"  # an armed process may look at any moment
    written.write_text(effect)
    return written.rename(file)


def reached_by(order: Path) -> list[int]:
    """The ids of the processes that took this order, each time that it was given."""
    return [
        int(file.name.rpartition("-")[2])
        for file in order.parent.glob(f"{order.name}.reached-by-*")
    ]


def reached_at(order: Path) -> float:
    """When this order was taken first, in seconds since the epoch."""
    return min(file.stat().st_ctime for file in order.parent.glob(f"{order.name}.reached-by-*"))


def _reached(folder: Path, point: Point, job: str) -> None:
    for file in (folder / f"{point}@{job}", folder / point):
        try:
            effect, reached = (
                Effect(file.read_text()),
                folder / f"{file.name}.reached-by-{os.getpid()}",
            )
            if effect is Effect.PASS:
                reached.touch()
            else:
                file.rename(reached)
        except FileNotFoundError:
            continue  # there is no such order, or another process was here first
        print(f"ARMED: at {point}, job {job}: {effect}", file=sys.stderr, flush=True)
        _do(effect, point)
        return


def _do(effect: Effect, point: Point) -> None:
    match effect:
        case Effect.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Effect.FREEZE:
            # To this thread: the kernel may deliver a signal of the process to another thread
            # first, and this one would go on past the point for a moment.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case Effect.RAISE:
            raise Armed(f"this process was armed to fail at {point}")
        case Effect.LOSE:
            import redis  # a process that never loses a reply need not have it

            raise redis.ConnectionError(f"this process was armed to lose a reply at {point}")
