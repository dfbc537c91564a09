"""Promise 1: any message may be lost at any time; the job still ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest
import redis

from tests.support.coordinator import Coordinator, group, join
from tests.support.machine import Limit
from tests.support.servers import RedisServer, wait_until
from unstuck import Status
from unstuck.coordinator.store.dead_letter_store import DeadLetterAnswer
from unstuck.tasks.transport.redis_client import connect


@pytest.mark.claim(
    "If Redis loses an offer or a report, the group still runs once and its outcome counts."
)
@pytest.mark.parametrize("lost", ["the entry", "the ready set", "every ready set and its index"])
def test_an_offer_lost_from_the_ready_set_is_restored_and_runs_once(
    make_coordinator: Callable[..., Coordinator], lost: str
) -> None:
    coordinator = make_coordinator(dispatch_timeout=0.3)
    job = coordinator.submit(group("only"))
    coordinator.read()
    (offer,) = coordinator.sent
    ready = coordinator.keys.ready("light")
    if lost == "the entry":
        assert coordinator.redis.zrem(ready, str(offer)) == 1
    else:
        assert coordinator.redis.delete(ready) == 1
    if lost == "every ready set and its index":
        coordinator.redis.delete(
            coordinator.keys.lanes, coordinator.keys.turn, coordinator.keys.of(job).turns
        )

    wait_until(
        lambda: coordinator.sweep.run() and bool(coordinator.sent),
        20,
        "the offer to stand ready again",
    )

    (again,) = coordinator.offers()
    assert again == offer, (
        "the same offer, so that a copy of it that stands elsewhere is the same attempt"
    )
    coordinator.work(again)
    coordinator.read()
    assert coordinator.status(job) is Status.FINISHED
    assert coordinator.events(job, "only") == ["QUEUED", "RUNNING", "SUCCEEDED"]


def test_a_late_but_present_offer_keeps_its_turn(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """It is made again after the dispatch timeout, since nobody knows that it stands; that must not
    cost its place.
    """
    coordinator = make_coordinator(dispatch_timeout=0.2)
    coordinator.submit(*(group(f"g{n}") for n in range(3)), name="first")
    coordinator.submit(*(group(f"g{n}") for n in range(3)), name="second")
    coordinator.read()
    ready = coordinator.keys.ready("light")
    before = coordinator.redis.zrange(ready, 0, -1, withscores=True)
    assert len(before) == 6
    made: list[int] = []
    acknowledge = coordinator.store.acknowledge

    def noted(
        job: str, due: object, due_seen: object, acks: object, offers: Any = MappingProxyType({})
    ) -> None:
        made.append(len(offers))
        acknowledge(job, due, due_seen, acks, offers)  # type: ignore[arg-type]

    coordinator.store.acknowledge = noted  # type: ignore[method-assign, assignment]
    wait_until(
        lambda: coordinator.sweep.run() >= 0 and made.count(3) >= 2, 20, "all six to be made again"
    )
    assert coordinator.redis.zrange(ready, 0, -1, withscores=True) == before


def test_the_next_sweep_repeats_a_lost_wake_up(coordinator: Coordinator) -> None:
    """The worker that had received it was killed: the offer stands, and nobody comes for it."""
    coordinator.submit(group("only"))
    coordinator.read()
    assert coordinator.wake_ups == {"light": 1}

    coordinator.wake_ups.clear()  # lost
    coordinator.sweep.run()
    assert coordinator.wake_ups == {"light": 1}

    coordinator.offers()
    coordinator.wake_ups.clear()
    coordinator.sweep.run()
    assert not coordinator.wake_ups, "nothing stands ready"


def test_the_next_sweep_sends_a_wake_up_that_failed(
    coordinator: Coordinator,
) -> None:
    def refuse(wake_ups: object) -> None:
        raise ConnectionError("the broker refuses writes")

    coordinator.send_wake_ups = refuse
    job = coordinator.submit(group("only"))
    coordinator.read()
    assert coordinator.events(job, "only") == ["QUEUED"]
    assert [offer.group for offer in coordinator.sent] == ["only"]
    coordinator.sweep.run()

    coordinator.send_wake_ups = coordinator.wake_ups.update
    coordinator.sweep.run()
    assert coordinator.wake_ups == {"light": 1}


@pytest.mark.claim(
    "If Redis loses an offer or a report, the group still runs once and its outcome counts."
)
def test_the_sweep_recovers_a_report_deleted_from_the_stream(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("first"), group("second", "first"))
    coordinator.read()
    (offer,) = coordinator.offers()
    coordinator.work(offer)
    coordinator.redis.xtrim(coordinator.keys.reports, maxlen=0, approximate=False)

    coordinator.sweep.run()

    assert [sent.group for sent in coordinator.sent] == ["second"]
    assert coordinator.events(job, "first") == ["QUEUED", "RUNNING", "SUCCEEDED"]


def test_the_last_branch_of_a_join_starts_its_successor_after_a_busy_lock(
    make_coordinator: Callable[..., Coordinator], redis_server: RedisServer
) -> None:
    """The Conductor case: beat is off, and no sweep may help."""
    coordinator = make_coordinator(sweep_every=3600)
    job = coordinator.submit(
        group("left"), group("right"), join("both", "left", "right"), group("after", "both")
    )
    coordinator.read()
    left, right = sorted(coordinator.offers(), key=lambda offer: offer.group)
    coordinator.work(left)
    coordinator.read()
    coordinator.store.tick(3600, 15)
    consumer = threading.Thread(target=coordinator.consumer.run)
    lock = coordinator.keys.of(job).lock

    with connect(redis_server.url) as other:
        assert other.set(lock, "another coordinator", nx=True, px=60_000)
        consumer.start()
        try:
            coordinator.work(right)
            wait_until(
                lambda: other.exists(coordinator.keys.of(job).dirty),
                20,
                "the consumer to meet the lock busy",
            )
            assert not coordinator.sent
            assert coordinator.events(job, "right") == ["QUEUED"]
            other.delete(lock)
            limit = Limit(10.0)  # an idle report would come after 15 s
            wait_until(
                lambda: bool(coordinator.sent), 20, "the successor to be queued", every=0.002
            )
            in_time = limit.kept
        finally:
            coordinator.consumer.stopping.set()
            consumer.join()

    assert [offer.group for offer in coordinator.sent] == ["after"]
    assert in_time, f"queued not by the lock, but by a sweep or an idle report: {limit}"


def test_a_job_continues_when_the_lock_of_a_dead_holder_expires(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(lock_ttl=0.5)
    job = coordinator.submit(group("only"))
    begun = coordinator.store.begin(job, "a coordinator that dies now")
    assert begun.answer == "LOCKED"

    # Both ways on: the report that stays pending, and the due that was pushed to the end of the
    # lock's term.
    assert coordinator.show(job).due_at == pytest.approx(
        begun.now + coordinator.settings.lock_term, abs=0.01
    )
    wait_until(lambda: coordinator.sweep.run() and bool(coordinator.sent), 20, "the job to go on")
    assert coordinator.events(job, "only") == ["QUEUED"]


def test_a_job_due_much_later_continues_when_the_lock_of_a_dead_holder_expires(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """What began the pass (what came of publishing, a late report) may have moved no due: the pass
    itself does.
    """
    coordinator = make_coordinator(lock_ttl=0.5)
    job = coordinator.submit(group("only"))
    coordinator.redis.xtrim(
        coordinator.keys.reports, maxlen=0, approximate=False
    )  # the wake-up of the submit is lost
    coordinator.redis.zadd(coordinator.keys.due, {job: coordinator.show(job).at + 3600})
    begun = coordinator.store.begin(job, "a coordinator that dies now")

    assert coordinator.show(job).due_at == pytest.approx(
        begun.now + coordinator.settings.lock_term, abs=0.01
    )
    wait_until(lambda: coordinator.sweep.run() and bool(coordinator.sent), 20, "the job to go on")
    assert coordinator.events(job, "only") == ["QUEUED"]


def test_the_holder_of_a_contended_lock_runs_one_more_pass(coordinator: Coordinator) -> None:
    """Rule 5: whoever meets the lock busy leaves a flag, and the holder answers it before it lets
    go.
    """
    job = coordinator.submit(group("only"))
    begun = coordinator.store.begin(job, "holder")
    assert coordinator.store.begin(job, "somebody else").answer == "BUSY"
    assert coordinator.store.end(job, "holder") == "AGAIN"
    assert coordinator.store.begin(job, "holder").answer == "LOCKED", (
        "the lock is kept through AGAIN"
    )
    assert coordinator.store.end(job, "holder") == "RELEASED"
    assert begun.answer == "LOCKED"


def test_the_consumer_sweeps_without_celery_beat(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """No beat at all makes no difference in the outcome."""
    coordinator = make_coordinator(sweep_every=0.1, dispatch_timeout=0.3)
    job = coordinator.submit(group("only"))
    coordinator.redis.xtrim(
        coordinator.keys.reports, maxlen=0, approximate=False
    )  # nor does the wake-up of the submit arrive
    consumer = threading.Thread(target=coordinator.consumer.run)
    consumer.start()
    try:
        wait_until(lambda: bool(coordinator.sent), 5, "the group to be queued without beat")
        coordinator.offers()  # and the offer is lost
        coordinator.wake_ups.clear()
        wait_until(lambda: bool(coordinator.sent), 5, "the offer to be put back without beat")
        wait_until(lambda: coordinator.wake_ups["light"] > 0, 5, "a wake-up without beat")
        coordinator.work(coordinator.offers()[0])
        coordinator.wait_for(job, Status.FINISHED)
    finally:
        coordinator.consumer.stopping.set()
        consumer.join()


def test_two_simultaneous_sweeps_decide_every_job_once(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """Two beats make no difference in the outcome."""
    one, two = make_coordinator(), make_coordinator()
    jobs = [one.submit(group("only"), name=f"job{i}") for i in range(20)]
    threads = [
        threading.Thread(target=coordinator.sweep.run)
        for coordinator in (one, two)
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(offer.job for offer in one.sent) == sorted(jobs)
    assert all(one.events(job, "only") == ["QUEUED"] for job in jobs)


@pytest.mark.claim(
    "A report that nobody can apply becomes a dead letter, and blocks no report behind it."
)
def test_a_report_of_an_unknown_job_becomes_a_dead_letter_and_later_reports_are_applied(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("only"))
    coordinator.read()
    (offer,) = coordinator.offers()
    ghost = "20130101T000000-ghost/only/1/n/c"
    coordinator.redis.xadd(
        coordinator.keys.reports, {"v": 1, "id": "e", "token": ghost, "kind": "succeeded", "at": 1}
    )
    coordinator.work(offer)

    coordinator.read()

    assert coordinator.status(job) is Status.FINISHED
    (dead,) = coordinator.client.dead_letters.newest()
    assert dead.reason.startswith("UNKNOWN_JOB")
    assert dead.fields["token"] == ghost
    assert coordinator.redis.xpending(coordinator.keys.reports, "coordinators")["pending"] == 0, (
        "a dead letter is acked: no loop"
    )
    coordinator.read()
    assert len(coordinator.client.dead_letters.newest()) == 1


def test_finish_reports_the_outcome_of_a_job_missing_from_the_store(
    coordinator: Coordinator,
) -> None:
    """The SeaTunnel case: "not found" is no success. The worker is told, and people can see it."""
    job = coordinator.submit(group("only"))
    coordinator.read()
    (offer,) = coordinator.offers()
    coordinator.claim(offer)
    coordinator.read()
    coordinator.redis.delete(coordinator.keys.of(job).job)

    assert coordinator.finish(offer.held_by("runner1")) == "UNKNOWN_JOB"
    coordinator.read()
    assert [dead.reason.split(":")[0] for dead in coordinator.client.dead_letters.newest()] == [
        "UNKNOWN_JOB"
    ]


@pytest.mark.claim(
    "A report that nobody can apply becomes a dead letter, and blocks no report behind it."
)
def test_unreadable_reports_become_dead_letters(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("only"))
    coordinator.read()
    (offer,) = coordinator.offers()
    token = str(offer.held_by("runner1"))
    for fields in (
        {"v": 1, "id": "e", "kind": "succeeded", "at": 1},  # no token
        {"v": 1, "id": "e", "token": "rubbish", "kind": "succeeded", "at": 1},
        {"v": 1, "id": "e", "token": token, "kind": "exploded", "at": 1},
        {"v": "one", "id": "e", "token": token, "kind": "succeeded", "at": 1},
        {"v": 1, "id": "e", "token": token, "kind": "succeeded", "at": "noon"},
        {"hello": "world"},
        {"kind": "due"},  # a wake-up that does not say of which job
    ):
        coordinator.redis.xadd(coordinator.keys.reports, fields)  # type: ignore[arg-type]
    coordinator.work(offer)

    coordinator.read()

    assert coordinator.status(job) is Status.FINISHED, "what stood behind them was applied"
    assert len(coordinator.client.dead_letters.newest()) == 7
    assert all(
        dead.reason.startswith("UNREADABLE") for dead in coordinator.client.dead_letters.newest()
    )
    assert coordinator.client.counters()["UNREADABLE"] == 7, "each was counted, none acked away"
    assert coordinator.redis.xpending(coordinator.keys.reports, "coordinators")["pending"] == 0


def test_a_report_of_an_unknown_version_becomes_a_dead_letter(
    coordinator: Coordinator,
) -> None:
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
        coordinator.redis.xadd(
            coordinator.keys.reports, {"v": version, "id": "e", "kind": "succeeded", "at": 1}
        )
    coordinator.read()
    reasons = [dead.reason for dead in coordinator.client.dead_letters.newest()]
    assert len(reasons) == len(strange)
    assert all(reason.startswith("UNREADABLE: its schema version is") for reason in reasons)
    assert max(map(len, reasons)) < 300, "a version that is long is not repeated whole"


@pytest.mark.claim(
    "A report that nobody can apply becomes a dead letter, and blocks no report behind it."
)
def test_a_dead_letter_of_a_newer_release_is_replayed_after_an_upgrade(
    make_coordinator: Callable[..., Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome stands on the record all the same, so the job goes on without the report."""
    older = make_coordinator()
    job = older.submit(group("only"))
    older.read()
    monkeypatch.setattr(
        "unstuck.tasks.transport.lease.SCHEMA_VERSION", 2
    )  # the workers are upgraded first
    (offer,) = older.offers()
    older.work(offer)
    older.read()
    letters = older.client.dead_letters.newest()
    assert [letter.fields["kind"] for letter in letters] == ["succeeded", "claimed"]
    assert all("its schema version is '2'" in letter.reason for letter in letters)
    older.sweep.run()
    assert older.status(job) is Status.FINISHED
    refused = older.client.dead_letters.replay(letters[0].id)
    assert refused.answer is DeadLetterAnswer.REFUSED, (
        "an older coordinator could not read it now, either"
    )

    monkeypatch.setattr("unstuck.tasks.protocol.report.SCHEMA_VERSION", 2)
    newer = make_coordinator()
    assert {newer.client.dead_letters.replay(letter.id).answer for letter in letters} == {
        DeadLetterAnswer.REPLAYED
    }
    newer.read()
    assert newer.client.dead_letters.newest() == []
    assert newer.status(job) is Status.FINISHED


