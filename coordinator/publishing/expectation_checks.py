"""Expectations of outputs, checked before they are published. Pure.

The runners have measured the expectations; the coordinator reads no rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from unstuck.coordinator.errors import PublishFailed
from unstuck.tasks.duration import format_duration
from unstuck.tasks.spec.outputs import Expect, OutputSpec
from unstuck.tasks.warehouse.marker import StagedOutput

EXPECTATION_FAILED = "EXPECTATION_FAILED"


def check_expectations(
    specs: Mapping[str, OutputSpec], outputs: Mapping[str, Sequence[StagedOutput]], at: float
) -> None:
    """Check the ``outputs``, those of all members of a fork together, as of ``at`` (seconds since
    the epoch).

    Raises: PublishFailed: with all that does not hold.
    """
    wrong = [
        f"{name}: {why}"
        for name, spec in specs.items()
        if spec.expect is not None and outputs.get(name)
        for why in _wrong(spec.expect, outputs[name], at)
    ]
    if wrong:
        raise PublishFailed(EXPECTATION_FAILED, f"{'; '.join(wrong)}. Nothing was published")


def _wrong(expect: Expect, parts: Sequence[StagedOutput], at: float) -> list[str]:
    problems = []
    rows, bounds, fresh = sum(part.rows for part in parts), expect.rows, expect.fresh
    newest = max((part.newest for part in parts if part.newest is not None), default=None)
    if bounds is not None and bounds.min is not None and rows < bounds.min:
        problems.append(
            f"expect.rows: {rows:,} row{'s' * (rows != 1)}, and at least {bounds.min:,} are "
            "expected"
        )
    if bounds is not None and bounds.max is not None and rows > bounds.max:
        problems.append(
            f"expect.rows: {rows:,} row{'s' * (rows != 1)}, and at most {bounds.max:,} are expected"
        )
    if fresh is not None and newest is None:
        problems.append(f"expect.fresh: the column {fresh.column} has no value")
    elif fresh is not None and newest is not None and at - newest > fresh.within:
        moment = datetime.fromtimestamp(newest, UTC).isoformat().replace("+00:00", "Z")
        problems.append(
            f"expect.fresh: the newest {fresh.column} is {moment}, {format_duration(at - newest)} "
            f"old, and {format_duration(fresh.within)} are allowed"
        )
    return problems
