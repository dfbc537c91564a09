"""Writes outputs into Delta tables, after their entry is in the warehouse log.

Each table gets one commit for each entry. Delta's application transaction (warehouse and dataset,
number of the entry) lets a repeat find that commit. Entries are written in the order of the log.
"""
# A commit is tried against one version of the table and no other (max_commit_retries=0). So a
# commit of a second publisher, or of a writer from outside, is seen before the next try, and no two
# entries change places.

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from unstuck.coordinator.errors import PublishFailed, TableTrouble
from unstuck.coordinator.publishing.table_files import NULL_FOLDER, TableFiles, folder_fits
from unstuck.tasks.errors import WarehouseMismatch, WarehouseUnsafe
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.host import how_to_install
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.spec.schemas import difference, fields_of, schema_of
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Change, DatasetState, Entry, Table
from unstuck.tasks.warehouse.marker import DataFile, StagedOutput, are_named

TABLE_UNFIT = "TABLE_UNFIT"
KEYS_UNFIT = "KEYS_UNFIT"
PARTITION_MISMATCH = "PARTITION_MISMATCH"
SCHEMA_MISMATCH = "SCHEMA_MISMATCH"
TRIES = 100  # commits of others that may come first, in one try of publishing
# Of the features that a table may ask of its writers, beyond files with the right columns: those
# that we have.
_FEATURES = {
    "appendOnly",
    "invariants",
    "timestampNtz",
    "checkConstraints",
    "changeDataFeed",
    "generatedColumns",
}
_ASKS = (
    "delta.invariants",
    "delta.generationExpression",
    "delta.identity",
    "delta.columnMapping",
    "CURRENT_DEFAULT",
)
_PLAIN = {
    "boolean",
    "byte",
    "short",
    "integer",
    "long",
    "float",
    "double",
    "string",
    "binary",
    "date",
}
_TIMES = {"timestamp", "timestamp_ntz"}


@dataclass(frozen=True, slots=True)
class Target:
    """A table that fits an output.

    Attributes:
        written: its newest entry of this warehouse.
        last_entry: the entry that published the dataset last; 0: none.
        appended: files of the output that a retry of the same job has appended before.
        counted_files: for ``partition_overwrite``: its files, if it counts their rows.
    """

    table: Table
    written: int
    last_entry: int = 0
    appended: frozenset[str] = frozenset()
    counted_files: Sequence[DataFile] = ()

    def made_by(self, n: int, name: str, published: DatasetState | None) -> Table:
        """Return the table as entry ``n`` is to record it.

        Raises:
            TableMoved: another job has published the dataset since the table was checked.
            PublishFailed: the table has a commit of that number already.
        """
        if (0 if published is None else published.changed) != self.last_entry:
            raise TableMoved(name)
        if self.written >= n:
            raise PublishFailed(
                TABLE_UNFIT,
                f"the Delta table {self.table.path} has version {self.written} of {name}, and this "
                f"warehouse only comes to version {n}: it seems to have been restored from an "
                f"older copy. Write {name} into another table",
            )
        after = published.changed if published is not None and published.table is not None else 0
        return Table(self.table.path, self.table.partition_by, self.table.keys, after)


class TableMoved(Exception):
    """The dataset was published since its table was checked, so the table must be checked again."""


def check(
    warehouse: Warehouse,
    job: str,
    name: str,
    output: StagedOutput,
    spec: OutputSpec,
    published: DatasetState | None = None,
) -> Target:
    """Check before any decision that ``output`` can be written into the table of ``spec``.

    Args:
        published: the published dataset; None if there is none. If it is in a table, its entry is
            written.

    Raises:
        PublishFailed: the table, its columns or the keys do not fit.
        TableTrouble: the table cannot be read.
    """
    assert spec.table is not None
    place, columns = TableFiles(spec.table), list(spec.partition_by)
    what = f"the output {name} of job {job} cannot be written into the Delta table {spec.table}"
    _check_place(what, warehouse, spec.table)
    with _trouble(name, spec.table):
        table = _open(spec.table)
        if table is None and place.has_strangers():
            why = "its folder has files, but there is no Delta table"
            raise PublishFailed(TABLE_UNFIT, f"{what}: {why}")
        _check_types(what, json.loads(output.schema)["fields"])
        _check_partition_values(what, output)
        if table is not None:
            _check_table(what, table, output.schema, spec.mode, spec.partition_by)
        if spec.mode == "merge":
            _check_keys(what, warehouse, job, name, output, spec.keys)
        place.probe()  # after the entry, the job ends only if the table can be written
        written = _written(table, warehouse, name)
    warehouse.storage.answered()
    counted_files: Sequence[DataFile] = ()
    if spec.mode == "partition_overwrite" and table is not None:
        counted_files = _counted(table)
    return Target(
        Table(spec.table, columns, list(spec.keys)),
        written,
        0 if published is None else published.changed,
        _appended(warehouse, job, name, output, spec, published),
        counted_files,
    )


