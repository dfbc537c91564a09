"""Rotate a log while a process writes to it: the file, and one older part beside it.

The processes of a local fleet inherit their log as an open file and cannot be told to open another one, so the file
is copied and cut short. They append (``O_APPEND``), so their next line stands at the new end.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

LOG_LIMIT = 20_000_000  # bytes
_CHUNK = 1_000_000  # bytes


def rotate(log: Path, limit: int = LOG_LIMIT) -> None:
    """If the log is larger than ``limit`` bytes, move its newest ``limit`` bytes to NAME.1, and empty it.

    NAME.1 also gets what is written during the copy; both files together take about twice ``limit`` at most. Lines
    written between the last read and the cut are lost: some microseconds of a process that just printed megabytes.
    A missing log is no error.

    Raises:
        OSError: the log can be neither read nor cut short.
    """
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return
    if size <= limit:
        return
    older = log.with_name(log.name + ".1")
    # A full disk stops Valkey and with it every job, so the log is emptied even where nothing can be copied. The former
    # part is removed first, to make room.
    with suppress(OSError):
        older.unlink(missing_ok=True)
        with log.open("rb", buffering=0) as source, older.open("wb", buffering=0) as target:
            source.seek(size - limit)
            # The copy has a limit: the process may write as fast as the copy reads.
            while target.tell() < 2 * limit and (chunk := source.read(_CHUNK)):
                target.write(chunk)
    os.truncate(log, 0)
