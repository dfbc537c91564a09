"""Partitions: the rows of an output, written so that each file holds the rows of one partition.

The columns stay in the files, and no folder is named after a value, so every reader of a list of files finds the same
columns. The value of each file stands in the marker and in the warehouse log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from unstuck.tasks.errors import OutputInvalid
from unstuck.tasks.warehouse.files import Files

Partition = dict[str, str | None]
"""By column, the value that all rows of a file have, as text; None for null."""

_PLAIN = re.compile(r"boolean|byte|short|integer|long|string|date")  # types whose values are the same text everywhere
_FOLDER = re.compile(r"_partition_(\d+)=([vn])(.*)", re.DOTALL)


def check_columns(columns: Sequence[str], schema: str) -> None:
    """Check that an output with ``schema`` (Spark's JSON of a struct) can be parted by ``columns``.

    Raises: OutputInvalid.
    """
    types = {field["name"]: field["type"] for field in json.loads(schema)["fields"]}
    for column in columns:
        if column not in types:
            raise OutputInvalid(f"partition_by: there is no column {column!r}; the output has {', '.join(types)}")
        if not isinstance(types[column], str) or _PLAIN.fullmatch(types[column]) is None:
            raise OutputInvalid(
                f"partition_by: the column {column} is of type {json.dumps(types[column])}, whose values are not the "
                "same text in every system. Part by text, whole numbers, dates or booleans"
            )


def spark_writer(frame: Any, columns: Sequence[str]) -> Any:
    """A writer of a Spark ``frame`` that makes a folder for each partition, for `collect_parts`.

    Spark takes the columns that it parts by out of the files, so copies of them are parted by.
    """
    from pyspark.sql.functions import coalesce, col, concat, lit

    copies = {
        f"_partition_{i}": coalesce(concat(lit("v"), col(f"`{column.replace('`', '``')}`").cast("string")), lit("n"))
        for i, column in enumerate(columns)
    }
    return frame.withColumns(copies).write.partitionBy(*copies)


def collect_parts(files: Files, source: str, folder: str, columns: Sequence[str]) -> dict[str, Partition]:
    """Move what Spark has written below ``source`` into ``folder``. Returns the partition of each file, by its name.

    Raises: OSError.
    """
    parts: dict[str, Partition] = {}
    for path, values in list(_walk(files, source, ())):
        name = f"part-{len(parts):05d}.parquet"
        files.move(path, f"{folder}/{name}")
        parts[name] = dict(zip(columns, values, strict=True))
    files.remove_tree(source)
    return parts


def _walk(files: Files, folder: str, values: tuple[str | None, ...]) -> Iterator[tuple[str, tuple[str | None, ...]]]:
    for name in files.names(folder):
        if (match := _FOLDER.fullmatch(name)) is not None:
            value = unquote(match[3]) if match[2] == "v" else None
            yield from _walk(files, f"{folder}/{name}", (*values, value))
        elif name.endswith(".parquet") and not name.startswith(("_", ".")):
            yield f"{folder}/{name}", values


def arrow_parts(table: Any, columns: Sequence[str]) -> Iterator[tuple[Any, Partition]]:
    """The rows of each partition of an Arrow ``table``, in the order of the values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = [pc.fill_null(pc.binary_join_element_wise("v", pc.cast(table[c], pa.string()), ""), "n") for c in columns]
    names = [str(i) for i in range(len(columns))]
    keys = pa.table(texts, names=names)
    numbered = keys.append_column("row", pa.array(range(len(keys)), pa.int64()))
    grouped = numbered.group_by(names, use_threads=False).aggregate([("row", "list")])
    for found in sorted(grouped.to_pylist(), key=lambda one: [one[name] for name in names]):
        values = (found[name] for name in names)
        yield (
            table.take(pa.array(found["row_list"], pa.int64())),
            {column: text[1:] if text[0] == "v" else None for column, text in zip(columns, values, strict=True)},
        )
