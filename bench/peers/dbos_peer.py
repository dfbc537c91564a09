"""DBOS: one workflow with N steps that do nothing, in one process, with its state in SQLite.

Run in an environment that has ``requirements-dbos.txt``. It reads one JSON command a line and
answers with the seconds it took.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from dbos import DBOS


@DBOS.step()
def hop() -> None:
    """One hop of a chain."""


@DBOS.workflow()
def chain(n: int) -> None:
    for _ in range(n):
        hop()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        DBOS(
            config={
                "name": "bench",
                "system_database_url": f"sqlite:///{Path(folder) / 'dbos.sqlite'}",
            }
        )
        DBOS.launch()
        try:
            chain(2)
            print(json.dumps({"ready": True}), flush=True)
            for line in sys.stdin:
                command = json.loads(line)
                if command["what"] != "chain":
                    raise ValueError(f"unknown command {command}")
                started = time.perf_counter()
                chain(command["n"])
                print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)
        finally:
            DBOS.destroy()


if __name__ == "__main__":
    main()
