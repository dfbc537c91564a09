"""Check whether a host has what a worker and its runners need, before work is taken.

It imports nothing that it looks for.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from unstuck.tasks.identity import NO_SPARK, RunsOn, release_here
from unstuck.tasks.settings import Settings

JAVA = 17
SPARKS = ("3.5", "4.0", "4.3")  # of PySpark, with which `make test-matrix` has passed
LIGHT = "light"  # the queue whose workers are asked for no Java
PACKAGES = ("pyspark", "pyarrow")  # groups without Spark need both for what they write
_ANSWERS_WITHIN = 20.0  # seconds
_ROOM = 64 << 20  # bytes; a temporary folder with less has none for Spark


def may_run_spark(settings: Settings, queues: Collection[str]) -> bool:
    """Return whether a worker that listens to ``queues`` may get groups with Spark."""
    return settings.spark_master != NO_SPARK and set(queues) != {LIGHT}


def worker_here(settings: Settings) -> RunsOn:
    """Return the versions of a worker of this host.

    It runs no Spark without Java, which workers of the queue ``light`` need not have.
    """
    none = settings.spark_master == NO_SPARK
    none |= not settings.spark_master.startswith("sc://") and java_program() is None
    return replace(release_here(), spark=NO_SPARK) if none else release_here()


def lacking(settings: Settings, queues: Collection[str], without_java: str = "") -> str:
    """Return what a worker of ``queues`` lacks on this host, a line each with its cure.

    ``without_java``: how to start one that needs no Java.
    """
    problems = []
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        problems.append(
            f"{' and '.join(missing)} cannot be imported by {sys.executable}. "
            f"{how_to_install('worker')}"
        )
    if _needs_java(settings, queues) and (java := lacking_java()):
        problems += [java, without_java]
    return "\n".join(filter(None, problems))


def how_to_install(extra: str) -> str:
    """The command that installs an extra of Unstuck.

    No package index has Unstuck, so the command names a checkout.
    """
    return f"In a checkout of Unstuck run: pip install -e '.[{extra}]'"


def lacking_java() -> str:
    """Return why Spark finds no suitable Java here; empty if it does, or if that is unknown."""
    try:
        version = java_version()
    except subprocess.TimeoutExpired:  # a busy host, or a slow disk: Spark may still start
        return ""
    if version >= JAVA:
        return ""
    home = _java_home()
    where = f" in JAVA_HOME, {home}" if home else ""
    problem = f"Java {version}{where} is too old" if version else f"Java is not installed{where}"
    return f"{problem}: Spark needs Java {JAVA} or newer, on the PATH or in JAVA_HOME"


def java_is_gone(settings: Settings, queues: Collection[str]) -> bool:
    """Return whether Java has disappeared. Cheap; says nothing about its version."""
    return _needs_java(settings, queues) and java_program() is None


def unfit_for_spark(settings: Settings) -> str:
    """Return why Spark could not work here; empty if nothing is wrong.

    Costs less than a millisecond. If the executors use another Python than the driver, that Python
    is started once, to ask its version.
    """
    if settings.spark_master.startswith("sc://"):
        return ""
    local_dirs = (
        os.environ.get("SPARK_LOCAL_DIRS", ""),
        settings.spark_conf.get("spark.local.dir", ""),
    )
    folders = ",".join(local_dirs).split(",")
    fault = _no_name() or next(
        filter(None, map(_no_room, [tempfile.gettempdir(), *filter(None, folders)])), ""
    )
    return fault or (_other_python() if settings.spark_master.startswith("local") else "")


def _no_name() -> str:
    user = os.geteuid()
    try:
        pwd.getpwuid(user)
    except KeyError:
        return (
            f"the user id {user} has no name, without which the JVM of Spark cannot log in: "
            "add "
            "it to /etc/passwd"
        )
    return ""


def _no_room(folder: str) -> str:
    """Return why Spark could not write into ``folder``, which is created if absent."""
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 16))
            file.flush()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return (
            f"nothing can be written into the temporary folder {folder}: {error.strerror or error}"
        )
    return (
        ""
        if free >= _ROOM
        else f"the temporary folder {folder} has no room: {free >> 20} MB are free"
    )


def _other_python() -> str:
    """Why executors on this host could not run the functions of steps."""
    named, here = (
        os.environ.get("PYSPARK_PYTHON", sys.executable),
        f"{sys.version_info[0]}.{sys.version_info[1]}",
    )
    path = shutil.which(named)
    if path == sys.executable:
        return ""
    text = _said_by(path, os.stat(path).st_mtime_ns) if path else ""
    if text is None or text.split() == [here, "pyarrow"]:
        return ""
    version = next(iter(text.split()), "")
    wrong = f"is Python {version}" if version else "does not start"
    if version == here:
        wrong = "has no pyarrow"
    return f"PYSPARK_PYTHON={named} {wrong}, and the driver is Python {here}: let both be one"


@cache
def _said_by(python: str, _changed: int) -> str | None:
    """Version of that Python, and "pyarrow" if it has that; None if it does not answer in time."""
    program = (
        "import sys; print('%d.%d' % sys.version_info[:2], flush=True); import pyarrow; "
        "print('pyarrow')"
    )
    try:
        completed = subprocess.run(
            [python, "-c", program], capture_output=True, text=True, timeout=60, check=False
        )
    except OSError:
        return ""
    except subprocess.TimeoutExpired:  # a busy host
        return None
    return completed.stdout


def _needs_java(settings: Settings, queues: Collection[str]) -> bool:
    """On Spark Connect the JVM is elsewhere; with any other master the driver is here."""
    return may_run_spark(settings, queues) and not settings.spark_master.startswith("sc://")


def java_version() -> int:
    """The major version of the Java that Spark would start; 0 if there is none.

    Raises:
        subprocess.TimeoutExpired: it does not say.
    """
    program = java_program()
    if program is None:
        return 0
    with suppress(OSError):  # most installations say it in a file, which takes no JVM to read
        text = (Path(program).resolve().parent.parent / "release").read_text(errors="replace")
        if match := re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE):
            return int(match[1])
    try:
        completed = subprocess.run(
            [program, "-version"],
            capture_output=True,
            text=True,
            timeout=_ANSWERS_WITHIN,
            check=False,
        )
    except OSError:
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', completed.stderr)
    return int(match[1]) if match else 0


def java_program() -> str | None:
    """The program that Spark's own start script would run; None if there is none."""
    home = _java_home()
    return shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")


def _java_home() -> str:
    """Return JAVA_HOME as set after Spark's ``spark-env.sh``, which often sets it."""
    home = os.environ.get("JAVA_HOME", "")
    spark = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (str(Path(spark) / "conf") if spark else "")
    script = Path(folder) / "spark-env.sh"
    if not folder or not script.is_file():
        return home
    try:
        completed = subprocess.run(
            ["bash", "-c", '. "$0" >/dev/null 2>&1; printf %s "$JAVA_HOME"', str(script)],
            capture_output=True,
            text=True,
            timeout=_ANSWERS_WITHIN,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return home
    return completed.stdout or home
