"""Decide from an observation of a runner what its watchdog does. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any

from unstuck.tasks.process.tree import ProcessState
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind
from unstuck.tasks.transport.lease import RenewAnswer


class Instruction(StrEnum):
    """Why a runner must leave its attempt, weakest first. A stronger one replaces a weaker one."""

    TIMEOUT = "timeout"
    DRAIN = "drain"
    CANCEL = "cancel"
    STALE = "stale"

    @property
    def strength(self) -> int:
        """The rank of the instruction, greater than 0."""
        return list(Instruction).index(self) + 1


_INSTRUCTION_OF: Mapping[RenewAnswer | None, Instruction] = {
    RenewAnswer.CANCEL: Instruction.CANCEL,
    RenewAnswer.DRAIN: Instruction.DRAIN,
    RenewAnswer.STALE: Instruction.STALE,
}


@dataclass(frozen=True)
class Clock:
    """A timeout that runs: of the session, the warehouse, all steps, a step, or an error's text."""

    # Of the failure when it has run out: [SESSION_|WAREHOUSE_|STEP_]TIMEOUT; STEP_FAILED of an
    # error's text.
    code: str
    seconds: float
    began: float  # monotonic seconds
    # What it is that may take so long, in words; empty for all steps, and for the session's start.
    step: str = ""
    index: int = 0  # of the step in its group

    @property
    def leaving(self) -> bool:
        """True for the clock of leaving the session, when the runner has reported the outcome."""
        return self.code == "SESSION_TIMEOUT" and bool(self.step)

    @property
    def ends(self) -> float:
        """When the timeout expires, in monotonic seconds."""
        return self.began + self.seconds


@dataclass(frozen=True, slots=True)
class WatchState:
    """The watchdog's knowledge of the attempt that the runner holds.

    Times are monotonic seconds.
    """

    clocks: Mapping[str, Clock] = field(default_factory=dict)  # those that run, by code
    instruction: Instruction | None = None
    instructed_at: float = 0.0
    timed_out: Clock | None = None  # the first that ran out
    stood: str = ""  # where its step was seen last, in words

    @property
    def drains(self) -> bool:
        """True once the runner was told to hand its attempt back, or more."""
        return self.strength >= Instruction.DRAIN.strength

    @property
    def strength(self) -> int:
        """The strength of the instruction; 0 without one."""
        return 0 if self.instruction is None else self.instruction.strength

    @property
    def leaving(self) -> bool:
        """True while the runner leaves the session, after its outcome was reported."""
        return any(clock.leaving for clock in self.clocks.values())

    @property
    def next_end(self) -> float | None:
        """When the first of the clocks runs out; None if none runs, or one has run out already."""
        return (
            None
            if self.timed_out
            else min((clock.ends for clock in self.clocks.values()), default=None)
        )


@dataclass(frozen=True, slots=True)
class Observation:
    """The facts of one moment. ``answer``: of a renewal since the last observation, if any."""

    now: float
    runner: ProcessState
    orphaned: bool = False  # the worker above the runner has died, and nobody gives the runner work
    answer: RenewAnswer | None = None
    # When the attempt is to be handed back, since the worker was told to stop.
    drain_at: float | None = None


@dataclass(frozen=True, slots=True)
class WatchdogAction:
    """The next action: pass ``instruction`` on, or kill the runner and report ``outcome``."""

    state: WatchState
    instruction: Instruction | None = None
    kill_reason: str = ""  # a sentence for people; empty: let it live
    outcome: Outcome | None = None  # None: there is nothing to report


def decide(
    state: WatchState,
    observation: Observation,
    *,
    grace: float,
    death: str = "died",
    who: str = "the runner",
) -> WatchdogAction:
    """Decide the next action on a runner that holds an attempt.

    Args:
        grace: seconds a runner has to leave after it was told to.
        death: how it died, in words, if it is gone.
        who: the runner as people know it.
    """
    state, instruction = _with_instructions(state, observation)
    if observation.runner is ProcessState.GONE:
        # Kill nevertheless: what the runner started outlives it (a JVM that writes, Python
        # workers).
        why = f"{who} {death}"
    elif observation.orphaned:
        why = f"{who} was ended because the Celery worker above it has died"
    elif state.instruction is None or observation.now - state.instructed_at < grace:
        return WatchdogAction(state, instruction)
    elif state.timed_out is not None and state.timed_out.leaving:
        why = f"{who} was killed: {timeout_failure(state.timed_out, state.stood).text}"
    else:
        why = (
            f"{who} was killed: it had not left {grace:g}s after it was told to "
            f"({state.instruction})"
        )
    return WatchdogAction(state, None, why, _outcome_for(state, observation, why))


