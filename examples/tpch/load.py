"""The tables of TPC-H, made by the package tpchgen-cli (``tables.yaml``)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from unstuck import StepContext

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")


def tables(spark: None, ctx: StepContext, scale: float) -> None:
    """All eight tables at ``scale``; 0.1 is about 100 MB of text and 600,000 line items."""
    program = Path(sys.executable).with_name("tpchgen-cli")
    options = ["--scale-factor", str(scale), "--output-dir", str(ctx.scratch)]
    subprocess.run([program, "parquet", *options], check=True, stdout=subprocess.DEVNULL)
    for n, name in enumerate(TABLES):
        ctx.output(name).write(pq.read_table(ctx.scratch / f"{name}.parquet"))
        ctx.progress(n + 1, len(TABLES))
