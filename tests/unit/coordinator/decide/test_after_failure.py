"""Groups that run after a failure: clean up, tell, undo.

A job that fails fast lets them run, and is FAILED then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.jobs.job_in_memory import LOST, NO_JITTER, Job, failure, group
from unstuck import Status
from unstuck.coordinator.command_table import Answer, Order
from unstuck.coordinator.commands.group_commands import rerun
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.status import GroupState

S = GroupState
ONCE = {"max": 0}
AFTER = ["all_done", "any_failed", "all_failed"]


def failed(
    rule: str = "all_done", *others: dict[str, Any], timeout: str | None = None, **more: Any
) -> Job:
    """``load`` has failed; ``clean`` needs it and what comes after it. ``more``: of ``clean``."""
    clean = group("clean", "load", "use", join=rule, **more)
    job = Job(group("load", retry=ONCE), group("use", "load"), clean, *others, timeout=timeout)
    job.decide()
    job.run("load", failure())
    return job


@pytest.mark.parametrize("rule", AFTER)
def test_failure_handlers_run_although_the_job_fails_fast(rule: str) -> None:
    job = failed(rule, group("other"))
    assert job.states() == {
        "load": "FAILED",
        "use": "CANCELED",
        "other": "CANCELED",
        "clean": "QUEUED",
    }
    assert job.reason("use").code == "SIBLING_FAILED"
    assert not job.status().terminal
    job.run("clean")
    assert job.status() is Status.FAILED
    assert job.state.job.reason is not None
    assert job.state.job.reason.text.startswith("group load failed: BOOM")


def test_a_successful_job_skips_its_failure_handlers_and_is_published() -> None:
    job = Job(
        group("a"),
        group("b"),
        group("tell", "a", "b", join="any_failed"),
        group("undo", "a", "b", join="all_failed"),
    )
    job.decide()
    job.run("a")
    assert job.reason("undo").text == "all_failed: 1 of the 2 groups it needs did not fail"
    assert "waits for b" in job.why()["tell"].what
    job.run("b")
    assert job.states() == {
        "a": "SUCCEEDED",
        "b": "SUCCEEDED",
        "tell": "SKIPPED",
        "undo": "SKIPPED",
    }
    assert job.reason("tell").text == "any_failed: none of the 2 groups it needs failed"
    assert job.state.job.phase == "publishing"
    assert {name: job.why()[name].what for name in ("tell", "undo")} == {
        name: job.reason(name).text for name in ("tell", "undo")
    }


def test_a_failure_handler_does_not_change_the_default_outputs() -> None:
    groups = group("a"), group("b", "a")
    assert Job(*groups).plan.default_publish == {"b"}
    assert Job(*groups, group("c", "b", join="any_failed")).plan.default_publish == {"b", "c"}


def test_an_output_with_a_failure_handler_may_set_its_publish_mode() -> None:
    made = {**group("a"), "spark": True, "steps": [{"sql": "SELECT 1 AS one", "output": "ones"}]}
    job = Job(made, group("tell", "a", join="any_failed"), outputs={"ones": {"mode": "append"}})
    assert "a" in job.plan.default_publish


def test_any_failed_waits_until_all_its_needs_have_ended() -> None:
    job = Job(
        group("a", retry=ONCE),
        group("b"),
        group("c", "a", "b", join="any_failed"),
        on_failure="finish_others",
    )
    job.decide()
    job.run("a", failure())
    assert job.record("c").state is S.WAITING
    job.run("b")
    assert job.record("c").state is S.QUEUED


def test_a_failure_with_only_a_notifying_handler_fails_the_job_unless_optional() -> None:
    for optional, status in ((False, Status.FAILED), (True, Status.FINISHED)):
        job = Job(group("a", retry=ONCE, optional=optional), group("tell", "a", join="any_failed"))
        job.decide()
        job.run("a", failure())
        job.run("tell", rows={})
        job.decide(published=PublishResult())
        assert job.status() is status


def test_a_fallback_for_failed_optional_sources_saves_the_job() -> None:
    sources = [group(name, retry=ONCE, optional=True) for name in ("a", "b")]
    job = Job(*sources, group("c", "a", "b", join="all_failed"))
    job.decide()
    job.run("a", failure())
    assert job.record("b").state is S.QUEUED, "it is not canceled"
    job.run("b", failure())
    job.run("c")
    assert job.state.job.phase == "publishing"


def test_the_cleanup_of_a_fork_runs_after_its_other_members_are_canceled() -> None:
    fork = group("f", for_each={"n": list(range(700))}, retry=ONCE)
    job = Job(fork, group("clean", "f", join="all_done"), group("z", "f"))
    job.decide()
    job.run("f[3]", failure())
    while job.record("clean").state is S.WAITING:
        job.decide()
    assert job.count(S.CANCELED) == 700
    assert job.record("clean").state is S.QUEUED
    job.run("clean")
    assert job.status() is Status.FAILED


def test_a_cleanup_fork_runs_all_its_members() -> None:
    job = failed(for_each={"n": [1, 2]})
    job.run("clean[0]")
    assert not job.status().terminal
    job.run("clean[1]")
    assert job.status() is Status.FAILED


def test_a_failing_cleanup_is_retried_and_the_job_still_names_the_first_failure() -> None:
    job = failed(retry={**NO_JITTER, "max": 1})
    job.run("clean", failure("CLEAN"))
    assert job.status() is Status.RETRYING
    job.now += 11
    job.decide()
    assert job.record("clean").state is S.QUEUED
    job.now += 5
    job.state.fatal = {
        "clean": None,
        **job.state.fatal,
    }  # as after a load: the store lists groups in its own order
    job.run("clean", failure("CLEAN"))
    assert job.status() is Status.FAILED
    assert job.state.job.reason is not None
    assert (
        job.state.job.reason.text
        == "group load failed: BOOM: it went wrong (and 1 more group failed)"
    )


def test_a_cleanup_of_a_cleanup_runs_but_ordinary_successors_do_not() -> None:
    job = failed("any_failed", group("last", "clean", join="all_done"), group("goes_on", "clean"))
    assert job.record("goes_on").state is S.CANCELED
    job.run("clean")
    assert job.record("last").state is S.QUEUED
    job.run("last")
    assert job.status() is Status.FAILED


def test_a_cleanup_runs_for_a_group_canceled_by_another_failure() -> None:
    job = Job(
        *(group("a", retry=ONCE), group("b"), group("after", "b")),
        *(group("clean_b", "b", join="all_done"), group("undo_b", "after", join="any_failed")),
    )
    job.decide()
    job.claim("b")
    job.run("a", failure())
    assert job.states() | {"a": ""} == {
        "a": "",
        "b": "CANCELED",
        "after": "CANCELED",
        "clean_b": "QUEUED",
        "undo_b": "QUEUED",
    }


def test_a_running_cleanup_continues_and_a_pending_one_waits_for_its_needs() -> None:
    job = Job(
        group("a", optional=True, retry=ONCE),
        *(
            group("clean", "a", join="all_done"),
            group("bad", retry=ONCE),
            group("after", "clean", join="all_done"),
        ),
    )
    job.decide()
    job.run("a", failure())
    job.claim("clean")
    job.run("bad", failure())
    assert job.record("clean").state is S.RUNNING
    assert job.record("after").state is S.WAITING
    job.run("clean")
    assert job.record("after").state is S.QUEUED


@pytest.mark.parametrize("code", ["BOOM", "TIMEOUT", "POISON", "QUEUE_TIMEOUT"])
def test_a_cleanup_runs_after_any_kind_of_failure(code: str) -> None:
    load = group("load", retry=ONCE, worker_losses=1, queue_timeout="1m")
    job = Job(load, group("use", "load"), group("undo", "load", "use", join="any_failed"))
    job.decide()
    if code == "QUEUE_TIMEOUT":
        job.now += 61
        job.decide(takeover=True)
    else:
        job.run("load", LOST if code == "POISON" else failure(code))
    assert job.reason("load").code == code
    assert job.record("undo").state is S.QUEUED
    assert job.why()["undo"].what == "queue spark: no worker listens on it"
    job.run("undo")
    assert job.status() is Status.FAILED
    assert job.reason("load").code == code


def test_an_unclaimed_cleanup_fails_by_its_queue_timeout() -> None:
    job = failed(queue_timeout="1m")
    job.now += 61
    job.decide(takeover=True)
    assert job.reason("clean").code == "QUEUE_TIMEOUT"
    assert job.status() is Status.FAILED
    assert job.state.job.reason is not None
    assert "group load failed" in job.state.job.reason.text


def test_the_job_timeout_also_ends_a_cleanup() -> None:
    job = failed(timeout="1h")
    job.claim("clean")
    job.decide()
    job.now += 3601
    job.decide()
    assert job.record("clean").state is S.CANCELED
    assert job.status() is Status.FAILED
    assert job.state.job.reason is not None
    assert job.state.job.reason.code == "JOB_TIMEOUT"


@pytest.mark.parametrize("command", ["stop", "cancel", "force-stop"])
def test_no_cleanup_starts_in_a_job_ended_by_a_user(command: str) -> None:
    job = failed()
    job.tell(command)
    job.decide()
    assert job.record("clean").state is S.CANCELED
    assert job.status() in (Status.STOPPED, Status.CANCELED)

    job = Job(group("a"), group("clean", "a", join="all_done"))
    job.decide()
    job.tell(command)
    job.decide()
    assert job.states() == {"a": "CANCELED", "clean": "CANCELED"}


def test_a_paused_cleanup_continues_after_the_resume() -> None:
    job = failed()
    job.tell("pause")
    job.decide()
    assert job.record("clean").state is S.WAITING
    assert "resume" in str(job.why()["clean"].help)
    assert "canceled" not in job.why()["clean"].what
    job.tell("resume")
    job.decide()
    job.run("clean")
    assert job.status() is Status.FAILED


def test_a_rerun_that_would_leave_canceled_groups_is_refused() -> None:
    """Else the job would end FINISHED although a group of it was canceled."""
    job = failed("all_done", group("other"))
    job.tell("pause")
    job.decide()
    answer = rerun(job.state, Order(word="word"), "load")
    assert answer.answer is Answer.REFUSED
    assert "other was canceled (group load failed, and on_failure is cancel_others)" in answer.text
    assert "unstuck retry" in answer.text
    fork = Job(
        group("f", for_each={"n": [1, 2]}, retry=ONCE),
        group("clean", "f", join="all_done"),
        group("z", "f"),
    )
    fork.decide()
    fork.run("f[0]", failure())
    fork.tell("pause")
    fork.decide()
    assert rerun(fork.state, Order(word="word"), "f[0]").answer is Answer.REFUSED
    assert rerun(fork.state, Order(word="word"), "f").answer is Answer.DONE
    alone = failed()
    alone.tell("pause")
    alone.decide()
    assert rerun(alone.state, Order(word="word"), "load").answer is Answer.DONE


def test_why_says_that_the_job_fails_after_its_running_groups() -> None:
    job = failed()
    why = job.why()
    assert (
        "group load failed, so the job will be FAILED once what runs after a failure has ended"
        in why["j"].what
    )
    assert "canceled" not in why["clean"].what
    job.claim("clean")
    job.decide()
    assert "can change nothing" not in job.why()["clean"].what


def test_a_retry_runs_the_cleanup_again_although_its_inputs_are_the_same() -> None:
    """Its marker is of another job, in which something that it needs had failed, too."""
    frozen = []
    for name in ("one", "two"):
        job = Job(
            group("load", retry=ONCE),
            group("use", "load"),
            group("clean", "load", "use", join="all_done"),
        )
        job.state.job = replace(job.state.job, id=name)
        job.decide()
        frozen.append(job.run("load", failure()).frozen["clean"])
    assert frozen[0] != frozen[1]
