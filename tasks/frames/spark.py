"""Spark for steps: writes and reads frames as Parquet, and converts schemas.

Importing this module does not import pyspark, so a runner of ``spark: false`` groups starts no JVM.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from unstuck.tasks.errors import OutputInvalid
from unstuck.tasks.frames.refusals import ValueRefused
from unstuck.tasks.frames.text_bytes import invalid_bytes, refused_column, with_checked_text
from unstuck.tasks.protocol.failure import describe
from unstuck.tasks.spec.types import quoted
from unstuck.tasks.warehouse.files import Files

log = logging.getLogger(__name__)
# By Spark's own defaults, or by a group's conf, timestamps would lose their zone, their
# microseconds or whole centuries in other readers. Dates of before 1582 would move by days.
_WRITE_CONF = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
_VOID = re.compile(r'"(type|elementType|keyType|valueType)":"void"')  # in the JSON of a schema
_OBSERVED_WITHIN = "10 seconds"  # usually it is there at once
_LOOKED_AT = 32  # files that Spark looks at without starting tasks for it


def is_frame(value: Any) -> bool:
    """Return whether ``value`` is a Spark DataFrame, without importing Spark if it is not."""
    # First the name alone: this runs after a step, which may have replaced `isinstance`.
    if not type(value).__module__.startswith("pyspark."):
        return False
    from pyspark.sql import DataFrame

    return isinstance(value, DataFrame)


def plan_of(frame: Any) -> str:
    """Return the plan of a frame in words; it names the folder of a streaming source."""
    if on_connect(frame.sparkSession):
        return str(frame._explain_string(extended=True))  # noqa: SLF001 - `explain` prints it
    return str(frame._jdf.queryExecution().analyzed().toString())


def on_connect(session: Any) -> bool:
    """Return whether a session is one of Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def hadoop_uri(uri: str) -> str:
    """Return ``uri`` in Hadoop's notation."""
    return "s3a://" + uri.removeprefix("s3://") if uri.startswith("s3://") else uri


def remove_folder(session: Any, uri: str) -> None:
    """Remove a folder of an object store with Spark's connector, which also removes folder markers.

    Never raises: files that are left do no harm.
    """
    from py4j.protocol import Py4JJavaError

    path = session._jvm.org.apache.hadoop.fs.Path(hadoop_uri(uri))
    try:
        path.getFileSystem(session._jsc.hadoopConfiguration()).delete(path, True)
    except Py4JJavaError as error:
        log.info("%s was not removed: %s", uri, error)


def write_parquet(
    frame: Any, uri: str, writer: Callable[[Any], Any] = lambda frame: frame.write
) -> int | None:
    """Write the rows of a Spark ``frame`` into the folder ``uri``, and replace earlier files.

    Args:
        writer: makes the ``DataFrameWriter`` of a frame.

    Returns:
    The number of rows that the tasks counted; None if Spark does not report it. The driver commits
    the files that it finds, and reports no error if some are missing.

    Raises:
        ValueRefused: a text, CSV or JSON file that the frame reads is not UTF-8.
    """
    for key, value in _WRITE_CONF.items():
        # Not put back, since another thread of the step may be writing an output too.
        frame.sparkSession.conf.set(key, value)
    frame = _typed(frame)
    plan = plan_of(frame)
    checked = with_checked_text(frame, plan)
    try:
        return _write(checked, uri, writer)
    except Exception as error:
        column = refused_column(error)
        if not column:
            raise
        if place := invalid_bytes(frame):
            raise ValueRefused(
                f"the column {column} has text of a file that is not UTF-8: {place}. In "
                "a step: spark.read.option('encoding', 'ISO-8859-1') for CSV and JSON files, "
                "decode(cast(value AS BINARY), 'ISO-8859-1') for spark.read.text"
            ) from error
    # A file has U+FFFD itself.
    return _write(with_checked_text(frame, plan, replaced=False), uri, writer)


def _write(frame: Any, uri: str, writer: Callable[[Any], Any]) -> int | None:
    if on_connect(frame.sparkSession):
        writer(frame).mode("overwrite").parquet(hadoop_uri(uri))
        return None
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    counted = Observation()
    writer(frame.observe(counted, count(lit(1)).alias("rows"))).mode("overwrite").parquet(
        hadoop_uri(uri)
    )
    return _observed_rows(frame, counted)


def _typed(frame: Any) -> Any:
    """Cast columns without a type to text, since Polars cannot read what Spark writes for them."""
    from pyspark.sql.types import StructType

    schema = frame.schema.json()
    typed = _VOID.sub(r'"\1":"string"', schema)
    return frame if typed == schema else frame.to(StructType.fromJson(json.loads(typed)))


def _observed_rows(frame: Any, counted: Any) -> int | None:
    """The observation may come late, and Spark drops observations when it has too many."""
    from py4j.protocol import Py4JJavaError

    concurrent = frame.sparkSession._jvm.scala.concurrent
    try:
        concurrent.Await.ready(
            counted._jo.future(), concurrent.duration.Duration.apply(_OBSERVED_WITHIN)
        )
    except Py4JJavaError as error:
        log.warning(
            "Spark did not say how many rows it wrote; they are not compared with what stands: %s",
            error,
        )
        return None
    rows = counted.get.get("rows")
    return None if rows is None else int(rows)