def _check_place(what: str, warehouse: Warehouse, path: str) -> None:
    """Check that neither table nor warehouse is inside the other. Raises: PublishFailed."""
    home, table = warehouse.storage.uri("").removeprefix("file:").rstrip("/") + "/", f"{path}/"
    if table.startswith(home) or home.startswith(table):
        why = "it is inside the warehouse, or the warehouse is inside it"
        raise PublishFailed(TABLE_UNFIT, f"{what}: {why}")


def _written(table: Any | None, warehouse: Warehouse, name: str) -> int:
    """Return the newest entry of this warehouse that a table has; 0 if it has none."""
    if table is None:
        return 0
    return table.transaction_version(_app_id(warehouse, name)) or 0


def _appended(
    warehouse: Warehouse,
    job: str,
    name: str,
    output: StagedOutput,
    spec: OutputSpec,
    published: DatasetState | None,
) -> frozenset[str]:
    """Return files of an earlier job that ``job`` adopted and another retry has appended.

    The log decides, since others may have rewritten the files of the table.
    """
    adopted = {file.path for file in output.files if not file.path.startswith(f"_staging/{job}/")}
    appended: set[str] = set()
    if spec.mode != "append" or published is None or published.table is None:
        return frozenset()
    n = published.changed
    while n and adopted - appended:
        entry = warehouse.existing_entry(n)
        change, table = entry.datasets[name], entry.tables[name]
        if table.path == spec.table:
            appended |= adopted & {file.path for file in change.added}
            if change.mode == "replace":
                break
        n = table.after
        warehouse.storage.answered()
    return frozenset(appended)


def _check_types(what: str, fields: Sequence[Mapping[str, Any]]) -> None:
    """Check that Delta has the types of all fields. Raises: PublishFailed."""
    odd = [field for field in fields if not _is_delta_type(field["type"])]
    if odd:
        types = ", ".join(f"{field['name']} ({json.dumps(field['type'])})" for field in odd[:5])
        raise PublishFailed(SCHEMA_MISMATCH, f"{what}: Delta has no such type: {types}")


def _is_delta_type(kind: Any) -> bool:
    if isinstance(kind, str):
        return kind in _PLAIN | _TIMES or kind.startswith("decimal(")
    inner = [field["type"] for field in kind.get("fields", ())]
    inner += [kind[part] for part in ("elementType", "keyType", "valueType") if part in kind]
    return kind.get("type") in ("struct", "array", "map") and all(map(_is_delta_type, inner))


def _check_partition_values(what: str, output: StagedOutput) -> None:
    """Check that readers of Delta find the rows of each partition. Raises: PublishFailed."""
    for text, shown in (("", "an empty text"), (NULL_FOLDER, f"the text {NULL_FOLDER}")):
        if any(text in file.partition.values() for file in output.files):
            raise PublishFailed(
                PARTITION_MISMATCH,
                f"{what}: a column of partition_by: holds {shown}, which readers of Delta cannot "
                "tell from null",
            )
    values = (
        value for file in output.files for value in file.partition.values() if value is not None
    )
    if not all(folder_fits(value) for value in values):
        raise PublishFailed(
            PARTITION_MISMATCH,
            f"{what}: a column of partition_by: holds a text that is too long for a folder",
        )


