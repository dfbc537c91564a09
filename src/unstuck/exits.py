"""Exit codes, and the sentence for every error that a user can meet.

The codes are a promise to scripts. An error that is not listed here is shown as a bug of Unstuck.
"""

from __future__ import annotations

from enum import IntEnum

from unstuck.coordinator.errors import Unreachable
from unstuck.tasks.errors import UnstuckError
from unstuck.tasks.settings import describe_invalid


class ExitCode(IntEnum):
    FINE = 0
    NOT_WELL = 1  # the awaited job did not finish well, or the fleet did not start
    USAGE = 2  # bad usage, spec or settings
    NO_SUCH_JOB = 3  # or no such dead letter, pool or schedule
    REFUSED = 4  # the state of the job does not allow it
    UNREACHABLE = 5  # Redis cannot be reached, or refuses us
    BUG = 70
    INTERRUPTED = 130
    READER_GONE = 141  # as a shell shows a process that SIGPIPE has ended


def explained(error: Exception) -> tuple[ExitCode, str] | None:
    """Return the exit code and the sentence for ``error``; None if it is a bug of Unstuck."""
    from pydantic import ValidationError

    from unstuck.coordinator.errors import (
        FleetRunning,
        NoSuchJob,
        NoSuchProblem,
        NoSuchReport,
        NoSuchSchedule,
        NotDurable,
        Refused,
    )

    if isinstance(error, NoSuchJob | NoSuchProblem | NoSuchReport | NoSuchSchedule):
        return ExitCode.NO_SUCH_JOB, str(error)
    if isinstance(error, Unreachable | NotDurable):
        return ExitCode.UNREACHABLE, str(error)
    if isinstance(error, FleetRunning | Refused):
        return ExitCode.REFUSED, str(error)
    if isinstance(error, UnstuckError):
        # FleetFailed is found by its code: its module is slow to import, and an error path need not
        # have it.
        return (ExitCode.NOT_WELL if error.code == "FLEET_FAILED" else ExitCode.USAGE), str(error)
    if isinstance(error, ValidationError) and error.title == "Settings":
        return ExitCode.USAGE, describe_invalid(error)
    if isinstance(error, OSError) and error.errno is None:
        return ExitCode.USAGE, str(error)
    if isinstance(error, OSError):
        return ExitCode.USAGE, f"{error.filename or 'a file'}: {error.strerror or error}"
    return None
