"""PySpark without anything else: queries in one warm session of a plain script, or each by a
spark-submit of its own.

Run where Unstuck runs, on the same PySpark. It reads one JSON command a line and answers with the
seconds it took.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import query_steps
from pyspark.sql import SparkSession

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


def run(spark: SparkSession, command: dict) -> None:
    for i in range(command["n"]):
        if command["what"] == "script":
            query_steps.query(spark, i)
        elif command["what"] == "submit":
            program = [
                str(SUBMIT),
                "--conf",
                "spark.ui.enabled=false",
                query_steps.__file__,
                str(i),
            ]
            env = {
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
            }
            subprocess.run(program, env=env, check=True, stdout=sys.stderr)
        else:
            raise ValueError(f"unknown command {command}")


def main() -> None:
    spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
    run(spark, {"what": "script", "n": 24})
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        run(spark, json.loads(line))
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
