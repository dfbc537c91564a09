"""Merges rows into an Iceberg table: rows with the same keys are replaced, others are added.

Files with replaced rows are rewritten without them. pyiceberg's ``upsert`` is not used: with
several key columns its filter over 10,000 rows crashes the process, and it loses rows next to a NaN
key.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask, Table

from unstuck.coordinator.publishing.table_formats.iceberg.files import (
    AddedFiles,
    Exchange,
    partition_of,
)
from unstuck.coordinator.publishing.table_formats.table_checks import check_keys_exist
from unstuck.coordinator.publishing.table_formats.table_writer import KEYS_UNFIT, Candidate
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import DataFile

_INEXACT = {"float", "double"}
# pyiceberg's annotations lack their arguments.
_AT_LEAST, _AT_MOST = cast(Any, GreaterThanOrEqual), cast(Any, LessThanOrEqual)


def check_keys(candidate: Candidate) -> None:
    """Check that keys are columns of plain types, never null, and unique. Raises: PublishFailed."""
    check_keys_exist(candidate)
    _check_types(candidate)
    staged = [file for file in candidate.output.files if file.rows]
    if staged:
        _check_values(candidate, staged)


def _check_types(candidate: Candidate) -> None:
    output, keys = candidate.output, candidate.spec.keys
    fields = {field["name"]: field["type"] for field in json.loads(output.schema)["fields"]}
    odd = [key for key in keys if not isinstance(fields[key], str) or fields[key] in _INEXACT]
    if odd:
        why = (
            f"keys: {', '.join(odd)} cannot be compared in Iceberg tables: it is a float or nested"
        )
        raise candidate.refused(KEYS_UNFIT, why)


def _check_values(candidate: Candidate, staged: Sequence[DataFile]) -> None:
    keys = list(candidate.spec.keys)
    rows = _keys_of(candidate.warehouse.storage, staged, keys)
    counts = rows.group_by(keys).aggregate([([], "count_all")])
    null = pa.array([False] * len(counts))
    for key in keys:
        null = pc.or_(null, pc.is_null(counts[key]))
    for problem, mask in (
        ("null in some row", null),
        ("the same in several rows", pc.greater(counts["count_all"], 1)),
    ):
        wrong = counts.filter(mask)
        if len(wrong):
            example = ", ".join(str(wrong[key][0].as_py()) for key in keys)
            why = f"keys: {', '.join(keys)} is {problem} ({example})"
            raise candidate.refused(KEYS_UNFIT, why)


def _keys_of(files: Files, staged: Sequence[DataFile], keys: list[str]) -> Any:
    """Return the key columns of staged files as one Arrow table."""
    tables = []
    for file in staged:
        with files.open(file.path) as source:
            tables.append(pq.read_table(source, columns=keys))
        files.answered()
    return pa.concat_tables(tables)


def merged(
    files: Files, staged: Sequence[DataFile], keys: list[str], table: Table, target: AddedFiles
) -> Exchange:
    """Rewrite the files of a table that have rows with the keys of staged rows.

    Returns the new files without these rows, and the files that they replace.
    """
    exchange = Exchange([], [])
    if not staged:
        return exchange
    new_keys = _keys_of(files, staged, keys)
    bounds = pc.min_max(new_keys[keys[0]]).as_py()
    first_key = And(_AT_LEAST(keys[0], bounds["min"]), _AT_MOST(keys[0], bounds["max"]))
    for task in table.scan(row_filter=first_key).plan_files():
        rows = _rows(table, task)
        kept = _without(rows, new_keys, keys)
        files.answered()
        if len(kept) == len(rows):
            continue
        exchange.removed.append(task.file)
        if len(kept):
            partition = partition_of(table.metadata, task.file)
            exchange.added.append(target.write(kept, partition))
    return exchange


def _rows(table: Table, task: FileScanTask) -> Any:
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    return scan.to_table([task])


def _without(rows: Any, new_keys: Any, keys: list[str]) -> Any:
    """Return ``rows`` without those that have a key of ``new_keys``."""
    own = rows.select(keys)
    position = "position of the row"
    numbered = own.append_column(position, pa.array(range(len(rows)), pa.int64()))
    same = new_keys.cast(own.schema)
    left = numbered.join(same, keys=keys, join_type="left anti")
    return rows.take(left.sort_by(position)[position])
