"""Checks of outputs before they are published: columns fit those that stand, expectations hold. Pure.

The runners have measured the expectations; the coordinator reads no rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from unstuck.coordinator.errors import PublishFailed
from unstuck.tasks.duration import format_duration
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.warehouse.log_entry import DatasetState
from unstuck.tasks.warehouse.marker import StagedOutput

SCHEMA_MISMATCH = "SCHEMA_MISMATCH"
EXPECTATION_FAILED = "EXPECTATION_FAILED"
# What a schema in Spark's JSON says of nulls: of a column, of an array's elements, of a map's values.
_NULLABLE = {"nullable", "containsNull", "valueContainsNull"}


def schema_after(name: str, output: StagedOutput, spec: OutputSpec, standing: DatasetState) -> str:
    """The schema of the dataset ``name`` once ``output`` is published beside, or in the place of, ``standing``.

    Raises: PublishFailed: ``on_schema_change:`` does not allow it.
    """
    if output.schema == standing.schema:
        return standing.schema
    before, after = any_null(standing.schema), any_null(output.schema)
    if before == after:
        return json.dumps(before)
    if spec.on_schema_change == "evolve":
        known = _types(before)
        if not (clash := _clash(known, _types(after))):
            added = [field for field in after["fields"] if field["name"] not in known]
            return json.dumps({**before, "fields": [*before["fields"], *added]})
        why = f"evolve takes new columns and leaves out others, and cannot change one: {clash}"
        advice = "Cast the columns to the published types, or publish once with mode: replace"
    elif spec.mode == "replace":
        why, advice = "on_schema_change: fail", "Make the columns equal, or publish once without on_schema_change"
    else:
        why = f"mode: {spec.mode} keeps published rows"
        advice = (
            "Make the columns equal, say on_schema_change: evolve for new or missing columns, or publish once with "
            "mode: replace"
        )
    raise PublishFailed(
        SCHEMA_MISMATCH,
        f"{name} is published with other columns than the job made, and {why}: "
        f"{difference(standing.schema, output.schema)} (published by {standing.job}). {advice}",
    )


def any_null(schema: str) -> Any:
    """A schema with every value nullable: members of a fork may differ in what they happen to hold no nulls in."""

    def loosen(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: True if key in _NULLABLE else loosen(value) for key, value in part.items()}
        return [loosen(item) for item in part] if isinstance(part, list) else part

    return loosen(json.loads(schema))


def difference(one: str, other: str) -> str:
    """The columns that ``other`` adds to ``one``, that it lacks, and that it has with another type, for people."""
    before, after = _types(any_null(one)), _types(any_null(other))
    both = [name for name in before if name in after]
    found = {
        "added": [f"{name} ({kind})" for name, kind in after.items() if name not in before],
        "removed": [f"{name} ({kind})" for name, kind in before.items() if name not in after],
        "changed": [f"{name} from {before[name]} to {after[name]}" for name in both if before[name] != after[name]],
    }
    said = [f"{what} {', '.join(names[:5])}{', …' if len(names) > 5 else ''}" for what, names in found.items() if names]
    return "; ".join(said) or "the columns come in another order"


def _types(schema: Any) -> dict[str, str]:
    return {field["name"]: json.dumps(field["type"]).strip('"') for field in schema["fields"]}


def _clash(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Why rows with the columns ``after`` cannot stand beside rows with ``before``; empty if they can.

    A wider type is no exception: DuckDB, Polars and pyarrow do not read integers of two widths as one column.
    """
    spelled = {name.lower(): name for name in before}
    for name, kind in after.items():
        known = spelled.get(name.lower(), name)
        if known != name:
            return f"{known} and {name} are one name for Spark and DuckDB"
        if before.get(name, kind) != kind:
            return f"{name} is {kind} instead of {before[name]}"
        if name not in before and "void" in kind:
            return f"{name} has nulls only, and so no type"
    return ""


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
