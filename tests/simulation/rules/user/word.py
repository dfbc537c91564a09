"""The user's word: what a command may write, how it may be obeyed, and when it must have been.
Plain rules.

Each function answers what is wrong, in words; empty if nothing is.
"""

from __future__ import annotations

from dataclasses import fields

from tests.simulation.model.stored import StoredJob
from unstuck.coordinator.model.records import AttemptRecord, JobRecord
from unstuck.coordinator.model.status import GroupState, Intent, Status

S = GroupState
RESUMED = "USER_RESUME"
# What a command may write on the record of a job.
ASKED = frozenset(
    {
        "commit",
        "intent",
        "intent_at",
        "intent_by",
        "intent_why",
        "pause_now",
        "reset_budgets",
        "halted",
    }
)
# And one that is about groups.
ASKED_OF_GROUPS = {
    "USER_ALTER": frozenset({"commit", "spec", "revision", "alterations", "priority", "requests"}),
    "USER_SKIP": frozenset({"commit", "requests"}),
    "USER_RERUN": frozenset({"commit", "requests", "reruns"}),
}
# How a job may end, by what the user wants of it. FINISHED in spite of a stop or a cancel: the
# package stood first.
ENDS = {
    Intent.RUN: (Status.FINISHED, Status.FAILED),
    Intent.PAUSE: (Status.FINISHED, Status.FAILED),  # it was publishing already
    Intent.STOP: (Status.STOPPED, Status.FINISHED),
    Intent.CANCEL: (Status.CANCELED, Status.FINISHED),
    Intent.FORCE_STOP: (Status.CANCELED, Status.FINISHED),
}
ENDED_BY_USER = (Intent.STOP, Intent.CANCEL, Intent.FORCE_STOP)
STRENGTH = list(Intent)
ENDED_WITHIN = 15.0  # seconds without trouble within which a job must have ended after its deadline
# The same when the warehouse log has to be asked: a lost publisher's term, and a wait.
PUBLISHED_WITHIN = 100.0


def wrongly_commanded(before: JobRecord, after: JobRecord, kind: str) -> str:
    """A command writes what the user asked for and nothing else; only a resume makes the intent
    weaker.
    """
    wrote = {
        item.name
        for item in fields(JobRecord)
        if getattr(before, item.name) != getattr(after, item.name)
    }
    asked = ASKED_OF_GROUPS.get(kind, ASKED)
    if not wrote <= asked:
        return f"{kind} of {before.id} wrote {sorted(wrote - asked)}"
    if kind != RESUMED and STRENGTH.index(after.intent) < STRENGTH.index(before.intent):
        return f"{kind} of {before.id}: {before.intent} became {after.intent}"
    if kind == RESUMED and before.intent not in (Intent.RUN, Intent.PAUSE):
        return f"{before.id} was resumed, and {before.intent} had been asked for"
    return ""


def wrongly_canceled(
    job: JobRecord,
    attempt: AttemptRecord | None,
    target: GroupState,
    now: float,
    deadline: float,
    fails_fast: bool,
    *,
    lease_ttl: float,
) -> str:
    """What nobody holds is canceled at once; what runs, when its runner let go, or at the deadline,
    or by force.

    Args:
        fails_fast: a group of the job failed for good, or its time is over, which cancels the
            others unless the user wants something else.
    """
    if target is S.CANCELING:
        return "" if job.intent is Intent.CANCEL else f"was told to end under {job.intent}"
    if job.intent is Intent.FORCE_STOP or (job.intent is Intent.RUN and fails_fast):
        return ""
    if job.intent is Intent.STOP and job.timed_out is not None:
        return ""
    if job.intent not in (Intent.STOP, Intent.CANCEL):
        return f"was canceled under {job.intent}, and nothing has failed"
    held = attempt is not None and attempt.claimant and attempt.outcome is None
    # A lease that reads as longer than a term was given before the clock was set back.
    held = held and attempt is not None and now <= attempt.lease <= now + lease_ttl + 1.0
    come = (
        now >= job.intent_at + deadline - 0.001 or job.intent_at > now + deadline
    )  # the clock was set back since
    over = job.intent is Intent.CANCEL and come
    return (
        f"was canceled under {job.intent} while {attempt} ran, before the deadline"
        if held and not over
        else ""
    )


def overdue(
    job: StoredJob,
    now: float,
    deadline: float,
    fault_free_since: float,
    asked_at: float,
    *,
    set_back: bool,
) -> str:
    """Without trouble, a job that was canceled has ended soon after its deadline; one that was
    forced, at once.

    By a clock that nobody sets: ``asked_at`` is when it was asked for by that clock, as are the
    others. A clock of the store that was ``set_back`` meanwhile costs one deadline more at most.
    """
    record = job.record
    if record.terminal or record.intent not in (Intent.CANCEL, Intent.FORCE_STOP):
        return ""
    deadline *= 2 if set_back else 1
    due = asked_at + (deadline if record.intent is Intent.CANCEL else 0.0)
    late = now - max(due, fault_free_since)
    if late <= (PUBLISHED_WITHIN if record.phase else ENDED_WITHIN):
        return ""
    states = {group: str(r.state) for group, r in job.groups.items() if not r.state.terminal}
    return (
        f"{record.id} is {record.status} {now - due:.1f}s after it was to have ended by its "
        f"{record.intent}: {states}"
    )