def _unsupported(protocol: Any, metadata: Any, schema: str, mode: str) -> list[str]:
    """Return the demands of a table on its writers that Unstuck does not meet."""
    configuration = metadata.configuration
    odd = sorted(set(protocol.writer_features or ()) - _FEATURES)
    if protocol.min_writer_version > 7:
        odd.append(f"writer version {protocol.min_writer_version}")
    odd += [ask for ask in _ASKS if f'"{ask}' in schema]
    odd += [
        key
        for key in configuration
        if key.startswith(("delta.constraints.", "delta.columnMapping."))
    ]
    if configuration.get("delta.enableChangeDataFeed", "").lower() == "true":
        odd.append("delta.enableChangeDataFeed")
    if mode != "append" and configuration.get("delta.appendOnly", "").lower() == "true":
        odd.append("delta.appendOnly")
    return odd


def _check_table(
    what: str, table: Any, output_schema: str, mode: str, partition_by: Sequence[str]
) -> None:
    """Check that the output fits the table. Raises: PublishFailed."""
    protocol, metadata, schema = table.protocol(), table.metadata(), table.schema().to_json()
    odd = _unsupported(protocol, metadata, schema, mode)
    if odd:
        raise PublishFailed(
            TABLE_UNFIT,
            f"{what}: it requires features that Unstuck does not support: {', '.join(odd)}",
        )
    if _columns(schema) != _columns(output_schema):
        raise PublishFailed(
            SCHEMA_MISMATCH,
            f"{what}: its columns differ: "
            f"{difference(fields_of(schema), fields_of(output_schema))} (the table; this job). "
            "Make the columns equal, as columns: does, or change the table",
        )
    _check_nulls(what, json.loads(schema)["fields"], json.loads(output_schema)["fields"])
    if mode != "merge" and list(metadata.partition_columns) != list(partition_by):
        table_by, output_by = (
            ", ".join(columns) or "no column"
            for columns in (metadata.partition_columns, partition_by)
        )
        raise PublishFailed(
            PARTITION_MISMATCH,
            f"{what}: it is partitioned by {table_by}, and the output by {output_by}",
        )


def _check_nulls(
    what: str, fields: Sequence[Mapping[str, Any]], output_fields: Sequence[Mapping[str, Any]]
) -> None:
    """Check that the output has no null where the table allows none. Raises: PublishFailed."""
    required = {field["name"] for field in fields if not field["nullable"]}
    nullable = {field["name"] for field in output_fields if field["nullable"]}
    if both := sorted(required & nullable):
        why = f"its columns {', '.join(both)} are never null, the output's may be"
        raise PublishFailed(SCHEMA_MISMATCH, f"{what}: {why}")


def _columns(schema: str) -> dict[str, str]:
    """Return the columns with their types, without nullability and order.

    Files of a table are read by name.
    """
    return {field["name"]: json.dumps(field["type"], sort_keys=True) for field in fields_of(schema)}


def _check_keys(
    what: str, warehouse: Warehouse, job: str, name: str, output: StagedOutput, keys: Sequence[str]
) -> None:
    """Check that keys are columns, never null, and unique. Raises: PublishFailed.

    Delta would find a violation only after the entry.
    """
    if absent := [key for key in keys if key not in _columns(output.schema)]:
        raise PublishFailed(
            KEYS_UNFIT, f"{what}: keys: names {', '.join(absent)}, which is no column of it"
        )
    if not output.rows:
        return
    columns = ", ".join(map(_quoted, keys))
    null = " OR ".join(f"{_quoted(key)} IS NULL" for key in keys)
    for problem, query in (
        ("null in some row", f"SELECT {columns} FROM s WHERE {null} LIMIT 1"),
        (
            "the same in several rows",
            f"SELECT {columns} FROM s GROUP BY {columns} HAVING count(*) > 1 LIMIT 1",
        ),
    ):
        for batch in _rows(warehouse.storage, job, name, output.files, output.schema, query):
            if batch.num_rows:
                example = ", ".join(str(batch.column(i)[0].as_py()) for i in range(len(keys)))
                raise PublishFailed(
                    KEYS_UNFIT, f"{what}: keys: {', '.join(keys)} is {problem} ({example})"
                )


