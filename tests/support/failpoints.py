"""Failpoints of the process of a test. Other processes are armed by a folder of orders (``tasks.failpoints``)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from unstuck.tasks.failpoints import Act, Point, arm

# What one coordinator passes by itself; the rest is passed by workers and users.
OF_A_COORDINATOR = [
    Point.AFTER_READ,
    Point.AFTER_LOCK,
    Point.BEFORE_COMMIT,
    Point.AFTER_COMMIT,
    Point.BEFORE_HINT,
    Point.AFTER_HINT,
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
    """Calls ``do`` when for the ``nth`` time (from 0) one of ``points`` is reached, and never again."""

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
        assert self._go.wait(60), "nobody released it"
