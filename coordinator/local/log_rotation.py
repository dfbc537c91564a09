"""Logs that stay bounded while processes write to them: a file, and one older part beside it.

The processes of a local fleet inherit their log as an open file and cannot be told to open another one, so the file
is copied and cut short. They append (``O_APPEND``), so that what they write next stands at its new end.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

LOG_LIMIT = 20_000_000  # bytes
_CHUNK = 1_000_000  # bytes


def keep_small(log: Path, limit: int = LOG_LIMIT) -> None:
    """If the log is larger than ``limit`` bytes, put its newest ``limit`` bytes aside as NAME.1, and empty it.

    NAME.1 has what is written while it is copied, too; all in all about twice ``limit`` at most.
    What is written between the last look and the cut is lost: microseconds, of a process that just printed megabytes.
    No log at all is fine.

    Raises:
        OSError: the log can be neither read nor cut short.
    """
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return
    if size <= limit:
        return
    aside = log.with_name(log.name + ".1")
    # On a full disk nothing can be copied; the log is emptied all the same, since a full disk stops Valkey and with it
    # every job. The former part goes first, to make room.
    with suppress(OSError):
        aside.unlink(missing_ok=True)
        with log.open("rb", buffering=0) as source, aside.open("wb", buffering=0) as target:
            source.seek(size - limit)
            # What is written meanwhile is kept as well, but not without end: it may come as fast as it is copied.
            while target.tell() < 2 * limit and (chunk := source.read(_CHUNK)):
                target.write(chunk)
    os.truncate(log, 0)
