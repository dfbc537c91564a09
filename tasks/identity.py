"""Says which release of Unstuck, on which Python, this process runs, and who runs it; a mixed fleet is seen by it."""

from __future__ import annotations

import getpass
import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True, slots=True)
class RunsOn:
    """A release of Unstuck, such as ``0.1.0``, and a Python, such as ``3.11.7``; each is empty if it is not known."""

    release: str = ""
    python: str = ""


def user_here() -> str:
    """The user of this process, as ``user@host``."""
    try:
        return f"{getpass.getuser()}@{os.uname().nodename}"
    except (KeyError, OSError):  # a container whose user has no name
        return f"uid{os.getuid()}@{os.uname().nodename}"


def release_here() -> RunsOn:
    """Of this process; without a release in a checkout that is not installed."""
    try:
        release = version("unstuck")
    except PackageNotFoundError:
        release = ""
    return RunsOn(release, platform.python_version())
