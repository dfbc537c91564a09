"""Generate SQL that creates a view of each dataset for DuckDB and Spark.

A file of it in the warehouse is rewritten by each publish.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from unstuck.tasks.errors import UnstuckError
from unstuck.tasks.spec.table_formats.registry import table_format
from unstuck.tasks.spec.table_formats.sql_text import (
    duckdb_name,
    duckdb_text,
    hadoop_uri,
    spark_text,
)
from unstuck.tasks.spec.types import quoted as in_backticks
from unstuck.tasks.spec.types import type_in_sql
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log_entry import DatasetState, State

log = logging.getLogger(__name__)

Kind = Literal["duckdb", "spark"]
FOLDER = "_views"
_HEAD = re.compile(rb"-- unstuck: version (\d+) of ")
_IN_DUCKDB = {
    "string": "VARCHAR",
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "binary": "BLOB",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ntz": "TIMESTAMP",
    "void": "INTEGER",
}
_HINTS: dict[Kind, str] = {
    "duckdb": "duckdb -init FILE, or .read FILE",
    "spark": "spark-sql -i FILE, or beeline -i FILE: its views are those of a session",
}


class LogReader(Protocol):
    """The reads of `Warehouse` that views are made from."""

    storage: Files

    def head(self) -> int: ...

    def state(self, version: int | None = None, *, removed: bool = False) -> State: ...


def view_path(kind: Kind) -> str:
    """The file of the warehouse that each publish rewrites, if it is there."""
    return f"{FOLDER}/{kind}.sql"


def views_sql(kind: Kind, storage: Files, state: State, version: int) -> str:
    """The statements that make a view of each dataset of ``state``, which stands at ``version``."""
    parts = [
        f"-- unstuck: version {version} of {storage.uri('')}. Run it again after each publish "
        f"({_HINTS[kind]}).\n"
        "-- A vacuum removes the files of old versions, which these views may name then."
    ]
    spellings: dict[str, str] = {}
    make = _in_duckdb if kind == "duckdb" else _in_spark
    for name, dataset in sorted(state.items()):
        if (other := spellings.setdefault(name.lower(), name)) != name:
            parts.append(
                f"-- {name} has no view: its name is that of {other} but for upper and lower case."
            )
            continue
        parts.append(make(name, dataset, storage))
    return "\n\n".join(parts) + "\n"


def _in_duckdb(name: str, state: DatasetState, storage: Files) -> str:
    view = f"CREATE OR REPLACE VIEW {duckdb_name(name)} AS"
    if state.table is not None:
        return f"{view}\n{table_format(state.table.format).in_duckdb(state.table.path)};"
    columns = [*map(_duckdb_column, json.loads(state.schema)["fields"])]
    # Also of a column that is in no file, or of a dataset without files, the type is known.
    typed = ", ".join(empty for empty, _ in columns if empty)
    files = ",\n    ".join(duckdb_text(storage.uri(file.path)) for file in state.files)
    rows = f"SELECT {typed or 'NULL AS x'} WHERE false"
    if files:
        read = f"read_parquet([\n    {files}\n  ], union_by_name = true, hive_partitioning = false)"
        rows += f"\n  UNION ALL BY NAME\n  SELECT * FROM {read}"
    stored = ", ".join(column for _, column in columns)
    return f"{view}\nSELECT {stored or '*'}\nFROM (\n  {rows}\n);"


def _duckdb_column(field: Mapping[str, Any]) -> tuple[str, str]:
    """Return a column as a typed null, empty if DuckDB lacks the type, and as it is stored."""
    column, kind = duckdb_name(field["name"]), _duckdb_type(field["type"])
    if not kind:
        return "", column
    empty = f"NULL::{kind} AS {column}"
    return empty, empty if field["type"] == "void" else f"CAST({column} AS {kind}) AS {column}"


def _in_spark(name: str, state: DatasetState, storage: Files) -> str:
    view = f"CREATE OR REPLACE TEMPORARY VIEW {in_backticks(name)}"
    if state.table is not None:
        return f"{view} {table_format(state.table.format).in_spark(state.table.path)};"
    columns = {
        in_backticks(field["name"]): type_in_sql(field["type"], void="int")
        for field in json.loads(state.schema)["fields"]
        if field["type"] != "void"
    }
    if not state.files:
        empty = ", ".join(f"CAST(NULL AS {kind}) AS {column}" for column, kind in columns.items())
        return f"{view} AS\nSELECT {empty or 'NULL AS x'} WHERE false;"
    # One path for all files, as Hadoop reads a pattern.
    paths = [re.sub(r"([,{}\[\]*?\\])", r"\\\1", file.path) for file in state.files]
    pattern = ",".join(paths)
    if len(paths) > 1:
        pattern = f"{{{pattern}}}"
    place = f"{hadoop_uri(storage.uri('')).rstrip('/')}/{pattern}"
    listed = ", ".join(map(" ".join, columns.items()))
    return (
        f"{view} ({listed})\nUSING parquet\nOPTIONS (path {spark_text(place)}, "
        "datetimeRebaseMode 'CORRECTED');"
    )


def _duckdb_type(kind: Any) -> str:
    """A type of Spark's JSON in the SQL of DuckDB; empty if it has no word for it."""
    if isinstance(kind, str):
        return kind.upper() if kind.startswith("decimal(") else _IN_DUCKDB.get(kind, "")
    if kind["type"] == "struct":
        types = {
            duckdb_name(field["name"]): _duckdb_type(field["type"]) for field in kind["fields"]
        }
        fields = ", ".join(map(" ".join, types.items()))
        return f"STRUCT({fields})" if all(types.values()) else ""
    if kind["type"] == "map":
        key, value = _duckdb_type(kind["keyType"]), _duckdb_type(kind["valueType"])
        return f"MAP({key}, {value})" if key and value else ""
    element = _duckdb_type(kind["elementType"])
    return f"{element}[]" if element else ""


def kept_kinds(storage: Files) -> list[Kind]:
    """The kinds of which a file of views is kept in the warehouse."""
    names = storage.names(FOLDER)
    kinds: tuple[Kind, ...] = ("duckdb", "spark")
    return [kind for kind in kinds if f"{kind}.sql" in names]


def kept_version(storage: Files, kind: Kind) -> int:
    """Return the version that the file of views shows; -1 if it cannot be read."""
    try:
        match = _HEAD.match(storage.read(view_path(kind)))
    except FileNotFoundError:
        return -1
    return int(match[1]) if match else -1


def write_views(warehouse: LogReader, kind: Kind) -> int:
    """Write the file of views into the warehouse. Returns its version.

    From then on each publish rewrites it.

    Raises: OSError, UnstuckError: it is not known to be written; repeating is safe.
    """
    # The head is read again after each write: a process that wrote an older version late finds it,
    # and writes again.
    while kept_version(warehouse.storage, kind) != (head := warehouse.head()):
        text = views_sql(kind, warehouse.storage, warehouse.state(head, removed=True), head)
        warehouse.storage.write_durable(view_path(kind), text.encode())
    return head


def rewrite_kept_views(warehouse: LogReader) -> None:
    """Write the files of views anew that are kept in the warehouse.

    A failure is logged, and told by `doctor`.
    """
    try:
        for kind in kept_kinds(warehouse.storage):
            write_views(warehouse, kind)
    except (OSError, UnstuckError) as error:
        # The entry stands, and that is the publish. The next one tries again.
        log.warning(
            "The views of the warehouse %s could not be written anew: %s",
            warehouse.storage.uri(""),
            error,
        )
