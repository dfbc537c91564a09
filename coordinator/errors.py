"""The errors that the coordinator raises for callers; ``SpecError`` is in ``spec/problems.py``."""

from __future__ import annotations

from unstuck.tasks.errors import UnstuckError
from unstuck.tasks.warehouse.dataset_owner import DATASET_OWNED


class BadKey(UnstuckError):
    """The key is empty or too long, or holds invisible characters."""

    code = "BAD_KEY"


class KeyConflict(UnstuckError):
    """The key was used for a job with another spec or other parameters."""

    code = "KEY_CONFLICT"


class ConditionError(UnstuckError):
    """The condition cannot be read or evaluated."""

    code = "CONDITION_INVALID"


class NoSuchJob(UnstuckError):
    """No job with this id is in the store: it was not submitted here, or its retention is over."""

    code = "NO_SUCH_JOB"


class NoSuchSchedule(UnstuckError):
    """No schedule of this name is in the store."""

    code = "NO_SUCH_SCHEDULE"


class NoSuchGroup(UnstuckError):
    """The job has no group of this name."""

    code = "NO_SUCH_GROUP"


class NoSuchReport(UnstuckError):
    """No dead letter has this id (it never was one, or it was replayed or dropped long ago)."""

    code = "NO_SUCH_REPORT"


class NoSuchProblem(UnstuckError):
    """There is no problem with this id now; `unstuck now` shows those that there are."""

    code = "NO_SUCH_PROBLEM"


class Refused(UnstuckError):
    """The state of the job does not allow this command."""

    code = "REFUSED"


class DatasetOwned(Refused):
    """The job would publish a dataset that another job owns."""

    code = DATASET_OWNED


class NotDurable(UnstuckError):
    """The job is stored, but Redis did not confirm in time that it is durable."""

    code = "NOT_DURABLE"


class NewerJob(UnstuckError):
    """A later release stored this job; only a coordinator of that release can decide it."""

    code = "NEWER_JOB"


class Damaged(UnstuckError):
    """A stored job cannot be read; the text says which part, and what to do."""

    code = "JOB_DAMAGED"


class PublishFailed(UnstuckError):
    """The outputs of the job can never be published; an ABORT entry in the log records the reason.

    ``code`` is one of MARKER_GONE, OUTPUT_MISSING, DUPLICATE_OUTPUT, SCHEMA_MISMATCH,
    PARTITION_MISMATCH, EXPECTATION_FAILED, FORMAT_MISMATCH, TABLE_UNFIT, KEYS_UNFIT, CANNOT_RESUME,
    STREAM_MOVED, DATASET_CHANGED, DATASET_OWNED.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class TableTrouble(UnstuckError):
    """A table cannot be read or written now; publishing is tried again."""

    code = "TABLE_TROUBLE"


class WarehouseSilent(UnstuckError):
    """The warehouse of a job does not answer, so nothing was stored."""

    code = "WAREHOUSE_SILENT"


class FleetRunning(UnstuckError):
    """Another fleet runs in this folder."""

    code = "FLEET_RUNNING"


class FleetFailed(UnstuckError):
    """The local fleet could not be started."""

    code = "FLEET_FAILED"


class Unreachable(UnstuckError):
    """Redis cannot be reached or refuses access; the text has its address, without password."""

    code = "REDIS_UNREACHABLE"


class BadRequest(UnstuckError):
    """The command is invalid: an unreadable value, a wrong setting, or a missing part."""

    code = "BAD_REQUEST"


class NoWarehouse(BadRequest):
    """This address has no warehouse: no job has created it yet, or it is not mounted here."""

    code = "NO_WAREHOUSE"


class Ambiguous(BadRequest):
    """A shortened job id fits several jobs."""

    code = "AMBIGUOUS"
