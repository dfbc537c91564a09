"""Release: which release of Unstuck, on which Python, this process runs. People see by it that a fleet is mixed."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version


def release_here() -> dict[str, str]:
    """``release``: such as ``0.1.0``; empty in a checkout that is not installed. ``python``: such as ``3.11.7``."""
    try:
        release = version("unstuck")
    except PackageNotFoundError:
        release = ""
    return {"release": release, "python": platform.python_version()}
