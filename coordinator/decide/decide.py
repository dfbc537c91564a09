"""Decide: from the record of a job, what changes and what must be done. Pure: no I/O, no clock, no randomness.

Level-triggered: everything follows from the states as they stand, whoever woke us and however often. Do what the user
asked of single groups (``asking``), take in what the attempts say (``intake``), derive joins anew (``joining``), queue
what may go (``queueing``), and see whether the job has ended (``ending``).

``decide`` moves the given state forward; if the commit is refused the caller throws that state away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from unstuck.coordinator.decide.attempts import look_at
from unstuck.coordinator.decide.completion import cancel_all, cancel_rest, end
from unstuck.coordinator.decide.deadlines import PUBLISHING, due_at
from unstuck.coordinator.decide.dispatch import queue_ready, resend_hints
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.intent import OUT_OF_TIME, obey, renew_budgets
from unstuck.coordinator.decide.joins import judge_joins
from unstuck.coordinator.decide.requests import bring_about
from unstuck.coordinator.decide.timeouts import call_time, give_up_queued, keep_time
from unstuck.coordinator.model.decision import Decision, World
from unstuck.coordinator.model.moves import check_status
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import Intent, derive


def decide(state: JobState, changed: Iterable[str] | None, world: World) -> Decision:
    """What is next for one job.

    Args:
        state: the job as loaded, with the attempts of ``changed`` fresh; moved forward by this call.
        changed: groups that a report spoke of; None to look at everything that could be due.
        world: time, randomness and what is known of the fleet.
    """
    draft = Draft(state, world)
    if state.job.terminal:
        return draft.decision
    if state.job.asks and bring_about(draft):
        conclude(draft)
        return draft.decision
    if changed is None or state.ready is None:
        state.ready = {}
        draft.touched.extend(state.plan.groups)
    if draft.job.renewed:
        # Before what the attempts say: an attempt that failed since the resume is charged to the new budget.
        renew_budgets(draft)
    for group_id in state.active if changed is None else [g for g in changed if g in state.groups]:
        look_at(draft, group_id)
    if not draft.ends:
        give_up_queued(draft)
    if not draft.ends:
        judge_joins(draft)  # which may find a quorum that can no longer be reached
    call_time(draft)
    if draft.job.intent is not Intent.RUN:
        obey(draft)
    elif draft.job.timed_out is not None:
        cancel_all(draft, OUT_OF_TIME)
    elif draft.doomed:
        cancel_rest(draft)
    elif draft.job.halted is None:
        queue_ready(draft)
        resend_hints(draft)
    if not state.open_groups:
        end(draft)
    conclude(draft)
    return draft.decision


def conclude(draft: Draft) -> None:
    """Status and due follow from what stands now.

    Raises:
        IllegalMove: the table of a job's moves does not hold it; nothing is committed.
    """
    outcome = draft.job.status if draft.job.terminal else None
    # The state does not follow what is forgotten.
    gone = draft.decision.forgotten
    status = derive(
        intent=draft.job.intent,
        outcome=outcome,
        halted=draft.job.halted is not None,
        started=bool(draft.job.started_at),
        active=any(group not in gone for group in draft.state.active) or draft.job.phase == PUBLISHING,
        recovering=any(group not in gone for group in draft.state.recovering),
    )
    check_status(draft.decision.old.status, status)
    draft.job = keep_time(replace(draft.job, status=status), draft.world.now)
    draft.decision.job = draft.job
    draft.state.job = draft.job
    draft.decision.due = None if outcome is not None else due_at(draft.state, draft.world, draft.decision.more)
    for event in draft.decision.events:
        event["at"] = draft.world.now
