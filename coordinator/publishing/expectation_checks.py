"""Expectations of outputs, checked before they are published. Pure.

The runners have measured the expectations; the coordinator reads no rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from unstuck.coordinator.errors import PublishFailed
from unstuck.tasks.duration import format_duration
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.warehouse.marker import StagedOutput

EXPECTATION_FAILED = "EXPECTATION_FAILED"


def check_expectations(specs: Mapping[str, OutputSpec], outputs: Mapping[str, StagedOutput], at: float) -> None:
    """Check ``outputs``, all members of a fork together, as of ``at`` (seconds since the epoch).

    Raises: PublishFailed: with all that does not hold.
    """
    wrong = [
        f"{name}: {why}"
        for name, spec in specs.items()
        if name in outputs and spec.expect is not None
        for why in _wrong(spec, outputs[name], at)
    ]
    if wrong:
        raise PublishFailed(EXPECTATION_FAILED, f"{'; '.join(wrong)}. Nothing was published")


def _wrong(spec: OutputSpec, output: StagedOutput, at: float) -> list[str]:
    expect, found = spec.expect, []
    rows = None if expect is None else expect.rows
    if rows is not None and rows.min is not None and output.rows < rows.min:
        found.append(f"expect.rows: {output.rows:,} rows, and at least {rows.min:,} are expected")
    if rows is not None and rows.max is not None and output.rows > rows.max:
        found.append(f"expect.rows: {output.rows:,} rows, and at most {rows.max:,} are expected")
    fresh = None if expect is None else expect.fresh
    if fresh is not None and output.newest is None:
        found.append(f"expect.fresh: the column {fresh.column} has no value")
    elif fresh is not None and output.newest is not None and at - output.newest > fresh.within:
        newest = datetime.fromtimestamp(output.newest, UTC).isoformat().replace("+00:00", "Z")
        found.append(
            f"expect.fresh: the newest {fresh.column} is {newest}, {format_duration(at - output.newest)} old, and "
            f"{format_duration(fresh.within)} are allowed"
        )
    return found
