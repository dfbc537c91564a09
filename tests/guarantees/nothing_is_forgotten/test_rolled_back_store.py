"""What was read before the store was rolled back, and is written after it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.support.coordinator import Coordinator, failed, group
from unstuck.coordinator.errors import Refused
from unstuck.coordinator.model.decision import Acks
from unstuck.coordinator.model.status import Status

ONCE = {"max": 0}  # no retry


def snapshot(coordinator: Coordinator) -> Callable[[], None]:
    """How to go back to the store as it is now."""
    raw = redis.Redis(port=int(coordinator.settings.redis_url.rsplit(":", 1)[1].split("/")[0]))
    saved = {key: raw.dump(key) for key in raw.keys("*")}  # type: ignore[union-attr]

    def restore() -> None:
        raw.flushall()
        for key, value in saved.items():
            raw.restore(key, 0, value)  # type: ignore[arg-type]
        raw.close()

    return restore


def running(coordinator: Coordinator) -> str:
    job = coordinator.submit(group("a", retry=ONCE))
    coordinator.read()
    coordinator.claim(coordinator.offers()[0])
    coordinator.read()
    return job


def fails(coordinator: Coordinator, job: str) -> None:
    offer = coordinator.show(job).groups[0].members[0].record.offer(job, "a")
    coordinator.finish(offer.held_by("runner1"), failed())
    coordinator.read()
    assert coordinator.status(job) is Status.FAILED


def test_a_job_whose_end_was_forgotten_stays_due_for_a_pass_that_had_read_it(coordinator: Coordinator) -> None:
    """A coordinator read that it had ended, stood still while the store went back, and settles the job now."""
    job = running(coordinator)
    begun = coordinator.store.begin(job, "somebody")
    back = snapshot(coordinator)
    coordinator.store.end(job, "somebody")
    fails(coordinator, job)
    back()
    coordinator.store.settle(job, None, begun.due_seen, Acks((), {}))
    assert coordinator.redis.zscore(coordinator.keys.due, job) is not None, "nobody would look at it again"
    coordinator.store.end(job, "somebody")
    fails(coordinator, job)
    coordinator.store.settle(job, None, begun.due_seen, Acks((), {}))
    assert coordinator.redis.zscore(coordinator.keys.due, job) is None


def test_a_job_that_goes_on_again_is_not_retried_by_who_had_seen_it_ended(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own attempt and that of the retry would do the same work."""
    job = running(coordinator)
    back = snapshot(coordinator)
    fails(coordinator, job)
    ended = coordinator.client._state(job)
    back()
    monkeypatch.setattr(coordinator.client, "_state", lambda _: ended)
    jobs = len(coordinator.client.jobs())
    with pytest.raises(Refused, match="RUNNING"):
        coordinator.client.retry(job)
    assert len(coordinator.client.jobs()) == jobs
    fails(coordinator, job)
    assert coordinator.client.retry(job).new, "the key of the one that was refused is free"


def test_a_rerun_takes_over_nothing_of_one_that_the_store_has_forgotten(coordinator: Coordinator) -> None:
    """It was asked for, made its output, was forgotten with it, and is asked for again: what it made then is not it.

    Seed 33076 of the simulator: a count of reruns came round again.
    """
    job = coordinator.submit(group("a"), group("b", "a", retry=ONCE), group("c"))
    coordinator.read()
    for offer in coordinator.offers():
        coordinator.work(offer)
    coordinator.read()
    coordinator.client.pause(job)
    coordinator.read()

    def made_anew() -> str:
        assert coordinator.client.rerun(job, "a").answer == "DONE"
        back = snapshot(coordinator)
        coordinator.client.resume(job)
        coordinator.read()
        (offer,) = [offer for offer in coordinator.offers(job) if offer.group == "a"]
        order = coordinator.claim(offer).order
        assert order is not None
        back()
        return order.fingerprint

    back = snapshot(coordinator)
    before = made_anew()
    back()
    assert made_anew() != before, "a marker of before would be taken over"


def test_a_command_makes_a_job_due_no_later_than_it_was(coordinator: Coordinator) -> None:
    """The most overdue are looked at first."""
    job = running(coordinator)
    coordinator.redis.zadd(coordinator.keys.due, {job: 1.0})
    coordinator.client.pause(job)
    assert coordinator.redis.zscore(coordinator.keys.due, job) == 1.0