def _with_instructions(
    state: WatchState, observation: Observation
) -> tuple[WatchState, Instruction | None]:
    """``state`` with a new or stronger instruction, and that one if there is one.

    The grace counts from the first.
    """
    if state.leaving and state.instruction is Instruction.STALE:
        # A renewal was quicker than the look at the clocks.
        state = replace(state, instruction=None)
    instructions = _instructions_of_others(state, observation)
    over = [clock for clock in state.clocks.values() if clock.ends <= observation.now]
    if over:
        instructions.append(Instruction.TIMEOUT)
        state = replace(state, timed_out=state.timed_out or min(over, key=attrgetter("ends")))
    strongest = max(instructions, key=attrgetter("strength"), default=None)
    if strongest is None or strongest.strength <= state.strength:
        return state, None
    since = observation.now if state.instruction is None else state.instructed_at
    return replace(state, instruction=strongest, instructed_at=since), strongest


def _instructions_of_others(state: WatchState, observation: Observation) -> list[Instruction]:
    """Return the instructions of the worker, and of the answer to a renewal."""
    instructions = []
    if observation.drain_at is not None and observation.drain_at <= observation.now:
        instructions.append(Instruction.DRAIN)
    renewed = _INSTRUCTION_OF.get(observation.answer)
    # Once the outcome is on the record, leaving the session has its own time, not the grace.
    is_over = state.leaving and renewed is Instruction.STALE
    if renewed is not None and not is_over:
        instructions.append(renewed)
    return instructions


def _outcome_for(state: WatchState, observation: Observation, why: str) -> Outcome | None:
    """Return the outcome to report for a runner that cannot.

    None if it has reported one, or if the attempt belongs to another runner.
    """
    if state.instruction is Instruction.STALE or state.leaving:
        return None
    if state.instruction is Instruction.CANCEL:
        return Outcome(OutcomeKind.CANCELED)
    if state.instruction is Instruction.DRAIN:
        return Outcome(OutcomeKind.RELEASED)
    if state.instruction is Instruction.TIMEOUT and state.timed_out is not None:
        return Outcome(OutcomeKind.FAILED, failure=timeout_failure(state.timed_out, state.stood))
    if observation.drain_at is not None:
        # Ended with its worker before its time: a supervisor with a shorter grace than ours. No
        # fault of the group.
        return Outcome(
            OutcomeKind.RELEASED,
            failure=Failure("RELEASED", f"{why}, while its worker was told to stop"),
        )
    return Outcome(OutcomeKind.LOST, failure=Failure("WORKER_LOST", why))


def with_timeouts(clocks: Mapping[str, Clock], group: Mapping[str, Any]) -> dict[str, Clock]:
    """Return ``clocks`` with the timeouts of an altered ``group``, each counted from its start."""
    steps = group["steps"]

    def seconds(clock: Clock) -> float:
        if clock.code == "TIMEOUT":
            return group.get("timeout") or math.inf
        if clock.code == "STEP_TIMEOUT" and clock.index < len(steps):
            return steps[clock.index].get("timeout") or math.inf
        return clock.seconds

    return {code: replace(clock, seconds=seconds(clock)) for code, clock in clocks.items()}


def timeout_failure(clock: Clock, stood: str = "") -> Failure:
    """Return the failure of a timeout. ``stood``: where its step was last seen."""
    last_seen = f"; its step was last seen at {stood}" if stood else ""
    if clock.code == "WAREHOUSE_TIMEOUT":
        text = (
            f"{clock.step}: no answer for {clock.seconds:g}s (UNSTUCK_WAREHOUSE_TIMEOUT). A mount "
            "of that host may hang: look at it there, as the worker's account. The group is tried "
            "again, as its retry: allows, and what was finished is taken over"
        )
    elif clock.code == "SESSION_TIMEOUT" and clock.step:
        text = (
            f"{clock.step} took longer than {clock.seconds:g}s (UNSTUCK_SESSION_TIMEOUT); a "
            "streaming query that a step started may not stop. How the attempt ended was said "
            "before, and stays"
        )
    elif clock.code == "SESSION_TIMEOUT":
        text = (
            f"the Spark session had not started after {clock.seconds:g}s "
            "(UNSTUCK_SESSION_TIMEOUT); see the worker's log, and check UNSTUCK_SPARK_MASTER and "
            "that the cluster has room"
        )
    elif clock.code == "STEP_FAILED":
        text = f"{clock.step}: its text could not be made within {clock.seconds:g}s"
    elif clock.step:
        text = (
            f"{clock.step} ran longer than its timeout of {clock.seconds:g}s{last_seen}; raise its "
            "timeout: or mend the step"
        )
    else:
        text = (
            f"the group ran longer than its timeout of {clock.seconds:g}s{last_seen}; raise "
            "timeout: "
            "or mend its steps"
        )
    return Failure(clock.code, text)
