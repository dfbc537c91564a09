"""Every error that Unstuck raises on purpose.

A retry cannot help after those below ``Unrecoverable``.
"""

from __future__ import annotations


class UnstuckError(Exception):
    """The root of all errors raised on purpose. ``code`` is what a machine may compare."""

    code = "ERROR"


class Unrecoverable(UnstuckError):
    """The attempt failed in a way that a retry cannot mend; raise it in a step to say so."""

    code = "UNRECOVERABLE"


class StepNotFound(Unrecoverable):
    """The code of a step cannot be imported by the worker."""

    code = "STEP_NOT_FOUND"


class BadStepCall(Unrecoverable):
    """The parameters at hand do not fit the signature of the step."""

    code = "BAD_STEP_CALL"


class SqlInvalid(Unrecoverable):
    """The SQL of a step does not parse, or names something that is not there."""

    code = "SQL_INVALID"


class OutputInvalid(Unrecoverable):
    """An output was written twice, has no usable name, or cannot be stored."""

    code = "OUTPUT_INVALID"


class SchemaMismatch(Unrecoverable):
    """The columns of an output do not fit those that are published, or those of other members."""

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
    """The rows of an output are not what the spec expects of them."""

    code = "EXPECTATION_FAILED"


class BadFile(Unrecoverable):
    """A file of a stream cannot be read: it is damaged, or does not fit the schema."""

    code = "BAD_FILE"


class SparkLacksStore(Unrecoverable):
    """Spark has no connector for the object store of the warehouse."""

    code = "SPARK_LACKS_STORE"


class ForkValuesInvalid(Unrecoverable):
    """The values collected for a dynamic fork are null, doubled, too many, or not JSON scalars."""

    code = "FORK_VALUES_INVALID"


class OffsetsOutOfRange(Unrecoverable):
    """A broker does not have the messages of a topic at which a stream goes on."""

    code = "OFFSETS_OUT_OF_RANGE"


class SourceReplaced(Unrecoverable):
    """A topic was deleted and made again since a stream was read from it."""

    code = "SOURCE_REPLACED"


class BadRecord(Unrecoverable):
    """A message of a stream is no row of its columns."""

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
    """This runner has claimed an attempt and cannot begin it, for a reason of its own."""

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
    """A file that a stream has read has other content now."""

    code = "FILE_CHANGED"


class FileNameInvalid(Unrecoverable):
    """A file of a stream, or its folder, has a name that cannot be read."""

    code = "FILE_NAME_INVALID"


class FileUnsettled(UnstuckError):
    """A file changed or went away while a stream read it; a retry reads what stands then."""

    code = "FILE_UNSETTLED"


class StagingLost(UnstuckError):
    """The files of this attempt are not in the warehouse; it was away, or they were removed."""

    code = "STAGING_LOST"


class MarkerFailed(UnstuckError):
    """The durable marker could not be written, so the attempt cannot count as done."""

    code = "MARKER_FAILED"


class AttemptEnded(UnstuckError):
    """This runner holds the attempt no longer: canceled, timed out, drained or taken over."""

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
    """This place was tried, and let a second writer replace what the first one had created."""

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
    """Return whether ``error`` is a lack of memory, or was raised while one was handled."""
    for _ in range(_MAX_CAUSES):
        if error is None:
            return False
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False
