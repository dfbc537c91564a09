"""Fair play: what every decision must keep to, whatever the history. Written down a second time, as
plainly as can be.

What may move where is asked of the tables; that all of it happens is for the tests that explore.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unstuck import Status
from unstuck.coordinator.decide.timers.deadlines import IDLE_LOOK
from unstuck.coordinator.explain.explanation import Explanation
from unstuck.coordinator.explain.job import explain
from unstuck.coordinator.model.decision import Decision, Environment
from unstuck.coordinator.model.records import GroupRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import (
    GROUP_MOVES,
    GROUP_MOVES_REQUESTED,
    GROUP_TERMINAL,
    JOB_MOVES,
    PHASE_MOVES,
    TERMINAL,
    GroupState,
    Intent,
    Phase,
    derive,
)

S = GroupState
ACTIVE = (S.QUEUED, S.RUNNING, S.CANCELING)
ENDED = {*TERMINAL, *GROUP_TERMINAL}
LONGEST_WAIT = 60.0  # seconds to the next due of a job with an attempt, whatever it waits for


@dataclass(slots=True)
class Seen:
    """Every move that a decision has made, in all worlds that share this."""

    groups: set[tuple[GroupState, GroupState]] = field(default_factory=set)
    asked: set[tuple[GroupState, GroupState]] = field(default_factory=set)
    jobs: set[tuple[Status, Status]] = field(default_factory=set)
    phases: set[tuple[Phase, Phase]] = field(default_factory=set)


class BrokenInvariant(AssertionError):
    """A decision did what no decision may do."""


def judge(
    state: JobState,
    decision: Decision,
    old: Mapping[str, GroupRecord],
    env: Environment,
    seen: Seen,
    limit: int,
) -> None:
    """What every decision must keep to.

    Args:
        state: the job as it is loaded after the commit.
        old: the groups before it.
        seen: takes note of the moves.
        limit: moves that one decision may make.

    Raises: BrokenInvariant.
    """
    before, after = decision.old, decision.job
    if before.terminal and not decision.empty:
        raise BrokenInvariant(f"a job that was {before.status} was changed")
    if after.intent is not before.intent:
        raise BrokenInvariant(
            f"the intent was {before.intent}, and a decision made it {after.intent}"
        )
    if decision.moves > limit:
        raise BrokenInvariant(f"{decision.moves} moves in one decision")
    if before.status is not after.status:
        if (before.status, after.status) not in JOB_MOVES:
            raise BrokenInvariant(f"the job moved from {before.status} to {after.status}")
        seen.jobs.add((before.status, after.status))
    if before.phase is not after.phase:
        if (before.phase, after.phase) not in PHASE_MOVES:
            raise BrokenInvariant(f"its publishing moved from {before.phase} to {after.phase}")
        seen.phases.add((before.phase, after.phase))
    if after.intent is not Intent.RUN or after.halted is not None:
        begins = not before.phase and (after.phase or after.status is Status.FINISHED)
        if decision.offered or begins:
            raise BrokenInvariant(
                f"{'the end' if begins else list(decision.offered)} begins under {after.intent}"
            )
    _judge_events(state, decision, old, seen)
    _judge_records(state)
    shown = derive(
        intent=after.intent,
        outcome=after.status if after.terminal else None,
        halted=after.halted is not None,
        started=bool(after.started_at),
        active=bool(state.active) or bool(after.phase),
        recovering=bool(state.recovering),
    )
    if decision.reload:
        if decision.due != env.now:
            raise BrokenInvariant("records have gone, and the status is not derived again at once")
    elif after.status is not shown:
        raise BrokenInvariant(f"it is shown as {after.status}, and its records say {shown}")
    if after.terminal != (decision.due is None):
        raise BrokenInvariant(f"it is {after.status}, and due {decision.due}")
    # Where no attempt can end, nothing but a command changes the job before a time that stands on
    # its record.
    longest = LONGEST_WAIT if state.active or after.phase else IDLE_LOOK
    if decision.due is not None and not env.now <= decision.due <= env.now + longest + 0.1:
        raise BrokenInvariant(f"it is due in {decision.due - env.now}s")
    if (decision.publish or decision.abort) and (not after.phase or state.open_groups):
        raise BrokenInvariant(
            f"publishing in phase {after.phase!r}, with {state.open_groups} groups open"
        )
    judge_words(state, env, decision.due)


def _judge_events(
    state: JobState, decision: Decision, old: Mapping[str, GroupRecord], seen: Seen
) -> None:
    """The events of each group lead from where it stood to where it stands, by legal moves only."""
    at = {name: record.state for name, record in old.items()}
    for event in decision.events:
        name = event.get("group")
        if name is None or (
            event["kind"] == S.WAITING
            and event.get("code") == "USER_RERUN"
            and name not in state.groups
        ):
            continue
        move = (at.get(name, S.WAITING), S(event["kind"]))
        at[name] = move[1]
        asked = (event["kind"], event.get("code")) in (
            (S.SKIPPED, "USER_SKIPPED"),
            (S.WAITING, "USER_RERUN"),
        )
        if move not in (GROUP_MOVES_REQUESTED if asked else GROUP_MOVES):
            raise BrokenInvariant(
                f"{name} moved from {move[0]} to {move[1]}{', as was asked' if asked else ''}"
            )
        (seen.asked if asked else seen.groups).add(move)
    for name, record in state.groups.items():
        if at.get(name, S.WAITING) is not record.state:
            raise BrokenInvariant(f"{name} is {record.state}, and its events say {at.get(name)}")


def _judge_records(state: JobState) -> None:
    """Who is active has an attempt, and nobody else has."""
    active = {name: (r.epoch, r.nonce) for name, r in state.groups.items() if r.state in ACTIVE}
    live = {name: (attempt.epoch, attempt.nonce) for name, attempt in state.attempts.items()}
    if active != live:
        raise BrokenInvariant(f"active are {active}, and the attempts are {live}")
    if state.job.terminal and (live or state.open_groups):
        raise BrokenInvariant(
            f"it is {state.job.status} with {state.open_groups} groups open and the attempts {live}"
        )


def judge_words(state: JobState, env: Environment, due: float | None) -> None:
    """Everything that is not done is explained; nothing is promised for a time that has gone, or
    under a pause.
    """
    told = explain(state, env, due)
    for one in told:
        if not one.what.strip() or "unknown" in one.what.lower():
            raise BrokenInvariant(
                f"{one.subject} is {one.state}, and all that is said is {one.what!r}"
            )
        if one.next.at and one.next.at < env.now:
            raise BrokenInvariant(
                f"{one.subject} is {one.state}, and what comes next was {env.now - one.next.at}s "
                f"ago: {one}"
            )
        if one.state and one.state not in ENDED:
            _judge_wait(state, one, env)
    if told[0].subject != state.job.id or told[0].state != state.job.status:
        raise BrokenInvariant(f"the job comes first, and here it is {told[0]}")
    spoken = {one.subject for one in told}
    for name in () if state.job.terminal else state.plan.groups:
        for each in state.members(name):
            if not state.record(each).state.terminal and not spoken & {each, name}:
                raise BrokenInvariant(
                    f"{each} is {state.record(each).state}, and nothing is said of it"
                )


def _judge_wait(state: JobState, one: Explanation, env: Environment) -> None:
    """Of what waits it is said what is next, when it gives up, what helps; and no more than a
    decision would do.
    """
    job = state.job
    if not one.next.what or not one.ends.what:
        raise BrokenInvariant(
            f"{one.subject} is {one.state}, and what comes next, or when it gives up, is not said: "
            f"{one}"
        )
    if not one.help and job.intent is not Intent.FORCE_STOP:
        raise BrokenInvariant(
            f"{one.subject} is {one.state}, and nothing is said that would help: {one}"
        )
    waits = job.intent is Intent.PAUSE or (job.halted is not None and job.intent is Intent.RUN)
    if one.state != S.BACKOFF or (job.intent is Intent.RUN and not waits):
        return
    if one.timed:
        raise BrokenInvariant(
            f"{one.subject} is in BACKOFF of a job told to {job.intent}, and an attempt is "
            f"promised: {one}"
        )
    if waits and (one.next.at or f"unstuck resume {job.id}" not in one.help):
        raise BrokenInvariant(
            f"{one.subject} is in BACKOFF and goes on when the job is resumed, and that is not "
            f"said: {one}"
        )
