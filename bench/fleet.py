"""A fleet of Unstuck as the README starts it: workers, one coordinator and beat, each a Celery process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from bench.server import Server
from unstuck import Client, Settings, Status
from unstuck.tasks.protocol.keys import Keys

CELERY = (sys.executable, "-m", "celery")


class Fleet:
    """Two worker processes on the queue ``light``, a coordinator and beat, until ``close``.

    Args:
        slots: attempts at a time, all worker processes together.
        settings: ``UNSTUCK_…`` variables for every process, without the prefix.
    """

    def __init__(self, server: Server, folder: Path, *, slots: int = 2, coordinators: int = 1, **settings: Any) -> None:
        self.server = server
        self.folder = folder
        self.env = {
            **os.environ,
            "UNSTUCK_REDIS_URL": server.url(),
            "UNSTUCK_WAREHOUSE": str(folder / "warehouse"),
            "PYTHONPATH": str(Path(__file__).parent / "steps"),
            **{f"UNSTUCK_{name.upper()}": str(value) for name, value in settings.items()},
        }
        self._keys = Keys("unstuck")
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.client = Client(Settings(redis_url=server.url(), warehouse=str(folder / "warehouse"), **settings))
        try:
            self._start_all(slots, coordinators)
            self.finish(self.client.submit(wide(8 * slots)).id)  # wide enough to meet every runner
        except BaseException:
            self.close()
            raise

    def _start_all(self, slots: int, coordinators: int) -> None:
        quiet = ("-l", "WARNING")
        for i in range(coordinators):
            node = ("-P", "threads", "-n", f"coordinator{i}@bench")
            self.start(f"coordinator {i + 1}", "-A", "unstuck.coordinator", "worker", *node, *quiet)
        self.start("beat", "-A", "unstuck.coordinator", "beat", *quiet)
        node = ("-Q", "light", "-c", str(slots), "-n", "light@bench")
        self.start("worker", "-A", "unstuck.tasks", "worker", *node, *quiet)

    def start(self, name: str, *arguments: str) -> psutil.Process:
        """Start one Celery process in a session of its own, so that a Ctrl-C meets the benchmark alone."""
        log = (self.folder / f"{name.replace(' ', '-')}.log").open("ab")
        self._running[name] = subprocess.Popen(
            [*CELERY, *arguments], env=self.env, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
        )
        return psutil.Process(self._running[name].pid)

    @property
    def processes(self) -> dict[str, psutil.Process]:
        """Every process by name, the Redis server included."""
        running = {name: psutil.Process(process.pid) for name, process in self._running.items()}
        return {**running, "redis": self.server.process}

    def finish(self, job: str, timeout: float = 900.0) -> None:
        """Wait until the job is FINISHED, by its status alone: a view of 10,000 groups would disturb what is measured.

        Raises:
            RuntimeError: the job ended in another way, or not within ``timeout`` seconds.
        """
        key, end = self._keys.of(job).job, time.monotonic() + timeout
        while (status := self.server.client.hget(key, "status")) != b"FINISHED":
            if status is not None and Status(status.decode()).terminal:
                raise RuntimeError(f"job {job} is {status.decode()}, see the logs in {self.folder}")
            if time.monotonic() > end:
                raise RuntimeError(f"job {job} did not end within {timeout:.0f} s, see the logs in {self.folder}")
            time.sleep(0.002)

    def close(self) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.wait()


def wide(width: int, name: str = "wide") -> dict[str, Any]:
    """A fork of ``width`` groups that do nothing, and a join."""
    return {
        "name": name,
        "groups": [
            {
                "name": "fork",
                "queue": "light",
                "spark": False,
                "for_each": {"n": list(range(width))},
                "steps": [{"python": "noop_steps:member"}],
            },
            {"name": "join", "needs": ["fork"]},
        ],
    }


def chain(length: int) -> dict[str, Any]:
    """``length`` groups that do nothing, one after the other."""
    groups: list[dict[str, Any]] = []
    for i in range(length):
        step = {"python": "noop_steps:hop"}
        groups.append({"name": f"g{i}", "queue": "light", "spark": False, "steps": [step]})
        if i:
            groups[i]["needs"] = [f"g{i - 1}"]
    return {"name": "chain", "groups": groups}
