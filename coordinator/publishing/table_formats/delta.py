"""Writes outputs into Delta tables.

Each commit records its log entry in Delta's application transaction, so a repeat finds it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from unstuck.coordinator.errors import PublishFailed, TableTrouble
from unstuck.coordinator.publishing.table_formats.delta_files import (
    NULL_FOLDER,
    DeltaFiles,
    folder_fits,
)
from unstuck.coordinator.publishing.table_formats.table_checks import (
    check_columns,
    check_keys_exist,
    check_outside,
    check_partition_columns,
)
from unstuck.coordinator.publishing.table_formats.table_writer import (
    KEYS_UNFIT,
    PARTITION_MISMATCH,
    SCHEMA_MISMATCH,
    TABLE_UNFIT,
    Candidate,
    TableCommit,
)
from unstuck.tasks.host import how_to_install
from unstuck.tasks.spec.schemas import fields_of, schema_of
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log_entry import Change
from unstuck.tasks.warehouse.marker import DataFile, are_named

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


class DeltaWriter:
    """Writes Delta tables with the package deltalake."""

    def open(self, path: str) -> Any | None:
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

    def newest_entry(self, table: Any, app_id: str) -> int:
        return table.transaction_version(app_id) or 0

    def check(self, candidate: Candidate, table: Any | None) -> None:
        place = DeltaFiles(candidate.path)
        check_outside(candidate, candidate.path)
        if table is None and place.has_strangers():
            why = "its folder has files, but there is no Delta table"
            raise candidate.refused(TABLE_UNFIT, why)
        _check_types(candidate)
        _check_partition_values(candidate)
        if table is not None:
            spec, schema = candidate.spec, candidate.output.schema
            self.check_table(candidate.what, table, schema, spec.mode, spec.partition_by)
        if candidate.spec.mode == "merge":
            _check_keys(candidate)
        place.probe()  # after the entry, the job ends only if the table can be written

    def check_table(
        self, what: str, table: Any, schema: str, mode: str, partition_by: Sequence[str]
    ) -> None:
        protocol, metadata = table.protocol(), table.metadata()
        table_schema = table.schema().to_json()
        odd = _unsupported(protocol, metadata, table_schema, mode)
        if odd:
            raise PublishFailed(
                TABLE_UNFIT,
                f"{what}: it requires features that Unstuck does not support: {', '.join(odd)}",
            )
        check_columns(what, table_schema, schema)
        if mode != "merge":
            check_partition_columns(what, metadata.partition_columns, partition_by)

    def counted_files(self, table: Any) -> Sequence[DataFile]:
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

    def commit(self, commit: TableCommit, table: Any | None) -> bool:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError

        # One version of the table is tried and no other, which deltalake does without retries.
        properties = CommitProperties(
            custom_metadata=commit.properties,
            max_commit_retries=0,
            app_transactions=[Transaction(commit.app_id, commit.entry.n)],
        )
        try:
            if table is None:
                _create(commit, properties)
            elif commit.change.mode == "merge" and commit.change.rows:
                _merge(commit, table, properties)
            else:
                _exchange_files(commit, table, properties)
        except CommitFailedError:
            return False
        except DeltaError:
            if table is None and self.open(commit.into.path) is not None:
                return False  # another writer has created it
            raise
        return True

    def sync(self, path: str, table: Any, app_id: str) -> None:
        DeltaFiles(path).sync_commit(table.version(), app_id)


def _check_types(candidate: Candidate) -> None:
    """Check that Delta has the types of all fields. Raises: PublishFailed."""
    fields = json.loads(candidate.output.schema)["fields"]
    odd = [field for field in fields if not _is_delta_type(field["type"])]
    if odd:
        types = ", ".join(f"{field['name']} ({json.dumps(field['type'])})" for field in odd[:5])
        raise candidate.refused(SCHEMA_MISMATCH, f"Delta has no such type: {types}")


def _is_delta_type(kind: Any) -> bool:
    if isinstance(kind, str):
        return kind in _PLAIN | _TIMES or kind.startswith("decimal(")
    inner = [field["type"] for field in kind.get("fields", ())]
    inner += [kind[part] for part in ("elementType", "keyType", "valueType") if part in kind]
    return kind.get("type") in ("struct", "array", "map") and all(map(_is_delta_type, inner))


def _check_partition_values(candidate: Candidate) -> None:
    """Check that readers of Delta find the rows of each partition. Raises: PublishFailed."""
    values = {value for file in candidate.output.files for value in file.partition.values()}
    for text, shown in (("", "an empty text"), (NULL_FOLDER, f"the text {NULL_FOLDER}")):
        if text in values:
            raise candidate.refused(
                PARTITION_MISMATCH,
                f"a column of partition_by: holds {shown}, which readers of Delta cannot tell from "
                "null",
            )
    if not all(folder_fits(value) for value in values if value is not None):
        raise candidate.refused(
            PARTITION_MISMATCH,
            "a column of partition_by: holds a text that is too long for a folder",
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


def _check_keys(candidate: Candidate) -> None:
    """Check that keys are columns, never null, and unique. Raises: PublishFailed.

    Delta would find a violation only after the entry.
    """
    check_keys_exist(candidate)
    output, keys = candidate.output, candidate.spec.keys
    if not output.rows:
        return
    columns = ", ".join(map(_quoted, keys))
    null = " OR ".join(f"{_quoted(key)} IS NULL" for key in keys)
    files = candidate.warehouse.storage
    for problem, query in (
        ("null in some row", f"SELECT {columns} FROM s WHERE {null} LIMIT 1"),
        (
            "the same in several rows",
            f"SELECT {columns} FROM s GROUP BY {columns} HAVING count(*) > 1 LIMIT 1",
        ),
    ):
        rows = _rows(files, candidate.job, candidate.name, output.files, output.schema, query)
        for batch in rows:
            if batch.num_rows:
                example = ", ".join(str(batch.column(i)[0].as_py()) for i in range(len(keys)))
                raise candidate.refused(
                    KEYS_UNFIT, f"keys: {', '.join(keys)} is {problem} ({example})"
                )


def _create(commit: TableCommit, properties: Any) -> None:
    from deltalake import Schema
    from deltalake.transaction import create_table_with_add_actions

    create_table_with_add_actions(
        commit.into.path,
        Schema.from_json(schema_of(fields_of(commit.change.schema))),
        _actions(commit, None),
        mode="error",
        partition_by=commit.into.partition_by,
        commit_properties=properties,
    )


def _exchange_files(commit: TableCommit, table: Any, properties: Any) -> None:
    """Commit files that are added and files that are removed."""
    table.create_write_transaction(
        _actions(commit, table),
        "append",
        table.schema(),
        commit.into.partition_by,
        commit_properties=properties,
    )


def _actions(commit: TableCommit, table: Any | None) -> list[Any]:
    """Copy the files of a change below the table. Return the actions that remove and add files."""
    files, place = _standing(table), DeltaFiles(commit.into.path)
    added = {place.path_of(file): file for file in commit.change.added if file.rows}
    # Files that the table has stay: two retries of one job may adopt the same files.
    new = [path for path in added if path not in files]
    adds = [place.add(commit.warehouse.storage, added[path], path) for path in new]
    place.sync_folder()
    return [*_removes(files, commit.change, added), *adds]


def _standing(table: Any | None) -> dict[str, tuple[int, dict[str, str | None]]]:
    """Return the files of a table by their path: bytes and partition."""
    if table is None:
        return {}
    add_actions = table.get_add_actions()
    paths, sizes = (_values(add_actions.column(name)) for name in ("path", "size_bytes"))
    parts = (
        _values(add_actions.column("partition"))
        if table.metadata().partition_columns
        else [{}] * len(paths)
    )
    # deltalake encodes its argument, and returns the path as in the log.
    return {
        unquote(path): (size, {column: _text(value) for column, value in part.items()})
        for path, size, part in zip(paths, sizes, parts, strict=True)
    }


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


def _merge(commit: TableCommit, table: Any, properties: Any) -> None:
    change, files = commit.change, commit.warehouse.storage
    rows = _rows(
        files, commit.entry.job, commit.name, change.added, change.schema, "SELECT * FROM s"
    )
    predicate = " AND ".join(f"t.{_quoted(key)} = s.{_quoted(key)}" for key in commit.into.keys)
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
    place = DeltaFiles(path)
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


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _text(value: Any) -> str | None:
    """Return a value of a partition column as in the Delta log and in markers."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)
