"""The head: jobs, decisions, publishing, commands and the command line. Never imports Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.client import Client
    from coordinator.spec import JobSpec

__all__ = ["Client", "JobSpec"]

_HOMES = {"Client": "coordinator.client", "JobSpec": "coordinator.spec"}


def __getattr__(name: str) -> Any:
    # On first use (PEP 562): the command line must answer fast, and with a clear error when a setting is wrong.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
