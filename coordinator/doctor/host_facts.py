"""Premises: what this machine has, and whether the warehouse can be published to from here.

Nothing is changed but one probe file beside the log, which is removed again. It must never import Spark.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from unstuck.tasks.errors import UnstuckError
from unstuck.tasks.warehouse.log import ID_FILE, Warehouse

WORKER = "worker"  # the extra that brings Spark


@dataclass(frozen=True, slots=True)
class PlaceSeen:
    """The warehouse as seen from here.

    Attributes:
        there: is anything at this address?
        id: of the warehouse; None if it has none yet.
        creates_once: of two that create the same file, only the first did.
        trouble: why it cannot be used; empty if it can, or if nothing is there.
        made_at: when the warehouse was made, in seconds by the clock of its file system; None if that is not known.
    """

    uri: str
    there: bool = False
    id: str | None = None
    creates_once: bool = False
    trouble: str = ""
    made_at: float | None = None


@dataclass(frozen=True, slots=True)
class JavaSeen:
    """Java's major version (0: none), and the version of PySpark; None if no worker is installed here."""

    java: int
    spark: str | None


@dataclass(frozen=True, slots=True)
class PackageSeen:
    """One package that this release asks for: what it wants, what is installed (empty: nothing), what was tested."""

    name: str
    wanted: str
    installed: str
    tested: str
    fits: bool


def place_seen(uri: str, word: str) -> PlaceSeen:
    """Try the warehouse at ``uri``. May hang as long as its file system does.

    Args:
        word: a fresh random one; it names the probe file.
    """
    try:
        warehouse = Warehouse(uri)
        files = warehouse.storage
        # Without a folder there is nothing to probe, and none must be made: the doctor changes nothing.
        local = files.local_path("")
        if not (local.is_dir() if local is not None else files.names("")):
            return PlaceSeen(uri, trouble="" if local is None else _in_the_way(local))
        known = warehouse.identity()
        made_at = local.joinpath(ID_FILE).stat().st_mtime if known and local is not None else None
        probe = f"_doctor-{word}"
        try:
            created = files.create(probe, b"first"), files.create(probe, b"second")
            kept = files.read(probe)
        finally:
            files.remove_tree(probe)
        return PlaceSeen(uri, True, known, created == (True, False) and kept == b"first", made_at=made_at)
    except (OSError, ValueError, UnstuckError, ImportError) as error:
        return PlaceSeen(uri, trouble=f"{type(error).__name__}: {error}")


def _in_the_way(folder: Path) -> str:
    """What stands where ``folder``, or one above it, would have to be made; empty if nothing does."""
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if there.is_dir():
        return ""
    return f"{there} is a link that leads nowhere" if there.is_symlink() else f"{there} is a file, not a folder"


def java_seen(java: Callable[[], int]) -> JavaSeen:
    """``java``: asks the Java that Spark would start for its version; only where a worker is installed."""
    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        return JavaSeen(0, None)
    return JavaSeen(java(), spark)


def packages_seen(tested: dict[str, str]) -> list[PackageSeen]:
    """What this release asks for, here. Of the worker's packages only those that are installed."""
    try:
        wanted = requires("unstuck") or []
    except PackageNotFoundError:  # run from a checkout that is not installed: nobody asked for anything
        return []
    return list(_compared(map(Requirement, wanted), tested))


def _compared(wanted: Iterable[Requirement], tested: dict[str, str]) -> Iterable[PackageSeen]:
    for one in wanted:
        name = canonicalize_name(one.name)
        if name not in tested:
            continue
        light = one.marker is None or one.marker.evaluate({"extra": ""})
        try:
            installed = version(name)
        except PackageNotFoundError:
            installed = ""
        if light or (installed and one.marker is not None and one.marker.evaluate({"extra": WORKER})):
            fits = bool(installed) and one.specifier.contains(installed, prereleases=True)
            yield PackageSeen(name, str(one.specifier) or "any", installed, tested[name], fits)
