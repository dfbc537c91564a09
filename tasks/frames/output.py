"""Outputs: write a frame as Parquet files into the attempt's own staging folder.

Rows and schema are read from the footers of the files, without another Spark job. Nobody sees the
files before the marker and the package are written.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

from unstuck.tasks.errors import ForkValuesInvalid, OutputInvalid, StagingLost
from unstuck.tasks.frames.columns import arrow_table, check_spark_schema, plain_table
from unstuck.tasks.frames.parquet_write import write_parquet
from unstuck.tasks.frames.partitions import (
    arrow_parts,
    check_columns,
    collect_parts,
    partition_of,
    spark_writer,
)
from unstuck.tasks.frames.spark import empty_table, is_frame, spark_schema
from unstuck.tasks.spec.group import MAX_FORK, MAX_JOB_BYTES, fork_bytes
from unstuck.tasks.spec.schemas import VOID
from unstuck.tasks.spec.types import field, quoted
from unstuck.tasks.spec.work_order import Collect
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import DataFile, StagedOutput

_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"


def is_any_frame(value: Any) -> bool:
    """Return whether ``frame`` is a frame of Spark, Arrow or pandas, which can be stored."""
    return is_frame(value) or _kind(value) in ("pyarrow", "pandas")


def _kind(value: Any) -> str:
    package = type(value).__module__.partition(".")[0]
    name = type(value).__name__
    return package if (package, name) in {("pyarrow", "Table"), ("pandas", "DataFrame")} else ""


def stage(files: Files, folder: str, frame: Any, partition_by: Sequence[str] = ()) -> StagedOutput:
    """Write ``frame`` into ``folder`` (relative to the warehouse) and describe the files.

    ``partition_by``: columns; each file gets the rows of one combination of their values.

    Raises:
        OutputInvalid: it is no frame, or one that cannot be stored as Parquet that all readers read
            alike.
        StagingLost: some of the written files are missing.
        WarehouseMismatch: the warehouse at this address is not that of ``files``.
        OSError: the store failed.
    """
    return stage_plain(files, folder, frame if is_frame(frame) else table_of(frame), partition_by)


def stage_plain(
    files: Files, folder: str, frame: Any, partition_by: Sequence[str] = ()
) -> StagedOutput:
    """Stage a Spark frame or an Arrow table of plain types like `stage`."""
    files.check()
    if not is_frame(frame):
        return stage_table(files, folder, frame, partition_by)
    schema = json.loads(frame.schema.json())
    check_spark_schema(schema)
    typed = typed_columns(schema)
    rest = with_untyped_evaluated(frame, schema)
    if not typed:  # Spark would store text
        import pyarrow as pa

        rows = rest.count()
        return stage_table(
            files, folder, pa.table({name: pa.nulls(rows) for name in frame.columns}), partition_by
        )
    if len(typed) < len(frame.columns):
        rest = rest.select(*map(quoted, typed))
    check_columns(partition_by, json.dumps(schema))
    wrote, staged = _write_spark(files, folder, rest, partition_by)
    check_written(files, folder, wrote, staged.rows)
    return with_open(staged, frame.columns, typed)


def typed_columns(schema: dict[str, Any]) -> list[str]:
    """Return the columns of a Spark frame that have a type. Only these are written.

    If no column has a type, all are written.

    In a file every column needs a type, which might conflict with the type in later files. Readers
    that match columns by name read a missing column as null.
    """
    return [column["name"] for column in schema["fields"] if column["type"] != VOID]


def with_untyped_evaluated(frame: Any, schema: dict[str, Any]) -> Any:
    """Return a Spark ``frame`` with the same rows that also evaluates columns without a type.

    Nothing of them is written, and `assert_true` and `raise_error` are such columns.
    """
    for column in schema["fields"]:
        if column["type"] == VOID:
            frame = frame.filter(f"{quoted(column['name'])} IS NULL")
    return frame


def table_of(frame: Any) -> Any:
    """Convert an Arrow or pandas frame to an Arrow table of plain types.

    Raises: OutputInvalid: it is no such frame, or one that cannot be stored.
    """
    kind = _kind(frame)
    if not kind:
        raise OutputInvalid(
            (
                "an output wants a Spark, Arrow or pandas frame, not "
                f"{type(frame).__module__}.{type(frame).__qualname__}"
            )
            + _how_to_make_one(frame)
        )
    return plain_table(arrow_table(frame) if kind == "pandas" else frame)


def _how_to_make_one(value: Any) -> str:
    """Return a hint how to convert ``value`` to a frame; empty if Arrow cannot.

    Arrow takes results of DuckDB, Polars frames and lists of rows.
    """
    by = "pyarrow.table" if hasattr(type(value), "__arrow_c_stream__") else ""
    by = by or ("pyarrow.Table.from_pylist" if isinstance(value, list) else "")
    if hasattr(value, "reset_index"):  # a series, as groupby(…).size() answers it
        return ". reset_index() makes a pandas frame of it, with columns of its index"
    return f". {by}(frame) makes an Arrow table of it" if by else ""


def stage_table(
    files: Files, folder: str, table: Any, partition_by: Sequence[str] = ()
) -> StagedOutput:
    """Stage an Arrow table of plain types like `stage`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files.remove_tree(folder)
    parts: Iterable[Any] = [table]
    if partition_by:
        check_columns(partition_by, spark_schema(table.schema))
        parts = arrow_parts(table, partition_by) if len(table) else parts
    typed = [column.name for column in table.schema if not pa.types.is_null(column.type)]
    for number, rows in enumerate(parts):
        data = io.BytesIO()
        try:
            # The schema of Arrow would be known to some readers alone, and they would find other
            # types than the rest.
            pq.write_table(rows.select(typed or table.column_names), data, store_schema=False)
        except pa.ArrowException as error:
            raise OutputInvalid(f"the frame cannot be stored: {error}") from error
        files.write_durable(f"{folder}/part-{number:05d}.parquet", data.getvalue())
    return with_open(describe(files, folder, partition_by), table.column_names, typed)


