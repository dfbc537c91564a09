"""The health of the coordinators or workers of one host, by their recent work, for probes.

A process that died is not judged, because its supervisor knows. A running process must have sent a
heartbeat.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, cast

import psutil
import redis

from unstuck.tasks.duration import format_duration
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.process_info import ProcessInfo, RunnerInfo
from unstuck.tasks.protocol.processes import ProcessRegistry
from unstuck.tasks.settings import Settings

Role = Literal["coordinator", "worker"]
SLACK = 2.0  # seconds by which the age of a process and that of its last word may be wrong


@dataclass(frozen=True, slots=True)
class Health:
    """The health of the processes of one host.

    ``ailing``: a sentence for each unhealthy one; ``well``: how many are healthy.
    """

    well: int
    ailing: tuple[str, ...]


def health_of(
    client: redis.Redis, settings: Settings, role: Role, host: str, max_age: float
) -> Health:
    """Return the health of the processes of ``role`` on ``host``, which is this one.

    Args:
        client: must decode responses.
        max_age: seconds within which each must have been heard of; at least as long as it is silent
            by itself.

    Raises: redis.RedisError.
    """
    keys = Keys(settings.prefix)
    statuses = [status for status in ProcessRegistry(client, keys).read() if status.host == host]
    mine = [status for status in statuses if isinstance(status, RunnerInfo) == (role == "worker")]
    (seconds, micros), alive = (
        client.time(),
        cast(list[str | None], client.hmget(keys.alive, ["at", "period"])),
    )
    now = seconds + micros / 1e6
    if role == "worker":
        return judged(mine, now, max(max_age, settings.runner_silence), process_age)
    health = judged(mine, now, max_age, process_age)
    swept, period = (float(text) if text else 0.0 for text in alive)
    if health.well and now - swept > max(max_age, 3 * period + 1):
        # Each coordinator sweeps by itself where nobody else does.
        silent = (
            f"no sweep has moved for {format_duration(now - swept)}, and this coordinator "
            "makes none"
        )
        return Health(0, (*health.ailing, silent))
    return health


def judged(
    statuses: Iterable[ProcessInfo],
    now: float,
    max_age: float,
    process_age: Callable[[int], float | None],
) -> Health:
    """Return the health of those processes of ``statuses`` that still exist (pure).

    Args:
        now: by the clock of Redis, as the times of the processes.
        process_age: of a pid, the seconds since that process began; None: there is no such process.
    """
    newest: dict[int, ProcessInfo] = {}
    for status in statuses:
        if status.pid not in newest or status.heard_at > newest[status.pid].heard_at:
            newest[status.pid] = status
    well, ailing = 0, []
    for pid, status in sorted(newest.items()):
        silent, age = max(0.0, now - status.heard_at), process_age(pid)
        if age is None or age + SLACK < silent:
            continue  # it is dead, or its number is another process's by now
        if silent <= max_age:
            well += 1
        else:
            what = (
                f"runner {pid} of worker {status.worker_pid}"
                if isinstance(status, RunnerInfo)
                else f"coordinator {pid}"
            )
            ailing.append(f"{what} has done nothing for {format_duration(silent)}")
    return Health(well, tuple(ailing))


def process_age(pid: int) -> float | None:
    """Return the seconds since the process ``pid`` began; None if it is gone or a zombie."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return max(0.0, time.time() - process.create_time())
    except psutil.Error:
        return None
