"""An outcome that comes too late changes nothing, and people can see that it came: one event on the job's log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

import unstuck.tasks.watchdog.__main__ as watchdog
from tests.guarantees.one_at_a_time.test_attempts import LosesReplies, lapse, lossy, queued  # noqa: F401 - a fixture
from tests.support.coordinator import SUCCEEDED, Head, failed
from unstuck.coordinator.cli.watch import event_text
from unstuck.coordinator.decide.receipts import Delivered
from unstuck.coordinator.model.status import Status
from unstuck.tasks.protocol.lease import ANSWER_KEPT, Lease
from unstuck.tasks.protocol.report import Outcome, OutcomeKind, Report
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.runner import attempt as run


def refused(head: Head, job: str) -> list[dict[str, Any]]:
    return [event for _, event in head.client.queries.events(job) if event["kind"] == "REPORT_REFUSED"]


def record(head: Head, job: str) -> dict[str, Any]:
    """All that is stored of the job, but for its log."""
    keys = [key for key in head.redis.keys(f"*{{{job}}}*") if not key.endswith(":events")]
    return {key: head.redis.dump(key) for key in keys}


def held(head: Head, **more: Any) -> tuple[str, Token]:
    """A job whose one group is held by runner1."""
    job, hint = queued(head, **more)
    assert head.claim(hint).answer == "CLAIMED"  # type: ignore[arg-type]
    head.read()
    return job, hint.held_by("runner1")  # type: ignore[attr-defined]


def taken_over(head: Head) -> tuple[str, Token]:
    """A job whose first attempt is a zombie, and whose second one runs."""
    job, zombie = held(head)
    lapse(head, job)
    head.reconciler.reconcile(job)
    (second,) = head.hints()
    head.claim(second, "runner2")
    head.read()
    return job, zombie


def test_a_force_stopped_jobs_worker_that_reports_success_changes_nothing_and_is_one_event(head: Head) -> None:
    job, zombie = held(head)
    head.client.force_stop(job)
    head.read()
    assert head.status(job) is Status.CANCELED
    before, lives = record(head, job), head.redis.ttl(head.keys.of(job).events)

    assert head.finish(zombie) == "STALE"
    head.read()
    head.sweep.run()

    assert record(head, job) == before
    (event,) = refused(head, job)
    assert (event["group"], event["epoch"], event["claimant"], event["said"]) == ("only", 1, "runner1", "succeeded")
    assert event["code"] == "TERMINAL"
    assert event["text"] == "attempt 1 reported succeeded after the job was CANCELED: nothing changed"
    assert head.client.queries.counters()["TERMINAL"] == 1
    assert 0 < head.redis.ttl(head.keys.of(job).events) <= lives, "its log expires when it would have"


def test_a_report_of_attempt_1_while_attempt_2_runs_is_counted_and_one_event_and_changes_nothing(head: Head) -> None:
    job, zombie = taken_over(head)
    before = record(head, job)

    assert head.finish(zombie) == "STALE"
    head.read()

    assert record(head, job) == before
    (event,) = refused(head, job)
    assert (event["epoch"], event["code"]) == (1, "STALE")
    assert event["text"] == "attempt 1 reported succeeded after attempt 2 had taken its place: nothing changed"
    assert head.client.queries.counters()["STALE"] == 1
    assert head.show(job).groups[0].members[0].record.epoch == 2


def test_an_attempt_that_was_given_up_and_not_replaced_yet_is_refused_visibly_too(head: Head) -> None:
    job, hint = queued(head, retry={"max": 3, "backoff": 60})
    head.work(hint, failed())  # type: ignore[arg-type]
    head.read()
    assert head.status(job) is Status.RETRYING

    late = Outcome(OutcomeKind.LOST)
    assert head.finish(hint.held_by("runner1"), late) == "STALE"  # type: ignore[attr-defined]
    head.read()

    (event,) = refused(head, job)
    assert event["text"] == "attempt 1 reported lost when it was no longer the live attempt: nothing changed"
    assert head.client.queries.counters()["STALE"] == 1


def test_a_refused_finish_whose_reply_was_lost_is_one_event(head: Head, lossy: redis.Redis) -> None:  # noqa: F811
    job, zombie = taken_over(head)
    lease = Lease(lossy, head.keys, 15)
    lossy.ping()
    LosesReplies.armed = 2
    assert lease.finish(zombie, SUCCEEDED, "its-event") == "STALE"
    assert LosesReplies.lost == 2
    head.read()
    assert lease.finish(zombie, SUCCEEDED, "its-event") == "STALE", "also when it was read in between"
    head.read()
    assert len(refused(head, job)) == 1
    assert head.client.queries.counters()["STALE"] == 1


def test_a_finish_repeated_after_it_was_taken_in_is_no_refusal(head: Head) -> None:
    """The reply is lost, the coordinator takes the outcome in, and then the runner asks again."""
    job, token = held(head)
    assert head.finish(token, event="its-event") == "APPLIED"
    head.read()
    assert head.status(job) is Status.FINISHED
    assert head.finish(token, event="its-event") == "DUPLICATE"
    head.read()
    assert refused(head, job) == []


def test_an_answer_is_remembered_for_longer_than_anybody_repeats_and_not_for_ever(head: Head) -> None:
    assert max(run.FINISH_FOR, watchdog.REPORT_FOR) + 60 < ANSWER_KEPT
    _, token = held(head)
    head.finish(token, event="its-event")
    assert 0 < head.redis.ttl(head.keys.finish(str(token), "its-event")) <= ANSWER_KEPT


@pytest.mark.parametrize("ended", [True, False], ids=["job ended", "attempt 2 runs"])
def test_a_refused_report_delivered_twice_to_two_coordinators_is_one_event(
    make_head: Callable[..., Head], ended: bool
) -> None:
    head, other = make_head(), make_head()
    job, zombie = taken_over(head)
    if ended:
        head.client.force_stop(job)
        head.read()
    head.finish(zombie)
    (entry,) = head.stream.read(10, 0.1)
    delivered = Delivered(entry.id, Report.from_fields(entry.fields))
    for reconciler in (head.reconciler, other.reconciler, head.reconciler):
        reconciler.reconcile(job, [delivered])
    assert len(refused(head, job)) == 1


@pytest.mark.parametrize("script", ["_settle", "_commit"])
def test_a_script_that_acks_a_refused_report_and_is_repeated_writes_one_event(
    make_head: Callable[..., Head], script: str
) -> None:
    head = make_head()
    job, zombie = taken_over(head)
    head.finish(zombie)
    if script == "_commit":
        head.finish(_live(head, job))  # a report that changes the record, read in the same batch
    call = getattr(head.store, script)

    def lose_the_reply(job: str, **values: Any) -> Any:
        call(job, **values)
        return call(job, **values)

    setattr(head.store, script, lose_the_reply)
    head.read()
    assert len(refused(head, job)) == 1
    assert (head.status(job) is Status.FINISHED) == (script == "_commit")


def test_a_stale_claim_report_is_no_event(head: Head) -> None:
    job, zombie = taken_over(head)
    head.redis.xadd(
        head.keys.reports, {"v": 1, "id": "late", "token": str(zombie), "kind": "claimed", "at": 1, "refused": ""}
    )
    assert head.claim(zombie.hint, "runner1").answer == "STALE"
    head.read()
    assert refused(head, job) == []


def test_a_log_that_has_expired_is_not_begun_anew(head: Head) -> None:
    job, zombie = held(head)
    head.client.force_stop(job)
    head.read()
    head.redis.delete(head.keys.of(job).events)
    head.finish(zombie)
    head.read()
    assert not head.redis.exists(head.keys.of(job).events)


def test_a_refusal_reads_well_in_the_log(head: Head) -> None:
    job, zombie = held(head)
    head.client.force_stop(job)
    head.read()
    head.finish(zombie)
    head.read()
    line = " ".join(event_text(refused(head, job)[0]).plain.split()[2:])
    assert line == (
        "REPORT_REFUSED only claimant runner1 attempt 1 reported succeeded after the job was CANCELED: nothing changed"
    )


def _live(head: Head, job: str) -> Token:
    record = head.show(job).groups[0].members[0].record
    return record.hint(job, "only").held_by("runner2")


def test_a_repeated_finish_counts_as_a_repeat_although_its_answer_was_forgotten(head: Head) -> None:
    """An eviction, or a clock of Redis that jumps ahead, may take the answer away before its time."""
    job, token = held(head)
    assert head.finish(token, event="its-event") == "APPLIED"
    head.redis.delete(head.keys.finish(str(token), "its-event"))
    assert head.finish(token, event="its-event") == "DUPLICATE"
    head.read()
    assert refused(head, job) == []


def test_a_job_whose_event_log_was_lost_logs_again(head: Head) -> None:
    job, token = held(head)
    head.redis.delete(head.keys.of(job).events)
    head.finish(token)
    head.read()
    assert head.status(job) is Status.FINISHED
    assert "FINISHED" in str([event for _, event in head.client.queries.events(job)])
