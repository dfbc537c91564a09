"""Checks the expectations of outputs before they are published. Pure.

The runners have measured the values; the coordinator reads no rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from unstuck.coordinator.errors import PublishFailed
from unstuck.coordinator.spec.problems import counted
from unstuck.tasks.duration import format_duration
from unstuck.tasks.spec.outputs import Expect, OutputSpec
from unstuck.tasks.warehouse.marker import StagedOutput

EXPECTATION_FAILED = "EXPECTATION_FAILED"


def check_expectations(
    specs: Mapping[str, OutputSpec], outputs: Mapping[str, Sequence[StagedOutput]], at: float
) -> None:
    """Check ``outputs``, each with all members of its fork, at the time ``at`` (Unix seconds).

    Raises: PublishFailed: with all unmet expectations.
    """
    unmet: list[str] = []
    for name, spec in specs.items():
        parts = outputs.get(name)
        if spec.expect is not None and parts:
            reasons = [*_wrong_rows(spec.expect, parts), *_stale(spec.expect, parts, at)]
            unmet += [f"{name}: {reason}" for reason in reasons]
    if unmet:
        raise PublishFailed(EXPECTATION_FAILED, f"{'; '.join(unmet)}. Nothing was published")


def _wrong_rows(expect: Expect, parts: Sequence[StagedOutput]) -> Iterator[str]:
    rows, bounds = sum(part.rows for part in parts), expect.rows
    if bounds is None:
        return
    many = counted(rows, "row")
    if bounds.min is not None and rows < bounds.min:
        yield f"expect.rows: {many}, and at least {bounds.min:,} are expected"
    if bounds.max is not None and rows > bounds.max:
        yield f"expect.rows: {many}, and at most {bounds.max:,} are expected"


def _stale(expect: Expect, parts: Sequence[StagedOutput], at: float) -> Iterator[str]:
    fresh, values = expect.fresh, [part.newest for part in parts if part.newest is not None]
    if fresh is None:
        return
    if not values:
        yield f"expect.fresh: the column {fresh.column} has no value"
        return
    age = at - max(values)
    if age > fresh.within:
        moment = datetime.fromtimestamp(max(values), UTC).isoformat().replace("+00:00", "Z")
        yield (
            f"expect.fresh: the newest {fresh.column} is {moment}, {format_duration(age)} old, "
            f"and {format_duration(fresh.within)} are allowed"
        )
