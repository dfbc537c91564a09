"""Compute facts that the explanations of all groups of a job share. Pure."""

from __future__ import annotations

from unstuck.coordinator.decide.dispatch import Room
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.timers.deadlines import job_timeout_at
from unstuck.coordinator.explain.explanation import Event, FleetFacts
from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import Intent
from unstuck.coordinator.spec.plan import PlannedGroup
from unstuck.tasks.duration import format_duration
from unstuck.tasks.protocol.token import split_member

A_PERSON = "a person decides"


class ExplanationFacts:
    """Facts that the explanations of all groups of a job share, computed once."""

    def __init__(
        self, state: JobState, env: Environment, due: float | None, fleet: FleetFacts
    ) -> None:
        self.state, self.env, self.due, self.fleet = state, env, due, fleet
        draft = Draft(state, env)
        self.room = Room(draft)
        job = state.job
        self.look_at = ahead(0.0, env, due)  # when the job is looked at next
        self.help = (
            (f"unstuck resume {job.id}", f"unstuck cancel {job.id}")
            if stands_still(job)
            else ways_to_end(job)
        )
        self.cut = _cuts_running(job)
        self._canceled = _why_canceled(state, draft)
        self._outlived = job.intent in (Intent.RUN, Intent.PAUSE) and job.timed_out is None
        # By planned group: when the last of its ended members ended.
        self.done: dict[str, float] = {}
        for group_id, record in state.groups.items():
            if record.state.terminal:
                name, _ = split_member(group_id)
                self.done[name] = max(self.done.get(name, 0.0), record.since)

    def canceled(self, planned: PlannedGroup) -> str:
        """Return why this group is canceled unless it is done or running; empty if it is not."""
        return "" if self._outlived and planned.spec.join.outlives_failure else self._canceled

    def ahead(self, at: float) -> float:
        return ahead(at, self.env, self.due)

    def ends(self, own: str, at: float = 0.0) -> Event:
        """Return when a group ends by its ``own`` timeout, or by the timeout of the job."""
        over = job_timeout_at(self.state.job, self.state.plan.timeout, self.env) or 0.0
        if not over or 0 < at <= over:
            return Event(what=own, at=at)
        return Event(what=f"{own}; or by the job's {timeout_of(self.state.plan.timeout)}", at=over)


def _cuts_running(job: JobRecord) -> bool:
    """Return whether running attempts of canceled groups are ended, too."""
    if stands_still(job):
        return False
    at_once = job.intent in (Intent.RUN, Intent.FORCE_STOP)
    return at_once or (job.intent is Intent.STOP and job.timed_out is not None)


def _why_canceled(state: JobState, draft: Draft) -> str:
    """Return why every group that is not done and not running is canceled; empty if not so."""
    job = state.job
    if job.intent not in (Intent.RUN, Intent.PAUSE):
        return f"{job.intent} was asked for"
    if job.timed_out is not None:
        return job.timed_out.text
    if draft.failing_fast:
        return f"group {state.first_failed} failed, and on_failure is cancel_others"
    return ""


def ahead(at: float, env: Environment, due: float | None) -> float:
    """Return ``at`` if it is in the future, else when the job is checked next."""
    if at > env.now:
        return at
    return 0.0 if due is None else max(due, env.now)


def stands_still(job: JobRecord) -> bool:
    """Return whether no group starts before a resume, because the job is paused or halted.

    This is false for a halted job that the user stops or cancels.
    """
    return job.intent is Intent.PAUSE or (job.halted is not None and job.intent is Intent.RUN)


def ways_to_end(job: JobRecord) -> tuple[str, ...]:
    """Return the commands that can still end a job earlier, the gentler one first."""
    cancel, force = f"unstuck cancel {job.id}", f"unstuck force-stop {job.id}"
    match job.intent:
        case Intent.FORCE_STOP:
            return ()
        case Intent.CANCEL:
            return (force,)
        case Intent.STOP:
            return cancel, force
        case _:
            return (cancel,)


def timeout_of(seconds: float | None) -> str:
    return "" if seconds is None else f"timeout of {format_duration(seconds)}"
