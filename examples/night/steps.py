"""The steps of one night (``night.py``), in plain Python with Arrow."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from unstuck import StepContext


def nightly(spark: None, ctx: StepContext, day: str) -> pa.Table:
    """One row for the day."""
    return pa.table({"day": [day], "orders": [1200]})


def orders(spark: None, ctx: StepContext, source: str) -> pa.Table:
    """What another system exports; it fails while that is away."""
    return pa.table({"line": Path(source).read_text().splitlines()})


def arrivals(spark: None, ctx: StepContext) -> pa.Table:
    """The rows of the files that have arrived."""
    return ctx.input("rows")


def forecast(spark: None, ctx: StepContext) -> pa.Table:
    """A group of a queue that no worker serves at first."""
    return pa.table({"demand": [1.5, 2.5]})


def totals(spark: None, ctx: StepContext, seconds: int, pid_file: str) -> pa.Table:
    """Says in a file which process it runs in, and takes some seconds."""
    Path(pid_file).write_text(str(os.getpid()))
    for _ in range(10 * seconds):
        if ctx.cancelled:
            break
        time.sleep(0.1)
    return pa.table({"total": [42]})