def with_open(staged: StagedOutput, columns: Sequence[str], typed: Collection[str]) -> StagedOutput:
    """Add all ``columns`` to the schema of ``staged``; those not in ``typed`` are void."""
    if len(typed) == len(columns):
        return staged
    stored = json.loads(staged.schema)
    rest = {column["name"]: column for column in stored["fields"]}
    fields = []
    for name in columns:
        stored_field = rest.pop(name, None)
        fields.append(
            stored_field if stored_field is not None and name in typed else field(name, VOID)
        )
    return replace(staged, schema=json.dumps({**stored, "fields": [*fields, *rest.values()]}))


def check_written(files: Files, folder: str, wrote: int | None, stand: int) -> None:
    """Compare the number of rows that Spark reported with that of the files.

    Raises: StagingLost.
    """
    if wrote is not None and wrote != stand:
        # While the warehouse is away, tasks write into whatever stands at its path. If it is back
        # before the end, Spark commits what it finds there, without an error.
        raise _lost(files, folder, wrote, stand)


def _write_spark(
    files: Files, folder: str, frame: Any, partition_by: Sequence[str]
) -> tuple[int | None, StagedOutput]:
    """Write a Spark frame. Returns the rows that Spark reports, and what is on disk.

    Raises: as `stage`.
    """
    by = [column for column in partition_by if column in frame.columns]  # not one without a type
    if not by:
        wrote = write_parquet(frame, files.uri(folder))
        files.check()
        return wrote, describe(files, folder, partition_by)
    files.remove_tree(folder)
    source = f"{folder}/_parted"
    wrote = write_parquet(frame, files.uri(source), lambda frame: spark_writer(frame, by))
    files.check()
    if not collect_parts(files, source, folder):
        # Spark writes no file for a frame without rows where it parts them, and so no schema.
        write_parquet(frame, files.uri(folder))
        if wrote or describe(files, folder).rows:
            raise _lost(files, folder, wrote or "some", 0)
    return wrote, describe(files, folder, partition_by)


def _lost(files: Files, folder: str, wrote: int | str, stand: int) -> StagingLost:
    return StagingLost(
        f"Spark wrote {wrote} rows to {files.uri(folder)}, and {stand} stand there. The warehouse "
        "was away for a while, or somebody removed files; the group runs again, as its retry: "
        "allows"
    )


def describe(files: Files, folder: str, partition_by: Sequence[str] = ()) -> StagedOutput:
    """Describe the Parquet files in ``folder``: rows, schema, and the partition of each file.

    Raises: StagingLost: there is no data file.
    """
    # _SUCCESS, _temporary, .crc are Spark's own.
    names = (
        name
        for name in files.names(folder)
        if name.endswith(".parquet") and not name.startswith(("_", "."))
    )
    staged = describe_files(files, [f"{folder}/{name}" for name in names], partition_by)
    if not staged.files:
        # Spark writes a file for an empty frame too.
        raise StagingLost(
            f"no data file stands in {files.uri(folder)} after it was written. The warehouse was "
            "away for a while, or somebody removed the files; the group runs again, as its retry: "
            "allows"
        )
    return staged