def write_tables(warehouse: Warehouse, entry: Entry) -> None:
    """Write all Delta tables of ``entry``, after those of earlier entries that it builds on.

    A repeat continues.

    Raises:
        TableTrouble: a table cannot be written now.
        OSError, WarehouseMismatch: the warehouse did not answer.
    """
    todo, open_ = {entry.n: entry}, [entry]
    while open_:
        for table in open_.pop().tables.values():
            earlier = table.after
            if earlier and earlier not in todo and not warehouse.tables_written(earlier):
                todo[earlier] = warehouse.existing_entry(earlier)
                open_.append(todo[earlier])
    for n in sorted(todo):
        if warehouse.tables_written(n):
            continue
        for name, table in todo[n].tables.items():
            with _trouble(name, table.path):
                _write(warehouse, todo[n], name, table)
        warehouse.note_tables_written(n)


def _write(warehouse: Warehouse, entry: Entry, name: str, into: Table) -> None:
    """Write the commit of ``entry`` into one table, and sync it to disk."""
    app, place = _app_id(warehouse, name), TableFiles(into.path)
    for _ in range(TRIES):
        table = _open(into.path)
        warehouse.storage.answered()
        if table is not None and (table.transaction_version(app) or 0) >= entry.n:
            place.sync_commit(table.version(), app)
            return
        reach(Point.BEFORE_TABLE, entry.job)
        if table is not None:
            change = entry.datasets[name]
            what = f"entry {entry.n} of the log cannot be written"
            try:
                _check_table(what, table, change.schema, change.mode, into.partition_by)
            except PublishFailed as unfit:  # the table has changed since the entry was appended
                raise TableTrouble(str(unfit)) from unfit
        if _commit(warehouse, entry, name, into, place, table):
            reach(Point.AFTER_TABLE, entry.job)
    raise TableTrouble(f"other writers came first, {TRIES} times")


def _commit(
    warehouse: Warehouse, entry: Entry, name: str, into: Table, place: TableFiles, table: Any | None
) -> bool:
    """Commit once, against the present version. Return False if another writer came first."""
    from deltalake import CommitProperties, Schema, Transaction
    from deltalake.exceptions import CommitFailedError, DeltaError
    from deltalake.transaction import create_table_with_add_actions

    change = entry.datasets[name]
    properties = CommitProperties(
        custom_metadata={"unstuck.job": entry.job, "unstuck.version": str(entry.n)},
        max_commit_retries=0,
        app_transactions=[Transaction(_app_id(warehouse, name), entry.n)],
    )
    try:
        if change.mode == "merge" and table is not None and change.rows:
            _merge(warehouse, entry, name, into, table, properties)
            return True
        actions = _actions(warehouse, change, place, table)
        if table is not None:
            table.create_write_transaction(
                actions, "append", table.schema(), into.partition_by, commit_properties=properties
            )
            return True
        create_table_with_add_actions(
            into.path,
            Schema.from_json(schema_of(fields_of(change.schema))),
            actions,
            mode="error",
            partition_by=into.partition_by,
            commit_properties=properties,
        )
    except CommitFailedError:
        return False
    except DeltaError:
        if table is None and _open(into.path) is not None:  # another writer has created it
            return False
        raise
    return True


def _actions(
    warehouse: Warehouse, change: Change, place: TableFiles, table: Any | None
) -> list[Any]:
    """Copy the files of a change below the table. Return the actions that remove and add files."""
    files = _standing(table)
    added = {place.path_of(file): file for file in change.added if file.rows}
    # Files that the table has stay: two retries of one job may adopt the same files.
    new = [path for path in added if path not in files]
    adds = [place.add(warehouse.storage, added[path], path) for path in new]
    place.sync_folder()
    return [*_removes(files, change, added), *adds]


def _standing(table: Any | None) -> dict[str, tuple[int, dict[str, str | None]]]:
    """The files of a table by their path: bytes and partition."""
    if table is None:
        return {}
    add_actions = table.get_add_actions()
    paths, sizes = (_values(add_actions.column(name)) for name in ("path", "size_bytes"))
    parts = (
        _values(add_actions.column("partition"))
        if table.metadata().partition_columns
        else [{}] * len(paths)
    )
    # deltalake encodes the path that it is given, and gives it as it stands in the log.
    return {
        unquote(path): (size, {column: _text(value) for column, value in part.items()})
        for path, size, part in zip(paths, sizes, parts, strict=True)
    }


