"""A runner without a worker above it: a real process with its real watchdog, which runs a few
offers.

Celery takes seconds to start and has no part in what becomes of an attempt once it is claimed.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.paths import PYTHONPATH
from tests.support.programs import forked
from unstuck.tasks.protocol.token import Offer


class SingleRunner:
    """One runner. ``said``: what became of each offer, once it has ended by itself."""

    def __init__(self, process: forked.Forked, out: Path, log: Path) -> None:
        self.process = process
        self._out = out
        self.log = log

    def said(self) -> list[str]:
        assert self.process.wait() == 0, self.log.read_text()
        return self._out.read_text().splitlines()


def _run(prepared: str, offers: Sequence[str]) -> None:
    from unstuck.tasks.protocol.keys import Keys
    from unstuck.tasks.runner.runner import start_runner
    from unstuck.tasks.runner.take import run_ready

    sys.path.insert(0, os.getcwd())
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    runner = start_runner(queues=["light"], slots=1)
    exec(prepared, {"runner": runner})
    for offer in offers:
        runner.client.zadd(Keys(runner.settings.prefix).ready("light"), {offer: 0})
        print(", ".join(run_ready(runner)) or "nothing stood ready", flush=True)
    runner.end()


@contextmanager
def single_runner(
    redis_url: str,
    folder: Path,
    *offers: Offer,
    prepared: str = "",
    environ: Mapping[str, str] | None = None,
) -> Iterator[SingleRunner]:
    """A runner that runs ``offers`` one after the other; killed with what it started when the block
    is left.

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
    told = (prepared, [str(offer) for offer in offers])
    process = forked.start(
        _run, *told, folder=folder, environ={**os.environ, **settings}, out=out, err=log
    )
    below: list[psutil.Process] = []
    try:
        yield SingleRunner(process, out, log)
    finally:
        if process.poll() is None:
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                below = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            process.wait()
        for one in below:
            with suppress(psutil.NoSuchProcess):
                one.kill()
