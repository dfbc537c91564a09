"""Loads the state of a job from the store; of a damaged job, the readable part of its record.

A job is damaged if a part of it cannot be read. That part is left out. The job can still be shown
and force-stopped, which needs only the record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from unstuck.coordinator.errors import NewerJob
from unstuck.coordinator.model.records import AttemptRecord, GroupRecord, JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import Intent
from unstuck.coordinator.spec.plan import NO_GROUPS, Plan, plan_of
from unstuck.coordinator.spec.problems import SpecError


def state_of(
    job: str,
    fields: Mapping[str, str],
    groups: Mapping[str, str],
    forks: Mapping[str, str],
    attempts: Mapping[str, str],
    frozen: Iterable[str] = (),
) -> JobState:
    """Return the state of ``job`` from its Redis hashes; of a damaged job, see ``JobState.damage``.

    Raises: NewerJob.
    """
    part = "record"
    try:
        if lost := _lost_fields(fields):
            raise _Lost(f"it has lost {lost}")
        record = JobRecord.from_fields({**fields, "id": job})
        part = "spec"
        plan = plan_of(record.spec, record.texts)
        part = "state of its groups"
        if lost := _lost_records(fields, groups, frozen):
            raise _Lost(lost)
        state = JobState(
            plan,
            record,
            {name: GroupRecord.from_json(text) for name, text in groups.items()},
            {name: tuple(json.loads(text)) for name, text in forks.items()},
            {name: AttemptRecord.from_json(text) for name, text in attempts.items()},
            frozen,
        )
        unknown = [name for name, count in state.fulls.items() if count is None]
        if len(forks) < int(fields["counts"].split()[1]):
            raise _Lost(f"the values of the fork {' or '.join(unknown)} are gone")
        return state
    except NewerJob:
        raise
    except Exception as error:  # noqa: BLE001 - damage may be of any kind
        return _damaged(job, fields, part, error)


class _Lost(Exception):
    """A part of a job that was written is gone."""


def _damaged(job: str, fields: Mapping[str, str], part: str, error: Exception) -> JobState:
    """Return the state of a job of which ``part`` cannot be read."""
    cause: object = error.problems[0] if isinstance(error, SpecError) else error
    what = " ".join(str(cause).split())[:300]
    damage = f"the stored {part} of job {job} cannot be read ({type(error).__name__}: {what})"
    if isinstance(error, _Lost):
        damage = f"the stored {part} of job {job} is not whole: {what}"
    state = JobState(NO_GROUPS, JobRecord.salvaged(job, fields), {}, {}, {})
    if state.job.terminal:
        state.damage = damage
    elif state.job.intent is Intent.FORCE_STOP:
        state.damage = f"{damage}, and the job is being ended by force"
    else:
        state.damage = f"{damage}. The job cannot go on; `unstuck force-stop {job}` ends it"
    return state


def _lost_fields(fields: Mapping[str, str]) -> str:
    """Return which fields of the record are gone, in words.

    The scripts store the names of all fields in ``fields``.
    """
    _, *names = fields.get("fields", "0 fields").split()
    lost = sorted(set(names) - fields.keys())
    if not lost:
        return ""
    fields_text = "its field" if len(lost) == 1 else "its fields"
    return f"{fields_text} {', '.join(lost)}"


def _lost_records(
    fields: Mapping[str, str], groups: Mapping[str, str], frozen: Iterable[str]
) -> str:
    """Return which records of groups are gone, in words.

    The commit stores their number in ``counts``.
    """
    count = int(fields["counts"].split()[0])
    if len(groups) >= count:
        return ""
    begun = (name for name in frozen if name not in groups and f"{name}[0]" not in groups)
    names = ", ".join(sorted(begun)[:3])
    lost = f"{count - len(groups)} of {count} records of groups are gone"
    return f"{lost}: {names}" if names else lost


def bare_state(job: str, fields: Mapping[str, str]) -> JobState:
    """Return the readable state of ``job`` as if no group had started.

    Raises: NewerJob.
    """
    # Without what was asked of single groups: these may be in no spec that can be read.
    return without_groups(replace(JobRecord.salvaged(job, fields), requests=()))


def without_groups(record: JobRecord) -> JobState:
    """Return the state of a job as if no group had started; no groups if its spec is damaged."""
    plan: Plan = NO_GROUPS
    with suppress(Exception):
        plan = plan_of(record.spec, record.texts)
    return JobState(plan, record, {}, {}, {})
