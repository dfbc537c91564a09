"""Steps without Spark that take milliseconds."""

from __future__ import annotations

import datetime
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa


def three(spark: None, ctx: Any, first: int = 1) -> pa.Table:
    print("three rows")
    ctx.log.info("from %d on", first)
    return pa.table({"n": [first, first + 1, first + 2]})


def doubled(spark: None, ctx: Any, of: str) -> pa.Table:
    numbers = ctx.input(of)["n"].to_pylist()
    ctx.result("sum", 2 * sum(numbers))
    return pa.table({"n": [2 * n for n in numbers]})


def made_at(spark: None, ctx: Any, at: str) -> pa.Table:
    return pa.table({"at": [datetime.datetime.fromisoformat(at).replace(tzinfo=datetime.UTC)]})


def of_member(spark: None, ctx: Any, day: int) -> pa.Table:
    ctx.result("day", day)
    return pa.table({"day": [day]})


def of_model(spark: None, ctx: Any, model: dict[str, Any]) -> pa.Table:
    for name, value in model.items():
        ctx.result(name, value)
    return pa.table({"depth": [model["depth"]]})


def passes_on(spark: None, ctx: Any, part: int = 0) -> pa.Table:
    return ctx.input("events")


def refuse(spark: None, ctx: Any) -> None:
    raise ValueError("this row is not to be had")


def sleep(spark: None, ctx: Any) -> None:
    time.sleep(600)


def zone(spark: None, ctx: Any) -> None:
    ctx.result("zone", time.tzname[0])


def break_log(spark: None, ctx: Any) -> None:
    """Put a file in the place of the warehouse's log."""
    log = Path(ctx.warehouse, "_log")
    shutil.rmtree(log)
    log.touch()
