"""What a watchdog decides, without processes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unstuck.tasks.process.tree import ProcessState
from unstuck.tasks.protocol.report import OutcomeKind
from unstuck.tasks.transport.lease import RenewAnswer
from unstuck.tasks.watchdog.policy import Clock, Instruction, Observation, WatchState, decide

IDLE = WatchState()
GRACE = 10.0


def timed(*clocks: Clock) -> WatchState:
    return WatchState(clocks={clock.code: clock for clock in clocks})


def see(now: float, **what: object) -> Observation:
    return replace(Observation(now, ProcessState.ALIVE), **what)  # type: ignore[arg-type]


def test_a_working_runner_is_left_alone() -> None:
    action = decide(IDLE, see(1.0, answer=RenewAnswer.CONTINUE), grace=GRACE)
    assert (action.instruction, action.kill_reason, action.outcome) == (None, "", None)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (RenewAnswer.CANCEL, OutcomeKind.CANCELED),
        (RenewAnswer.DRAIN, OutcomeKind.RELEASED),
        (RenewAnswer.STALE, None),
    ],
)
def test_an_order_is_sent_once_and_enforced_after_the_grace(
    answer: RenewAnswer, kind: OutcomeKind | None
) -> None:
    first = decide(IDLE, see(100.0, answer=answer), grace=GRACE)
    assert first.instruction == Instruction(answer.lower())
    again = decide(first.state, see(109.9, answer=answer), grace=GRACE)
    assert (again.instruction, again.kill_reason) == (None, "")
    last = decide(again.state, see(110.0, answer=answer), grace=GRACE)
    assert "was killed" in last.kill_reason
    assert (last.outcome.kind if last.outcome else None) == kind


def test_a_timeout_is_sent_then_enforced_and_reported_as_a_group_failure() -> None:
    state = timed(Clock("TIMEOUT", 60.0, began=0.0))
    assert decide(state, see(59.9), grace=GRACE).instruction is None
    told = decide(state, see(60.0), grace=GRACE)
    assert told.instruction is Instruction.TIMEOUT
    end = decide(told.state, see(70.0), grace=GRACE)
    assert end.outcome is not None
    assert end.outcome.kind is OutcomeKind.FAILED
    assert end.outcome.failure is not None
    assert (end.outcome.failure.code, end.outcome.failure.recoverable) == ("TIMEOUT", True)


def test_a_user_cancel_replaces_a_timeout_without_restarting_the_grace() -> None:
    told = decide(timed(Clock("TIMEOUT", 1.0, 0.0)), see(1.0), grace=GRACE)
    canceled = decide(told.state, see(5.0, answer=RenewAnswer.CANCEL), grace=GRACE)
    assert canceled.instruction is Instruction.CANCEL
    end = decide(canceled.state, see(11.0), grace=GRACE)
    assert end.outcome is not None
    assert end.outcome.kind is OutcomeKind.CANCELED


def test_a_weaker_order_never_replaces_a_stronger_one() -> None:
    stale = decide(IDLE, see(0.0, answer=RenewAnswer.STALE), grace=GRACE).state
    later = decide(stale, see(1.0, answer=RenewAnswer.CANCEL), grace=GRACE)
    assert (later.instruction, later.state.instruction) == (None, Instruction.STALE)


def test_a_runner_that_died_without_an_order_is_lost_and_its_children_end() -> None:
    action = decide(
        IDLE,
        see(0.0, runner=ProcessState.GONE),
        grace=GRACE,
        death="was killed by signal SIGKILL",
        who="r1",
    )
    assert action.kill_reason == "r1 was killed by signal SIGKILL"
    assert action.outcome is not None
    assert action.outcome.kind is OutcomeKind.LOST
    assert action.outcome.failure is not None
    assert action.outcome.failure.code == "WORKER_LOST"
    assert action.outcome.failure.text == action.kill_reason


def test_a_runner_that_died_after_a_cancel_is_canceled_and_not_lost() -> None:
    told = decide(IDLE, see(0.0, answer=RenewAnswer.CANCEL), grace=GRACE)
    action = decide(told.state, see(1.0, runner=ProcessState.GONE), grace=GRACE)
    assert action.outcome is not None
    assert action.outcome.kind is OutcomeKind.CANCELED


def test_an_orphaned_runner_is_ended_immediately() -> None:
    action = decide(IDLE, see(0.0, orphaned=True), grace=GRACE)
    assert action.kill_reason


def test_a_stopped_runner_is_still_timed_out_and_killed() -> None:
    state = timed(Clock("TIMEOUT", 1.0, 0.0))
    told = decide(state, see(1.0, runner=ProcessState.STOPPED), grace=GRACE)
    assert told.instruction is Instruction.TIMEOUT
    assert decide(told.state, see(11.0, runner=ProcessState.STOPPED), grace=GRACE).kill_reason


def test_a_session_that_does_not_start_reports_it() -> None:
    told = decide(timed(Clock("SESSION_TIMEOUT", 300.0, 0.0)), see(300.0), grace=GRACE)
    end = decide(told.state, see(310.0), grace=GRACE)
    assert end.outcome is not None
    assert end.outcome.failure is not None
    assert end.outcome.failure.code == "SESSION_TIMEOUT"
    assert "UNSTUCK_SESSION_TIMEOUT" in end.outcome.failure.text


ALL_STEPS = Clock("TIMEOUT", 60.0, began=0.0)
ONE_STEP = Clock("STEP_TIMEOUT", 10.0, began=20.0, step="step 2 of 3 (clean)")


def test_the_first_of_group_and_step_timeouts_is_reported() -> None:
    both = timed(ALL_STEPS, ONE_STEP)
    assert both.next_end == 30.0
    assert decide(both, see(29.9), grace=GRACE).instruction is None
    # Even seen late, when both are over: the step's was over first.
    for late in (30.0, 100.0):
        told = decide(both, see(late), grace=GRACE)
        assert (told.instruction, told.state.timed_out) == (Instruction.TIMEOUT, ONE_STEP)
    end = decide(told.state, see(110.0), grace=GRACE)
    assert end.outcome is not None
    assert end.outcome.failure is not None
    assert (end.outcome.failure.code, end.outcome.failure.recoverable) == ("STEP_TIMEOUT", True)
    assert end.outcome.failure.text.startswith(
        "step 2 of 3 (clean) ran longer than its timeout of 10s"
    )


def test_a_timeout_reports_the_last_line_of_the_step() -> None:
    for clock in (ALL_STEPS, ONE_STEP):
        told = decide(replace(timed(clock), stood="etl.py:12 in load"), see(60.0), grace=GRACE)
        end = decide(told.state, see(70.0), grace=GRACE)
        assert end.outcome is not None
        assert end.outcome.failure is not None
        assert "; its step was last seen at etl.py:12 in load; raise " in end.outcome.failure.text


def test_a_stopping_worker_hands_back_only_when_the_grace_ends() -> None:
    assert decide(IDLE, see(29.9, drain_at=30.0), grace=GRACE).instruction is None
    told = decide(IDLE, see(30.0, drain_at=30.0), grace=GRACE)
    assert told.instruction is Instruction.DRAIN
    again = decide(told.state, see(39.9, drain_at=30.0), grace=GRACE)
    assert (again.instruction, again.kill_reason) == (None, "")
    end = decide(again.state, see(40.0, drain_at=30.0), grace=GRACE)
    assert end.kill_reason
    assert end.outcome is not None
    assert end.outcome.kind is OutcomeKind.RELEASED


@pytest.mark.parametrize("how", [{"runner": ProcessState.GONE}, {"orphaned": True}])
def test_a_runner_that_dies_while_its_worker_stops_counts_as_handed_back(
    how: dict[str, object],
) -> None:
    action = decide(IDLE, see(5.0, drain_at=30.0, **how), grace=GRACE, who="r1")
    assert action.outcome is not None
    assert action.outcome.kind is OutcomeKind.RELEASED
    assert action.outcome.failure is not None
    assert action.outcome.failure.text == f"{action.kill_reason}, while its worker was told to stop"


def test_a_user_cancel_also_applies_while_the_worker_stops() -> None:
    told = decide(IDLE, see(1.0, drain_at=0.0), grace=GRACE)
    canceled = decide(told.state, see(2.0, drain_at=0.0, answer=RenewAnswer.CANCEL), grace=GRACE)
    assert canceled.instruction is Instruction.CANCEL
    end = decide(canceled.state, see(3.0, drain_at=0.0, runner=ProcessState.GONE), grace=GRACE)
    assert end.outcome is not None
    assert end.outcome.kind is OutcomeKind.CANCELED


def test_a_runner_closing_its_session_has_time_and_its_attempt_is_not_reported_again() -> None:
    leaving = timed(Clock("SESSION_TIMEOUT", 300.0, 0.0, "leaving the Spark session on here:1"))
    let_be = decide(leaving, see(100.0, answer=RenewAnswer.STALE), grace=GRACE)
    assert (let_be.instruction, let_be.state.instruction) == (None, None), (
        "STALE is what is answered once the outcome stands"
    )
    told = decide(let_be.state, see(300.0), grace=GRACE)
    killed = decide(told.state, see(310.0), grace=GRACE)
    assert killed.kill_reason.startswith(
        "the runner was killed: leaving the Spark session on here:1 took longer than 300s"
    )
    assert killed.outcome is None
    assert decide(leaving, see(1.0, runner=ProcessState.GONE), grace=GRACE).outcome is None


def test_a_runner_closing_its_session_is_left_alone_after_an_early_renewal() -> None:
    working = decide(WatchState(), see(1.0, answer=RenewAnswer.STALE), grace=GRACE)
    assert working.instruction is Instruction.STALE
    leaving = replace(
        working.state,
        clocks={"SESSION_TIMEOUT": Clock("SESSION_TIMEOUT", 300.0, 0.0, "leaving it")},
    )
    let_be = decide(leaving, see(100.0, answer=RenewAnswer.STALE), grace=GRACE)
    assert (let_be.kill_reason, let_be.instruction, let_be.state.instruction) == ("", None, None)
    told = decide(let_be.state, see(301.0), grace=GRACE)
    assert told.instruction is Instruction.TIMEOUT
    assert (
        "leaving it took longer than 300s"
        in decide(told.state, see(301.0 + GRACE), grace=GRACE).kill_reason
    )
