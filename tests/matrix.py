"""The tests that touch Spark, with each version of PySpark in an environment of its own: ``python
-m tests.matrix``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

from bench.peer import installed
from tests.support.paths import ROOT

ENVIRONMENTS = ROOT / "tests" / ".environments"
NEWEST = "newest"  # that of constraints.txt, in the environment that runs this
# The packages that are not pinned, because this PySpark asks for others.
UNPINNED = {"3.5": {"pyspark", "py4j"}, "4.0": {"pyspark", "py4j"}}
TESTS = ("tests/spark",)
# What the older ones warn of by themselves: they leave sockets to the garbage collector, and 3.5
# compares by distutils.
IGNORED = ("ignore:unclosed <socket:ResourceWarning", "ignore:distutils Version:DeprecationWarning")


def constraints(version: str) -> str:
    """``constraints.txt`` without the pins that PySpark ``version`` cannot keep, and with that
    version.
    """
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    kept = [line for line in lines if line.split("==")[0] not in UNPINNED[version]]
    return "\n".join([*kept, f"pyspark=={version}.*"]) + "\n"


def project() -> dict[str, Any]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])


def packages() -> list[str]:
    """What the extras for tests ask for, with PySpark in the version that the constraints name."""
    extras = project()["optional-dependencies"]
    asked = [
        one
        for name in (
            "worker",
            "quality",
            "s3",
            "kafka",
            "embedded",
            "delta",
            "iceberg",
            "demo",
            "test",
        )
        for one in extras[name]
    ]
    return ["pyspark", *(one for one in asked if not one.startswith(("unstuck[", "pyspark")))]


def folder_of(version: str) -> Path:
    """Where the environment with PySpark ``version`` lies; it changes with what the environment is
    to hold.
    """
    plugins = str(
        project()["entry-points"]
    )  # an installed checkout has those of the day of its installation
    state = sha256("\n".join([constraints(version), *packages(), plugins]).encode()).hexdigest()[:8]
    return ENVIRONMENTS / f"pyspark-{version}-{state}"


def environment(version: str) -> Path:
    """The Python of an environment with PySpark ``version``, made on first use and after a change
    of what it holds.

    Raises: subprocess.CalledProcessError: it cannot be made.
    """
    if version == NEWEST:
        return Path(sys.executable)
    folder = folder_of(version)
    ENVIRONMENTS.mkdir(exist_ok=True)
    (file := ENVIRONMENTS / f"{folder.name}.txt").write_text(constraints(version))
    return installed(folder, "-c", str(file), "-e", str(ROOT), *packages())


def made(version: str) -> Path | None:
    """The Python of that environment, if it is made already."""
    folder = folder_of(version)
    return folder / "bin" / "python" if (folder / "complete").exists() else None


def main(arguments: list[str]) -> int:
    """Run the tests with one version after the other; ``arguments`` go to pytest. ``--make``: make
    the environments.
    """
    asked = os.environ.get("SPARKS", "").split() or [*UNPINNED, NEWEST]
    if arguments == ["--make"]:
        for version in asked:
            environment(version)
        return 0
    failed = []
    for version in asked:
        try:
            python = environment(version)
        except subprocess.CalledProcessError as error:
            sys.exit(f"no environment with PySpark {version}: {error.stderr}")
        print(f"== PySpark {version}", flush=True)
        # The programs of the fleet are found beside the Python that runs the tests.
        found = {**os.environ, "PATH": os.pathsep.join((str(python.parent), os.environ["PATH"]))}
        found.pop("VIRTUAL_ENV", None)
        ignored = [] if version == NEWEST else [word for one in IGNORED for word in ("-W", one)]
        command = [python, "-m", "pytest", *TESTS, *ignored, *arguments]
        if subprocess.run(command, cwd=ROOT, env=found, check=False).returncode:
            failed.append(version)
    if failed:
        print(f"failed with PySpark {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
