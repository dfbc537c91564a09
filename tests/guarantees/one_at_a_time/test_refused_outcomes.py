"""An outcome that comes too late changes nothing, and people can see that it came: one event on the
job's log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.guarantees.one_at_a_time.test_attempts import lapse, queued
from tests.support.coordinator import SUCCEEDED, Coordinator, failed
from tests.support.network.lost_replies import LosesReplies, losing_reply
from unstuck import Status
from unstuck.cli.jobs.watch import event_text
from unstuck.coordinator.decide.receipts import Delivered
from unstuck.tasks.protocol.report import Outcome, OutcomeKind, Report
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.transport.lease import ANSWER_KEPT, FINISH_FOR, Lease


def refused(coordinator: Coordinator, job: str) -> list[dict[str, Any]]:
    return [
        event for _, event in coordinator.client.events(job) if event["kind"] == "REPORT_REFUSED"
    ]


def record(coordinator: Coordinator, job: str) -> dict[str, Any]:
    """All that is stored of the job, but for its log."""
    keys = [key for key in coordinator.redis.keys(f"*{{{job}}}*") if not key.endswith(":events")]
    return {key: coordinator.redis.dump(key) for key in keys}


def held(coordinator: Coordinator, **more: Any) -> tuple[str, Token]:
    """A job whose one group is held by runner1."""
    job, offer = queued(coordinator, **more)
    assert coordinator.claim(offer).answer == "CLAIMED"  # type: ignore[arg-type]
    coordinator.read()
    return job, offer.held_by("runner1")  # type: ignore[attr-defined]


def taken_over(coordinator: Coordinator) -> tuple[str, Token]:
    """A job whose first attempt is a zombie, and whose second one runs."""
    job, zombie = held(coordinator)
    lapse(coordinator, job)
    coordinator.reconciler.reconcile(job)
    (second,) = coordinator.offers()
    coordinator.claim(second, "runner2")
    coordinator.read()
    return job, zombie


@pytest.mark.claim("If a job was ended by force, a late success of its worker is refused.")
def test_success_reported_for_a_force_stopped_job_changes_nothing_and_is_logged(
    coordinator: Coordinator,
) -> None:
    job, zombie = held(coordinator)
    coordinator.client.force_stop(job)
    coordinator.read()
    assert coordinator.status(job) is Status.CANCELED
    before, lives = record(coordinator, job), coordinator.redis.ttl(coordinator.keys.of(job).events)

    assert coordinator.finish(zombie) == "STALE"
    coordinator.read()
    coordinator.sweep.run()

    assert record(coordinator, job) == before
    (event,) = refused(coordinator, job)
    assert (event["group"], event["epoch"], event["claimant"], event["reported"]) == (
        "only",
        1,
        "runner1",
        "succeeded",
    )
    assert event["code"] == "TERMINAL"
    assert (
        event["text"] == "attempt 1 reported succeeded after the job was CANCELED: nothing changed"
    )
    assert coordinator.client.counters()["TERMINAL"] == 1
    assert 0 < coordinator.redis.ttl(coordinator.keys.of(job).events) <= lives, (
        "its log expires when it would have"
    )


def test_a_late_report_of_attempt_1_during_attempt_2_is_only_counted_and_logged(
    coordinator: Coordinator,
) -> None:
    job, zombie = taken_over(coordinator)
    before = record(coordinator, job)

    assert coordinator.finish(zombie) == "STALE"
    coordinator.read()

    assert record(coordinator, job) == before
    (event,) = refused(coordinator, job)
    assert (event["epoch"], event["code"]) == (1, "STALE")
    assert (
        event["text"]
        == "attempt 1 reported succeeded after attempt 2 had taken its place: nothing changed"
    )
    assert coordinator.client.counters()["STALE"] == 1
    assert coordinator.show(job).groups[0].members[0].attempt == 2


def test_an_outcome_of_an_abandoned_attempt_is_refused_and_logged(
    coordinator: Coordinator,
) -> None:
    job, offer = queued(coordinator, retry={"max": 3, "backoff": 60})
    coordinator.work(offer, failed())  # type: ignore[arg-type]
    coordinator.read()
    assert coordinator.status(job) is Status.RETRYING

    late = Outcome(OutcomeKind.LOST)
    assert coordinator.finish(offer.held_by("runner1"), late) == "STALE"  # type: ignore[attr-defined]
    coordinator.read()

    (event,) = refused(coordinator, job)
    assert (
        event["text"]
        == "attempt 1 reported lost when it was no longer the live attempt: nothing changed"
    )
    assert coordinator.client.counters()["STALE"] == 1


def test_a_refused_finish_whose_reply_was_lost_is_logged_once(
    coordinator: Coordinator, lossy: redis.Redis
) -> None:
    job, zombie = taken_over(coordinator)
    lease = Lease(lossy, coordinator.keys, 15, "runner1")
    LosesReplies.armed = 2
    assert lease.finish(zombie, SUCCEEDED, "its-event") == "STALE"
    assert LosesReplies.lost == 2
    coordinator.read()
    assert lease.finish(zombie, SUCCEEDED, "its-event") == "STALE", (
        "also when it was read in between"
    )
    coordinator.read()
    assert len(refused(coordinator, job)) == 1
    assert coordinator.client.counters()["STALE"] == 1


def test_a_repeat_of_an_accepted_finish_is_not_a_refusal(coordinator: Coordinator) -> None:
    """The reply is lost, the coordinator takes the outcome in, and then the runner asks again."""
    job, token = held(coordinator)
    assert coordinator.finish(token, event="its-event") == "APPLIED"
    coordinator.read()
    assert coordinator.status(job) is Status.FINISHED
    assert coordinator.finish(token, event="its-event") == "DUPLICATE"
    coordinator.read()
    assert refused(coordinator, job) == []


def test_a_reply_is_remembered_for_a_limited_time_longer_than_any_repeat(
    coordinator: Coordinator,
) -> None:
    assert FINISH_FOR + 60 < ANSWER_KEPT
    _, token = held(coordinator)
    coordinator.finish(token, event="its-event")
    assert 0 < coordinator.redis.ttl(coordinator.keys.answer("runner1")) <= ANSWER_KEPT


@pytest.mark.parametrize("ended", [True, False], ids=["job ended", "attempt 2 runs"])
def test_a_refused_report_delivered_to_two_coordinators_is_logged_once(
    make_coordinator: Callable[..., Coordinator], ended: bool
) -> None:
    coordinator, other = make_coordinator(), make_coordinator()
    job, zombie = taken_over(coordinator)
    if ended:
        coordinator.client.force_stop(job)
        coordinator.read()
    coordinator.finish(zombie)
    (entry,) = coordinator.stream.read(10, 0.1)
    delivered = Delivered(entry.id, Report.from_fields(entry.fields))
    for reconciler in (coordinator.reconciler, other.reconciler, coordinator.reconciler):
        reconciler.reconcile(job, [delivered])
    assert len(refused(coordinator, job)) == 1


@pytest.mark.parametrize("write", ["acknowledge", "commit"])
def test_repeating_the_script_that_acknowledges_a_refused_report_logs_once(
    make_coordinator: Callable[..., Coordinator], lossy: redis.Redis, write: str
) -> None:
    coordinator = make_coordinator(client=lossy)
    job, zombie = taken_over(coordinator)
    coordinator.finish(zombie)
    if write == "commit":
        coordinator.finish(
            _live(coordinator, job)
        )  # a report that changes the record, read in the same batch
    setattr(coordinator.store, write, losing_reply(getattr(coordinator.store, write)))
    coordinator.read()
    assert LosesReplies.lost
    assert len(refused(coordinator, job)) == 1
    assert (coordinator.status(job) is Status.FINISHED) == (write == "commit")


def test_a_stale_claim_report_is_not_logged(coordinator: Coordinator) -> None:
    job, zombie = taken_over(coordinator)
    coordinator.redis.xadd(
        coordinator.keys.reports,
        {"v": 1, "id": "late", "token": str(zombie), "kind": "claimed", "at": 1, "refused": ""},
    )
    assert coordinator.claim(zombie.offer, "runner1").answer == "REFUSED"
    coordinator.read()
    assert refused(coordinator, job) == []


def test_an_expired_event_log_is_not_started_again(coordinator: Coordinator) -> None:
    job, zombie = held(coordinator)
    coordinator.client.force_stop(job)
    coordinator.read()
    coordinator.redis.delete(coordinator.keys.of(job).events)
    coordinator.finish(zombie)
    coordinator.read()
    assert not coordinator.redis.exists(coordinator.keys.of(job).events)


def test_a_refusal_is_readable_in_the_log(coordinator: Coordinator) -> None:
    job, zombie = held(coordinator)
    coordinator.client.force_stop(job)
    coordinator.read()
    coordinator.finish(zombie)
    coordinator.read()
    line = " ".join(event_text(refused(coordinator, job)[0]).plain.split()[2:])
    assert line == (
        "REPORT_REFUSED only claimant runner1 attempt 1 reported succeeded after the job was "
        "CANCELED: nothing changed"
    )


def _live(coordinator: Coordinator, job: str) -> Token:
    return coordinator.offer_of(job, "only").held_by("runner2")


def test_a_repeated_finish_counts_as_a_repeat_after_its_reply_was_forgotten(
    coordinator: Coordinator,
) -> None:
    """An eviction, or a clock of Redis that jumps ahead, may take the answer away before its
    time.
    """
    job, token = held(coordinator)
    assert coordinator.finish(token, event="its-event") == "APPLIED"
    coordinator.redis.delete(coordinator.keys.answer("runner1"))
    assert coordinator.finish(token, event="its-event") == "DUPLICATE"
    coordinator.read()
    assert refused(coordinator, job) == []


def test_a_job_whose_event_log_was_lost_logs_again(coordinator: Coordinator) -> None:
    job, token = held(coordinator)
    coordinator.redis.delete(coordinator.keys.of(job).events)
    coordinator.finish(token)
    coordinator.read()
    assert coordinator.status(job) is Status.FINISHED
    assert "FINISHED" in str([event for _, event in coordinator.client.events(job)])
