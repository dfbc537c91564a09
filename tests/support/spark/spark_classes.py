"""Archives the classes that a Spark session loads (class data sharing): a session then costs half
the CPU time.

``make test`` makes the archive once. A JVM to which it does not fit, since Java or Spark is
another, goes without it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ARCHIVE = Path(sys.prefix, "spark-classes.jsa")
# For the JVMs of all processes that tests start. They live for seconds: code compiled once, and
# lightly, takes a third off the start of a session and its first job. An archive that does not fit
# is not worth a line on stdout.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"


def java_options() -> str:
    return f"{JAVA_OPTIONS} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else JAVA_OPTIONS


def make() -> None:
    """Run what tests run most, and archive the classes when the JVM ends."""
    with TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        made = Path(folder, ARCHIVE.name)
        os.environ["JAVA_TOOL_OPTIONS"] = JAVA_OPTIONS
        os.environ["PYSPARK_SUBMIT_ARGS"] = (
            f"--driver-java-options -XX:ArchiveClassesAtExit={made} pyspark-shell"
        )
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        spark = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .getOrCreate()
        )
        frame = spark.createDataFrame([(1, "a"), (2, "b")], "n long, name string")
        frame.groupBy("name").sum("n").write.parquet(str(Path(folder, "sums")))
        spark.read.parquet(str(Path(folder, "sums"))).createOrReplaceTempView("sums")
        spark.sql("SELECT count(*), max(name) FROM sums ORDER BY 1").toPandas()
        jvm = SparkContext._gateway.proc  # type: ignore[union-attr]
        spark.stop()
        jvm.stdin.close()
        jvm.wait()
        made.replace(ARCHIVE)


if __name__ == "__main__":
    make()
