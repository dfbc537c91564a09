"""The page as a process of its own, as people start it, for tests that look at it from outside."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import PYTHONPATH
from tests.support.programs import forked
from tests.support.programs.forked_command import command
from tests.support.servers import wait_until


@dataclass(frozen=True)
class ServedPage:
    """A running ``unstuck web``.

    Attributes:
        origin: its address, without a slash at the end.
        log: what it says.
    """

    origin: str
    log: Path
    process: forked.Forked

    @property
    def port(self) -> int:
        return int(self.origin.rpartition(":")[2])


@contextmanager
def page_of(
    redis_url: str, folder: Path, *arguments: str, environ: Mapping[str, str] | None = None
) -> Iterator[ServedPage]:
    """``unstuck web ARGUMENTS`` at a free port of the loopback address; it ends without a
    traceback.
    """
    log = folder / f"web-{os.urandom(2).hex()}.log"
    settings = {
        "UNSTUCK_REDIS_URL": redis_url,
        "PYTHONPATH": PYTHONPATH,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    given = ["web", "--address", "127.0.0.1:0", *arguments]
    process = forked.start(
        command,
        given,
        folder=folder,
        environ={**os.environ, **settings, **(environ or {})},
        out=log,
        err=log,
    )
    try:

        def address() -> str | None:
            found = re.search(r"http://[^/\s]+", said := log.read_text())
            assert process.poll() is None or found, said
            return found[0] if found else None

        yield ServedPage(wait_until(address, 30, "the page to listen"), log, process)
        assert "Traceback" not in log.read_text(), log.read_text()
    finally:
        process.kill()
        process.wait()
