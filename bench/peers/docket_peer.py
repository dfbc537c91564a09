"""docket: two worker processes, tasks that do nothing but count themselves, since docket has no
group to wait for.

Run in an environment that has ``requirements-docket.txt``. It reads one JSON command a line and
answers with the seconds it took.
"""

# Tuned: each worker has room for many tasks at a time, as far as its connections reach (redis-py
# allows a client 100), and the sender adds them a hundred at once.

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from datetime import timedelta

from docket import CurrentDocket, Docket, Worker
from redis.asyncio import Redis

URL = os.environ["BENCH_REDIS_URL"]
COUNT = "bench:count"
ROOM = 50  # tasks at a time in a worker; each may need two connections
counter = Redis.from_url(URL)


async def noop() -> None:
    """One task of many."""
    await counter.incr(COUNT)


async def hop(left: int, docket: Docket = CurrentDocket()) -> None:  # noqa: B008 - as docket injects it
    """One hop of a chain: docket has no chain, so a task adds the next one."""
    if left > 1:
        await docket.add(hop)(left - 1)
    else:
        await counter.incr(COUNT)


async def work() -> None:
    async with Docket(name="bench", url=URL) as docket:
        docket.register(noop)
        docket.register(hop)
        check = timedelta(milliseconds=5)
        async with Worker(
            docket, concurrency=ROOM, minimum_check_interval=check, scheduling_resolution=check
        ) as worker:
            await worker.run_forever()


async def run(docket: Docket, what: str, n: int) -> None:
    await counter.set(COUNT, 0)
    if what == "group":
        for first in range(0, n, 100):
            await asyncio.gather(*(docket.add(noop)() for _ in range(first, min(n, first + 100))))
    elif what == "chain":
        await docket.add(hop)(n)
        n = 1
    else:
        raise ValueError(f"unknown command {what}")
    while int(await counter.get(COUNT)) < n:  # noqa: ASYNC110 - the count is in Redis
        await asyncio.sleep(0.002)


async def main() -> None:
    async with Docket(name="bench", url=URL) as docket:
        docket.register(noop)
        docket.register(hop)
        await run(docket, "group", 16)
        print(json.dumps({"ready": True}), flush=True)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            command = json.loads(line)
            started = time.perf_counter()
            await run(docket, command["what"], command["n"])
            print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        asyncio.run(work())
    else:
        workers = [
            subprocess.Popen(
                [sys.executable, __file__, "work"], stdout=sys.stderr, stdin=subprocess.DEVNULL
            )
            for _ in range(int(os.environ.get("BENCH_SLOTS", "2")))
        ]
        try:
            asyncio.run(main())
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait()
