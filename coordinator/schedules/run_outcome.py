"""Derives how the job of a run ended, and whether another try can succeed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.records import JobRecord, Reason
from unstuck.coordinator.model.schedule_record import Run
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import Status
from unstuck.tasks.warehouse.dataset_owner import DATASET_OWNED

# Of publishing. A retry takes the finished work over, and so would be refused for the same reason.
FINAL = frozenset(
    {
        "DUPLICATE_OUTPUT",
        "SCHEMA_MISMATCH",
        "PARTITION_MISMATCH",
        "EXPECTATION_FAILED",
        "FORMAT_MISMATCH",
        "TABLE_UNFIT",
        "KEYS_UNFIT",
        "CANNOT_RESUME",
        DATASET_OWNED,
    }
)


@dataclass(frozen=True, slots=True)
class RunSeen:
    """The state of the job of a run.

    Attributes:
        final: whether no further try can succeed.
        left: number of arrived files and offsets of its streams beyond the limit of one run.
        backfill: id of the backfill that submitted it; empty if none did.
    """

    status: Status
    ended_at: float = 0.0
    reason: Reason | None = None
    final: bool = False
    version: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    left: int = 0
    backfill: str = ""


def has_ended(run: Run, runs: Mapping[str, RunSeen]) -> bool:
    """Return whether the job of a submitted run has ended, or is not stored any more."""
    job_state = runs.get(run.job)
    return bool(run.job) and (job_state is None or job_state.status.terminal)


def seen_as(job: JobRecord, state: JobState | None = None) -> RunSeen:
    """Return the state of a run from its job.

    Args:
        state: the loaded state of a failed job, if it can be read.
    """
    reason, final = job.reason, False
    if job.status is Status.FAILED and reason is not None:
        final = reason.code in FINAL
        if state is not None and reason.code == "GROUP_FAILED" and (group := state.first_failed):
            reason, final = _of_group(state, group, reason)
    status = job.status
    if job.terminal and not status.terminal:  # a damaged record has lost its status
        status = Status.FAILED
    rows = dict(job.published)
    return RunSeen(status, job.ended_at, reason, final, job.version, rows, job.left, job.backfill)


def seen_in_log(result: PublishResult, now: float) -> RunSeen:
    """Return the state of a run whose job the store forgot, from its warehouse log entry."""
    if result.failed is None:
        text = f"its package stood already, as version {result.version}"
        done = Reason("DONE", text)
        return RunSeen(
            Status.FINISHED, now, done, False, result.version, dict(result.rows), result.left
        )
    ended = result.failed.code in ("USER_CANCELED", "USER_STOPPED", "FORCE_STOPPED")
    return RunSeen(
        Status.CANCELED if ended else Status.FAILED, now, result.failed, result.failed.code in FINAL
    )


def _of_group(state: JobState, group: str, reason: Reason) -> tuple[Reason, bool]:
    """Return the failure of the first failed group, and whether it is final."""
    record = state.groups[group]
    error, why = record.last_error, record.reason
    if error is None or (why is not None and why.code in ("QUEUE_TIMEOUT", "POISON")):
        return (Reason(why.code, reason.text) if why is not None else reason), False
    return Reason(error.code, reason.text), bool(state.planned(group).retry.why_final(error))
