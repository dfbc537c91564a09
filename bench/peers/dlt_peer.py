"""dlt: one pipeline run with N rows, each in a file and a load job of its own, to Parquet in a
local folder.

Run in an environment that has ``requirements-dlt.txt``. It reads one JSON command a line and
answers with the seconds it took.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

# One row for each file, so one load job for each row; two load jobs at a time, as many as Unstuck
# has runners.
os.environ["NORMALIZE__DATA_WRITER__FILE_MAX_ITEMS"] = "1"
os.environ["LOAD__WORKERS"] = os.environ.get("BENCH_SLOTS", "2")
os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
os.environ["RUNTIME__LOG_LEVEL"] = "CRITICAL"

import dlt


def run(folder: Path, n: int) -> None:
    """A pipeline of its own, so that no earlier one is in its way."""
    destination = dlt.destinations.filesystem(bucket_url=(folder / "data").as_uri())
    pipeline = dlt.pipeline(
        "bench", pipelines_dir=str(folder), destination=destination, dataset_name="bench"
    )
    rows = ({"n": i, "name": f"row {i}"} for i in range(n))
    info = pipeline.run(rows, table_name="rows", loader_file_format="parquet")
    info.raise_on_failed_jobs()
    jobs = sum(
        job.job_file_info.table_name == "rows"
        for p in info.load_packages
        for job in p.jobs["completed_jobs"]
    )
    if jobs != n:
        raise RuntimeError(f"{jobs} load jobs instead of {n}")


def main() -> None:
    def in_a_folder(n: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            run(Path(folder), n)
            return time.perf_counter() - started

    in_a_folder(2)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command["what"] != "load jobs":
            raise ValueError(f"unknown command {command}")
        print(json.dumps({"seconds": in_a_folder(command["n"])}), flush=True)


if __name__ == "__main__":
    main()
