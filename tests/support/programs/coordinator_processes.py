"""Coordinators that a test may kill and freeze by the dozen: real processes, forked from one with all imports."""

# Each is what ``assemble`` makes, with its consumer; the sweep is the consumer's own, since no beat is there.
# Celery's worker around them is left out: it takes seconds to start. Tests of it are in tests/chaos.

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.paths import PYTHONPATH

_FORK_SERVER = """
import logging, os, signal, sys
from unstuck.coordinator.reconcile.wiring import assemble
from unstuck.tasks.settings import settings
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
for _ in sys.stdin:
    pid = os.fork()
    if pid == 0:
        os.close(0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            assemble(settings()).run()
        finally:
            os._exit(1)
    print(pid, flush=True)
"""


class CoordinatorProcesses:
    """The coordinators of one test fleet."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self._members: list[psutil.Process] = []

    @property
    def awake(self) -> list[psutil.Process]:
        """Those that are neither dead nor frozen."""
        return [one for one in self._members if _status(one) not in (None, psutil.STATUS_STOPPED)]

    def tend(self, awake: int = 2) -> None:
        """Start others for those that died or are frozen, as a supervisor would."""
        self._members = [one for one in self._members if _status(one) is not None]
        for _ in range(awake - len(self.awake)):
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write("another\n")
            self._process.stdin.flush()
            told = self._process.stdout.readline()
            assert told, self.text()
            with suppress(psutil.NoSuchProcess):  # it came to a failpoint, and died there, before it was looked up
                self._members.append(psutil.Process(int(told)))

    def kill(self) -> None:
        """All of them, at once."""
        for one in self._members:
            if _status(one) is not None:
                os.kill(one.pid, signal.SIGKILL)
        psutil.wait_procs(self._members)
        self._members = []

    def text(self) -> str:
        return self._log.read_text(errors="replace")


def _status(process: psutil.Process) -> str | None:
    """None for one that is gone."""
    try:
        status = process.status()
    except psutil.NoSuchProcess:
        return None
    return None if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else str(status)


@contextmanager
def coordinator_processes(folder: Path, environ: Mapping[str, str]) -> Iterator[CoordinatorProcesses]:
    """None at first; all are ended when the block is left."""
    log = folder / f"coordinators-{os.urandom(2).hex()}.log"
    paths = PYTHONPATH
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", _FORK_SERVER],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=out,
            text=True,
            start_new_session=True,
        )
    made = CoordinatorProcesses(process, log)
    try:
        yield made
    finally:
        made.kill()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait()
        process.stdout.close()
