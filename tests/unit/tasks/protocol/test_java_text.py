"""An error of the JVM in one sentence: the place and the cause stand there, not the call through
py4j alone.
"""

from __future__ import annotations

from unstuck.tasks.protocol.failure import failure_of
from unstuck.tasks.protocol.java_text import java_error_text

WRITE = """An error occurred while calling o574.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/w/out. SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(QueryExecutionErrors.scala:855)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file \
file:/in/a.csv.  SQLSTATE: KD001
\tat org.apache.spark.sql.execution.datasources.FileScanRDD.compute(FileScanRDD.scala:1)
\t... 19 more
Caused by: java.lang.IllegalArgumentException: CSV header does not conform to the schema.
 Header: amount, id
 Schema: id, amount
\tat org.apache.spark.sql.catalyst.csv.CSVHeaderChecker.checkHeader(CSVHeaderChecker.scala:1)
\t... 20 more
"""
STAGE = """An error occurred while calling o1.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 7.0 failed 1 times, \
most recent failure: Lost task 0.0 in stage 7.0 (TID 7) (h executor driver): \
java.io.EOFException: Unexpected end of input stream
\tat org.apache.hadoop.io.compress.DecompressorStream.decompress(DecompressorStream.java:1)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:1)
Caused by: java.io.EOFException: Unexpected end of input stream
\tat org.apache.hadoop.io.compress.DecompressorStream.decompress(DecompressorStream.java:1)
\t... 1 more
"""


def test_each_cause_is_reported_once_with_its_place() -> None:
    assert java_error_text(WRITE) == (
        "[TASK_WRITE_FAILED] Task failed while writing rows to "
        "file:/w/out. [FAILED_READ_FILE.NO_HINT] Encountered error while reading file "
        "file:/in/a.csv. IllegalArgumentException: CSV header does not conform to the schema. "
        "Header: amount, id Schema: id, amount"
    )
    assert java_error_text(STAGE) == (
        "Job aborted due to stage failure: Task 0 in stage 7.0 "
        "failed 1 times, most recent failure: Lost task 0.0 in stage 7.0 (TID 7) (h executor "
        "driver): EOFException: Unexpected end of input stream"
    )


def test_a_text_not_from_the_jvm_stays_unchanged() -> None:
    assert java_error_text("no such thing: here") == "no such thing: here"
    assert java_error_text("") == ""


def test_a_jvm_failure_is_one_line_and_its_traceback_is_complete() -> None:
    Py4JJavaError = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})

    try:
        raise Py4JJavaError(WRITE)
    except Py4JJavaError as error:
        failure = failure_of(error)
    assert failure.text == f"Py4JJavaError: {java_error_text(WRITE)}"
    assert "\n" not in failure.text
    assert "FileScanRDD.scala" in failure.traceback


def test_a_java_error_without_details_stays_as_it_is() -> None:
    assert (
        java_error_text("An error occurred while calling o1.x")
        == "An error occurred while calling o1.x"
    )
