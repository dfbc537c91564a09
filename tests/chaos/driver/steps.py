"""The steps of the chaos load: each writes down, beside the warehouse, that it ran and under which
token.
"""

from __future__ import annotations

import os
import time
from typing import Any


def work(spark: Any, ctx: Any, ran: str, rows: int, seconds: float, first: int = 0) -> Any:
    """Takes ``seconds``, and makes the numbers from ``first`` on."""
    import pyarrow as pa

    _note(ran, ctx.token, "begun")
    _take(ctx, seconds)
    _note(ran, ctx.token, "done")
    return pa.table({"n": list(range(first, first + rows))})


def part(spark: Any, ctx: Any, ran: str, rows: int, seconds: float, part: int) -> Any:
    """One member of a fork: its own ``rows`` numbers."""
    return work(spark, ctx, ran, rows, seconds, part * rows)


def copy(spark: Any, ctx: Any, ran: str, rows: int, seconds: float, source: str) -> Any:
    """What was read is what is written, in Spark or without."""
    _note(ran, ctx.token, "begun")
    found = ctx.input(source)
    _take(ctx, seconds)
    _note(ran, ctx.token, "done")
    return found


def _take(ctx: Any, seconds: float) -> None:
    """Be busy for a while; a step that is told to leave does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if ctx.cancelled:
            raise RuntimeError("told to leave")
        time.sleep(0.02)


def _note(ran: str, token: str, what: str) -> None:
    """One line, appended in one write, so that lines of many processes never mix."""
    file = os.open(ran, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{what} {token}\n".encode())
    finally:
        os.close(file)


def until(spark: Any, ctx: Any, path: str) -> None:
    """Runs until a file appears, or until it is told to leave."""
    while not os.path.exists(path):
        _take(ctx, 0.05)


def ticks(spark: Any, ctx: Any, ran: str, tick: str) -> Any:
    """One row that names its tick."""
    import pyarrow as pa

    _note(ran, ctx.token, "begun")
    _take(ctx, 0.2)
    _note(ran, ctx.token, "done")
    return pa.table({"tick": [tick]})


def follows(spark: Any, ctx: Any, ran: str, tick: str) -> Any:
    """One row that names its tick, and how many ticks it has seen."""
    import pyarrow as pa

    _note(ran, ctx.token, "begun")
    seen = ctx.input("ticks").num_rows
    _note(ran, ctx.token, "done")
    return pa.table({"tick": [tick], "seen": [seen]})


def arrives(spark: Any, ctx: Any, ran: str, tick: str) -> Any:
    """The rows of the files that are new."""
    _note(ran, ctx.token, "begun")
    found = ctx.input("files")
    _note(ran, ctx.token, "done")
    return found
