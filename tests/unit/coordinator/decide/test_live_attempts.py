"""What the end of an attempt means: two budgets, leases, publishing, and reports in any order and
number.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.jobs.job_in_memory import LEASE, LOST, NO_JITTER, Job, failure, group
from unstuck.coordinator.decide.failures import MAX_RELEASES
from unstuck.coordinator.model.decision import Environment, PublishResult
from unstuck.coordinator.model.records import Alteration, Reason
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind

S = GroupState
RELEASED = Outcome(OutcomeKind.RELEASED)
CANCELED = Outcome(OutcomeKind.CANCELED)


def retried(job: Job) -> None:
    """Time passes until the group is queued again."""
    job.now += 400.0
    job.decide()
    assert job.record("a").state is S.QUEUED


# ---- two budgets
# -----------------------------------------------------------------------------------------------


def test_a_failure_waits_for_its_backoff_before_a_new_attempt() -> None:
    job = Job(group("a", retry=NO_JITTER))
    job.decide()
    for epoch, wait in ((1, 10.0), (2, 20.0), (3, 40.0)):
        job.run("a", failure())
        record = job.record("a")
        assert (record.state, record.epoch, record.next_at) == (S.BACKOFF, epoch, job.now + wait)
        assert f"retry {epoch} of 3" in job.reason("a").text
        job.now += wait - 0.1
        assert not job.decide().offers
        job.now += 0.1
        assert [offer.epoch for offer in job.decide().offers] == [epoch + 1]
    job.run("a", failure())
    assert job.record("a").state is S.FAILED
    assert "all 3 retries are used up" in job.reason("a").text


TIMED_OUT = (
    "requests.exceptions.ReadTimeout",
    "requests.exceptions.Timeout",
    "OSError",
    "Exception",
)
NO_COLUMN = (
    "UNRESOLVED_COLUMN.WITH_SUGGESTION",
    "UNRESOLVED_COLUMN",
    "pyspark.errors.AnalysisException",
)
NEVER = "not tried again: never_retry_on names "
OTHERS = "not tried again: retry_on does not name it"
SLIP = Failure("STEP_FAILED", "boom", recoverable=False, names=("NameError",))
FINAL = Failure(
    "SQL_INVALID", "boom", recoverable=False, names=("unstuck.tasks.errors.SqlInvalid", *NO_COLUMN)
)


def raised(*names: str, code: str = "STEP_FAILED") -> Failure:
    return Failure(code, "boom", names=names)


@pytest.mark.parametrize(
    ("retry", "failure", "why"),
    [
        ({}, raised("ValueError"), ""),
        ({}, SLIP, "not tried again: it is a mistake in the code"),
        ({}, FINAL, "not worth a retry"),
        # A name is that of a class, of a base, or of a condition, alone or with the package it is
        # imported from.
        *(
            ({"retry_on": [entry]}, raised(*TIMED_OUT), "")
            for entry in ("ReadTimeout", "Timeout", "OSError", "Exception")
        ),
        ({"retry_on": ["requests.exceptions.Timeout"]}, raised(*TIMED_OUT), ""),
        ({"retry_on": ["requests.Timeout"]}, raised(*TIMED_OUT), ""),
        ({"retry_on": ["request.Timeout"]}, raised(*TIMED_OUT), OTHERS),
        ({"retry_on": ["exceptions.Timeout"]}, raised(*TIMED_OUT), OTHERS),
        ({"retry_on": ["ValueError", "UNRESOLVED_COLUMN"]}, raised(*NO_COLUMN), ""),
        (
            {"never_retry_on": ["requests.Timeout"]},
            raised(*TIMED_OUT),
            "not tried again: never_retry_on names requests.Timeout",
        ),
        (
            {"never_retry_on": ["UNRESOLVED_COLUMN"]},
            raised(*NO_COLUMN),
            "not tried again: never_retry_on names UNRESOLVED_COLUMN",
        ),
        ({"never_retry_on": ["ValueError"]}, raised(*TIMED_OUT), ""),
        (
            {"retry_on": ["Exception"], "never_retry_on": ["Timeout"]},
            raised(*TIMED_OUT),
            NEVER + "Timeout",
        ),
        # What fails at once by default is tried again only where it is named itself.
        ({"retry_on": ["Exception"]}, SLIP, "not tried again: it is a mistake in the code"),
        ({"retry_on": ["NameError"]}, SLIP, ""),
        ({"retry_on": ["SQL_INVALID"]}, FINAL, ""),
        ({"retry_on": ["UNRESOLVED_COLUMN.WITH_SUGGESTION"]}, FINAL, ""),
        # Codes; and what is no failure of the user's code, which retry_on does not narrow.
        ({"retry_on": ["ValueError"]}, raised(code="TIMEOUT"), OTHERS),
        ({"retry_on": ["ValueError", "STEP_TIMEOUT"]}, raised(code="STEP_TIMEOUT"), ""),
        ({"never_retry_on": ["TIMEOUT"]}, raised(code="TIMEOUT"), NEVER + "TIMEOUT"),
        ({"retry_on": ["ValueError"]}, raised(code="WAREHOUSE_MISMATCH"), ""),
        (
            {"never_retry_on": ["WAREHOUSE_MISMATCH"]},
            raised(code="WAREHOUSE_MISMATCH"),
            NEVER + "WAREHOUSE_MISMATCH",
        ),
    ],
)
def test_errors_are_retried_according_to_the_spec(
    retry: dict[str, list[str]], failure: Failure, why: str
) -> None:
    job = Job(group("a", retry={**NO_JITTER, **retry}))
    job.decide()
    job.run("a", Outcome(OutcomeKind.FAILED, failure=failure))
    assert job.record("a").state is (S.FAILED if why else S.BACKOFF)
    assert (
        job.reason("a").text == f"boom ({why})" if why else "retry 1 of 3" in job.reason("a").text
    )


def test_named_errors_share_the_retry_budget_and_lost_workers_have_their_own() -> None:
    retry = {"max": 1, "jitter": 0.0, "retry_on": ["OSError"], "never_retry_on": ["RUNNER_DIED"]}
    job = Job(group("a"), defaults={"retry": retry})
    job.decide()
    job.run("a", LOST)
    assert job.record("a").state is S.QUEUED
    job.run("a", Outcome(OutcomeKind.FAILED, failure=raised("OSError")))
    retried(job)
    job.run("a", Outcome(OutcomeKind.FAILED, failure=raised("OSError")))
    assert "all 1 retries are used up" in job.reason("a").text


def test_a_lost_offer_of_a_late_attempt_is_repeated_as_quickly_as_of_the_first() -> None:
    job = Job(group("a", retry={"max": 9, "backoff": 10.0, "jitter": 0.0}))
    job.decide()
    for epoch in range(1, 6):
        job.now += Environment(0.0, "").dispatch_timeout - 0.1
        assert not job.decide().offers
        job.now += 0.1
        assert [offer.epoch for offer in job.decide().offers] == [epoch]
        job.run("a", failure())
        retried(job)


def test_an_unrecoverable_failure_is_final_immediately() -> None:
    job = Job(group("a"))
    job.decide()
    job.run("a", failure("SQL_INVALID", recoverable=False))
    assert job.record("a").state is S.FAILED
    assert job.reason("a").code == "SQL_INVALID"


def test_a_lost_worker_never_uses_a_retry_of_the_user() -> None:
    job = Job(group("a", retry={"max": 1}, worker_losses=3))
    job.decide()
    for outcome in (LOST, LOST, failure(), LOST, LOST):
        job.run("a", outcome)
        assert not job.record("a").state.terminal, outcome
        retried(job) if job.record("a").state is S.BACKOFF else None
    assert (job.record("a").failures, job.record("a").losses) == (1, 2)
    job.run("a")
    assert (job.record("a").state, job.record("a").failures, job.record("a").losses) == (
        S.SUCCEEDED,
        0,
        0,
    )


def test_too_many_consecutive_lost_workers_are_poison() -> None:
    job = Job(group("a", worker_losses=2))
    job.decide()
    job.run("a", LOST)
    assert job.record("a").state is S.QUEUED, "the first relaunch is at once"
    job.run("a", LOST)
    assert job.record("a").state is S.FAILED
    assert job.reason("a").code == "POISON"


def test_a_lost_worker_does_not_hide_the_error_of_the_user() -> None:
    job = Job(group("a"))
    job.decide()
    job.run("a", failure("BOOM"))
    retried(job)
    job.run("a", LOST)
    record = job.record("a")
    assert record.first_error is not None
    assert record.last_error is not None
    assert (record.first_error.code, record.last_error.code) == ("BOOM", "RUNNER_DIED")


def test_an_earlier_lost_worker_is_not_the_reason_of_a_later_failure() -> None:
    """A runner was killed, and the next attempt failed: the job said that it had failed since the
    runner was killed.
    """
    job = Job(group("a", retry={"max": 0}))
    job.decide()
    job.run("a", LOST)
    job.run("a", failure("TIMEOUT"))
    record, reason = job.record("a"), job.state.job.reason
    assert (record.losses, record.first_error) == (1, record.last_error)
    assert reason is not None
    assert reason.text.startswith("group a failed: TIMEOUT")


@pytest.mark.parametrize(
    "outcome", [RELEASED, CANCELED], ids=["handed back", "interrupted, though nobody canceled"]
)
def test_handed_back_attempts_use_no_budget_up_to_a_limit(
    outcome: Outcome,
) -> None:
    job = Job(group("a", retry={"max": 0}, worker_losses=1))
    job.decide()
    for epoch in range(1, MAX_RELEASES + 1):
        job.run("a", outcome)
        assert (job.record("a").state, job.record("a").epoch) == (S.QUEUED, epoch + 1)
    job.run("a", outcome)
    assert job.record("a").state is S.FAILED
    assert job.reason("a").code == "RELEASED"


@pytest.mark.parametrize("outcome", [LOST, RELEASED, CANCELED, failure(), None], ids=str)
def test_a_group_being_canceled_is_canceled_after_any_outcome(
    outcome: Outcome | None,
) -> None:
    job = Job(group("a"), group("b"))
    job.decide()
    job.claim("a")
    job.decide()
    job.state.put("a", replace(job.record("a"), state=S.CANCELING))
    if outcome is None:
        job.now += LEASE + 1
        job.decide()
    else:
        job.run("a", outcome)
    assert job.record("a").state is S.CANCELED


def test_work_finished_before_its_cancel_counts() -> None:
    job = Job(group("a"), group("b"))
    job.decide()
    job.claim("a")
    job.decide()
    job.state.put("a", replace(job.record("a"), state=S.CANCELING))
    job.run("a")
    assert job.record("a").state is S.SUCCEEDED


# ---- leases
# ----------------------------------------------------------------------------------------------------


def test_an_attempt_with_an_expired_lease_is_replaced_if_the_commit_finds_it_expired() -> None:
    job = Job(group("a"))
    job.decide()
    job.claim("a")
    job.decide()
    job.now += LEASE
    assert not job.decide().guards, "to the very end of its term a lease holds"
    job.now += 0.1
    decision = job.decide()
    assert [(g.group, g.epoch, g.kind) for g in decision.guards] == [("a", 1, "lapsed")]
    assert (job.record("a").state, job.record("a").epoch) == (S.QUEUED, 2)


def test_no_lease_expires_during_an_outage_of_the_sweep_or_a_grace_period() -> None:
    job = Job(group("a"))
    job.decide()
    job.claim("a")
    job.decide()
    job.now += 10 * LEASE
    assert job.decide(takeover=False).empty


def test_an_attempt_whose_claim_was_lost_by_the_store_is_taken_over_after_a_lease() -> None:
    """Found by the simulator: the store was rolled back to before the claim, and then took the
    commit that noted it.

    A runner that lives claims it again by its next renewal; of one that has died nobody would ever
    hear.
    """
    job = Job(group("a"))
    job.decide()
    forgotten = job.state.attempts["a"]
    job.claim("a")
    job.decide()
    job.state.attempts["a"] = forgotten
    job.now += LEASE
    decision = job.decide()
    assert decision.empty, "its runner has one term to renew"
    assert decision.due == pytest.approx(job.now + 0.5)
    job.now += 0.1
    decision = job.decide()
    assert [(g.group, g.epoch, g.kind) for g in decision.guards] == [("a", 1, "unclaimed")]
    assert (job.record("a").state, job.record("a").epoch, job.record("a").losses) == (
        S.QUEUED,
        2,
        1,
    )


def test_an_outcome_counts_although_its_lease_has_expired() -> None:
    job = Job(group("a"))
    job.decide()
    job.claim("a")
    job.now += 10 * LEASE
    decision = job.run("a")
    assert not decision.guards
    assert job.record("a").state is S.SUCCEEDED


# ---- publishing
# --------------------------------------------------------------------------------------------------


def all_done() -> Job:
    job = Job(group("a"))
    job.decide()
    assert job.run("a").publish
    return job


def test_only_a_published_job_is_finished() -> None:
    job = all_done()
    assert (job.status(), job.state.job.phase) == (Status.RUNNING, "publishing")
    decision = job.decide(published=PublishResult(version=7, rows={"a": 3}))
    assert (job.status(), job.state.job.version, job.state.job.published) == (
        Status.FINISHED,
        7,
        {"a": 3},
    )
    assert decision.due is None
    assert job.state.job.reason is not None
    assert job.state.job.reason.text == "all groups are done and published as version 7"


def test_a_job_without_outputs_does_not_claim_to_have_published() -> None:
    job = Job(group("a"))
    job.decide()
    decision = job.run("a", rows={})
    assert (decision.publish, decision.due) == (False, None), (
        "no warehouse is asked, and none can keep it from its end"
    )
    assert job.state.job.reason is not None
    said = job.state.job.reason.text
    assert (job.status(), said) == (
        Status.FINISHED,
        "all groups are done; there was nothing to publish",
    )


@pytest.mark.parametrize(
    ("named", "rows"),
    [
        ({"publish": ["a"]}, {}),
        ({"outputs": {"a": {"mode": "append"}}}, {}),
        ({}, {"a": 0}),
        ({"publish": []}, {"a": 0}),
    ],
)
def test_a_job_with_any_known_output_checks_the_log(
    named: dict[str, Any], rows: dict[str, int]
) -> None:
    """An output without rows is published too, and one that is named and missing is a failure."""
    job = Job(group("a"), **named)
    job.decide()
    assert job.run("a", rows=rows).publish
    assert (job.status(), job.state.job.phase) == (Status.RUNNING, "publishing")


def test_a_job_with_more_recorded_outputs_than_its_groups_report_checks_the_log() -> None:
    """After a rollback of Redis its package may stand, though the groups make no output this
    time.
    """
    altered = Alteration(1.0, "ada", "", ())
    for more in ({"alterations": (altered,)}, {"reruns": {"a": "w"}}):
        job = Job(group("a"))
        job.decide()
        job.state.job = replace(job.state.job, **more)
        assert job.run("a", rows={}).publish, more
    job = Job(group("a", optional=True, queue_timeout="5s"), group("b"))
    job.decide()
    job.now += 5.0
    job.decide()
    assert job.record("a").state is GroupState.FAILED
    assert job.run("b", rows={}).publish, "a group that failed may have made an output before"
    job = Job(group("a"))
    job.decide()
    job.claim("a")
    job.finish("a", Outcome(OutcomeKind.SUCCEEDED, staging="_staging/j/a/1"))
    assert job.decide(published=PublishResult(version=7, rows={"a": 3})).publish, (
        "somebody has seen it"
    )


def test_a_job_that_published_no_output_lists_them_and_how_to_publish_them() -> None:
    job = Job(group("a"))
    job.decide()
    job.run("a", rows={"monthly": 3, "clean": 0})
    job.decide(published=PublishResult(version=0, rows={}))
    assert job.state.job.reason is not None
    said = (
        "nothing was published of the outputs clean, monthly: name those to publish under "
        "publish: in the spec"
    )
    assert job.state.job.reason.text == f"all groups are done; {said}"


def test_a_job_without_stream_arrivals_says_so_in_job_and_group() -> None:
    nothing = "nothing new, looked at 2 files in /in"
    job = Job(group("a"))
    job.decide()
    job.claim("a")
    job.finish(
        "a",
        Outcome(
            OutcomeKind.SUCCEEDED, staging="_staging/j/a/1", rows={"loads": 0}, arrived=nothing
        ),
    )
    job.decide()
    assert job.record("a").reason == Reason("ARRIVED", nothing)
    job.decide(published=PublishResult(nothing_new=nothing))
    assert job.state.job.reason is not None
    assert (
        job.state.job.reason.text == f"all groups are done, and there is no new version: {nothing}"
    )


def test_a_package_of_a_job_that_is_not_yet_publishing_is_found_later() -> None:
    """Found by the simulator: the store is rolled back under a publisher, whose job is in recovery
    when it answers.
    """
    job = Job(group("a", retry=NO_JITTER))
    job.decide()
    job.claim("a")
    job.finish("a", failure())
    job.decide()
    job.now += 60.0
    job.decide()
    job.claim("a")
    job.decide()
    assert job.status() is Status.RETRYING
    job.finish("a", Outcome(OutcomeKind.SUCCEEDED, staging="_staging/j/a/2", rows={"a": 3}))
    decision = job.decide(published=PublishResult(version=7, rows={"a": 3}))
    assert (job.status(), job.state.job.phase) == (Status.RUNNING, "publishing")
    assert decision.publish, "whoever publishes now finds the entry in the log"


def test_a_dead_publisher_is_replaced() -> None:
    job = all_done()
    assert not job.decide().publish, "one is at work"
    job.now += 30.0
    assert job.decide().publish


def test_a_silent_publisher_is_reported_and_retried() -> None:
    job = all_done()
    asked = []
    while job.state.job.publish_tries == 0 and job.now < 1300.0:
        assert job.state.job.reason is None
        decision = job.decide()
        assert decision.due is not None
        asked.append(job.now - 1000.0)
        job.now = decision.due
        decision = job.decide()
    assert asked == [0.0, 30.0, 60.0, 90.0]
    assert job.now == 1120.0, "who is slow for two minutes hangs"
    assert (decision.publish, decision.due) == (False, 1122.0)
    (told,) = decision.events
    assert (told["kind"], told["code"]) == ("PUBLISH_TROUBLE", "PUBLISH_HANGS")
    assert job.state.job.reason is not None
    assert job.state.job.reason.text == told["text"]
    assert "has not answered for 2m" in told["text"]
    job.now = 1122.0
    assert (job.decide().publish, job.state.job.publish_tries) == (True, 1)
    job.decide(published=PublishResult(version=1))
    assert job.status() is Status.FINISHED


def test_a_publisher_with_heartbeats_may_take_any_time() -> None:
    job = all_done()
    job.decide()
    for _ in range(100):
        job.now += 110.0
        decision = job.decide(published=PublishResult(goes_on=True))
        assert (decision.publish, decision.events, decision.due) == (False, [], job.now + 30.0)
        assert job.decide().empty, "nobody begins it beside this one before it is looked after"
    assert (job.state.job.publish_tries, job.state.job.reason) == (0, None)
    job.decide(published=PublishResult(version=1))
    assert job.status() is Status.FINISHED


def test_a_hung_publisher_that_sends_heartbeats_again_is_waited_for() -> None:
    job = all_done()
    while job.state.job.publish_tries == 0:
        job.now = job.decide().due or 0.0
    assert job.state.job.phase == "publish_retrying", "the next try has its time"
    decision = job.decide(published=PublishResult(goes_on=True))
    assert decision.due == job.now + 30.0
    job.now += 30.0
    decision = job.decide()
    assert (decision.publish, decision.new_try) == (True, False), (
        "looked after, and not begun beside it"
    )


def test_a_heartbeat_of_an_abandoned_package_changes_nothing() -> None:
    job = all_done()
    job.decide()
    job.tell("cancel")
    decision = job.decide(published=PublishResult(goes_on=True))
    assert decision.abort is not None, "the log is asked at once"
    asked = job.state.job.publish_heard
    job.now += 20.0
    job.decide(published=PublishResult(goes_on=True))
    assert job.state.job.publish_heard == asked, "it is the answer of the log that is waited for"


def test_a_publisher_is_not_called_hanging_for_silence_while_no_sweep_ran() -> None:
    """All coordinators were away, and whoever published with them."""
    job = all_done()
    job.now += 3600.0
    assert job.decide().publish, "another publishes at once"
    assert job.state.job.reason is None
    job.now += 60.0
    assert job.decide().publish
    assert job.state.job.reason is None, "its time counts from when somebody looked"


def test_a_clock_that_was_set_back_does_not_affect_the_detection_of_hanging_publishers() -> None:
    job = all_done()
    job.now -= 900.0
    for _ in range(5):
        assert job.state.job.reason is None
        job.now = job.decide().due or 0.0
    job.decide()
    assert job.state.job.reason is not None
    assert job.state.job.reason.code == "PUBLISH_HANGS"


def test_a_job_ended_while_its_publisher_hangs_checks_the_log_immediately() -> None:
    job = all_done()
    job.now += 119.0
    job.decide()
    job.tell("cancel")
    decision = job.decide()
    assert (decision.abort is not None, decision.new_try) == (True, True)
    for _ in range(4):
        job.now = decision.due or 0.0
        decision = job.decide()
    assert job.state.job.reason is not None
    assert (job.state.job.reason.code, job.now) == ("PUBLISH_HANGS", 1239.0)
    assert "whether the package stands" in job.state.job.reason.text


def test_warehouse_problems_are_shown_and_retried_with_growing_delays() -> None:
    job = all_done()
    waits = []
    for _ in range(8):
        decision = job.decide(
            published=PublishResult(trouble=Reason("PUBLISH_TROUBLE", "no route"))
        )
        assert decision.due is not None
        assert job.state.job.reason == Reason("PUBLISH_TROUBLE", "no route")
        waits.append(decision.due - job.now)
        job.now = decision.due
        assert job.decide().publish
    assert waits == [2, 4, 8, 16, 32, 60, 60, 60]
    job.decide(published=PublishResult(version=1))
    assert job.status() is Status.FINISHED


def test_an_impossible_package_fails_the_job() -> None:
    job = all_done()
    job.decide(published=PublishResult(failed=Reason("MARKER_GONE", "somebody removed it")))
    assert (job.status(), job.state.job.reason) == (
        Status.FAILED,
        Reason("MARKER_GONE", "somebody removed it"),
    )


# ---- reports
# -----------------------------------------------------------------------------------------------------

ENDS = {"ok": None, "failed": failure(), "fatal": failure("NO", recoverable=False), "lost": LOST}
WIDTH = 4
reports = st.lists(st.integers(0, WIDTH - 1), max_size=20)


@settings(deadline=None)
@given(
    ends=st.lists(st.sampled_from(sorted(ENDS)), min_size=WIDTH, max_size=WIDTH),
    order=st.permutations(range(WIDTH)),
    after_claims=reports,
    between=st.lists(reports, min_size=WIDTH, max_size=WIDTH),
)
def test_any_order_and_number_of_reports_leads_to_the_same_state(
    ends: list[str], order: list[int], after_claims: list[int], between: list[list[int]]
) -> None:
    """A report is a wake-up; lost, doubled, late or early, what is decided follows from the record
    alone.
    """
    plain, messy = _forked(), _forked()
    for index in range(WIDTH):
        plain.claim(f"g[{index}]")
    plain.decide()
    for index in range(WIDTH):
        _end(plain, index, ends[index])
    plain.decide()
    plain.decide()

    for index in order:
        messy.claim(f"g[{index}]")
    messy.decide([f"g[{index}]" for index in after_claims])
    for index, told in zip(reversed(order), between, strict=True):
        _end(messy, index, ends[index])
        messy.decide([f"g[{other}]" for other in told])
    messy.decide()  # the sweep, for whatever was never told
    messy.decide()

    assert messy.states() == plain.states()
    for index in range(WIDTH):
        got, wanted = messy.record(f"g[{index}]"), plain.record(f"g[{index}]")
        assert replace(got, nonce="", reason=None) == replace(wanted, nonce="", reason=None)
    assert messy.status() is plain.status()


def _forked() -> Job:
    job = Job(
        group("g", for_each={"n": list(range(WIDTH))}, retry=NO_JITTER),
        group("last", "g", join="all_done"),
        on_failure="finish_others",
    )
    job.decide()
    return job


def _end(job: Job, index: int, how: str) -> None:
    outcome = ENDS[how] or Outcome(OutcomeKind.SUCCEEDED, staging=f"_staging/j/g.{index}/1")
    job.finish(f"g[{index}]", outcome)


def test_an_attempt_with_a_lost_record_is_offered_again_with_its_pool() -> None:
    job = Job(group("a", pool="jdbc"))
    job.decide()
    offered = job.state.attempts.pop("a")
    assert job.decide().offered == {"a": offered}
    assert offered.pool == "jdbc"
