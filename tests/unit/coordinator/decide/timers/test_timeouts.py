"""How timeouts are written, and what is decided of a group that nobody claims in time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.jobs.job_in_memory import NO_JITTER, Job, failure, group
from tests.support.jobs.specs import minimal
from unstuck.coordinator.model.decision import MAX_TRANSITIONS
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.coordinator.spec.model import JobSpec, SpecError
from unstuck.tasks.spec.group import GroupSpec
from unstuck.tasks.spec.work_order import FrozenInputs, GroupPlan, WorkOrder

S = GroupState


# ---- the spec
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        minimal(timeout=0),
        minimal(defaults={"timeout": 0}),
        minimal(groups=[{"name": "a", "timeout": 0, "steps": [{"python": "m:f"}]}]),
        minimal(defaults={"queue_timeout": "0s"}),
        minimal(groups=[{"name": "a", "queue_timeout": 0, "steps": [{"python": "m:f"}]}]),
        minimal(groups=[{"name": "a", "steps": [{"python": "m:f", "timeout": "0ms"}]}]),
    ],
    ids=["job", "defaults", "group", "defaults-queue", "group-queue", "step"],
)
def test_a_timeout_of_zero_is_refused_with_the_alternative(wrong: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"timeout: a timeout of zero .* leave it out for no end"):
        JobSpec.model_validate(wrong)


def test_the_queue_timeout_of_a_group_overrides_the_default() -> None:
    job = Job(group("a", queue_timeout="5s"), group("b"), defaults={"queue_timeout": "1h"})
    assert [job.plan.groups[name].spec.queue_timeout for name in "ab"] == [5.0, 3600.0]


def test_timeouts_are_not_part_of_the_fingerprint() -> None:
    """Or work that is done would be done again because somebody gave it more time."""

    def fingerprint(timeout: float | None, queue_timeout: float | None) -> str:
        steps = [{"python": "m:f", "timeout": timeout}]
        spec = GroupSpec.model_validate(
            {"name": "a", "steps": steps, "queue_timeout": queue_timeout}
        )
        return WorkOrder(
            plan=GroupPlan(group=spec, warehouse="/w"), frozen=FrozenInputs()
        ).fingerprint

    assert fingerprint(None, None) == fingerprint(60.0, 5.0)


# ---- queue_timeout
# -------------------------------------------------------------------------------------------


def test_an_unclaimed_group_fails_permanently_with_a_remedy() -> None:
    job = Job(group("a", queue="heavy", queue_timeout="1m", retry=NO_JITTER), group("b", "a"))
    job.decide()
    job.now += 59.9
    job.decide()
    assert job.states() == {"a": "QUEUED"}
    job.now += 0.1
    decision = job.decide()
    assert job.states() == {"a": "FAILED", "b": "CANCELED"}
    assert (job.status(), job.reason("a").code) == (Status.FAILED, "QUEUE_TIMEOUT")
    assert "no runner listens on queue heavy" in job.reason("a").text
    assert "celery -A unstuck.tasks worker -Q heavy" in job.reason("a").text
    assert [(guard.group, guard.kind) for guard in decision.guards] == [("a", "unclaimed")]
    assert next(iter(decision.dropped)) == "a", "the attempt on offer is nobody's any more"
    assert job.state.job.reason is not None
    assert "nobody took it within its queue_timeout of 1m00s" in job.state.job.reason.text


def test_the_queue_timeout_message_counts_the_listening_runners() -> None:
    job = Job(group("a", queue_timeout="1m"))
    job.decide()
    job.now += 60
    job.decide(runners={"spark": 3})
    assert "3 runners listen on queue spark; they were busy" in job.reason("a").text


def test_a_claimed_group_is_no_longer_subject_to_the_queue_timeout() -> None:
    job = Job(group("a", queue_timeout="1m"))
    job.decide()
    job.claim("a")
    job.now += 61
    job.renew("a")
    job.decide()
    assert job.states() == {"a": "RUNNING"}


def test_the_queue_timeout_counts_from_queueing_despite_repeated_offers() -> None:
    job = Job(group("a", queue_timeout="1m"))
    queued = job.now
    decision, made = job.decide(), 0
    while job.record("a").state is S.QUEUED:
        made += len(decision.offers)
        assert decision.due is not None
        assert decision.due <= queued + 60
        job.now = decision.due
        decision = job.decide()
    assert job.now == queued + 60, "the job was due at that very time"
    assert made > 2


def test_each_attempt_has_the_full_queue_timeout() -> None:
    job = Job(group("a", queue_timeout="1m", retry=NO_JITTER))
    job.decide()
    job.now += 50
    job.run("a", failure())
    job.now += 10
    job.decide()
    job.now += 59
    job.decide()
    assert job.states() == {"a": "QUEUED"}
    job.now += 1
    job.decide()
    assert job.reason("a").code == "QUEUE_TIMEOUT"
    assert job.state.job.reason is not None
    assert "queue_timeout of 1m00s" in job.state.job.reason.text, (
        "and not the error of the attempt before"
    )


def test_the_queue_timeout_restarts_at_the_resume_after_a_pause() -> None:
    job = Job(group("a", queue_timeout="1m"))
    job.decide()
    job.now += 50
    job.tell("pause")
    job.decide()
    assert job.states() == {"a": "WAITING"}
    job.now += 1000
    job.tell("resume")
    job.decide()
    job.now += 59
    job.decide()
    assert job.states() == {"a": "QUEUED"}


def test_time_in_a_halted_job_does_not_count_toward_the_queue_timeout() -> None:
    job = Job(group("a", queue_timeout="1m"))
    job.decide()
    job.state.job = replace(job.state.job, halted=Reason("UNDECIDABLE", "no"), status=Status.HALTED)
    job.now += 1000
    assert "queue_timeout" not in job.why()["a"].ends.what
    job.tell("resume")
    job.decide()
    assert job.states() == {"a": "QUEUED"}
    job.now += 60
    job.decide()
    assert job.states() == {"a": "FAILED"}


def test_after_an_outage_runners_may_claim_before_queue_timeouts_apply() -> None:
    job = Job(group("a", queue_timeout="1m"))
    job.decide()
    job.now += 1000
    due = job.decide(takeover=False).due
    assert job.states() == {"a": "QUEUED"}
    assert due is not None
    assert job.now < due <= job.now + 10
    job.decide()
    assert job.states() == {"a": "FAILED"}


@pytest.mark.parametrize("back", [30.0, 10_000.0])
def test_a_clock_that_was_set_back_makes_the_queue_timeout_neither_early_nor_infinite(
    back: float,
) -> None:
    job = Job(group("a", queue_timeout="1m"))
    job.decide()
    job.now -= back
    due = job.decide().due
    assert job.states() == {"a": "QUEUED"}
    until = job.now + 60
    while job.record("a").state is S.QUEUED:
        assert due is not None
        assert due <= until
        job.now = due
        due = job.decide().due
    assert job.now == until


def test_a_queue_timeout_is_tolerated_like_any_other_failure() -> None:
    job = Job(group("a", queue_timeout="1m", optional=True), group("b", "a", join="all_done"))
    job.decide()
    job.now += 60
    job.decide()
    assert job.states() == {"a": "FAILED", "b": "QUEUED"}


def test_queue_timeouts_of_a_wide_fork_respect_the_limit_of_500() -> None:
    job = Job(
        group("w", queue_timeout="1m", for_each={"n": list(range(1200))}),
        on_failure="finish_others",
    )
    while job.decide(dispatch_window=10_000).more:
        pass
    job.now += 60
    moves = []
    while (decision := job.decide(dispatch_window=10_000)).more:
        assert decision.due == job.now
        moves.append(decision.moves)
    assert (max(moves), job.count(S.FAILED)) == (MAX_TRANSITIONS, 1200)
    assert job.status() is Status.FAILED


def test_a_queued_group_shows_its_queue_timeout() -> None:
    job = Job(group("a", queue_timeout="1m"), group("b"))
    job.decide()
    found = job.why()
    assert (found["a"].ends.what, found["a"].ends.at) == (
        "FAILED by its queue_timeout of 1m00s",
        job.now + 60,
    )
    assert found["b"].ends.what.startswith("never by itself")
