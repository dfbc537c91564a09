"""Parses SQL with Spark's parser in a JVM without a session, which starts three times faster.

As a program it reads ``[[sql, conf], …]`` from standard input, and answers in JSON.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from glob import glob
from typing import Any

from unstuck.tasks.host import java_program

_PARSER = "org.apache.spark.sql.execution.SparkSqlParser"
# The text that is parsed has markers in the place of values, which newer Sparks put in first.
_OF_MARKERS = "PARAMETER_MARKER"
_PLACE = re.compile(r"\s*\(line \d+, pos \d+\)\s*$|\s*SQLSTATE: \w+")


class NoSpark(Exception):
    """This machine has no Spark, or no suitable Java."""


@contextmanager
def spark_parser() -> Iterator[Any]:
    """Start a JVM with Spark's classes, which ends with this process. Raises: NoSpark."""
    try:
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

        # There is no public name.
        from pyspark.find_spark_home import _find_spark_home  # noqa: PLC2701
    except ImportError as error:
        raise NoSpark(str(error)) from error
    jars = os.path.join(_find_spark_home(), "jars")
    bridge, java = glob(os.path.join(jars, "py4j-*.jar")), java_program()
    if not bridge or java is None:
        raise NoSpark("no jars of Spark, or no Java")
    port = launch_gateway(
        classpath=os.path.join(jars, "*"),
        jarpath=bridge[0],
        java_path=java,
        javaopts=["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xss4m"],
        die_on_exit=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()


def syntax_error(jvm: Any, sql: str, conf: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the error of Spark's parser in ``sql``, with its line and column; None if it parses.

    ``conf``: conf of the statement, some of which changes how words and strings are read.
    """
    from py4j.protocol import Py4JJavaError

    sql_conf = jvm.org.apache.spark.sql.internal.SQLConf.get()
    set_here = {key: value for key, value in conf.items() if key.startswith("spark.sql.")}
    try:
        for key, value in set_here.items():
            sql_conf.setConfString(key, value)
        getattr(jvm, _PARSER)().parsePlan(sql)
    except Py4JJavaError as error:
        return _found(error.java_exception)
    finally:
        for key in set_here:
            sql_conf.unsetConf(key)
    return None


def _found(error: Any) -> dict[str, Any] | None:
    """Of an error in Java: None for all but those of the text itself."""
    if not error.getClass().getSimpleName().endswith("ParseException"):
        return None
    if _OF_MARKERS in str(error.getErrorClass()):
        return None
    line, position = error.line(), error.startPosition()
    first = str(error.getMessage()).strip().partition("\n")[0]
    place = (
        (line.get(), position.get() + 1)
        if line.isDefined() and position.isDefined() and line.get()
        else (1, 1)
    )
    return {"message": _PLACE.sub("", first), "line": place[0], "column": place[1]}


def main() -> None:
    """Answer ``{"by": "Spark 4.3.0", "errors": [null | {message, line, column}]}``.

    ``by`` is "" without Spark.
    """
    out = os.dup(1)
    os.dup2(2, 1)  # whatever a JVM may print
    statements = json.load(sys.stdin)
    try:
        with spark_parser() as jvm:
            find = partial(syntax_error, jvm)
            by = f"Spark {jvm.org.apache.spark.package.SPARK_VERSION()}"
            answer = {"by": by, "errors": [find(sql, conf) for sql, conf in statements]}
    except NoSpark:
        answer = {"by": "", "errors": []}
    with os.fdopen(out, "w") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main()
