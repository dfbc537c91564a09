"""Unstuck: Spark pipelines on a fleet of Celery workers.

Users import from here; each name is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unstuck.client.client import Client as Client
    from unstuck.client.job_handle import JobHandle as JobHandle
    from unstuck.coordinator.errors import BadKey as BadKey
    from unstuck.coordinator.errors import BadRequest as BadRequest
    from unstuck.coordinator.errors import DatasetOwned as DatasetOwned
    from unstuck.coordinator.errors import KeyConflict as KeyConflict
    from unstuck.coordinator.errors import NewerJob as NewerJob
    from unstuck.coordinator.errors import NoSuchGroup as NoSuchGroup
    from unstuck.coordinator.errors import NoSuchJob as NoSuchJob
    from unstuck.coordinator.errors import NoSuchProblem as NoSuchProblem
    from unstuck.coordinator.errors import NoSuchReport as NoSuchReport
    from unstuck.coordinator.errors import NoSuchSchedule as NoSuchSchedule
    from unstuck.coordinator.errors import NotDurable as NotDurable
    from unstuck.coordinator.errors import Refused as Refused
    from unstuck.coordinator.errors import Unreachable as Unreachable
    from unstuck.coordinator.errors import WarehouseSilent as WarehouseSilent
    from unstuck.coordinator.model.status import Status as Status
    from unstuck.coordinator.spec.model import JobSpec as JobSpec
    from unstuck.coordinator.spec.problems import SpecError as SpecError
    from unstuck.job_builder import Expect as Expect
    from unstuck.job_builder import Group as Group
    from unstuck.job_builder import Job as Job
    from unstuck.job_builder import Join as Join
    from unstuck.job_builder import Output as Output
    from unstuck.job_builder import Quality as Quality
    from unstuck.job_builder import Retry as Retry
    from unstuck.job_builder import Step as Step
    from unstuck.tasks.errors import DatasetNotFound as DatasetNotFound
    from unstuck.tasks.errors import ExpectationFailed as ExpectationFailed
    from unstuck.tasks.errors import HostUnfit as HostUnfit
    from unstuck.tasks.errors import InputMissing as InputMissing
    from unstuck.tasks.errors import LogBroken as LogBroken
    from unstuck.tasks.errors import OutputInvalid as OutputInvalid
    from unstuck.tasks.errors import RowsOutside as RowsOutside
    from unstuck.tasks.errors import RuleInvalid as RuleInvalid
    from unstuck.tasks.errors import SettingsInvalid as SettingsInvalid
    from unstuck.tasks.errors import SourceUnavailable as SourceUnavailable
    from unstuck.tasks.errors import TooManyRejectedRows as TooManyRejectedRows
    from unstuck.tasks.errors import Unrecoverable as Unrecoverable
    from unstuck.tasks.errors import UnstuckError as UnstuckError
    from unstuck.tasks.errors import WarehouseMismatch as WarehouseMismatch
    from unstuck.tasks.errors import WarehouseNewer as WarehouseNewer
    from unstuck.tasks.errors import WarehouseUnsafe as WarehouseUnsafe
    from unstuck.tasks.errors import WarehouseUnsupported as WarehouseUnsupported
    from unstuck.tasks.settings import Settings as Settings
    from unstuck.tasks.steps.context import StepContext as StepContext
    from unstuck.tasks.steps.step_inputs import published as published
    from unstuck.tasks.warehouse.published import published_files as published_files

_NAMES = {
    "unstuck.client.client": "Client",
    "unstuck.job_builder": "Expect Group Job Join Output Quality Retry Step",
    "unstuck.client.job_handle": "JobHandle",
    "unstuck.coordinator.model.status": "Status",
    "unstuck.coordinator.spec.model": "JobSpec",
    "unstuck.coordinator.spec.problems": "SpecError",
    "unstuck.coordinator.errors": (
        "BadKey BadRequest DatasetOwned KeyConflict NewerJob NoSuchGroup NoSuchJob NoSuchProblem "
        "NoSuchReport NoSuchSchedule NotDurable Refused Unreachable WarehouseSilent"
    ),
    "unstuck.tasks.errors": (
        "DatasetNotFound ExpectationFailed HostUnfit InputMissing LogBroken OutputInvalid "
        "RowsOutside RuleInvalid SettingsInvalid SourceUnavailable TooManyRejectedRows "
        "Unrecoverable UnstuckError WarehouseMismatch WarehouseNewer WarehouseUnsafe "
        "WarehouseUnsupported"
    ),
    "unstuck.tasks.settings": "Settings",
    "unstuck.tasks.steps.context": "StepContext",
    "unstuck.tasks.steps.step_inputs": "published",
    "unstuck.tasks.warehouse.published": "published_files",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    # Loaded on first use (PEP 562): the command line starts fast, and an app that submits needs no
    # Spark.
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
