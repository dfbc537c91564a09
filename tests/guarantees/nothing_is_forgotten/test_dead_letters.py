"""Dead letters: poison stops nobody, and what is replayed is applied once, with a trace of who
asked.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.support.coordinator import Coordinator, group
from tests.support.servers import wait_until
from unstuck import NoSuchReport, Status
from unstuck.coordinator.reconcile.consumer import KILLER_AFTER, POISON_AFTER
from unstuck.coordinator.store.dead_letter_store import DeadLetterAnswer
from unstuck.coordinator.store.reports import DeadLetter

REPORT = {"v": "1", "id": "e1", "kind": "succeeded", "at": "1388534400"}


def poisoned(coordinator: Coordinator) -> str:
    """A job that no coordinator can decide, nor even halt: what should be its lock is a list."""
    job = coordinator.submit(group("only"), name="poisoned")
    coordinator.redis.rpush(coordinator.keys.of(job).lock, "SLEEPING")
    return job


def one_dead_letter(coordinator: Coordinator, token: str, **fields: str) -> DeadLetter:
    coordinator.redis.xadd(coordinator.keys.reports, {**REPORT, "token": token, **fields})  # type: ignore[arg-type]
    coordinator.read()
    return coordinator.client.dead_letters.newest()[0]


# -- poison ----------------------------------------------------------------------------------------


def test_a_report_that_always_raises_becomes_a_dead_letter_and_later_reports_are_applied(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(report_idle=0.02, lock_ttl=0.02)
    bad = poisoned(coordinator)
    coordinator.redis.xadd(coordinator.keys.reports, {**REPORT, "token": f"{bad}/only/1/n/c"})  # type: ignore[arg-type]
    good = coordinator.submit(group("only"), name="behind")

    assert coordinator.drive(good) is Status.FINISHED
    assert coordinator.client.dead_letters.newest() == [], (
        "not a dead letter at the first try: what ails it may pass"
    )

    def dead_letters() -> list[DeadLetter]:
        coordinator.consumer.step()
        return coordinator.client.dead_letters.newest()

    (dead,) = wait_until(dead_letters, 20, "the poison to be a dead letter")
    assert dead.reason.startswith("POISON: ")
    assert "WRONGTYPE" in dead.reason
    assert dead.deliveries >= POISON_AFTER
    assert coordinator.redis.xpending(coordinator.keys.reports, "coordinators")["pending"] == 0


def test_a_new_coordinator_takes_over_unfinished_reports_in_its_first_round(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """Without a wait of its own on top of ``report_idle``, and whoever sweeps: a sweep applies no
    report.
    """
    dead = make_coordinator()
    job = dead.submit(group("only"))
    dead.read()
    (offer,) = dead.offers()
    dead.work(offer)
    entries = [entry.id for entry in dead.stream.read(10, 0.01)]
    heir = make_coordinator(report_idle=60.0)
    reports, idle = (heir.keys.reports, "coordinators"), 61_000
    heir.redis.xclaim(
        *reports, "the dead one", 0, entries, idle=idle
    )  # as if it had died a minute ago
    assert heir.redis.xpending(*reports)["pending"] == len(entries) == 2
    heir.consumer.step()
    assert heir.redis.xpending(*reports)["pending"] == 0
    assert heir.status(job) is Status.FINISHED


def test_a_report_that_killed_every_coordinator_becomes_a_dead_letter_untried(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """It was delivered again and again, and whoever had it never came back: the next does not die
    of it too.
    """
    dies = make_coordinator()
    job = dies.submit(group("only"))
    dies.read()
    dies.redis.xadd(dies.keys.reports, {**REPORT, "token": f"{job}/only/1/n/c"})  # type: ignore[arg-type]
    (entry,) = dies.stream.read(1, 0.01)
    for _ in range(KILLER_AFTER):
        assert dies.stream.claim_idle(0, 10) != []

    heir = make_coordinator(report_idle=0.001)

    def dead_letters() -> list[DeadLetter]:
        heir.consumer.step()
        return heir.client.dead_letters.newest()

    (dead,) = wait_until(dead_letters, 10, "the report to be a dead letter")
    assert (dead.entry, dead.deliveries) == (entry.id, KILLER_AFTER + 2)
    assert "no coordinator that took it finished it" in dead.reason


def test_a_report_redelivered_because_the_store_was_full_is_not_poison(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """A full store refuses what a commit writes, and gives out what waits all the same."""
    coordinator = make_coordinator(report_idle=0.001)
    job = coordinator.submit(group("only"))
    coordinator.read()
    (offer,) = coordinator.offers()
    coordinator.work(offer)
    assert coordinator.stream.read(10, 0.01) != [], "a coordinator had it, and died"
    full = int(coordinator.redis.config_get("maxmemory")["maxmemory"])
    coordinator.redis.config_set("maxmemory", 1)
    try:
        for _ in range(2 * KILLER_AFTER):
            coordinator.clock.skip(60.0)  # the time of the next claim has come
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                coordinator.consumer.step()
    finally:
        coordinator.redis.config_set("maxmemory", full)

    def applied() -> bool:
        coordinator.clock.skip(60.0)
        coordinator.consumer.step()
        return coordinator.status(job) is Status.FINISHED

    wait_until(applied, 20, "the report to be applied")
    assert coordinator.client.dead_letters.newest() == []


def test_a_job_that_cannot_be_decided_stops_no_sweep(coordinator: Coordinator) -> None:
    bad = poisoned(coordinator)
    good = coordinator.submit(group("only"), name="behind")
    coordinator.redis.xtrim(
        coordinator.keys.reports, maxlen=0
    )  # no wake-up: the sweep alone must find both

    for _ in range(3):
        coordinator.sweep.run()

    assert [offer.job for offer in coordinator.offers()] == [good]
    assert bad in coordinator.redis.zrange(coordinator.keys.due, 0, -1), (
        "it stays due, where people find it"
    )


# -- replay and drop -------------------------------------------------------------------------------


def test_replaying_a_dead_letter_of_a_restored_job_applies_it(
    coordinator: Coordinator,
) -> None:
    """The store was rolled back to before the job, and restored later: its last report is not
    lost.
    """
    job = coordinator.submit(group("only"))
    coordinator.read()
    (offer,) = coordinator.offers()
    coordinator.claim(offer)
    coordinator.read()
    key = coordinator.keys.of(job).job
    coordinator.redis.rename(key, "elsewhere")
    coordinator.finish(offer.held_by("runner1"))
    coordinator.read()
    (dead,) = coordinator.client.dead_letters.newest()

    refused = coordinator.client.dead_letters.replay(dead.id, by="ann@desk")
    assert refused.answer is DeadLetterAnswer.REFUSED
    assert f"no job {job} is in the store" in refused.text
    assert coordinator.client.dead_letters.get(dead.id) == dead, "a refusal changes nothing"

    coordinator.redis.rename("elsewhere", key)
    assert (
        coordinator.client.dead_letters.replay(dead.id, by="ann@desk").answer
        is DeadLetterAnswer.REPLAYED
    )
    before = coordinator.client.counters()
    coordinator.read()

    assert coordinator.client.dead_letters.newest() == []
    after = coordinator.client.counters()
    assert after.get("APPLIED", 0) == before.get("APPLIED", 0) + 1
    (event,) = [
        event for _, event in coordinator.client.events(job) if event["kind"] == "REPORT_REPLAYED"
    ]
    assert event["by"] == "ann@desk"
    assert event["at"] > 0


def test_a_replay_whose_reply_was_lost_adds_one_report(coordinator: Coordinator) -> None:
    job = coordinator.submit(group("only"))
    coordinator.read()
    dead = one_dead_letter(coordinator, "20130101T000000-ghost/only/1/n/c")
    coordinator.redis.hset(
        coordinator.keys.of("20130101T000000-ghost").job,
        mapping=coordinator.redis.hgetall(coordinator.keys.of(job).job),
    )

    assert (
        coordinator.client.dead_letters.replay(dead.id, by="ann@desk").answer
        is DeadLetterAnswer.REPLAYED
    )
    again = coordinator.client.dead_letters.replay(dead.id, by="bob@desk")

    assert again.answer is DeadLetterAnswer.ALREADY
    assert "replayed before, by ann@desk" in again.text
    assert len(coordinator.stream.read(10, 0.01)) == 1
    assert coordinator.client.dead_letters.drop(dead.id).answer is DeadLetterAnswer.ALREADY


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"token": "rubbish"}, "not a token"),
        ({"token": "j/only/1/n/c", "kind": "exploded"}, "exploded"),
        ({"token": "j/only/1/n/c", "v": "one"}, "schema version"),
    ],
)
def test_an_unreadable_dead_letter_is_not_replayed_and_says_why(
    coordinator: Coordinator, fields: dict[str, str], why: str
) -> None:
    dead = one_dead_letter(coordinator, **fields)

    refused = coordinator.client.dead_letters.replay(dead.id)

    assert refused.answer is DeadLetterAnswer.REFUSED
    assert why in refused.text
    assert coordinator.client.dead_letters.newest() == [dead]
    assert coordinator.stream.read(10, 0.01) == []


def test_a_dropped_report_is_removed_and_its_job_records_the_user(coordinator: Coordinator) -> None:
    job = coordinator.submit(group("only"))
    dead = one_dead_letter(coordinator, "rubbish")
    bad = one_dead_letter(coordinator, f"{job}/only/1/n/c", kind="exploded")

    assert coordinator.client.dead_letters.drop(dead.id).answer is DeadLetterAnswer.DROPPED
    assert (
        coordinator.client.dead_letters.drop(bad.id, by="ann@desk").answer
        is DeadLetterAnswer.DROPPED
    )
    assert coordinator.client.dead_letters.newest() == []
    (event,) = [
        event for _, event in coordinator.client.events(job) if event["kind"] == "REPORT_DROPPED"
    ]
    assert (event["by"], bad.id in event["text"]) == ("ann@desk", True)
    assert coordinator.client.dead_letters.drop("1-0").answer is DeadLetterAnswer.GONE
    with pytest.raises(NoSuchReport, match="unstuck dead list"):
        coordinator.client.dead_letters.get(dead.id)
    with pytest.raises(NoSuchReport, match="1388534400000-0"):
        coordinator.client.dead_letters.get("the last one")


@pytest.mark.parametrize("name", ["abc", "1-", f"{2**70}-0", f"{'9' * 5000}-0"])
def test_an_invalid_report_id_is_reported_and_the_others_are_processed(
    coordinator: Coordinator, name: str
) -> None:
    for treat in (coordinator.client.dead_letters.replay, coordinator.client.dead_letters.drop):
        assert treat(name, by="tester").answer == "GONE"
