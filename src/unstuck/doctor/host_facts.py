"""Host facts: Java and PySpark of this machine, and access to the warehouse.

The warehouse gets one probe file beside the log, which is removed again. This module never imports
Spark.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from unstuck.tasks.errors import UnstuckError
from unstuck.tasks.host import java_version
from unstuck.tasks.warehouse.log import ID_FILE, Warehouse
from unstuck.tasks.warehouse.view_file import kept_kinds, kept_version, view_path

JOBS_COMPARED = 1000  # with those that the store knows
# Ids sort by time. The ids of jobs of `unstuck run`, which no Redis knows, do not match.
_JOB = re.compile(r"\d{8}T\d{6}-\w+")


@dataclass(frozen=True, slots=True)
class WarehouseFacts:
    """The warehouse as this process sees it.

    Attributes:
        exists: whether anything exists at this address.
        id: of the warehouse; None if it has none yet.
        creates_once: of two creates of one file, the second was refused.
        trouble: why it cannot be used; empty if it can, or if nothing is there.
        free, disk: bytes that this account may still write, and all that it may use; None if the
            place is no folder.
        made_at: when the warehouse was made, in seconds by the clock of its file system; None if
            that is not known.
    """

    uri: str
    exists: bool = False
    id: str | None = None
    creates_once: bool = False
    trouble: str = ""
    made_at: float | None = None
    free: int | None = None
    disk: int | None = None


def warehouse_facts(uri: str, word: str) -> WarehouseFacts:
    """Probe the warehouse at ``uri``. May hang as long as its file system does.

    Args:
        word: a fresh random one; it names the probe file.
    """
    try:
        warehouse = Warehouse(uri)
        files = warehouse.storage
        # Without a folder there is nothing to probe, and none must be made: the doctor changes
        # nothing.
        local = files.local_path("")
        if not (local.is_dir() if local is not None else files.names("")):
            return WarehouseFacts(uri, trouble="" if local is None else in_the_way(local))
        identity = warehouse.identity()
        made_at = (
            local.joinpath(ID_FILE).stat().st_mtime if identity and local is not None else None
        )
        once = files.creates_once(f"_doctor-{word}")
        free, disk = (None, None) if local is None else _room(local)
        return WarehouseFacts(uri, True, identity, once, made_at=made_at, free=free, disk=disk)
    except (OSError, ValueError, UnstuckError) as error:
        return WarehouseFacts(uri, trouble=f"{type(error).__name__}: {error}")


def _room(folder: Path) -> tuple[int, int]:
    """Return the free and all bytes on the disk of ``folder``, without space reserved for root."""
    disk = shutil.disk_usage(folder)
    return disk.free, disk.used + disk.free


def staged_jobs(uri: str, since: float) -> list[str]:
    """Return jobs with staged work at ``uri`` submitted since ``since`` (seconds), newest first.

    Jobs of `unstuck run` are left out. May hang as long as its file system does.

    Raises: OSError, ValueError, WarehouseUnsupported.
    """
    oldest = time.strftime("%Y%m%dT%H%M%S", time.gmtime(max(0.0, since)))
    names = Warehouse(uri).storage.names("_staging")
    return [name for name in reversed(names) if _JOB.fullmatch(name) and name >= oldest][
        :JOBS_COMPARED
    ]


def small_files(uri: str) -> dict[str, int]:
    """Return the published datasets that have many small files, with their number.

    May hang as long as its file system does. Raises: OSError, ValueError, UnstuckError.
    """
    return {
        name: state.many_small for name, state in Warehouse(uri).state().items() if state.many_small
    }


def stale_views(uri: str) -> dict[str, tuple[int, int]]:
    """Return stale view files by path: the version that each shows, and the newest one.

    May hang as long as its file system does. Raises: OSError, ValueError, UnstuckError.
    """
    place = Warehouse(uri)
    shown = {kind: kept_version(place.storage, kind) for kind in kept_kinds(place.storage)}
    head = place.head() if shown else 0
    return {
        place.storage.uri(view_path(kind)): (at, head) for kind, at in shown.items() if at < head
    }


def in_the_way(folder: Path) -> str:
    """Return the file that prevents the creation of ``folder``; empty if there is none."""
    existing = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if existing.is_dir():
        return ""
    return (
        f"{existing} is a link that leads nowhere"
        if existing.is_symlink()
        else f"{existing} is a file, not a folder"
    )


def lacks_connector(warehouse: str, spark_conf: Mapping[str, str]) -> bool:
    """Return whether PySpark here has no connector for the S3 of ``warehouse``. Loads no Spark.

    Loads no Spark.
    """
    if not warehouse.startswith(("s3://", "s3a://")):
        return False
    if any(
        name in spark_conf
        for name in ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
    ):
        return False  # what they name is found out by Spark
    package = find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or (
        str(Path(package.origin).parent) if package and package.origin else ""
    )
    return not any(Path(home, "jars").glob("hadoop-aws*.jar"))


def java_facts() -> tuple[int, str | None]:
    """Return the major version of Java (0: none), and the version of PySpark (None: not installed).

    (0, None) where no worker is installed.
    """
    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        return 0, None
    return java_version(), spark
