"""Steps that never end by themselves, each in another way."""

from __future__ import annotations

import re
import socket
import threading
from pathlib import Path
from typing import Any


def waits_for_a_lock(spark: Any, ctx: Any) -> None:
    lock = threading.Lock()
    lock.acquire()
    taken_twice(lock)


def taken_twice(lock: threading.Lock) -> None:
    lock.acquire()  # the line that waits


def reads_a_socket(spark: Any, ctx: Any) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as line,
    ):
        line.makefile().readline()  # nobody ever answers


def keeps_the_gil(spark: Any, ctx: Any) -> None:
    re.match(r"(a+)+$", "a" * 60 + "b")  # one call in C that holds the GIL


def goes_on(spark: Any, ctx: Any, passed: str) -> None:
    """Stands elsewhere as soon as the file ``passed`` is there."""
    gone = threading.Event()
    while not Path(passed).exists():
        gone.wait(0.05)
    gone.wait()


def with_a_secret(spark: Any, ctx: Any, password: str) -> None:
    exec(compile("wait()", f"/etc/{password}/file.py", "exec"), {"wait": threading.Event().wait})


def returns_a_frame(spark: Any, ctx: Any) -> Any:
    """Is over; what it returned is read on and on while it is stored."""
    import pyarrow as pa

    def batches() -> Any:
        threading.Event().wait()
        yield pa.record_batch({"n": [1]})

    return pa.RecordBatchReader.from_batches(pa.schema({"n": pa.int64()}), batches())
