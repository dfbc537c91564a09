"""Every error that Unstuck raises on purpose.

A retry cannot help after those below ``Unrecoverable``.
"""

from __future__ import annotations


class UnstuckError(Exception):
    """The base of all errors raised on purpose. ``code`` is for programs to compare."""

    code = "ERROR"


class Unrecoverable(UnstuckError):
    """The attempt failed, and a retry cannot help. Steps may raise it."""

    code = "UNRECOVERABLE"


class StepNotFound(Unrecoverable):
    """The code of a step cannot be imported by the worker."""

    code = "STEP_NOT_FOUND"


class BadStepCall(Unrecoverable):
    """The parameters do not match the signature of the step."""

    code = "BAD_STEP_CALL"


class SqlInvalid(Unrecoverable):
    """The SQL of a step does not parse, or names a table or column that does not exist."""

    code = "SQL_INVALID"


class OutputInvalid(Unrecoverable):
    """An output was written twice, has no usable name, or cannot be stored."""

    code = "OUTPUT_INVALID"


class SchemaMismatch(Unrecoverable):
    """The columns of an output do not match the published ones, or those of other fork members."""

    code = "SCHEMA_MISMATCH"


class RuleInvalid(Unrecoverable):
    """A rule of an output cannot be parsed or evaluated, or is no condition."""

    code = "RULE_INVALID"


class TooManyRejectedRows(Unrecoverable):
    """More rows of an output break its rules than ``max_rejected_ratio`` lets pass."""

    code = "TOO_MANY_REJECTED_ROWS"


class RowsOutside(Unrecoverable):
    """An output has rows of partitions that its ``partitions:`` does not name."""

    code = "ROWS_OUTSIDE"


class ExpectationFailed(Unrecoverable):
    """The rows of an output violate an ``expect:`` of the spec."""

    code = "EXPECTATION_FAILED"


class BadFile(Unrecoverable):
    """A file of a stream cannot be read: it is damaged, or does not fit the schema."""

    code = "BAD_FILE"


class SparkLacksStore(Unrecoverable):
    """Spark has no connector for the object store of the warehouse."""

    code = "SPARK_LACKS_STORE"


class ForkValuesInvalid(Unrecoverable):
    """The values collected for a dynamic fork are null, duplicate, too many, or no JSON scalars."""

    code = "FORK_VALUES_INVALID"


class OffsetsOutOfRange(Unrecoverable):
    """The broker no longer has the messages of a topic from which a stream continues."""

    code = "OFFSETS_OUT_OF_RANGE"


class SourceReplaced(Unrecoverable):
    """A topic was deleted and created again after a stream was read from it."""

    code = "SOURCE_REPLACED"


class BadRecord(Unrecoverable):
    """A message of a stream cannot be converted to a row of its columns."""

    code = "BAD_RECORD"


class OutOfMemory(UnstuckError):
    """A worker has too little memory for its work; another worker may have more."""

    code = "OUT_OF_MEMORY"


class SourceUnavailable(UnstuckError):
    """The folder, store or broker of a stream does not answer, or denies access."""

    code = "SOURCE_UNAVAILABLE"


class SettingsInvalid(UnstuckError):
    """An UNSTUCK_… variable of the environment is invalid."""

    code = "SETTINGS_INVALID"


class WorkOrderUnreadable(UnstuckError):
    """This worker cannot read the work order of an attempt; probably another release wrote it."""

    code = "WORK_ORDER_UNREADABLE"


class NotBegun(UnstuckError):
    """This runner claimed an attempt and cannot start it, for a reason that is not the group's."""

    code = "NOT_BEGUN"


class HostUnfit(NotBegun):
    """This host lacks what a runner needs, such as Java or a package."""


class WorkerFolderGone(UnstuckError):
    """A step cannot be imported because the worker's working directory is gone.

    Another worker may have it.
    """

    code = "WORKER_FOLDER_GONE"


class InputMissing(UnstuckError):
    """The files of a needed group are missing, or the group reads a dataset that nobody staged."""

    code = "INPUT_MISSING"


class FileChanged(Unrecoverable):
    """The content of a file has changed after a stream read it."""

    code = "FILE_CHANGED"


class FileNameInvalid(Unrecoverable):
    """A file of a stream, or its folder, has a name that cannot be read."""

    code = "FILE_NAME_INVALID"


class FileUnsettled(UnstuckError):
    """A file changed or was removed while a stream read it; a retry reads the new content."""

    code = "FILE_UNSETTLED"


class StagingLost(UnstuckError):
    """Files of this attempt are missing: the warehouse was unavailable, or they were removed."""

    code = "STAGING_LOST"


class MarkerFailed(UnstuckError):
    """The durable marker could not be written, so the attempt cannot count as done."""

    code = "MARKER_FAILED"


class AttemptEnded(UnstuckError):
    """This runner no longer has the attempt: canceled, timed out, drained or taken over."""

    code = "ATTEMPT_ENDED"


class WarehouseTrouble(UnstuckError):
    """The warehouse answers with an error: access denied, missing bucket, failing disk."""

    code = "WAREHOUSE_TROUBLE"


class WarehouseMismatch(UnstuckError):
    """This process sees another warehouse, or none, where the job's warehouse should be."""

    code = "WAREHOUSE_MISMATCH"


class WarehouseUnsupported(UnstuckError):
    """This file system cannot create a file exclusively, so publishing to it is not safe."""

    code = "WAREHOUSE_UNSUPPORTED"


class WarehouseUnsafe(WarehouseUnsupported):
    """A test showed that this storage lets a second writer replace the file of the first."""

    code = "WAREHOUSE_UNSAFE"


class WarehouseNewer(UnstuckError):
    """A later release wrote this part of the warehouse, in a form that this release cannot read."""

    code = "WAREHOUSE_NEWER"


class LogBroken(UnstuckError):
    """The warehouse log has a gap, ends too early, or holds an entry that cannot be read."""

    code = "LOG_BROKEN"


class DatasetNotFound(UnstuckError):
    """No such dataset is published at this version of the warehouse."""

    code = "DATASET_NOT_FOUND"


class VersionRemoved(DatasetNotFound):
    """The log says that a vacuum removes this version. Only earlier jobs may find its files."""


class InputNotPublished(Unrecoverable, DatasetNotFound):
    """A job reads a dataset that was not published at its version. No retry changes that."""

    code = "DATASET_NOT_FOUND"


class Malformed(UnstuckError, ValueError):
    """A token, offer or report cannot be read."""

    code = "MALFORMED"


_MAX_CAUSES = 30


def lacks_memory(error: BaseException | None) -> bool:
    """Return whether ``error`` is an out-of-memory error, or was raised while one was handled."""
    for _ in range(_MAX_CAUSES):
        if error is None:
            return False
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False
