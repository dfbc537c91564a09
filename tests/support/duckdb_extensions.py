"""DuckDB with its extensions for Delta and Iceberg tables and S3, in an environment of its own, which the first
use installs.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any

from bench.peer import installed
from tests.support.paths import ROOT

REQUIREMENTS = ROOT / "tests" / "requirements-duckdb.txt"
ENVIRONMENT = ROOT / "tests" / ".environments" / "duckdb"
_PROGRAM = """
import glob, importlib, json, os, sys
import duckdb

# The packages ship the extensions without DuckDB's signature of its own download.
duck = duckdb.connect(config={"allow_unsigned_extensions": "true", "autoinstall_known_extensions": "false"})
for name in ("httpfs", "delta", "avro", "iceberg"):
    folder = os.path.dirname(importlib.import_module(f"duckdb_extension_{name}").__file__)
    duck.execute(f"LOAD '{glob.glob(folder + '/extensions/*/*')[0]}'")
if endpoint := os.environ.get("AWS_ENDPOINT_URL"):
    duck.execute(
        f"CREATE SECRET (TYPE s3, KEY_ID '{os.environ['AWS_ACCESS_KEY_ID']}', REGION '{os.environ['AWS_REGION']}', "
        f"SECRET '{os.environ['AWS_SECRET_ACCESS_KEY']}', ENDPOINT '{endpoint.removeprefix('http://')}', "
        "USE_SSL false, URL_STYLE 'path')"
    )
print(json.dumps(duck.execute(sys.argv[1]).fetchall(), default=str))
"""


def query(sql: str, environ: Mapping[str, str]) -> list[list[Any]]:
    """The rows of ``sql``; values that JSON does not know come as text. ``environ``: by which S3 is
    reached.
    """
    ENVIRONMENT.parent.mkdir(exist_ok=True)
    python = installed(ENVIRONMENT, "-r", str(REQUIREMENTS))
    done = subprocess.run(
        [python, "-c", _PROGRAM, sql],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows: list[list[Any]] = json.loads(done.stdout)
    return rows
