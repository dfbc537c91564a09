"""Says which release of Unstuck, on which Python, this process runs; people see by it that a fleet is mixed."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True, slots=True)
class RunsOn:
    """A release of Unstuck, such as ``0.1.0``, and a Python, such as ``3.11.7``; each is empty if it is not known."""

    release: str = ""
    python: str = ""


def release_here() -> RunsOn:
    """Of this process; without a release in a checkout that is not installed."""
    try:
        release = version("unstuck")
    except PackageNotFoundError:
        release = ""
    return RunsOn(release, platform.python_version())
