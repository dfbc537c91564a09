"""``python -m bench.sweeps N``: sweeps N times, once a second, and prints what each sweep cost as
JSON.

Nothing else may ask the server meanwhile, or its commands are counted, too. Settings come from
``UNSTUCK_*``.
"""

from __future__ import annotations

import json
import sys
import time

import redis

from bench.server import calls_of
from unstuck import Settings
from unstuck.coordinator.celery import sweep


def main(count: int) -> None:
    redis_client = redis.Redis.from_url(Settings().redis_url)
    sweep()  # connects, and makes good what an outage left behind
    found = []
    for _ in range(count):
        time.sleep(1.0)  # as beat would
        before, cpu, began = (
            sum(calls_of(redis_client).values()),
            time.process_time(),
            time.perf_counter(),
        )
        decided = sweep()
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        commands = sum(calls_of(redis_client).values()) - before - 1  # the question itself
        found.append({"seconds": seconds, "cpu": cpu, "decided": decided, "commands": commands})
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
