"""The fleet as people see it: its processes, the queues between them, and the pools."""

from __future__ import annotations

from dataclasses import dataclass

from unstuck.tasks.json_fields import OptionalTime, Time
from unstuck.tasks.protocol.process_status import CoordinatorStatus, RunnerStatus


@dataclass(frozen=True, slots=True)
class QueueView:
    """One queue: its waiting messages in the broker, and its listening runners.

    The listeners of ``control`` are coordinators.

    Attributes:
        oldest_since: since when its oldest message has lain there, as far as a coordinator that is
            heard of has seen; None if nothing waits there, or nobody looked.
    """

    name: str
    length: int
    listeners: int
    oldest_since: OptionalTime = None


@dataclass(frozen=True, slots=True)
class StalledView:
    """A worker or coordinator (``host:pid``) that received nothing at ``at``, and ended itself."""

    worker: str
    at: Time


@dataclass(frozen=True, slots=True)
class FleetView:
    """The fleet at the time ``at``; silent processes come last.

    Attributes:
        swept_at: the last tick of any sweep.
        stalled: workers and coordinators that stalled within the last day, the last one first.
    """

    at: Time
    swept_at: OptionalTime
    runners: tuple[RunnerStatus, ...]
    coordinators: tuple[CoordinatorStatus, ...]
    queues: tuple[QueueView, ...]
    stalled: tuple[StalledView, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool.

    Attributes:
        slots: how many attempts may hold a slot at once.
        used: how many do; more than ``slots`` after it was made smaller.
        waiting: offers that stand ready, or wait for a slot.
        holders: attempts that hold a slot, as ``job/group``; the first of them.
    """

    name: str
    slots: int
    used: int
    waiting: int
    holders: tuple[str, ...]
