"""The versions that the tests of this release ran with, of what it asks for. A wheel carries no constraints file.

They are those of constraints.txt. Of the server and of Java a minimum is asked
for, and the doctor names these beside it.
"""

from __future__ import annotations

TESTED_SERVER = "Valkey 9.1.2"
TESTED_JAVA = 17

TESTED = {
    "celery": "5.7.0",
    "celery-redbeat": "2.4.2",
    "fsspec": "2026.9.0",
    "kombu": "5.7.0",
    "packaging": "26.3",
    "pandas": "2.3.3",
    "psutil": "7.2.2",
    "pyarrow": "26.0.1",
    "pydantic": "2.14.3",
    "pydantic-settings": "2.16.3",
    "pyspark": "4.3.0",
    "pyyaml": "6.0.3",
    "redis": "8.1.0",
    "rich": "15.0.0",
    "tenacity": "9.2.1",
    "typer": "0.29.2",
}