def describe_files(
    files: Files, paths: Iterable[str], partition_by: Sequence[str] = ()
) -> StagedOutput:
    """Describe Parquet files by their paths, as `describe` does. No files have an empty schema."""
    import pyarrow.parquet as pq

    staged: list[DataFile] = []
    schema = ""
    for path in paths:
        with files.open(path) as file:
            footer = pq.ParquetFile(file)
            partition = partition_of(footer, partition_by)
            staged.append(
                DataFile(path, footer.metadata.num_rows, files.size(path) or 0, partition)
            )
            if not schema:
                own = (footer.metadata.metadata or {}).get(_SPARK_SCHEMA)
                schema = own.decode() if own else spark_schema(footer.schema_arrow)
    return StagedOutput(staged, sum(file.rows for file in staged), schema)


def read_table(files: Files, outputs: list[StagedOutput], columns: list[str] | None = None) -> Any:
    """Read ``outputs`` into one Arrow table. A column that an output lacks is null there.

    Raises: OSError: a file is gone or damaged, or the store failed.
    """
    import pyarrow as pa

    tables = [
        _read(files, output, file.path, columns) for output in outputs for file in output.files
    ]
    if not tables:
        return empty_table(outputs[0].schema)
    return pa.concat_tables(tables, promote_options="default")


def _read(files: Files, output: StagedOutput, path: str, columns: list[str] | None) -> Any:
    """Read the ``columns`` that ``output`` has from one of its files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = empty_table(output.schema).schema
    types = {column["name"]: column["type"] for column in json.loads(output.schema)["fields"]}
    with files.open(path) as file:
        try:
            table = pq.ParquetFile(file).read(columns=columns)
        except pa.ArrowException as error:
            raise OSError(f"{files.uri(path)} cannot be read: {error}") from error
    typed = {name for name in table.column_names if types.get(name, VOID) != VOID}
    names = [name for name in columns or types if name in types]
    arrays = [
        table[name] if name in typed else pa.nulls(len(table), schema.field(name).type)
        for name in names
    ]
    return pa.table(arrays, names=names)


def collect(
    files: Files, output: StagedOutput, request: Collect, room: int = MAX_JOB_BYTES
) -> list[Any]:
    """Return the values of one column for a dynamic fork, as JSON scalars in file order.

    They take at most ``room`` bytes.

    Raises: ForkValuesInvalid: the column is missing, or a value cannot be a fork value.
    """
    names = [column["name"] for column in json.loads(output.schema)["fields"]]
    if request.column not in names:
        raise ForkValuesInvalid(
            f"{request.key}: the output has no column {request.column}; it has {', '.join(names)}"
        )
    values: dict[Any, None] = {}
    for value in _values(files, output, request.column):
        if value is None and request.distinct:
            continue
        if why := _unfit_for_fork(value):
            raise ForkValuesInvalid(f"{request.key} has {why}")
        if value in values:
            if request.distinct:
                continue
            raise ForkValuesInvalid(
                f"{request.key} has the value {value!r} twice; drop one, or say distinct: true"
            )
        values[value] = None
        room -= fork_bytes((value,))
        _check_size(request.key, len(values), room)
    return list(values)


def _check_size(key: str, count: int, room: int) -> None:
    """Check the size of fork values. Raises: ForkValuesInvalid: too large or too many."""
    if room < 0:
        raise ForkValuesInvalid(
            f"the values of {key}, and of what else this group's forks go over, take "
            f"more than {MAX_JOB_BYTES // 2**20} MB; fork over a short name of each value"
        )
    if count > MAX_FORK:
        raise ForkValuesInvalid(
            f"{key} has more than {MAX_FORK} values; a fork has at most that many members"
        )


def _unfit_for_fork(value: Any) -> str:
    """Return what ``value`` is, if no member of a fork can have it; else empty."""
    if value is None:
        return "a null; drop it, or say distinct: true"
    is_scalar = isinstance(value, str | int | float | bool)
    if is_scalar and (not isinstance(value, float) or math.isfinite(value)):
        return ""
    return f"the value {value!r}; a fork's values are text, numbers or booleans (cast the column)"


def _values(files: Files, output: StagedOutput, column: str) -> Iterator[Any]:
    import pyarrow.parquet as pq

    for data_file in output.files:
        with files.open(data_file.path) as file:
            try:
                parquet = pq.ParquetFile(file)
                if column not in parquet.schema_arrow.names:  # published before the column came
                    yield from repeat(None, data_file.rows)
                    continue
                for batch in parquet.iter_batches(columns=[column]):
                    files.answered()
                    # A name with a dot in it also names a field of a struct, which is read as well
                    # then.
                    yield from batch.column(batch.schema.names.index(column)).to_pylist()
            except (ValueError, OverflowError) as error:
                # For example a date of the year 12000, or text that is not UTF-8.
                raise ForkValuesInvalid(
                    f"a value of the column {column} cannot be read: {error}"
                ) from error
