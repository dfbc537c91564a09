"""Spark for steps: recognize frames, and turn schemas into one another.

Importing this module does not import pyspark, so a runner of ``spark: false`` groups starts no JVM.
"""

from __future__ import annotations

import json
import logging
import re
from inspect import signature
from typing import Any

log = logging.getLogger(__name__)
# A column, element, key or value without a type, in the JSON of a schema.
VOID = re.compile(r'"(type|elementType|keyType|valueType)":"void"')


def is_frame(value: Any) -> bool:
    """True for a Spark DataFrame, without importing Spark for anything else."""
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
    """``uri`` as Hadoop spells it."""
    return "s3a://" + uri.removeprefix("s3://") if uri.startswith("s3://") else uri


def remove_folder(session: Any, uri: str) -> None:
    """Remove a folder of an object store by its connector, which knows its folder markers.

    Raises nothing: what is left is of no use, and in nobody's way.
    """
    from py4j.protocol import Py4JJavaError

    path = session._jvm.org.apache.hadoop.fs.Path(hadoop_uri(uri))
    try:
        path.getFileSystem(session._jsc.hadoopConfiguration()).delete(path, True)
    except Py4JJavaError as error:
        log.info("%s was not removed: %s", uri, error)


def sql_error(error: BaseException) -> str | None:
    """The mistake in a SQL text, if ``error`` is about one; None for any other error."""
    if not type(error).__module__.startswith("pyspark."):
        return None
    from pyspark.errors import AnalysisException, ParseException

    return str(error) if isinstance(error, AnalysisException | ParseException) else None


def spark_schema(arrow_schema: Any) -> str:
    """An Arrow schema of plain types as Spark's JSON of a struct."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return str(from_arrow_schema(arrow_schema, prefer_timestamp_ntz=True).json())


def empty_table(schema: str) -> Any:
    """An Arrow table without rows, of a schema in Spark's JSON of a struct."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    # Before PySpark 4.3 the zone is UTC, and has no name.
    zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(StructType.fromJson(json.loads(schema)), **zone).empty_table()
