"""A runner without a worker above it: a real process with its real watchdog, which runs a few offers.

Celery takes seconds to start and has no part in what becomes of an attempt once it is claimed. As a worker's runner is,
it is forked from a process that has imported all: the fork server of ``multiprocessing``.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psutil

from tests.support.paths import PYTHONPATH
from unstuck.tasks.protocol.token import Offer

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["unstuck.tasks.runner.runner", "unstuck.tasks.runner.take"])


class SingleRunner:
    """One runner. ``said``: what became of each offer, once it has ended by itself."""

    def __init__(self, process: ForkServerProcess, out: Path, log: Path) -> None:
        self.process = process
        self._out = out
        self.log = log

    def wait(self) -> int:
        """Its exit code, once it has ended; negative: the signal that ended it."""
        self.process.join()
        assert self.process.exitcode is not None
        return self.process.exitcode

    def said(self) -> list[str]:
        assert self.wait() == 0, self.log.read_text()
        return self._out.read_text().splitlines()


def _run(folder: Path, environ: Mapping[str, str], out: Path, log: Path, prepared: str, offers: Sequence[str]) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.path[:0] = [str(folder), *environ["PYTHONPATH"].split(os.pathsep)]
    for number, path in enumerate((out, log), start=1):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)

    from unstuck.tasks.protocol.keys import Keys
    from unstuck.tasks.runner.runner import start_runner
    from unstuck.tasks.runner.take import run_ready
    from unstuck.tasks.settings import settings

    settings.cache_clear()  # the fork server has read them
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    runner = start_runner(queues=["light"], slots=1)
    exec(prepared, {"runner": runner, "sys": sys, "logging": logging})
    for offer in offers:
        runner.client.zadd(Keys(runner.settings.prefix).ready("light"), {offer: 0})
        print(", ".join(run_ready(runner)) or "nothing stood ready", flush=True)
    runner.end()


@contextmanager
def single_runner(
    redis_url: str, folder: Path, *offers: Offer, prepared: str = "", environ: Mapping[str, str] | None = None
) -> Iterator[SingleRunner]:
    """A runner that runs ``offers`` one after the other; killed with what it started when the block is left.

    ``prepared``: Python that it runs before the first of them; ``runner`` is the runner.
    """
    settings = {
        "UNSTUCK_REDIS_URL": redis_url,
        "UNSTUCK_LEASE_TTL": "3s",
        "UNSTUCK_LEASE_RENEW": "300ms",
        "UNSTUCK_CANCEL_GRACE": "300ms",
        "PYTHONPATH": PYTHONPATH,
        **(environ or {}),
    }
    name = f"runner-{os.urandom(2).hex()}"
    out, log = folder / f"{name}.out", folder / f"{name}.log"
    told = (folder, {**os.environ, **settings}, out, log, prepared, [str(offer) for offer in offers])
    process = _context.Process(target=_run, args=told)
    process.start()
    below: list[psutil.Process] = []
    try:
        yield SingleRunner(process, out, log)
    finally:
        if process.is_alive():
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                below = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            process.join()
        for one in below:
            with suppress(psutil.NoSuchProcess):
                one.kill()
