"""Identify the release of Unstuck, Python and Spark of this process, and its user."""

from __future__ import annotations

import getpass
import os
import platform
import site
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

_INSTALLED = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *site.getsitepackages(),
    site.getusersitepackages(),
)
LIBRARIES = tuple(
    sorted({f"{form}{os.sep}" for path in _INSTALLED for form in (path, os.path.realpath(path))})
)
"""The folders of Python and of what is installed into it."""


NO_SPARK = "none"  # as UNSTUCK_SPARK_MASTER, and as a version of Spark


@dataclass(frozen=True, slots=True)
class RunsOn:
    """Versions of a process, such as ``3.11.7``; empty if unknown.

    Attributes:
        release: of Unstuck.
        python: of Python.
        spark: of Spark; ``none`` if the worker runs no Spark.
        pandas: of pandas.
        pyarrow: of pyarrow.
        java: of Java.
    """

    release: str = ""
    python: str = ""
    spark: str = ""
    pandas: str = ""
    pyarrow: str = ""
    java: str = ""

    @property
    def bound(self) -> dict[str, str]:
        """The minor versions that a job keeps to, by name."""
        return bound_of({"python": self.python, "spark": self.spark})

    def may_run(self, versions: Mapping[str, str]) -> bool:
        """Whether a runner may take what needs these minor versions.

        An empty version of Spark is any Spark.
        """
        return all(
            self.bound.get(name, NO_SPARK) != NO_SPARK
            if not version
            else self.bound.get(name) == version
            for name, version in versions.items()
        )

    def used(self, *, spark: bool) -> dict[str, str]:
        """The versions that make rows, by name; ``spark``: whether Spark is among them."""
        names = ("python", "pandas", "pyarrow", *(["spark"] if spark else []))
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    def differs(self, made_on: Mapping[str, str]) -> bool:
        """Return whether `used` versions have another minor version of Spark or Python."""
        return any(
            minor(made_on[name]) != bound for name, bound in self.bound.items() if name in made_on
        )


def bound_of(versions: Mapping[str, str]) -> dict[str, str]:
    """The minor versions of Python and Spark among ``versions``, by name."""
    return {name: minor(versions[name]) for name in ("python", "spark") if versions.get(name)}


def minor(version: str) -> str:
    """The first two numbers of a version."""
    return ".".join(version.split(".")[:2])


def in_words(versions: Mapping[str, str]) -> str:
    """``{"python": "3.11", "spark": "4.3"}`` as ``Spark 4.3, Python 3.11``."""
    return ", ".join(
        f"{name.title()} {versions[name]}" for name in ("spark", "python") if name in versions
    )


def all_in_words(versions: Mapping[str, str]) -> str:
    """As `in_words`, with the other packages behind."""
    others = [
        f"{name} {version}" for name, version in versions.items() if name not in ("spark", "python")
    ]
    return ", ".join(filter(None, [in_words(versions), *others]))


def user_here() -> str:
    """The user of this process, as ``user@host``."""
    try:
        return f"{getpass.getuser()}@{os.uname().nodename}"
    except (KeyError, OSError):  # a container whose user has no name
        return f"uid{os.getuid()}@{os.uname().nodename}"


@cache
def release_here() -> RunsOn:
    """Of this process; without a release in a checkout that is not installed."""
    return RunsOn(
        _version("unstuck"),
        platform.python_version(),
        *map(_version, ("pyspark", "pandas", "pyarrow")),
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
