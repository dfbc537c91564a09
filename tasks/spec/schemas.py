"""Compare and merge schemas, in Spark's JSON of a struct.

A column that holds nulls only may have no type (``void``). It is open: it takes the type that
another schema gives it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from unstuck.tasks.errors import SchemaMismatch
from unstuck.tasks.spec.types import shown, type_text

VOID = "void"
# What a schema says of nulls: of a column, of an array's elements, of a map's values.
_NULLABLE = {"nullable", "containsNull", "valueContainsNull"}
# The types inside lists and maps, with their names in paths.
PARTS = {"elementType": "element", "keyType": "key", "valueType": "value"}
_SHOWN = 5  # columns of one kind, in a text

Fields = list[dict[str, Any]]


def fields_of(schema: str) -> Fields:
    """Return the columns of a schema as nullable and without comments.

    Two frames may differ in what they happen to hold no nulls in.
    """

    def loosen(part: Any) -> Any:
        if isinstance(part, dict):
            part = {**part, "metadata": {}} if "metadata" in part else part
            return {key: True if key in _NULLABLE else loosen(value) for key, value in part.items()}
        return [loosen(item) for item in part] if isinstance(part, list) else part

    loosened: Fields = loosen(json.loads(schema))["fields"]
    return loosened


def schema_of(fields: Fields) -> str:
    """Return the schema of these columns."""
    return json.dumps({"type": "struct", "fields": fields})


def closed(fields: Fields, by: Fields, *, inside: bool = False) -> Fields:
    """Return ``fields``, with open types replaced by those of ``by``.

    ``inside``: also open types in lists, maps and structs, which files store and so must be cast.
    """
    types = {column["name"]: column["type"] for column in by}
    return [
        {**column, "type": _closed(column["type"], types.get(column["name"], VOID), inside)}
        for column in fields
    ]


def _closed(kind: Any, by: Any, inside: bool) -> Any:
    if kind == VOID:
        return by
    if not inside or not are_alike(kind, by):
        return kind
    if kind["type"] == "struct":
        return {**kind, "fields": closed(kind["fields"], by["fields"], inside=True)}
    parts = PARTS.keys() & kind.keys()
    return {**kind, **{part: _closed(kind[part], by[part], True) for part in parts}}


def are_alike(kind: Any, other: Any) -> bool:
    """Return whether both types are lists, both maps or both structs."""
    both_nested = isinstance(kind, dict) and isinstance(other, dict)
    return both_nested and kind["type"] == other["type"]


def joined(left: str, right: str) -> str:
    """Return the schema of the rows of two outputs.

    An open column takes its type from the other output.

    Raises:
        SchemaMismatch: the schemas differ; the message says how.
    """
    if left == right:
        return left
    both = _both_closed(fields_of(left), fields_of(right))
    if both[0] != both[1]:
        raise SchemaMismatch(difference(*both))
    return schema_of(both[0])


def _both_closed(left: Fields, right: Fields) -> tuple[Fields, Fields]:
    """Return both schemas, with the open columns of each closed by the types of the other.

    Raises:
        SchemaMismatch: an output that has nulls only has no column with a type.
    """
    for fields, by in ((left, right), (right, left)):
        if _has_nulls_only(fields) and not _has_nulls_only(by):
            raise SchemaMismatch(
                f"{', '.join(shown(column['name']) for column in fields)} has nulls only in some "
                "rows that have no column with a type, which no reader can find beside others. "
                "Declare the types under columns:"
            )
    return closed(left, right), closed(right, left)


def _has_nulls_only(fields: Fields) -> bool:
    return {VOID}.issuperset(str(column["type"]) for column in fields)


def schema_after(
    name: str, new_schema: str, mode: str, on_change: str | None, published_schema: str, by: str
) -> str:
    """Return the schema of the dataset ``name`` after rows with ``new_schema`` are published to it.

    Args:
        on_change: the value of ``on_schema_change:``.
        published_schema: the schema of the rows that are already published.
        by: the job that published them.

    Raises:
        SchemaMismatch: the two schemas cannot be combined, or ``on_change`` does not allow it.
    """
    if new_schema == published_schema:
        return published_schema
    before, after = _both_closed(fields_of(published_schema), fields_of(new_schema))
    if before == after:
        return schema_of(before)
    if on_change == "evolve":
        if not (clash := _clash(before, after)):
            names = {column["name"] for column in before}
            return schema_of(
                [*before, *(column for column in after if column["name"] not in names)]
            )
        why = f"evolve takes new columns and leaves out others, and cannot change one: {clash}"
        advice = (
            "Cast the columns to the published types, as columns: does, or publish once with "
            "mode: replace"
        )
    elif mode == "replace":
        why, advice = (
            "on_schema_change: fail",
            "Make the columns equal, or publish once without on_schema_change",
        )
    else:
        why = f"mode: {mode} keeps published rows"
        advice = (
            "Make the columns equal, as columns: does for their types, say on_schema_change: "
            "evolve for new or missing columns, or publish once with mode: replace"
        )
    raise SchemaMismatch(
        f"{name} is published with other columns than the job made, and {why}: "
        f"{difference(before, after)} (published by {by}). {advice}"
    )


def difference(before: Fields, after: Fields) -> str:
    """Describe the columns that ``after`` adds, lacks, or has with another type than ``before``.

    Of structs, lists and maps only the fields are named that differ, by their path.
    """
    by_kind: dict[str, list[str]] = {
        "added": [],
        "removed": [],
        "changed": [],
        "in another order": [],
    }
    for what, text in _differences(before, after, ""):
        by_kind[what].append(text)
    differences = [
        f"{what} {', '.join(texts[:_SHOWN])}{', …' * (len(texts) > _SHOWN)}"
        for what, texts in by_kind.items()
        if texts
    ]
    return "; ".join(differences) or "the columns come in another order"


def _differences(before: Fields, after: Fields, above: str) -> Iterator[tuple[str, str]]:
    old, new = ({column["name"]: column["type"] for column in fields} for fields in (before, after))
    for name, kind in new.items():
        if name not in old:
            yield "added", f"{above}{shown(name)} ({type_text(kind)})"
    for name, kind in old.items():
        if name not in new:
            yield "removed", f"{above}{shown(name)} ({type_text(kind)})"
        else:
            yield from _changes(kind, new[name], f"{above}{shown(name)}")
    if above and list(old) != list(new) and set(old) == set(new):
        yield "in another order", f"the fields of {above.removesuffix('.')}"


def _changes(old: Any, new: Any, path: str) -> Iterator[tuple[str, str]]:
    if old == new:
        return
    if not are_alike(old, new):
        yield "changed", f"{path} from {type_text(old)} to {type_text(new)}"
    elif old["type"] == "struct":
        yield from _differences(old["fields"], new["fields"], f"{path}.")
    else:
        for part in filter(old.__contains__, PARTS):
            yield from _changes(old[part], new[part], f"{path}.{PARTS[part]}")


def _clash(before: Fields, after: Fields) -> str:
    """Return why rows with columns ``after`` do not fit rows with ``before``; empty if they fit.

    A wider type is no exception: DuckDB, Polars and pyarrow do not read integers of two widths as
    one column.
    """
    columns = {column["name"]: column for column in before}
    spelled = {name.lower(): name for name in columns}
    for column in after:
        name = spelled.get(column["name"].lower(), column["name"])
        if name != column["name"]:
            return f"{name} and {column['name']} are one name for Spark and DuckDB"
        if name in columns and columns[name] != column:
            return difference([columns[name]], [column])
    return ""
