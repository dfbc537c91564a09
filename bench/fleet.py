"""A fleet of Unstuck as the README starts it: workers, one coordinator and beat, each a Celery
process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from bench.server import Server
from unstuck import Client, Settings, Status
from unstuck.tasks.protocol.keys import Keys

CELERY = (sys.executable, "-m", "celery")
ROOT = Path(__file__).parents[1]


class Fleet:
    """Workers on the queue ``light``, coordinators and beat, until ``close``.

    Args:
        workers: Celery workers, ``worker 1`` and so on; coordinators are named in the same way.
        slots: attempts at a time in each worker.
        settings: ``UNSTUCK_…`` variables for every process, without the prefix.
    """

    def __init__(
        self,
        server: Server,
        folder: Path,
        *,
        workers: int = 1,
        slots: int = 2,
        coordinators: int = 1,
        **settings: Any,
    ) -> None:
        self.server = server
        self.folder = folder
        self.env = {
            **os.environ,
            "UNSTUCK_REDIS_URL": server.url(),
            "UNSTUCK_WAREHOUSE": str(folder / "warehouse"),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "bench" / "steps"), str(ROOT)]),
            **{f"UNSTUCK_{name.upper()}": str(value) for name, value in settings.items()},
        }
        self.keys = Keys("unstuck")
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.client = Client(
            Settings(redis_url=server.url(), warehouse=str(folder / "warehouse"), **settings)
        )
        try:
            for i in range(1, coordinators + 1):
                self.start(f"coordinator {i}")
            self.start("beat")
            for i in range(1, workers + 1):
                self.start(f"worker {i}", slots=slots)
            self.warm_up(8 * workers * slots)
        except BaseException:
            self.close()
            raise

    def warm_up(self, width: int) -> None:
        """Run a job that is wide enough to meet every runner."""
        self.finish(self.client.submit(wide(width, "warm-up")).id)

    def start(self, name: str, *, slots: int = 2, queue: str = "light") -> None:
        """Start ``worker N``, ``coordinator N`` or ``beat``, in a session of its own: a Ctrl-C is
        for the benchmark.
        """
        node = ("-n", f"{name.replace(' ', '')}@bench", "-l", "WARNING")
        arguments = {
            "worker": ("-A", "unstuck.tasks", "worker", "-Q", queue, "-c", str(slots), *node),
            "coordinator": ("-A", "unstuck.coordinator", "worker", "-P", "threads", *node),
            "beat": ("-A", "unstuck.coordinator", "beat", "-l", "WARNING"),
        }[name.partition(" ")[0]]
        with (self.folder / f"{name.replace(' ', '-')}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*CELERY, *arguments],
                env=self.env,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def processes(self) -> dict[str, psutil.Process]:
        """Every process by name, the Redis server included."""
        running = {name: psutil.Process(process.pid) for name, process in self._running.items()}
        return {**running, "redis": self.server.process}

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process and all below it."""
        if self._running[name].poll() is not None:
            return
        root = psutil.Process(self._running[name].pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def stop(self, name: str) -> None:
        """End it as a supervisor does: a TERM, and after a minute a kill."""
        self.signal(name, signal.SIGCONT)
        self._running[name].terminate()
        try:
            self._running[name].wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.kill(name)
        else:
            del self._running[name]

    def kill(self, name: str) -> None:
        """Kill it and all below it at once, as when its host is lost: nobody is left to report
        it.
        """
        self.signal(name, signal.SIGSTOP)
        self.signal(name, signal.SIGKILL)
        self._running.pop(name).wait()

    def finish(self, job: str, timeout: float = 900.0) -> None:
        """Wait until the job is FINISHED, by its status alone: a view of 10,000 groups would
        disturb what is measured.

        Raises:
            RuntimeError: the job ended in another way, or not in time, or a process of the fleet
                ended.
        """
        key = self.keys.of(job).job

        def ended() -> bool:
            status = Status(self.server.client.hget(key, "status").decode())
            if status.terminal and status is not Status.FINISHED:
                raise RuntimeError(f"job {job} is {status}, see the logs in {self.folder}")
            return status.terminal

        self.await_that(ended, f"job {job} has ended", timeout, every=0.002)

    def await_that(
        self, holds: Callable[[], object], what: str, timeout: float = 900.0, every: float = 0.01
    ) -> None:
        """Wait until ``holds`` answers with something true.

        Raises:
            RuntimeError: not within ``timeout`` seconds, or a process of the fleet ended.
        """
        began = look = time.monotonic()
        while not holds():
            now = time.monotonic()
            if now > look + 1:
                look = now
                for name, process in self._running.items():
                    if process.poll() is not None:
                        raise RuntimeError(
                            f"{name} ended with {process.returncode}; see its log in {self.folder}"
                        )
            if now > began + timeout:
                raise RuntimeError(
                    f"not within {timeout:.0f} s: {what}; see the logs in {self.folder}"
                )
            time.sleep(
                max(every, (now - began) / 500)
            )  # whoever asks takes CPU time from what is measured

    def close(self) -> None:
        for name, process in self._running.items():
            self.signal(name, signal.SIGCONT)
            process.terminate()
        for name in list(self._running):
            self.stop(name)
        self.client.close()


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


def chain(length: int, step: str = "hop") -> dict[str, Any]:
    """``length`` groups that do nothing, one after the other."""
    groups: list[dict[str, Any]] = []
    for i in range(length):
        steps = [{"python": f"noop_steps:{step}"}]
        groups.append({"name": f"g{i}", "queue": "light", "spark": False, "steps": steps})
        if i:
            groups[i]["needs"] = [f"g{i - 1}"]
    return {"name": "chain", "groups": groups}
