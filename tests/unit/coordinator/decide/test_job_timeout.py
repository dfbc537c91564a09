"""What is decided when the time of a whole job is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.jobs.job_in_memory import Job, failure, group
from unstuck.coordinator.model.decision import MAX_TRANSITIONS
from unstuck.coordinator.model.records import JobRecord, Reason
from unstuck.coordinator.model.status import GroupState, Intent, Status

S = GroupState


def late(job: Job) -> Job:
    """A second before its hour is over: ``a`` is done, ``b`` runs, ``c`` waits."""
    job.decide()
    job.run("a")
    job.claim("b")
    job.now += 3599
    job.renew("b")
    job.decide()
    assert job.states() == {"a": "SUCCEEDED", "b": "RUNNING"}
    return job


def chain(**spec: Any) -> Job:
    return Job(group("a"), group("b", "a"), group("c", "b"), timeout="1h", **spec)


def test_the_job_timeout_cancels_every_group_and_fails_the_job() -> None:
    job = late(chain())
    job.now += 1
    decision = job.decide()
    assert job.states() == {"a": "SUCCEEDED", "b": "CANCELED", "c": "CANCELED"}
    assert job.status() is Status.FAILED
    assert job.state.job.reason is not None
    assert job.state.job.reason.code == "JOB_TIMEOUT"
    assert "timeout of 1h00m" in job.state.job.reason.text
    assert "b" in decision.dropped, "whoever runs it is STALE from this commit on"
    assert not decision.publish
    assert [event["kind"] for event in decision.events] == [
        "JOB_TIMEOUT",
        "CANCELED",
        "CANCELED",
        "FAILED",
    ]


def test_the_job_timeout_counts_from_the_first_claim() -> None:
    job = Job(group("a"), timeout="117s")
    job.decide()
    job.now += 10_000
    job.decide()
    assert job.status() is Status.PENDING, "nothing has begun"
    job.claim("a")
    began = job.now
    job.decide()
    due = 0.0
    while not job.state.job.terminal:
        job.renew("a")
        due = job.decide().due or due
        job.now = max(due, job.now)
    assert job.state.job.ended_at == began + 117, "it was due at that very time"


def test_the_job_timeout_applies_with_finish_others_and_names_earlier_failures() -> None:
    job = Job(
        group("bad", retry={"max": 0}), group("slow"), timeout="1h", on_failure="finish_others"
    )
    job.decide()
    job.run("bad", failure())
    job.claim("slow")
    job.now += 3600
    job.renew("slow")
    job.decide()
    assert job.states() == {"bad": "FAILED", "slow": "CANCELED"}
    assert job.state.job.reason is not None
    assert job.state.job.reason.code == "JOB_TIMEOUT"
    assert "before that group bad had failed" in job.state.job.reason.text


def test_groups_finished_before_the_timeout_is_noticed_count_as_done() -> None:
    job = late(Job(group("a"), group("b", "a"), timeout="1h"))
    job.now += 5
    job.run("b")
    assert job.status() is Status.RUNNING
    assert job.state.job.phase == "publishing"


def test_the_job_timeout_does_not_apply_while_publishing() -> None:
    job = late(Job(group("a"), group("b", "a"), timeout="1h"))
    job.run("b")
    assert job.state.job.phase == "publishing"
    job.now += 100_000
    job.decide()
    assert not job.state.job.terminal


@pytest.mark.parametrize("as_command", [True, False], ids=["pause", "halt"])
def test_the_time_of_the_current_pause_does_not_count(as_command: bool) -> None:
    job = Job(group("a"), group("b", "a"), timeout="1h")
    job.decide()
    job.run("a")
    if as_command:
        job.tell("pause")
        job.decide()
    else:  # as Store.halt writes it
        halted = Reason("UNDECIDABLE", "no")
        job.state.job = replace(
            job.state.job, halted=halted, status=Status.HALTED, paused_at=job.now
        )
    assert job.status() is (Status.PAUSED if as_command else Status.HALTED)
    job.now += 10_000
    job.tell("resume")
    job.decide()
    assert job.status() is Status.RUNNING
    job.claim("b")
    job.now += 3599
    job.renew("b")
    job.decide()
    assert job.status() is Status.RUNNING
    job.now += 1
    job.decide()
    assert job.status() is Status.FAILED


def test_timeouts_during_a_pause_are_applied_at_the_resume() -> None:
    job = late(chain())
    job.tell("pause")
    job.now += 100
    job.renew("b")
    job.decide()
    assert (job.status(), job.states()["b"]) == (Status.PAUSING, "RUNNING")
    job.run("b")
    assert job.status() is Status.PAUSED
    job.now += 100
    job.tell("resume")
    job.decide()
    assert job.status() is Status.FAILED
    assert job.states()["c"] == "CANCELED"


def test_a_timeout_during_a_stop_ends_running_groups_as_stopped() -> None:
    job = late(chain())
    job.tell("stop")
    job.decide()
    assert (job.status(), job.states()["b"]) == (Status.STOPPING, "RUNNING")
    job.now += 1
    job.decide()
    assert (job.status(), job.states()["b"]) == (Status.STOPPED, "CANCELED")
    assert job.state.job.reason is not None
    assert job.state.job.reason.code == "USER_STOPPED"
    assert "ended" in job.state.job.reason.text


def test_a_timeout_during_a_cancel_changes_nothing() -> None:
    job = late(chain())
    job.tell("cancel")
    job.now += 10
    job.renew("b")
    job.decide()
    assert (job.status(), job.states()["b"]) == (Status.CANCELING, "CANCELING")
    job.now += 60
    job.decide()
    assert job.status() is Status.CANCELED
    assert job.reason("b").code == "UNCONFIRMED"


def test_a_wide_job_times_out_in_commits_of_500_despite_clock_changes() -> None:
    """Half canceled, it must not go on and publish the other half."""
    job = Job(group("first"), group("w", "first", for_each={"n": list(range(1200))}), timeout="1h")
    job.decide()
    job.run("first")
    while job.decide(dispatch_window=10_000).more:
        pass
    job.now += 3600
    decision = job.decide(dispatch_window=10_000)
    assert (decision.more, job.count(S.CANCELED)) == (True, MAX_TRANSITIONS)
    job.now -= 3000
    while decision.more:
        decision = job.decide(dispatch_window=10_000)
        assert decision.moves <= MAX_TRANSITIONS
        assert not decision.offers
    assert (job.status(), job.count(S.CANCELED)) == (Status.FAILED, 1200)
    assert not job.state.attempts


@pytest.mark.parametrize("back", [500.0, 1_000_000.0])
def test_a_clock_that_was_set_back_at_most_doubles_the_job_timeout(back: float) -> None:
    job = late(chain())
    job.now -= back
    job.renew("b")
    job.decide()
    assert job.status() is Status.RUNNING, "nothing was over"
    job.now += 3601
    job.renew("b")
    job.decide()
    assert job.status() is Status.FAILED


def test_timeout_fields_of_the_record_are_stored_and_read_back() -> None:
    job = late(chain())
    job.state.job = replace(job.state.job, paused_at=12.5, timed_out=Reason("JOB_TIMEOUT", "over"))
    assert JobRecord.from_fields(job.state.job.to_fields()) == job.state.job


def test_a_running_group_lists_its_timeouts_and_its_job_the_remaining_time() -> None:
    steps = [{"python": "m:read"}, {"python": "m:clean", "timeout": "10m"}]
    job = Job(group("a", steps=steps, timeout="30m"), timeout="2h")
    began = job.now
    job.decide()
    assert "from its first claimed attempt" in job.why()["j"].ends.what
    job.claim("a")
    job.decide()
    job.state.attempts["a"] = replace(
        job.state.attempts["a"], progress='{"step": 2, "steps": 2, "label": "clean"}'
    )
    job.now += 60
    found = job.why()
    assert found["a"].ends.what == (
        "step 2 (clean): timeout of 10m00s; timeout: 30m00s from its first step; the job's timeout "
        "of 2h00m"
    )
    assert found["a"].ends.at == found["j"].ends.at == began + 7200
    assert found["j"].ends.what == "when its groups do; or FAILED by its timeout of 2h00m"
    job.state.attempts["a"] = replace(
        job.state.attempts["a"], progress='{"step": 1, "steps": 2, "label": "read"}'
    )
    assert job.why()["a"].ends.what.startswith("timeout: 30m00s")


def test_a_stopping_or_paused_job_explains_its_timeout() -> None:
    job = late(chain())
    job.tell("stop")
    job.decide()
    assert job.why()["j"].ends.what.endswith("before the job's timeout of 1h00m")
    assert job.why()["j"].ends.at == job.now + 1
    job = late(chain())
    job.state.job = replace(job.state.job, intent=Intent.PAUSE)
    job.decide()
    assert "does not count towards its timeout of 1h00m" in job.why()["j"].ends.what
    assert job.why()["j"].ends.at == 0.0
