"""A worker whose connection to Redis is dead without a word finds that out by itself, and soon."""

from __future__ import annotations

from pathlib import Path

import redis
from fleet import attempt, offer, send_hint, worker
from servers import RedisServer, wait_until

from .proxy import Proxy


def test_a_worker_on_a_half_open_connection_is_deaf_for_seconds_and_then_works(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    group = {"name": "g", "spark": False, "steps": [{"python": "fleet_steps:my_pid"}]}
    with Proxy(redis_server.port) as proxy:
        link = proxy.link("worker")
        with worker(f"redis://127.0.0.1:{link.port}/0", tmp_path) as fleet:
            offer(client, tmp_path / "w", "before", group)
            wait_until(lambda: "received" in fleet.text(), 30, "the worker to listen")
            # Given that the other end of all its connections went away, and it was not told
            assert proxy.do(link.half_open) > 2
            # When there is something to do, and its hint is sent again as a coordinator does
            hint = offer(client, tmp_path / "w", "after", group)

            def done() -> bool:
                send_hint(client, hint, "light")
                return "outcome" in attempt(client, hint)

            # Then it does it: what it waits for are timeouts, which do not grow with the load of the machine.
            # (With Celery's usual 30 s it took more than 90 s; with ours 15.)
            wait_until(done, 45, "the group to be done", every=1.0)
