"""Plain Celery: two prefork processes, a Redis broker and a Redis result backend, tasks that do
nothing.

Run in an environment that has ``requirements-celery.txt`` and nothing of ours. It reads one JSON
command a line and answers with the seconds that the command took.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from celery import Celery, chain, chord, group

URL = os.environ["BENCH_REDIS_URL"]
app = Celery("celery_peer", broker=URL, backend=URL)
app.conf.update(task_ignore_result=False, worker_send_task_events=False)


@app.task
def noop(_=None) -> None:
    """One member of a group, and one hop of a chain."""


@app.task
def join(_) -> None:
    """What a chord calls when all members are done."""


def run(command: dict) -> None:
    n = command["n"]
    if command["what"] == "group":
        group(noop.si() for _ in range(n)).apply_async().get(interval=0.005)
    elif command["what"] == "chord":
        # Else the sender looks at all members again after each message: it took minutes for 10,000.
        chord((noop.si() for _ in range(n)), join.s()).apply_async().get(
            interval=0.005, propagate=False
        )
    elif command["what"] == "chain":
        chain(*(noop.si() for _ in range(n))).apply_async().get(interval=0.001)
    else:
        raise ValueError(f"unknown command {command}")


def main() -> None:
    slots = os.environ.get("BENCH_SLOTS", "2")
    worker = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "celery_peer",
            "worker",
            "-c",
            slots,
            "-l",
            "WARNING",
        ],
        stdout=sys.stderr,
        stdin=subprocess.DEVNULL,
    )
    try:
        group(noop.si() for _ in range(16)).apply_async().get()
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            started = time.perf_counter()
            run(json.loads(line))
            print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)
    finally:
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    main()
