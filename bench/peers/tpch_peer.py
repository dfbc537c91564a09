"""The 22 queries of TPC-H in one plain PySpark script: read the tables once, and write an output
for each query.

Run where Unstuck runs, on the same PySpark and the same files: those that Unstuck has published. It
reads one JSON command a line and answers with the seconds it took.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from unstuck import published_files

QUERIES = Path(__file__).parents[2] / "examples" / "tpch"
TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")


def run(spark: SparkSession, scale: str) -> None:
    for table in TABLES:
        spark.read.parquet(
            *published_files(str(Path("warehouse").absolute()), table)
        ).createOrReplaceTempView(table)
    for query in sorted(QUERIES.glob("q*.sql")):
        answer = spark.sql(query.read_text(), args={"scale": float(scale)})
        answer.write.mode("overwrite").parquet(f"script/{query.stem}")


def main(**conf: str) -> None:
    """``conf``: of the session, beside Spark's defaults."""
    spark = SparkSession.builder.config(
        map={"spark.ui.showConsoleProgress": "false", **conf}
    ).getOrCreate()
    run(
        spark, "1"
    )  # the fleet has had a first run, too; the scale changes a threshold of one query
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        what, scale = command["what"].split()
        if what != "script":
            raise ValueError(f"unknown command {command}")
        started = time.perf_counter()
        run(spark, scale)
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