def _counted(table: Any) -> list[DataFile]:
    """The files of a table with their rows; none if it does not know those of all."""
    add_actions, files = table.get_add_actions(), _standing(table)
    rows = (
        _values(add_actions.column("num_records"))
        if "num_records" in add_actions.schema.names
        else [None]
    )
    if None in rows:
        return []
    return [
        DataFile(path, n, size, part)
        for n, (path, (size, part)) in zip(rows, files.items(), strict=True)
    ]


def _removes(
    files: Mapping[str, tuple[int, dict[str, str | None]]],
    change: Change,
    added: Mapping[str, DataFile],
) -> Iterator[Any]:
    """Yield the files that a change removes: none, all others, or those of its partitions."""
    from deltalake.transaction import RemoveAction

    if change.mode not in ("replace", "partition_overwrite"):
        return
    is_replaced = are_named(change.replaces)
    for path, (size, values) in files.items():
        if path not in added and (change.mode == "replace" or is_replaced(values)):
            yield RemoveAction(path, True, int(time.time() * 1000), size, values)


def _values(column: Any) -> list[Any]:
    return [value.as_py() for value in column]


def _merge(
    warehouse: Warehouse, entry: Entry, name: str, into: Table, table: Any, properties: Any
) -> None:
    change = entry.datasets[name]
    rows = _rows(warehouse.storage, entry.job, name, change.added, change.schema, "SELECT * FROM s")
    predicate = " AND ".join(f"t.{_quoted(key)} = s.{_quoted(key)}" for key in into.keys)
    merger = table.merge(
        rows, predicate=predicate, source_alias="s", target_alias="t", commit_properties=properties
    )
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def _rows(
    files: Files, job: str, name: str, data: Sequence[DataFile], schema: str, query: str
) -> Any:
    """Return the result of a query of the staged rows ``s``, as a stream of Arrow batches.

    Each batch is a sign of life.
    """
    # The staged files become a Delta table of their own, since deltalake reads tables only.
    from arro3.core import RecordBatchReader
    from deltalake import DeltaTable, QueryBuilder, Schema
    from deltalake.transaction import create_table_with_add_actions

    path = files.uri(f"_staging/{job}/_merge/{name}").removeprefix("file:")
    place = TableFiles(path)
    adds = [
        place.add(files, replace(file, partition={}), f"{number:05d}.parquet")
        for number, file in enumerate(data)
        if file.rows
    ]
    create_table_with_add_actions(
        path, Schema.from_json(schema_of(fields_of(schema))), adds, mode="ignore"
    )
    answer = QueryBuilder().register("s", DeltaTable(path)).execute(query)

    def batches() -> Iterator[Any]:
        for batch in answer:
            files.answered()
            yield batch

    return RecordBatchReader.from_batches(answer.schema, batches())


def _open(path: str) -> Any | None:
    """Return the table; None if there is none. Raises: TableTrouble: deltalake is not installed."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError
    except ImportError as error:
        raise TableTrouble(
            f"this coordinator cannot write Delta tables ({error}). {how_to_install('delta')}"
        ) from error
    try:
        return DeltaTable(path)
    except TableNotFoundError:
        return None


def _app_id(warehouse: Warehouse, name: str) -> str:
    return f"unstuck/{warehouse.identity()}/{name}"


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _text(value: Any) -> str | None:
    """A value of a partition column as the Delta log writes it, and as the marker does."""
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _trouble(name: str, path: str) -> Iterator[None]:
    """Name the table in every error but a failure for good. Raises: TableTrouble."""
    try:
        yield
    except (PublishFailed, WarehouseMismatch, WarehouseUnsafe):
        raise
    except (
        Exception
    ) as error:  # deltalake raises DeltaError, OSError, ValueError and others for one cause
        trouble = (
            str(error) if isinstance(error, TableTrouble) else f"{type(error).__name__}: {error}"
        )
        raise TableTrouble(f"the Delta table {path} of {name}: {trouble}") from error
