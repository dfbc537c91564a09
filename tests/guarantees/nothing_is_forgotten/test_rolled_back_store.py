"""What was read before the store was rolled back, and is written after it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.support.coordinator import Head, failed, group
from unstuck.coordinator.errors import Refused
from unstuck.coordinator.model.decision import Acks
from unstuck.coordinator.model.status import Status

ONCE = {"max": 0}  # no retry


def snapshot(head: Head) -> Callable[[], None]:
    """How to go back to the store as it is now."""
    raw = redis.Redis(port=int(head.settings.redis_url.rsplit(":", 1)[1].split("/")[0]))
    saved = {key: raw.dump(key) for key in raw.keys("*")}  # type: ignore[union-attr]

    def restore() -> None:
        raw.flushall()
        for key, value in saved.items():
            raw.restore(key, 0, value)  # type: ignore[arg-type]
        raw.close()

    return restore


def running(head: Head) -> str:
    job = head.submit(group("a", retry=ONCE))
    head.read()
    head.claim(head.hints()[0])
    head.read()
    return job


def fails(head: Head, job: str) -> None:
    hint = head.show(job).groups[0].members[0].record.hint(job, "a")
    head.finish(hint.held_by("runner1"), failed())
    head.read()
    assert head.status(job) is Status.FAILED


def test_a_job_whose_end_was_forgotten_stays_due_for_a_pass_that_had_read_it(head: Head) -> None:
    """A coordinator read that it had ended, stood still while the store went back, and settles the job now."""
    job = running(head)
    begun = head.store.begin(job, "somebody")
    back = snapshot(head)
    head.store.end(job, "somebody")
    fails(head, job)
    back()
    head.store.settle(job, None, begun.due_seen, Acks((), {}))
    assert head.redis.zscore(head.keys.due, job) is not None, "nobody would look at it again"
    head.store.end(job, "somebody")
    fails(head, job)
    head.store.settle(job, None, begun.due_seen, Acks((), {}))
    assert head.redis.zscore(head.keys.due, job) is None


def test_a_job_that_goes_on_again_is_not_retried_by_who_had_seen_it_ended(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own attempt and that of the retry would do the same work."""
    job = running(head)
    back = snapshot(head)
    fails(head, job)
    ended = head.client.show(job).job
    back()
    monkeypatch.setattr(head.client, "_record", lambda _: ended)
    jobs = len(head.client.jobs())
    with pytest.raises(Refused, match="RUNNING"):
        head.client.retry(job)
    assert len(head.client.jobs()) == jobs
    fails(head, job)
    assert head.client.retry(job).new, "the key of the one that was refused is free"


def test_a_rerun_takes_over_nothing_of_one_that_the_store_has_forgotten(head: Head) -> None:
    """It was asked for, made its output, was forgotten with it, and is asked for again: what it made then is not it.

    Seed 33076 of the simulator: a count of reruns came round again.
    """
    job = head.submit(group("a"), group("b", "a", retry=ONCE), group("c"))
    head.read()
    for hint in head.hints():
        head.work(hint)
    head.read()
    head.client.pause(job)
    head.read()

    def made_anew() -> str:
        assert head.client.rerun(job, "a").answer == "DONE"
        back = snapshot(head)
        head.client.resume(job)
        head.read()
        (hint,) = [hint for hint in head.hints(job) if hint.group == "a"]
        order = head.claim(hint).order
        assert order is not None
        back()
        return order.fingerprint

    back = snapshot(head)
    before = made_anew()
    back()
    assert made_anew() != before, "a marker of before would be taken over"


def test_a_command_makes_a_job_due_no_later_than_it_was(head: Head) -> None:
    """The most overdue are looked at first."""
    job = running(head)
    head.redis.zadd(head.keys.due, {job: 1.0})
    head.client.pause(job)
    assert head.redis.zscore(head.keys.due, job) == 1.0
