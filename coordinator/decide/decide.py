"""Decides from the state of a job what changes and what must be done.

Pure: no I/O, no clock, no randomness. If the commit is refused, the caller drops the state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from unstuck.coordinator.decide.completion import complete
from unstuck.coordinator.decide.dispatch import offer_again, queue_runnable
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.intent import (
    OUT_OF_TIME,
    apply_intent,
    cancel_all,
    fail_fast,
    reset_budgets,
)
from unstuck.coordinator.decide.joins import judge_joins
from unstuck.coordinator.decide.live_attempts import read_attempt
from unstuck.coordinator.decide.requests import apply_requests
from unstuck.coordinator.decide.timers.deadlines import due_at
from unstuck.coordinator.decide.timers.timeouts import (
    check_job_timeout,
    check_queue_timeouts,
    count_job_time,
)
from unstuck.coordinator.model.decision import Decision, Environment
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import Intent, check_phase, check_status, derive


def decide(state: JobState, changed: Iterable[str] | None, env: Environment) -> Decision:
    """Decide the next steps of one job.

    Args:
        state: the loaded job, with fresh attempts of ``changed``; this call changes it.
        changed: groups that a report names; None to look at everything that may be due.
        env: time, randomness and facts about the fleet.
    """
    draft = Draft(state, env)
    if state.job.terminal:
        return draft.decision
    if state.job.requests and apply_requests(draft):
        conclude(draft)
        return draft.decision
    everything = changed is None
    if everything or not state.joins_judged:
        _touch_all(draft)
    resumed = draft.job.reset_budgets
    if resumed:
        # Before the attempts are read: an attempt that failed since the resume is charged to the
        # new budget.
        reset_budgets(draft)
    for group_id in [*state.active] if changed is None else changed:
        if group_id in state.groups:
            read_attempt(draft, group_id)
    _decide_groups(draft, everything=everything, resumed=resumed)
    if not state.open_groups and not draft.job.requests:
        complete(draft)
    conclude(draft)
    return draft.decision


def _touch_all(draft: Draft) -> None:
    """Let all joins be judged."""
    draft.state.runnable.clear()
    draft.state.joins_judged = True
    draft.touched.extend(draft.plan.groups)


def _decide_groups(draft: Draft, *, everything: bool, resumed: bool) -> None:
    """Apply timeouts, joins and the user's intent to the groups."""
    check_queue_timeouts(draft)
    judge_joins(draft)  # this may find a quorum that can no longer be reached
    check_job_timeout(draft)
    if draft.job.intent is not Intent.RUN:
        apply_intent(draft)
    elif draft.job.timed_out is not None:
        cancel_all(draft, OUT_OF_TIME)
    else:
        _run_further(draft, everything=everything, resumed=resumed)


def _run_further(draft: Draft, *, everything: bool, resumed: bool) -> None:
    """Queue the groups that may run; after a failure that ends the job, cancel the others."""
    if draft.failing_fast:
        fail_fast(draft)
        judge_joins(draft)
    if draft.job.halted is None:
        queue_runnable(draft)
        if everything:
            # While the job was held back, what was taken off the ready sets was dropped.
            offer_again(draft, at_once=resumed)


def conclude(draft: Draft) -> None:
    """Derive the job's status and due time from its state. Raises: IllegalMove."""
    outcome = draft.job.status if draft.job.terminal else None
    # The state still holds the groups whose records go.
    gone = draft.decision.forgotten
    status = derive(
        intent=draft.job.intent,
        outcome=outcome,
        halted=draft.job.halted is not None,
        started=bool(draft.job.started_at),
        active=any(group not in gone for group in draft.state.active) or bool(draft.job.phase),
        recovering=any(group not in gone for group in draft.state.recovering),
    )
    check_status(draft.decision.old.status, status)
    check_phase(draft.decision.old.phase, draft.job.phase)
    if status is not draft.job.status:
        draft.job = replace(draft.job, status=status)
    draft.job = count_job_time(draft.job, draft.env.now)
    draft.decision.job = draft.job
    draft.state.job = draft.job
    draft.decision.due = (
        None if outcome is not None else due_at(draft.state, draft.env, draft.decision.more)
    )
    for event in draft.decision.events:
        event.setdefault("at", draft.env.now)
