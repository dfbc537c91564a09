"""Unstuck: Spark pipelines on a fleet of Celery workers. All that users import stands here, loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unstuck.coordinator.client import Client
    from unstuck.coordinator.model.status import Status
    from unstuck.coordinator.spec.model import JobSpec
    from unstuck.tasks.errors import Unrecoverable
    from unstuck.tasks.steps.context import StepContext
    from unstuck.tasks.steps.reader import published
    from unstuck.tasks.warehouse.log import published_files

__all__ = ["Client", "JobSpec", "Status", "StepContext", "Unrecoverable", "published", "published_files"]

_MODULES = {
    "Client": "unstuck.coordinator.client",
    "JobSpec": "unstuck.coordinator.spec.model",
    "Status": "unstuck.coordinator.model.status",
    "StepContext": "unstuck.tasks.steps.context",
    "Unrecoverable": "unstuck.tasks.errors",
    "published": "unstuck.tasks.steps.reader",
    "published_files": "unstuck.tasks.warehouse.log",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use (PEP 562): the command line starts fast, and an app that submits needs no Spark.
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
