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
    specs: Mapping[str, OutputSpec], made: Mapping[str, Sequence[StagedOutput]], at: float
) -> None:
    """Check what was ``made`` of each output, all members of a fork together, as of ``at`` (seconds
    since the epoch).

    Raises: PublishFailed: with all that does not hold.
    """
    wrong = [
        f"{name}: {why}"
        for name, spec in specs.items()
        if spec.expect is not None and made.get(name)
        for why in _wrong(spec.expect, made[name], at)
    ]
    if wrong:
        raise PublishFailed(EXPECTATION_FAILED, f"{'; '.join(wrong)}. Nothing was published")


def _wrong(expect: Expect, parts: Sequence[StagedOutput], at: float) -> list[str]:
    found = []
    rows, wanted, fresh = sum(part.rows for part in parts), expect.rows, expect.fresh
    newest = max((part.newest for part in parts if part.newest is not None), default=None)
    if wanted is not None and wanted.min is not None and rows < wanted.min:
        found.append(
            f"expect.rows: {rows:,} row{'s' * (rows != 1)}, and at least {wanted.min:,} are "
            "expected"
        )
    if wanted is not None and wanted.max is not None and rows > wanted.max:
        found.append(
            f"expect.rows: {rows:,} row{'s' * (rows != 1)}, and at most {wanted.max:,} are expected"
        )
    if fresh is not None and newest is None:
        found.append(f"expect.fresh: the column {fresh.column} has no value")
    elif fresh is not None and newest is not None and at - newest > fresh.within:
        moment = datetime.fromtimestamp(newest, UTC).isoformat().replace("+00:00", "Z")
        found.append(
            f"expect.fresh: the newest {fresh.column} is {moment}, {format_duration(at - newest)} "
            f"old, and {format_duration(fresh.within)} are allowed"
        )
    return found
