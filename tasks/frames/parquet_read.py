"""Read Parquet files of known schemas into a Spark frame."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from unstuck.tasks.frames.file_list import file_list
from unstuck.tasks.frames.spark import VOID, hadoop_uri, on_connect
from unstuck.tasks.protocol.failure import describe
from unstuck.tasks.spec.types import quoted

log = logging.getLogger(__name__)
_LOOKED_AT = 32  # files that Spark looks at without starting tasks for it


def read_parquet(session: Any, groups: Sequence[tuple[str, Mapping[str, int]]]) -> Any:
    """Read all files into one frame. A column that a file lacks is null.

    Each of ``groups`` is a schema and its files with their sizes.

    Spark is told the schema. What it would infer depends on its conf, and is an integer for a
    column of nulls.
    """
    frames = [_read(session, schema, files) for schema, files in groups]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame, allowMissingColumns=True)
    return whole


def _read(session: Any, schema: str, files: Mapping[str, int]) -> Any:
    from pyspark.sql.functions import col
    from pyspark.sql.types import NullType, StructType

    fields = StructType.fromJson(json.loads(schema))
    if not files:
        return session.createDataFrame([], fields)
    # A column without a type stands as another one in the file. It goes with a column of any type
    # of other members.
    typed = StructType([field for field in fields if field.dataType != NullType()])
    # In a list, map or struct Arrow stores integers for it, and Spark 4.0 reads nothing else.
    stored = StructType.fromJson(json.loads(VOID.sub(r'"\1":"integer"', typed.json())))
    frame = _read_listed(session, stored, files)
    if frame is None:
        frame = _reader(session, stored).parquet(*map(hadoop_uri, files))
    if stored == fields:
        return frame
    columns = [(field, col(quoted(field.name))) for field in fields]
    return frame.select(
        *(_emptied(column, field.dataType).alias(field.name) for field, column in columns)
    )


def _reader(session: Any, schema: Any) -> Any:
    return as_written(session.read.schema(schema))


def as_written(reader: Any) -> Any:
    """Return ``reader`` so that it reads all rows of all files or fails, whatever a conf says."""
    for key in ("ignoreMissingFiles", "ignoreCorruptFiles"):
        reader = reader.option(key, "false")
    # A conf, or Spark 3.5 by itself, would move dates of before 1582 or refuse them.
    return reader.option("datetimeRebaseMode", "CORRECTED")


def _read_listed(session: Any, schema: Any, files: Mapping[str, int]) -> Any:
    """Read many files that Spark gets as a list in the format of its own streams.

    Returns None if Spark cannot.

    It would look at each file before the first row is asked for, which takes seconds for thousands.
    """
    if len(files) <= _LOOKED_AT or on_connect(session):
        return None
    try:
        # This folder is removed with the runner.
        temporary = session._jvm.java.lang.System.getProperty("java.io.tmpdir")
        with TemporaryDirectory(prefix="list-", dir=temporary) as folder:
            listed = Path(folder, "_spark_metadata", "0")
            listed.parent.mkdir()
            listed.write_bytes(file_list(files))
            frame = (
                _reader(session, schema)
                .option("recursiveFileLookup", "true")
                .parquet(f"file://{folder}")
            )
            # A conf may tell Spark to ignore the list.
            outcome: int | str = len(frame._jdf.inputFiles())
    except Exception as error:  # noqa: BLE001 - a conf may also prevent reading any list
        outcome = describe(error)
    if outcome == len(files):
        return frame
    log.info("Spark read a list of %d files as %s, and looks at each of them", len(files), outcome)
    return None


def _emptied(column: Any, kind: Any) -> Any:
    """``column`` with nulls for the values that have no type in ``kind``."""
    from pyspark.sql.functions import (
        array_repeat,
        lit,
        map_from_arrays,
        map_keys,
        map_values,
        size,
        struct,
        transform,
        when,
    )
    from pyspark.sql.types import ArrayType, MapType, NullType

    if isinstance(kind, NullType):
        return lit(None)
    if not VOID.search(kind.json()):
        return column
    if isinstance(kind, ArrayType):
        if isinstance(kind.elementType, NullType):
            # Not by transform: in Spark 4.3 it reads the integers, and fails where all of a file
            # are null.
            return when(column.isNotNull(), array_repeat(lit(None), size(column)))
        return transform(column, lambda element: _emptied(element, kind.elementType))
    if isinstance(kind, MapType):
        keys = _emptied(map_keys(column), ArrayType(kind.keyType))
        return map_from_arrays(keys, _emptied(map_values(column), ArrayType(kind.valueType)))
    fields = [
        _emptied(column.getField(field.name), field.dataType).alias(field.name) for field in kind
    ]
    return when(column.isNotNull(), struct(*fields))
