"""A step that fails before it succeeds (``retry.yaml``): what RETRYING looks like from outside."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from unstuck import StepContext


class WeatherServiceAway(Exception):
    """The kind of error that goes away by itself; Unstuck knows nothing of it, so it counts as
    recoverable.
    """


def flaky(spark: None, ctx: StepContext, fails: int, folder: str | None = None) -> pa.Table:
    """Fail ``fails`` times, then write the number of the try that succeeded.

    The tries are counted in a file of ``folder`` (None: the system's folder for temporary files),
    outside of the attempt, because an attempt starts from nothing by design. It needs one host,
    which is why only a demo does it.

    Raises:
        WeatherServiceAway: this was one of the first ``fails`` tries.
    """
    counter = Path(folder or tempfile.gettempdir()) / f"unstuck-flaky-{ctx.token.partition('/')[0]}"
    with counter.open("ab") as file:
        file.write(b".")
    tries = counter.stat().st_size
    if tries <= fails:
        raise WeatherServiceAway(
            f"the weather service did not answer (try {tries}; it will answer after {fails})"
        )
    counter.unlink()
    ctx.log.info("the weather service answered on try %d", tries)
    return pa.table({"tries": [tries]})
