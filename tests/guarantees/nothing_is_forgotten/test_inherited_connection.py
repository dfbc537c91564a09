"""A worker loses a connection that its runners have inherited: it notices, makes another, and goes
on listening.

A runner that was forked while the connection stood keeps a copy of it, so the kernel goes on
reporting events of a connection that its worker has closed, under a number that by then is another
one's.
"""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest
import redis

from tests.support import fleet
from tests.support.machine import waited
from tests.support.network.proxy import Proxy
from tests.support.servers import RedisServer, wait_until
from unstuck.tasks.protocol.report import OutcomeKind

pytestmark = pytest.mark.variant

GROUP = {"name": "g", "spark": False, "steps": [{"python": "fleet_steps:my_pid"}]}
WATCHED = 3.0  # seconds


def test_a_worker_survives_a_dead_pub_sub_connection_inherited_by_a_runner(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    proxy = Proxy(redis_server.port)
    with fleet.worker(proxy.url, tmp_path) as worker:
        # Given: a runner that was forked by a worker which listens.
        (first,) = worker.runners
        first.kill()
        wait_until(lambda: [one for one in worker.runners if one != first], 30, "another runner")
        offer = fleet.make_offer(client, tmp_path / "w", "before", GROUP)
        assert fleet.outcome(client, offer, 60).kind is OutcomeKind.SUCCEEDED
        # When: the connection for `celery inspect` and `control` is dead without a word, and the
        # worker drops it.
        before = _control_connections(client)
        assert proxy.mute(b"PSUBSCRIBE") == 1
        wait_until(
            lambda: (now := _control_connections(client)) and not now & before,
            60,
            "another such connection",
        )
        # Then: it takes what comes, and has not begun to spin.
        offer = fleet.make_offer(client, tmp_path / "w", "after", GROUP)
        assert fleet.outcome(client, offer, 60).kind is OutcomeKind.SUCCEEDED, worker.story()
        main = psutil.Process(worker.process.pid)
        began, used, kept_waiting = time.monotonic(), _cpu(main), waited(str(main.pid))
        wait_until(lambda: time.monotonic() - began >= WATCHED, 30)
        used, kept_waiting = _cpu(main) - used, waited(str(main.pid)) - kept_waiting
        # One that spins uses all the time that a busy machine gives it, which may be little.
        assert used < (time.monotonic() - began - kept_waiting) / 2, worker.story()
    proxy.close()


def _control_connections(client: redis.Redis) -> set[str]:
    return {one["id"] for one in client.client_list(_type="pubsub") if one["psub"] != "0"}


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
