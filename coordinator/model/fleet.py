"""The public types of the fleet: its processes, the queues between them, and the pools."""

from __future__ import annotations

from dataclasses import dataclass

from unstuck.tasks.json_fields import OptionalTime, Time
from unstuck.tasks.protocol.process_info import CoordinatorInfo, RunnerInfo


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One queue.

    Attributes:
        name: name of the queue.
        length: number of messages that wait in the broker.
        listeners: number of runners that listen; for ``control``, of coordinators.
        oldest_since: since when the oldest message has waited; None if nothing waits, or no live
            coordinator checked.
    """

    name: str
    length: int
    listeners: int
    oldest_since: OptionalTime = None


@dataclass(frozen=True, slots=True)
class StalledProcess:
    """A worker or coordinator that received no more messages, and ended itself.

    Attributes:
        worker: its host and process, as ``host:pid``.
        at: when it ended itself.
    """

    worker: str
    at: Time


@dataclass(frozen=True, slots=True)
class FleetInfo:
    """The processes of an installation; silent ones come last.

    Attributes:
        at: when this was read.
        swept_at: the last heartbeat of any sweep.
        runners: processes that run attempts.
        coordinators: processes that decide.
        queues: by name.
        stalled: workers and coordinators that stalled within the last day, the last one first.
    """

    at: Time
    swept_at: OptionalTime
    runners: tuple[RunnerInfo, ...]
    coordinators: tuple[CoordinatorInfo, ...]
    queues: tuple[QueueInfo, ...]
    stalled: tuple[StalledProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """One pool.

    Attributes:
        name: name of the pool.
        slots: maximum number of attempts that hold a slot.
        used: number of attempts that hold a slot; may exceed ``slots`` after the pool was made
            smaller.
        waiting: number of offers that are ready, or wait for a slot.
        holders: the first attempts that hold a slot, as ``job/group``.
    """

    name: str
    slots: int
    used: int
    waiting: int
    holders: tuple[str, ...]