def test_a_coordinator_new_to_a_job_applies_its_final_report(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """There is no reload window, since no coordinator holds the state."""
    first = make_coordinator()
    job = first.submit(group("only"))
    first.read()
    (offer,) = first.offers()
    first.claim(offer)
    first.read()
    del first.reconciler

    stranger = make_coordinator()
    stranger.finish(offer.held_by("runner1"))
    stranger.read()

    assert stranger.status(job) is Status.FINISHED


@pytest.mark.claim(
    "If a coordinator dies at any point, another one continues its jobs and applies nothing twice."
)
def test_another_coordinator_applies_reports_read_by_a_dead_one(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """Read, not applied, dead."""
    dies, other = make_coordinator(), make_coordinator(report_idle=0.2)
    job = dies.submit(group("only"))
    dies.read()
    (offer,) = dies.offers()
    dies.work(offer)
    assert dies.stream.read(500, 0.1), "read, and never acked"

    def pending() -> int:
        other.consumer.step()
        return int(other.redis.xpending(other.keys.reports, "coordinators")["pending"])

    wait_until(lambda: not pending(), 5, "the other coordinator to take the reports over")
    assert other.status(job) is Status.FINISHED


def test_the_stream_is_trimmed_to_the_oldest_pending_report_never_by_length(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("a"), group("b"))
    coordinator.read()
    for offer in coordinator.offers():
        coordinator.work(offer)
    pending = coordinator.stream.read(2, 0.1)  # read and not yet acked
    kept = pending[0].id

    coordinator.stream.trim()

    assert (
        next(entry_id for entry_id, _ in coordinator.redis.xrange(coordinator.keys.reports)) == kept
    )
    coordinator.consumer.apply(pending)
    coordinator.read()
    coordinator.stream.trim()
    assert coordinator.status(job) is Status.FINISHED
    assert coordinator.redis.xlen(coordinator.keys.reports) <= 1


def test_a_wake_up_between_load_and_commit_is_never_lost(coordinator: Coordinator) -> None:
    """Rule 5: due moves later only if it still is what this pass has set."""
    job = coordinator.submit(group("a"), group("b"))
    coordinator.read()
    a, b = coordinator.offers()
    coordinator.claim(a)
    coordinator.claim(b)
    coordinator.read()
    coordinator.finish(a.held_by("runner1"))

    load = coordinator.store.load

    def finish_b_after_the_load(*args: object) -> object:
        state = load(*args)  # type: ignore[arg-type]
        coordinator.finish(b.held_by("runner1"))
        return state

    coordinator.store.load = finish_b_after_the_load  # type: ignore[method-assign, assignment]
    entries = coordinator.stream.read(1, 0.1)
    coordinator.consumer.apply(entries)
    coordinator.store.load = load  # type: ignore[method-assign]
    coordinator.redis.xtrim(
        coordinator.keys.reports, maxlen=0, approximate=False
    )  # b's report is lost as well

    assert coordinator.due_in(job) <= 0, (
        "b's finish made the job due, and the commit of a's left that standing"
    )
    coordinator.sweep.run()
    assert coordinator.status(job) is Status.FINISHED


def test_an_emptied_store_gets_its_consumer_group_again(
    coordinator: Coordinator, client: redis.Redis
) -> None:
    consumer = threading.Thread(target=coordinator.consumer.run)
    consumer.start()
    try:
        client.delete(coordinator.keys.reports)
        job = coordinator.submit(group("only"))
        wait_until(
            lambda: bool(coordinator.sent),
            5,
            "the consumer to find its group gone and make it again",
        )
        coordinator.work(coordinator.offers()[0])
        coordinator.wait_for(job, Status.FINISHED)
    finally:
        coordinator.consumer.stopping.set()
        consumer.join()
    assert not consumer.is_alive()