def read_parquet(session: Any, groups: Sequence[tuple[str, Mapping[str, int]]]) -> Any:
    """Read all files into one frame. A column that a file lacks is null.

    Each of ``groups`` is a schema and its files with their sizes.

    Spark gets the schema, because inference depends on conf, and makes a column of nulls an
    integer.
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
    stored = StructType.fromJson(json.loads(_VOID.sub(r'"\1":"integer"', typed.json())))
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
    return _as_written(session.read.schema(schema))


def _as_written(reader: Any) -> Any:
    """``reader``, which reads all rows of all files or fails, whatever a conf says."""
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
            listed.write_bytes(_as_list(files))
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


def _as_list(files: Mapping[str, int]) -> bytes:
    """``files`` as a list for Spark. All have one time, so it takes none of them for too old."""
    common = {
        "isDir": False,
        "modificationTime": 0,
        "blockReplication": 1,
        "blockSize": 2**27,
        "action": "add",
    }
    lines = ({"path": _encoded(uri), "size": size, **common} for uri, size in files.items())
    return "\n".join(["v1", *map(json.dumps, lines)]).encode()


def stream_parquet(
    session: Any, schema: str, data_files: Mapping[str, int], files: Files, folder: str
) -> Any:
    """Return a streaming frame of ``data_files`` below ``folder`` of the warehouse.

    ``data_files``: the URIs of Parquet files and their bytes; all are new to the frame.

    Spark gets them as a list, because the folder may also have files of tasks that Spark ran twice.
    Raises: OSError.
    """
    from pyspark.sql.types import StructType

    files.write_durable(f"{folder}/_spark_metadata/0", _as_list(data_files))
    session.conf.set("spark.sql.streaming.fileStreamSink.ignoreMetadata", "false")
    reader = _as_written(session.readStream.schema(StructType.fromJson(json.loads(schema))))
    return reader.option("recursiveFileLookup", "true").parquet(hadoop_uri(files.uri(folder)))


def listed_for_stream(files: Files, folder: str) -> int:
    """Return how many files below ``folder`` a frame of `stream_parquet` has to read.

    Raises: OSError.
    """
    return files.read(f"{folder}/_spark_metadata/0").count(b"\n")


def read_in_batch(query: Any, folder: str) -> list[int]:
    """Return the numbers of files below ``folder`` that the current batch of ``query`` reads.

    Spark skips a file that is missing when it plans a batch, and counts it as read.
    """
    leaves = query._jsq.streamingQuery().lastExecution().analyzed().collectLeaves()
    nodes = [
        leaf
        for leaf in map(leaves.apply, range(leaves.size()))
        if leaf.nodeName() == "LogicalRelation"
    ]
    of_files = [
        node.relation()
        for node in nodes
        if node.relation().getClass().getSimpleName() == "HadoopFsRelation"
    ]
    places = [relation.location() for relation in of_files]
    return [
        len(place.inputFiles()) for place in places if folder in place.rootPaths().mkString(" ")
    ]


def _encoded(uri: str) -> str:
    scheme, _, path = ("file", "", uri) if uri.startswith("/") else hadoop_uri(uri).partition("://")
    return f"{scheme}://{quote(path, safe='/@:')}"  # as in abfss://container@account/…


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
    if not _VOID.search(kind.json()):
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


def sql_error(error: BaseException) -> str | None:
    """Return the mistake in a SQL text that ``error`` reports; None for any other error."""
    if not type(error).__module__.startswith("pyspark."):
        return None
    from pyspark.errors import AnalysisException, ParseException

    return str(error) if isinstance(error, AnalysisException | ParseException) else None


def spark_schema(arrow_schema: Any) -> str:
    """Convert an Arrow schema of plain types to Spark's JSON of a struct."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return str(from_arrow_schema(arrow_schema, prefer_timestamp_ntz=True).json())


def empty_table(schema: str) -> Any:
    """Return an Arrow table without rows, for a schema in Spark's JSON of a struct."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    # Before PySpark 4.3 the zone is UTC, and has no name.
    zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(StructType.fromJson(json.loads(schema)), **zone).empty_table()


def repeated_keys(
    session: Any, schema: str, files: Mapping[str, int], columns: Sequence[str], some: int
) -> tuple[int, list[tuple[Any, ...]]]:
    """Count the values of ``columns`` that occur in several rows.

    Returns also ``some`` of them with their number of rows.

    Raises: OutputInvalid: the values of a column cannot be compared.
    """
    from pyspark.sql.functions import col, count, lit

    frame = read_parquet(session, [(schema, files)])
    keys = [col(quoted(column)).alias(str(number)) for number, column in enumerate(columns)]
    try:
        counted = frame.groupBy(*keys).agg(count(lit(1)).alias("rows")).filter("rows > 1")
        examples = [tuple(row) for row in counted.limit(some).collect()]
    except Exception as error:
        if (what := sql_error(error)) is None:
            raise
        raise OutputInvalid(
            f"expect.unique: {', '.join(columns)} cannot be compared: {what}"
        ) from error
    return (counted.count() if len(examples) == some else len(examples)), examples
