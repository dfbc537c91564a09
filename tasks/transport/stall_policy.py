"""Hearing: does a worker still take what lies on its queues?

Pure: what was seen goes in, and for how long the worker has been deaf comes out.

A worker is deaf when it is connected, could take a message, has some on its queues, and receives none. Celery's Redis
transport has had this fault again and again after a reconnect. Every single excuse counts: a worker that is busy, that
is told to stop, or that cannot ask Redis is never called deaf. ``tasks.transport.stall_detector`` looks and acts.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOKS = 10  # in the time after which a worker counts as deaf: messages that pass by are not seen that often by chance


@dataclass(frozen=True, slots=True)
class Look:
    """What the main process of a worker sees at one moment.

    Attributes:
        at: monotonic seconds.
        received: messages that it has received so far.
        free: it would take another one: it has an idle runner and was not told to stop.
        waiting: something lies on a queue that it listens to; False also when Redis could not be asked.
    """

    at: float
    received: int
    free: bool
    waiting: bool


@dataclass(frozen=True, slots=True)
class Hearing:
    """What is known so far. ``since``: from when on it has received nothing although it should; None: all is well."""

    last: Look | None = None
    since: float | None = None

    def after(self, look: Look, *, within: float) -> Hearing:
        """What is known after another look.

        Args:
            within: seconds in which the next look should have come. After a longer gap this process itself did not run
                (it was frozen, or its host slept), and could not have received anything.
        """
        last = self.last
        if last is None or look.received != last.received or look.at - last.at > within:
            return Hearing(look)
        if not (look.free and look.waiting):
            return Hearing(look)
        return Hearing(look, look.at if self.since is None else self.since)

    @property
    def deaf_for(self) -> float:
        """Seconds for which it has been deaf as far as anybody can tell; 0 if it is not."""
        return 0.0 if self.since is None or self.last is None else self.last.at - self.since
