"""Promise 1: any message may be lost at any time; the job still ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import redis

from tests.support.coordinator import Head, group, join
from tests.support.machine import Limit
from tests.support.servers import RedisServer, wait_until
from unstuck.coordinator.doctor.redis_facts import record_facts
from unstuck.coordinator.model.status import Status
from unstuck.tasks.protocol.report import NEWEST_SCHEMA
from unstuck.tasks.transport.redis_client import connect


def test_a_hint_popped_by_a_worker_that_dies_is_sent_again_and_the_group_runs_once(
    make_head: Callable[..., Head],
) -> None:
    head = make_head(dispatch_timeout=0.3)
    job = head.submit(group("only"))
    head.read()
    (lost,) = head.hints()  # popped by a worker that was SIGKILLed before it could claim

    wait_until(lambda: head.sweep.run() and bool(head.sent), 20, "the hint to be sent again")

    (again,) = head.hints()
    assert again == lost, "the same hint, so that a copy that still lies about is the same attempt"
    head.work(again)
    head.read()
    assert head.status(job) is Status.FINISHED
    assert head.events(job, "only") == ["QUEUED", "RUNNING", "SUCCEEDED"]


def test_a_report_deleted_from_the_stream_is_found_on_the_record_by_the_sweep(head: Head) -> None:
    job = head.submit(group("first"), group("second", "first"))
    head.read()
    (hint,) = head.hints()
    head.work(hint)
    head.redis.xtrim(head.keys.reports, maxlen=0, approximate=False)

    head.sweep.run()

    assert [sent.group for sent in head.sent] == ["second"]
    assert head.events(job, "first") == ["QUEUED", "RUNNING", "SUCCEEDED"]


def test_the_last_branch_of_a_join_that_meets_a_busy_lock_starts_the_successor_when_the_lock_is_free(
    make_head: Callable[..., Head], redis_server: RedisServer
) -> None:
    """The Conductor case: beat is off, and no sweep may help."""
    head = make_head(sweep_every=3600)
    job = head.submit(group("left"), group("right"), join("both", "left", "right"), group("after", "both"))
    head.read()
    left, right = sorted(head.hints(), key=lambda hint: hint.group)
    head.work(left)
    head.read()
    head.store.tick(3600, 15)
    consumer = threading.Thread(target=head.consumer.run)
    lock = head.keys.of(job).lock

    with connect(redis_server.url) as other:
        assert other.set(lock, "another coordinator", nx=True, px=60_000)
        consumer.start()
        try:
            head.work(right)
            wait_until(lambda: other.exists(head.keys.of(job).dirty), 20, "the consumer to meet the lock busy")
            assert not head.sent
            assert head.events(job, "right") == ["QUEUED"]
            other.delete(lock)
            limit = Limit(2.0)
            wait_until(lambda: bool(head.sent), 20, "the successor to be queued", every=0.002)
            in_time = limit.kept
        finally:
            head.consumer.stopping.set()
            consumer.join()

    assert [hint.group for hint in head.sent] == ["after"]
    assert in_time, f"queued not by the lock, but by a sweep or an idle report: {limit}"


def test_when_the_locks_holder_dies_the_job_goes_on_at_the_end_of_its_term(make_head: Callable[..., Head]) -> None:
    head = make_head(lock_ttl=0.5)
    job = head.submit(group("only"))
    begun = head.store.begin(job, "a coordinator that dies now")
    assert begun.answer == "LOCKED"

    # Both ways on: the report that stays pending, and the due that was pushed to the end of the lock's term.
    assert head.show(job).due == pytest.approx(begun.now + 0.5, abs=0.01)
    wait_until(lambda: head.sweep.run() and bool(head.sent), 20, "the job to go on")
    assert head.events(job, "only") == ["QUEUED"]


def test_when_the_locks_holder_dies_a_job_that_was_due_much_later_goes_on_at_the_end_of_its_term_too(
    make_head: Callable[..., Head],
) -> None:
    """What began the pass (what came of publishing, a late report) may have moved no due: the pass itself does."""
    head = make_head(lock_ttl=0.5)
    job = head.submit(group("only"))
    head.redis.xtrim(head.keys.reports, maxlen=0, approximate=False)  # the wake-up of the submit is lost
    head.redis.zadd(head.keys.due, {job: head.show(job).at + 3600})
    begun = head.store.begin(job, "a coordinator that dies now")

    assert head.show(job).due == pytest.approx(begun.now + 0.5, abs=0.01)
    wait_until(lambda: head.sweep.run() and bool(head.sent), 20, "the job to go on")
    assert head.events(job, "only") == ["QUEUED"]


def test_a_busy_lock_is_decided_once_more_by_its_holder(head: Head) -> None:
    """Rule 5: whoever meets the lock busy leaves a flag, and the holder answers it before it lets go."""
    job = head.submit(group("only"))
    begun = head.store.begin(job, "holder")
    assert head.store.begin(job, "somebody else").answer == "BUSY"
    assert head.store.end(job, "holder") == "AGAIN"
    assert head.store.begin(job, "holder").answer == "LOCKED", "the lock is kept through AGAIN"
    assert head.store.end(job, "holder") == "RELEASED"
    assert begun.answer == "LOCKED"


def test_without_any_beat_the_consumer_sweeps_by_itself(make_head: Callable[..., Head]) -> None:
    """No beat at all makes no difference in the outcome."""
    head = make_head(sweep_every=0.1, dispatch_timeout=0.3)
    job = head.submit(group("only"))
    head.redis.xtrim(head.keys.reports, maxlen=0, approximate=False)  # nor does the wake-up of the submit arrive
    consumer = threading.Thread(target=head.consumer.run)
    consumer.start()
    try:
        wait_until(lambda: bool(head.sent), 5, "the group to be queued without beat")
        head.hints()  # and the hint is lost
        wait_until(lambda: bool(head.sent), 5, "the hint to be sent again without beat")
        head.work(head.hints()[0])
        head.wait_for(job, Status.FINISHED)
    finally:
        head.consumer.stopping.set()
        consumer.join()


def test_two_sweeps_at_once_decide_every_job_once(make_head: Callable[..., Head]) -> None:
    """Two beats make no difference in the outcome."""
    one, two = make_head(), make_head()
    jobs = [one.submit(group("only"), name=f"job{i}") for i in range(20)]
    threads = [threading.Thread(target=head.sweep.run) for head in (one, two) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    sent = one.sent + two.sent
    assert sorted(hint.job for hint in sent) == sorted(jobs)
    assert all(one.events(job, "only") == ["QUEUED"] for job in jobs)


def test_a_report_of_an_unknown_job_is_parked_and_those_behind_it_are_applied(head: Head) -> None:
    job = head.submit(group("only"))
    head.read()
    (hint,) = head.hints()
    ghost = "20130101T000000-ghost/only/1/n/c"
    head.redis.xadd(head.keys.reports, {"v": 1, "id": "e", "token": ghost, "kind": "succeeded", "at": 1})
    head.work(hint)

    head.read()

    assert head.status(job) is Status.FINISHED
    (dead,) = head.stream.dead_letters()
    assert dead.reason.startswith("UNKNOWN_JOB")
    assert dead.fields["token"] == ghost
    assert head.redis.xpending(head.keys.reports, "coordinators")["pending"] == 0, "parked is acked: no loop"
    head.read()
    assert len(head.stream.dead_letters()) == 1


def test_finish_for_a_job_the_store_does_not_hold_is_reported_all_the_same(head: Head) -> None:
    """The SeaTunnel case: "not found" is no success. The worker is told, and people can see it."""
    job = head.submit(group("only"))
    head.read()
    (hint,) = head.hints()
    head.claim(hint)
    head.read()
    head.redis.delete(head.keys.of(job).job)

    assert head.finish(hint.held_by("runner1")) == "UNKNOWN_JOB"
    head.read()
    assert [dead.reason.split(":")[0] for dead in head.stream.dead_letters()] == ["UNKNOWN_JOB"]


def test_reports_that_cannot_be_read_are_parked_and_newer_ones_left_for_a_newer_coordinator(head: Head) -> None:
    job = head.submit(group("only"))
    head.read()
    (hint,) = head.hints()
    token = str(hint.held_by("runner1"))
    for fields in (
        {"v": 1, "id": "e", "kind": "succeeded", "at": 1},  # no token
        {"v": 1, "id": "e", "token": "rubbish", "kind": "succeeded", "at": 1},
        {"v": 1, "id": "e", "token": token, "kind": "exploded", "at": 1},
        {"v": "one", "id": "e", "token": token, "kind": "succeeded", "at": 1},
        {"v": 1, "id": "e", "token": token, "kind": "succeeded", "at": "noon"},
        {"hello": "world"},
        {"kind": "due"},  # a wake-up that does not say of which job
    ):
        head.redis.xadd(head.keys.reports, fields)  # type: ignore[arg-type]
    head.redis.xadd(head.keys.reports, {"v": 7, "what": "only a newer coordinator knows"})
    head.work(hint)

    head.read()

    assert head.status(job) is Status.FINISHED, "what stood behind them was applied"
    assert len(head.stream.dead_letters()) == 7
    assert all(dead.reason.startswith("UNREADABLE") for dead in head.stream.dead_letters())
    (left,) = head.redis.xrange(head.keys.newer_reports("7"))
    assert "only a newer coordinator knows" in left[1]["report"]
    counted = head.client.queries.counters()
    assert (counted["UNREADABLE"], counted["NEWER"]) == (7, 1), "each was counted, none acked away"
    assert head.redis.xpending(head.keys.reports, "coordinators")["pending"] == 0
    head.stream.trim()
    assert len(head.redis.xrange(head.keys.newer_reports("7"))) == 1, "and it waits for as long as it takes"


def test_a_report_that_calls_itself_a_version_that_no_release_has_is_parked_and_makes_no_stream(head: Head) -> None:
    strange = (
        "1_0",
        " 2",
        "2 ",
        "2\n",
        "+2",
        "-1",
        "0",
        "02",
        "2.0",
        "1e1",
        "٢",
        "²",
        "100",
        str(10**20),
        "9" * 5000,
        "",
    )
    for version in strange:
        head.redis.xadd(head.keys.reports, {"v": version, "id": "e", "kind": "succeeded", "at": 1})
    head.read()
    assert head.redis.keys(head.keys.newer_reports("*")) == []
    reasons = [dead.reason for dead in head.stream.dead_letters()]
    assert len(reasons) == len(strange)
    assert all(reason.startswith("UNREADABLE: the schema version in 'v' must be") for reason in reasons)
    assert max(map(len, reasons)) < 300, "a version that is long is not repeated whole"


def test_the_doctor_looks_at_every_stream_on_which_a_newer_report_may_wait(head: Head) -> None:
    for version in (2, NEWEST_SCHEMA):
        head.redis.xadd(head.keys.reports, {"v": version})
    head.read()
    assert record_facts(head.redis, head.keys).newer == {2: 1, NEWEST_SCHEMA: 1}


def test_a_coordinator_that_has_never_seen_the_job_applies_its_final_report(make_head: Callable[..., Head]) -> None:
    """There is no reload window, since no coordinator holds the state."""
    first = make_head()
    job = first.submit(group("only"))
    first.read()
    (hint,) = first.hints()
    first.claim(hint)
    first.read()
    del first.reconciler

    stranger = make_head()
    stranger.finish(hint.held_by("runner1"))
    stranger.read()

    assert stranger.status(job) is Status.FINISHED


def test_reports_that_a_dead_coordinator_had_read_are_applied_by_another(make_head: Callable[..., Head]) -> None:
    """Read, not applied, dead."""
    dies, other = make_head(), make_head(report_idle=0.2)
    job = dies.submit(group("only"))
    dies.read()
    (hint,) = dies.hints()
    dies.work(hint)
    assert dies.stream.read(500, 0.1), "read, and never acked"

    def pending() -> int:
        other.consumer.step()
        return int(other.redis.xpending(other.keys.reports, "coordinators")["pending"])

    wait_until(lambda: not pending(), 5, "the other coordinator to take the reports over")
    assert other.status(job) is Status.FINISHED


def test_the_stream_is_trimmed_by_the_oldest_pending_report_never_by_length(head: Head) -> None:
    job = head.submit(group("a"), group("b"))
    head.read()
    for hint in head.hints():
        head.work(hint)
    pending = head.stream.read(2, 0.1)  # read and not yet acked
    kept = pending[0].id

    head.stream.trim()

    assert next(entry_id for entry_id, _ in head.redis.xrange(head.keys.reports)) == kept
    head.consumer.apply(pending)
    head.read()
    head.stream.trim()
    assert head.status(job) is Status.FINISHED
    assert head.redis.xlen(head.keys.reports) <= 1


def test_a_wake_up_between_load_and_commit_is_never_swallowed(head: Head) -> None:
    """Rule 5: due moves later only if it still is what this pass has set."""
    job = head.submit(group("a"), group("b"))
    head.read()
    a, b = head.hints()
    head.claim(a)
    head.claim(b)
    head.read()
    head.finish(a.held_by("runner1"))

    load = head.store.load

    def finish_b_after_the_load(*args: object) -> object:
        state = load(*args)  # type: ignore[arg-type]
        head.finish(b.held_by("runner1"))
        return state

    head.store.load = finish_b_after_the_load  # type: ignore[method-assign, assignment]
    entries = head.stream.read(1, 0.1)
    head.consumer.apply(entries)
    head.store.load = load  # type: ignore[method-assign]
    head.redis.xtrim(head.keys.reports, maxlen=0, approximate=False)  # b's report is lost as well

    assert head.due_in(job) <= 0, "b's finish made the job due, and the commit of a's left that standing"
    head.sweep.run()
    assert head.status(job) is Status.FINISHED


def test_a_store_that_comes_back_empty_gets_its_consumer_group_again(head: Head, client: redis.Redis) -> None:
    consumer = threading.Thread(target=head.consumer.run)
    consumer.start()
    try:
        client.delete(head.keys.reports)
        job = head.submit(group("only"))
        wait_until(lambda: bool(head.sent), 5, "the consumer to find its group gone and make it again")
        head.work(head.hints()[0])
        head.wait_for(job, Status.FINISHED)
    finally:
        head.consumer.stopping.set()
        consumer.join()
    assert not consumer.is_alive()
