"""Coordinators that a test may kill and freeze by the dozen: real processes, forked from one with
all imports.
"""

# Each is what ``assemble`` makes, with its consumer; the sweep is the consumer's own, since no beat
# is there. Celery's worker around them is left out: it takes seconds to start. Tests of it are in
# tests/chaos.

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.paths import PYTHONPATH
from tests.support.programs import forked


class CoordinatorProcesses:
    """The coordinators of one test fleet: none at first."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder, self._environ = folder, environ
        self._log = folder / f"coordinators-{os.urandom(2).hex()}.log"
        self._members: list[forked.Forked] = []

    def tend(self, awake: int = 2) -> None:
        """Start others for those that died or are frozen, as a supervisor would."""
        self._members = [one for one in self._members if one.poll() is None]
        for _ in range(awake - sum(_awake(one.pid) for one in self._members)):
            self._members.append(
                forked.start(
                    _coordinate,
                    folder=self._folder,
                    environ=self._environ,
                    out=self._log,
                    err=self._log,
                )
            )

    def kill(self) -> None:
        """All of them, at once."""
        for one in self._members:
            one.kill()
        for one in self._members:
            one.wait()
        self._members = []

    def text(self) -> str:
        return self._log.read_text(errors="replace")


def _coordinate() -> None:
    from unstuck.coordinator.reconcile.wiring import assemble
    from unstuck.tasks.settings import settings

    said = "%(asctime)s %(process)d %(levelname)s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=said)
    assemble(settings()).run()


def _awake(pid: int) -> bool:
    """False for one that is dead or frozen."""
    asleep = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    try:
        return psutil.Process(pid).status() not in asleep
    except psutil.NoSuchProcess:
        return False


@contextmanager
def coordinator_processes(
    folder: Path, environ: Mapping[str, str]
) -> Iterator[CoordinatorProcesses]:
    """None at first; all are ended when the block is left."""
    made = CoordinatorProcesses(folder, {**os.environ, "PYTHONPATH": PYTHONPATH, **environ})
    try:
        yield made
    finally:
        made.kill()
