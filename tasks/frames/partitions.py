"""Writes the rows of an output so that each file has the rows of one partition.

The partition columns stay in the files, and no folder is named after a value, so every reader of a
list of files finds the same columns. The marker and the warehouse log record the values of each
file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import and_, itemgetter
from typing import Any

from unstuck.tasks.errors import OutputInvalid, RowsOutside
from unstuck.tasks.protocol.replaced import partition_text
from unstuck.tasks.spec.outputs import PartitionValue
from unstuck.tasks.spec.types import quoted
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import NamedPartitions, StagedOutput, are_named

Partition = dict[str, str | None]
"""By column, the value that all rows of a file have, as text; None for null."""

# Types whose values are the same text everywhere.
_PLAIN = re.compile(r"void|boolean|byte|short|integer|long|string|date")
OURS = "__unstuck_"  # begins the names of columns that only part rows, and so of the folders
_HASH = f"{OURS}partition"


def check_columns(columns: Sequence[str], schema: str) -> None:
    """Check that ``columns`` can partition an output with ``schema`` (Spark's JSON of a struct).

    Raises: OutputInvalid.
    """
    types = {field["name"]: field["type"] for field in json.loads(schema)["fields"]}
    for column in columns:
        if column not in types:
            raise OutputInvalid(
                f"partition_by: there is no column {column!r}; the output has {', '.join(types)}"
            )
        if not isinstance(types[column], str) or _PLAIN.fullmatch(types[column]) is None:
            raise OutputInvalid(
                f"partition_by: the column {column} is of type {json.dumps(types[column])}, whose "
                "values are not the same text in every system. Part by text, whole numbers, dates "
                "or booleans"
            )


def spark_writer(frame: Any, columns: Sequence[str], above: Sequence[str] = ()) -> Any:
    """A writer of a Spark ``frame`` that makes a folder for each partition, for `collect_parts`.

    ``above``: columns whose values part the rows before. Spark takes them out of the files, too.

    Spark takes the column that it parts by out of the files, so a hash of the values is parted by.
    A folder that is named after the values would also depend on how each host encodes names, and on
    how long a name may be.
    """
    from pyspark.sql.functions import coalesce, col, concat, lit, sha2

    if not columns:
        return frame.write.partitionBy(*above)
    texts = [coalesce(concat(lit("v"), col(quoted(c)).cast("string")), lit("n")) for c in columns]
    values = concat(*(sha2(text, 256) for text in texts))
    return frame.withColumn(_HASH, sha2(values, 256)).write.partitionBy(*above, _HASH)


def collect_parts(files: Files, source: str, folder: str) -> bool:
    """Move the files that Spark has written below ``source`` into ``folder``.

    Return whether there were any.

    Raises: OSError.
    """
    paths = data_files_below(files, source)
    for number, path in enumerate(paths):
        files.move(path, f"{folder}/part-{number:05d}.parquet")
    files.remove_tree(source)
    return bool(paths)


def data_files_below(files: Files, folder: str) -> list[str]:
    """Return the Parquet files in ``folder`` and in its partition folders.

    Raises: OSError.
    """
    paths = []
    for name in files.names(folder):
        if name.startswith(OURS):
            paths += data_files_below(files, f"{folder}/{name}")
        elif name.endswith(".parquet") and not name.startswith(("_", ".")):
            paths.append(f"{folder}/{name}")
    return paths


def arrow_parts(table: Any, columns: Sequence[str]) -> Iterator[Any]:
    """Yield the rows of each partition of an Arrow ``table``, in the order of the values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = [
        pc.fill_null(pc.binary_join_element_wise("v", pc.cast(table[c], pa.string()), ""), "n")
        for c in columns
    ]
    names = [str(i) for i in range(len(columns))]
    keys = pa.table(texts, names=names)
    numbered = keys.append_column("row", pa.array(range(len(keys)), pa.int64()))
    grouped = numbered.group_by(names, use_threads=False).aggregate([("row", "list")])
    for group in sorted(grouped.to_pylist(), key=lambda group: [group[name] for name in names]):
        yield table.take(pa.array(group["row_list"], pa.int64()))


def partition_of(file: Any, columns: Sequence[str]) -> Partition:
    """Return the partition of the rows in a ``pyarrow.parquet.ParquetFile``, by its first row.

    A column that the file lacks has no type, and so no value.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not columns or not file.metadata.num_rows:
        return {}
    present = set(file.schema_arrow.names)
    first = next(
        file.iter_batches(batch_size=1, columns=[column for column in columns if column in present])
    )
    return {
        c: pc.cast(first.column(c), pa.string())[0].as_py() if c in present else None
        for c in columns
    }


# -- partitions: -----------------------------------------------------------------------------------

_MOST_NAMED = 10  # partitions outside, in the text of an error


def named_in(partitions: Mapping[str, Sequence[PartitionValue]], schema: str) -> NamedPartitions:
    """Return the values of ``partitions:`` in the form of `partition_of`, for ``schema``.

    Raises: OutputInvalid: one is no value of its column.
    """
    check_columns(list(partitions), schema)
    types = {field["name"]: field["type"] for field in json.loads(schema)["fields"]}
    return {
        column: [_text(value, column, types[column]) for value in values]
        for column, values in partitions.items()
    }


def _text(value: PartitionValue, column: str, kind: str) -> str | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    kinds = {
        "boolean": "bool",
        "byte": "int8",
        "short": "int16",
        "integer": "int32",
        "long": "int64",
        "date": "date32",
    }
    if kind not in kinds:  # text, or a column without values and so without a type
        return text
    try:
        read = pc.cast(pa.array([text]), kinds[kind])
    except pa.ArrowInvalid:
        raise OutputInvalid(
            f"partitions: {value!r} is no value of the column {column}, of type {kind}"
        ) from None
    return str(pc.cast(read, pa.string())[0].as_py())


def check_named(files: Files, name: str, output: StagedOutput, named: NamedPartitions) -> None:
    """Check that all rows of the output ``name`` belong to the named partitions.

    Raises: RowsOutside; OSError.
    """
    import pyarrow.parquet as pq

    is_named = are_named([named])
    misplaced = [
        (partition_text(file.partition), file)
        for file in output.files
        if file.rows and not is_named(file.partition)
    ]
    if not misplaced:
        return
    outside = sorted(misplaced, key=itemgetter(0))
    counts: dict[str, int] = {}
    for text, file in outside:
        counts[text] = counts.get(text, 0) + file.rows
    most = [
        f"{partition} ({rows:,} row{'s' * (rows != 1)})"
        for partition, rows in list(counts.items())[:_MOST_NAMED]
    ]
    if len(counts) > _MOST_NAMED:
        most.append(f"and {len(counts) - _MOST_NAMED:,} more")
    with files.open(outside[0][1].path) as source:
        (example,) = next(pq.ParquetFile(source).iter_batches(batch_size=1)).to_pylist()
    shown = ", ".join(f"{column}={value}" for column, value in example.items())
    raise RowsOutside(
        f"{sum(counts.values()):,} of {output.rows:,} rows of {name} are of partitions that "
        f"partitions: does not name: {', '.join(most)}. The first one: {shown[:200]}. Nothing is "
        "replaced. Leave these rows out in the step, name their partitions, or say outside: append "
        "(they are added to what is published there) or outside: reject"
    )


def spark_named(named: NamedPartitions) -> Any:
    """Return a boolean column: whether a row of a Spark frame is in the partitions ``named``."""
    from pyspark.sql.functions import coalesce, col, lit

    def of(column: str, values: Sequence[str | None]) -> Any:
        read = col(quoted(column))
        texts = [value for value in values if value is not None]
        return coalesce(read.cast("string").isin(texts), lit(False)) | (
            read.isNull() & lit(None in values)
        )

    return reduce(and_, (of(column, values) for column, values in named.items()))


def arrow_named(table: Any, named: NamedPartitions) -> Any:
    """Return for each row of an Arrow ``table`` whether it belongs to the partitions ``named``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    masks = (
        pc.is_in(pc.cast(table[column], pa.string()), value_set=pa.array(values, pa.string()))
        for column, values in named.items()
    )
    return reduce(pc.and_, masks)
