"""``celery``, its log going through a pipe to another process, as with ``| tee`` or the log driver
of a container.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from tests.support.programs.processes import command_line
from tests.support.servers import wait_until

ROOM = 4096  # bytes that the pipe holds; the least there is


@contextmanager
def log_stands_still(pid: int) -> Iterator[None]:
    """Whoever reads the log of the worker ``pid`` does not read on, and the pipe is full.

    In the end it is killed.
    """
    (reader,) = [
        one for one in psutil.Process(pid).children() if command_line(one).startswith("cat")
    ]
    reader.suspend()
    try:
        wait_until(
            lambda: reader.status() == psutil.STATUS_STOPPED, 10, "the reader to stop"
        )  # it may be reading
        log = os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while True:
                os.write(log, b".")
        os.close(log)
        yield
    finally:
        reader.kill()


if __name__ == "__main__":
    from celery.__main__ import main

    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as cat:
        assert cat.stdin is not None
        fcntl.fcntl(cat.stdin, fcntl.F_SETPIPE_SZ, ROOM)
        for descriptor in (1, 2):
            os.dup2(cat.stdin.fileno(), descriptor)
        main()
