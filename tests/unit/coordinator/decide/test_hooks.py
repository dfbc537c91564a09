"""What becomes of a group that has failed for good and whose hook is still to be called, whatever comes in between."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.support.jobs.job_in_memory import LOST, NO_JITTER, Job, failure, group
from unstuck.coordinator.commands.job import Command
from unstuck.coordinator.model.records import GroupRequest
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.tasks.protocol.report import HOOK_RAN, Outcome, OutcomeKind
from unstuck.tasks.spec.work_order import FrozenInputs

S = GroupState
HOOKS = {"on_failure": "mine:tell", "timeout": "60s"}
RAN = failure(HOOK_RAN, recoverable=False)
RELEASED = Outcome(OutcomeKind.RELEASED)


def failing(**more: object) -> Job:
    """A job whose group ``a`` has failed for good, with the attempt for its hook on offer."""
    job = Job(group("a", hooks=HOOKS, retry={**NO_JITTER, "max": 0}), group("b"), group("c", "a"), **more)
    job.decide()
    job.run("a", failure())
    assert job.record("a").state is S.QUEUED
    return job


def test_the_group_is_failed_only_after_its_hook_was_called() -> None:
    job = failing()
    assert (job.states()["b"], job.status()) == (S.QUEUED, Status.RETRYING)
    assert "its on_failure hook is called before it is FAILED" in job.reason("a").text
    job.claim("a")
    job.decide()
    assert "it only calls the on_failure hook: it went wrong" in job.why()["a"].what
    job.run("a", RAN)
    assert job.states() == {"a": S.FAILED, "b": S.CANCELED, "c": S.CANCELED}
    assert (job.reason("a").code, job.reason("a").text) == ("BOOM", "it went wrong (it was not to be retried)")
    assert job.record("a").failures == 1


def test_the_runner_is_told_why_the_group_failed_and_in_which_attempt_to_call_the_hook() -> None:
    job = Job(
        group("a", hooks=HOOKS, for_each={"n": [7, 8]}, retry={**NO_JITTER, "max": 0}), on_failure="finish_others"
    )
    job.decide()
    decision = job.run("a[1]", failure())
    frozen = FrozenInputs.model_validate_json(decision.frozen["a[1]"])
    assert frozen.value == 8
    assert frozen.failed is not None
    assert (frozen.failed.epoch, frozen.failed.attempt, frozen.failed.code) == (2, 1, "BOOM")
    assert frozen.failed.first == "BOOM: it went wrong"
    assert list(decision.frozen) == ["a[1]"]


def test_an_outcome_that_says_success_makes_no_failed_group_succeed() -> None:
    job = failing()
    job.run("a")
    assert job.record("a").state is S.FAILED


def test_a_hook_that_fails_is_an_event_and_a_part_of_the_reason() -> None:
    job = failing()
    decision = job.run("a", failure("HOOK_FAILED"))
    assert ("HOOK_FAILED", "a") in [(event["kind"], event.get("group")) for event in decision.events]
    assert job.reason("a").text.endswith("; HOOK_FAILED: HOOK_FAILED: it went wrong")
    assert job.reason("a").code == "BOOM"
    first = job.record("a").first_error
    assert first is not None
    assert first.code == "BOOM"


def test_workers_that_are_lost_under_a_hook_have_a_budget_of_their_own() -> None:
    job = Job(group("a", hooks=HOOKS, worker_losses=2))
    job.decide()
    for _ in range(2):
        job.run("a", LOST)
        job.now += 5.0
        job.decide()
    assert job.record("a").final_failure is not None
    job.run("a", LOST)
    assert job.record("a").state is not S.FAILED
    job.now += 5.0
    job.decide()
    job.run("a", LOST)
    assert job.record("a").state is S.FAILED
    assert job.reason("a").code == "POISON"
    assert "HOOK_FAILED: POISON" in job.reason("a").text


@pytest.mark.parametrize("set_back", [0.0, 500.0])
def test_without_a_runner_the_wait_for_the_hook_ends_also_if_the_clock_is_set_back(set_back: float) -> None:
    job = failing()
    job.now -= set_back
    ends = job.now + 60.0
    for _ in range(200):
        decision = job.decide(takeover=True)
        if job.record("a").state is S.FAILED:
            break
        assert decision.due is not None
        job.now = max(decision.due, job.now + 0.01)
    assert job.record("a").state is S.FAILED
    assert job.now <= ends + 1.0
    assert "HOOK_FAILED: no runner of queue spark took it within 1m" in job.reason("a").text


def test_a_hook_without_room_holds_the_job_no_longer_than_its_timeout() -> None:
    job = Job(group("a", hooks=HOOKS, retry={**NO_JITTER, "max": 0}), group("b"), max_parallel=1)
    job.decide()
    job.claim("a")
    job.finish("a", failure())
    job.decide(["a"])
    job.claim(*[name for name in ("b",) if name in job.state.attempts])
    for _ in range(400):
        job.renew(*[name for name in job.state.attempts if job.state.attempts[name].claimant])
        decision = job.decide(takeover=True)
        if job.record("a").state is S.FAILED:
            return
        assert decision.due is not None
        job.now = max(decision.due, job.now + 0.01)
    raise AssertionError(job.states())


@pytest.mark.parametrize("seed", range(300))
def test_in_any_order_of_events_the_group_is_failed_with_its_own_error_and_nothing_waits_for_ever(seed: int) -> None:
    rng = random.Random(seed)
    job = failing(on_failure=rng.choice(["cancel_others", "finish_others"]))
    asked = False
    for _ in range(rng.randint(1, 25)):
        claimed = job.state.attempts.get("a")
        drawn = rng.random()
        if drawn < 0.3 and claimed is not None:
            job.run("a", rng.choice([RAN, LOST, RELEASED, failure("HOOK_FAILED"), failure("HOOK_TIMEOUT")]))
        elif drawn < 0.4 and claimed is not None:
            job.claim("a")
        elif drawn < 0.5:
            job.tell(rng.choice([Command.PAUSE, Command.RESUME]))
        elif drawn < 0.53 and not asked:
            asked = True
            job.tell(rng.choice([Command.STOP, Command.CANCEL, Command.FORCE_STOP]))
        elif drawn < 0.6 and (other := job.state.attempts.get("b")) is not None and not other.outcome:
            job.run("b", rng.choice([None, failure(recoverable=False)]))
        job.now += rng.choice([0.0, 1.0, 20.0, 70.0, -30.0])
        job.decide(takeover=rng.random() < 0.9)
        if job.status().terminal:
            break
    if job.status() in (Status.PAUSED, Status.PAUSING):
        job.tell(Command.RESUME)
    for _ in range(2000):
        if job.status().terminal or job.record("a").state.terminal:
            break
        decision = job.decide(takeover=True)
        if decision.due is not None:
            job.now = max(decision.due, job.now + 0.01)
    assert job.record("a").state is S.FAILED, (seed, job.record("a"))
    assert job.reason("a").code == "BOOM"


def test_an_alter_does_not_have_a_hook_that_is_being_called_called_again() -> None:
    job = failing()
    job.claim("a")
    job.decide()
    job.state.job = replace(job.state.job, revision=1, requests=(GroupRequest("restart", "a"),))
    job.decide()
    assert (job.record("a").state, job.record("a").epoch) == (S.RUNNING, 2)
