"""Partitions: the rows of an output, written so that each file holds the rows of one partition.

The columns stay in the files, and no folder is named after a value, so every reader of a list of files finds the same
columns. The value of each file stands in the marker and in the warehouse log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from unstuck.tasks.errors import OutputInvalid
from unstuck.tasks.warehouse.files import Files

Partition = dict[str, str | None]
"""By column, the value that all rows of a file have, as text; None for null."""

# Types whose values are the same text everywhere.
_PLAIN = re.compile(r"void|boolean|byte|short|integer|long|string|date")
OURS = "__unstuck_"  # begins the names of columns that only part rows, and so of the folders
_HASH = f"{OURS}partition"


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


def spark_writer(frame: Any, columns: Sequence[str], above: Sequence[str] = ()) -> Any:
    """A writer of a Spark ``frame`` that makes a folder for each partition, for `collect_parts`.

    ``above``: columns whose values part the rows before. Spark takes them out of the files, too.

    Spark takes the column that it parts by out of the files, so a hash of the values is parted by. A folder that is
    named after the values would also depend on how each host encodes names, and on how long a name may be.
    """
    from pyspark.sql.functions import coalesce, col, concat, lit, sha2

    texts = [coalesce(concat(lit("v"), col(f"`{c.replace('`', '``')}`").cast("string")), lit("n")) for c in columns]
    values = concat(*(sha2(text, 256) for text in texts))
    return frame.withColumn(_HASH, sha2(values, 256)).write.partitionBy(*above, _HASH)


def collect_parts(files: Files, source: str, folder: str) -> bool:
    """Move what Spark has written below ``source`` into ``folder``. False: there was nothing. Raises: OSError."""
    found = data_files_below(files, source)
    for number, path in enumerate(found):
        files.move(path, f"{folder}/part-{number:05d}.parquet")
    files.remove_tree(source)
    return bool(found)


def data_files_below(files: Files, folder: str) -> list[str]:
    """The Parquet files in ``folder``, and in the folders into which Spark has parted the rows. Raises: OSError."""
    found = []
    for name in files.names(folder):
        if name.startswith(OURS):
            found += data_files_below(files, f"{folder}/{name}")
        elif name.endswith(".parquet") and not name.startswith(("_", ".")):
            found.append(f"{folder}/{name}")
    return found


def arrow_parts(table: Any, columns: Sequence[str]) -> Iterator[Any]:
    """The rows of each partition of an Arrow ``table``, in the order of the values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = [pc.fill_null(pc.binary_join_element_wise("v", pc.cast(table[c], pa.string()), ""), "n") for c in columns]
    names = [str(i) for i in range(len(columns))]
    keys = pa.table(texts, names=names)
    numbered = keys.append_column("row", pa.array(range(len(keys)), pa.int64()))
    grouped = numbered.group_by(names, use_threads=False).aggregate([("row", "list")])
    for found in sorted(grouped.to_pylist(), key=lambda one: [one[name] for name in names]):
        yield table.take(pa.array(found["row_list"], pa.int64()))


def partition_of(file: Any, columns: Sequence[str]) -> Partition:
    """The partition of the rows in a Parquet ``file`` (``pyarrow.parquet.ParquetFile``), by its first row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not columns or not file.metadata.num_rows:
        return {}
    first = next(file.iter_batches(batch_size=1, columns=list(columns)))
    return {column: pc.cast(first.column(column), pa.string())[0].as_py() for column in columns}
