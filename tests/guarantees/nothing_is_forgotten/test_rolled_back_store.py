"""What was read before the store was rolled back, and is written after it; and keys of a job that
are gone.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.guarantees.shown_is_true.test_states import staged
from tests.support.coordinator import Coordinator, failed, group
from tests.support.servers import wait_until
from unstuck import Refused, Status
from unstuck.coordinator.model.decision import Acks
from unstuck.coordinator.store.job_queries import Queries
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.warehouse.log import Warehouse

ONCE = {"max": 0}  # no retry


def snapshot(coordinator: Coordinator) -> Callable[[], None]:
    """How to go back to the store as it is now."""
    raw = redis.Redis(port=int(coordinator.settings.redis_url.rsplit(":", 1)[1].split("/")[0]))
    # A key that expires between the two is as good as never there.
    saved = {key: value for key in raw.keys("*") if (value := raw.dump(key)) is not None}  # type: ignore[union-attr]

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
    offer = coordinator.offer_of(job, "a")
    coordinator.finish(offer.held_by("runner1"), failed())
    coordinator.read()
    assert coordinator.status(job) is Status.FAILED


def test_a_job_whose_end_was_rolled_back_stays_due(
    coordinator: Coordinator,
) -> None:
    """A coordinator read that it had ended, stood still while the store went back, and settles the
    job now.
    """
    job = running(coordinator)
    begun = coordinator.store.begin(job, "somebody")
    back = snapshot(coordinator)
    coordinator.store.end(job, "somebody")
    fails(coordinator, job)
    back()
    coordinator.store.acknowledge(job, None, begun.due_seen, Acks((), {}))
    assert coordinator.redis.zscore(coordinator.keys.due, job) is not None, (
        "nobody would look at it again"
    )
    coordinator.store.end(job, "somebody")
    fails(coordinator, job)
    coordinator.store.acknowledge(job, None, begun.due_seen, Acks((), {}))
    assert coordinator.redis.zscore(coordinator.keys.due, job) is None


def test_a_job_that_resumed_after_a_rollback_is_not_retried_by_an_outdated_observer(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own attempt and that of the retry would do the same work."""
    job = running(coordinator)
    back = snapshot(coordinator)
    fails(coordinator, job)
    ended = coordinator.queries.state(job)
    back()
    monkeypatch.setattr(Queries, "state", lambda *_: ended)
    jobs = len(coordinator.client.jobs())
    with pytest.raises(Refused, match="RUNNING"):
        coordinator.client.retry(job)
    assert len(coordinator.client.jobs()) == jobs
    fails(coordinator, job)
    assert coordinator.client.retry(job).new, "the key of the one that was refused is free"


def test_a_rerun_reuses_nothing_of_a_rerun_lost_in_a_rollback(
    coordinator: Coordinator,
) -> None:
    """It was asked for, made its output, was forgotten with it, and is asked for again: what it
    made then is not it.

    Seed 33076 of the simulator: a count of reruns came round again.
    """
    job = coordinator.submit(group("a"), group("b", "a", retry=ONCE), group("c"))
    coordinator.read()
    for offer in coordinator.offers():
        coordinator.work(offer)
    coordinator.read()
    coordinator.client.pause(job)
    coordinator.read()

    def made_again() -> str:
        assert coordinator.client.rerun(job, "a").answer == "DONE"
        back = snapshot(coordinator)
        coordinator.client.resume(job)
        coordinator.read()
        (offer,) = [offer for offer in coordinator.offers(job) if offer.group == "a"]
        order = coordinator.claim(offer).work_order
        assert order is not None
        back()
        return order.fingerprint

    back = snapshot(coordinator)
    before = made_again()
    back()
    assert made_again() != before, "a marker of before would be taken over"


def test_a_command_never_postpones_the_due_time_of_a_job(coordinator: Coordinator) -> None:
    """The most overdue are looked at first."""
    job = running(coordinator)
    coordinator.redis.zadd(coordinator.keys.due, {job: 1.0})
    coordinator.client.pause(job)
    assert coordinator.redis.zscore(coordinator.keys.due, job) == 1.0


def order_texts(coordinator: Coordinator, job: str) -> dict[str, str]:
    """What each offer that stands would give its runner, beside the job's parameters: plan, inputs
    and fork value.
    """
    keys, found = coordinator.keys.of(job), {}
    for offer in coordinator.sent:
        names = [offer.group.partition("[")[0], offer.group]
        found[offer.group] = str(
            [coordinator.redis.hmget(key, names) for key in (keys.plans, keys.inputs)]
        )
    return found


@pytest.mark.parametrize("lost", [("plans",), ("inputs",), ("plans", "inputs")], ids="+".join)
def test_lost_plans_and_inputs_are_recreated_and_the_event_log_says_so(
    make_coordinator: Callable[..., Coordinator], lost: tuple[str, ...]
) -> None:
    """Every take drops an offer whose plan or inputs are gone, so nobody else would ever notice."""
    coordinator = make_coordinator(dispatch_timeout=0.3)
    months = {"name": "by_month", "needs": ["a"], "for_each": {"month": [1, 2]}}
    job = coordinator.submit(group("a"), group("b", "a"), {**group("by_month"), **months})
    coordinator.read()
    coordinator.work(coordinator.offers()[0])
    coordinator.read()
    before = order_texts(coordinator, job)
    assert sorted(before) == ["b", "by_month[0]", "by_month[1]"]
    coordinator.redis.delete(*(getattr(coordinator.keys.of(job), key) for key in lost))
    for offer in coordinator.sent:
        assert coordinator.claim(offer, "in vain").answer == "REFUSED"

    wait_until(
        lambda: coordinator.sweep.run() and len(coordinator.sent) == 3,
        2,
        "all offers to stand again",
    )

    assert order_texts(coordinator, job) == before
    (told,) = [event for _, event in coordinator.client.events(job) if event["kind"] == "RESTORED"]
    assert all(key in told["text"] for key in lost)
    assert coordinator.drive(job) is Status.FINISHED


def test_lost_fork_values_halt_the_job_and_why_says_so(
    coordinator: Coordinator,
) -> None:
    """Nothing in the store says what they were, and without them the fork would never be done."""
    fork = group("fork", "a", for_each={"n": {"from": "a.n"}})
    job = coordinator.submit(group("a"), fork)
    coordinator.read()
    ended = Outcome(OutcomeKind.SUCCEEDED, rows={"a": 2}, forks={"a.n": (1, 2)})
    coordinator.work(coordinator.offers()[0], ended)
    coordinator.read()
    assert [offer.group for offer in coordinator.sent] == ["fork[0]", "fork[1]"]
    coordinator.redis.delete(coordinator.keys.of(job).forks)
    for offer in coordinator.offers():
        coordinator.work(offer)

    wait_until(
        lambda: (
            coordinator.read(),
            coordinator.sweep.run(),
            coordinator.status_of_record(job) is Status.HALTED,
        )[-1],
        *(2, "the job to be halted"),
    )
    assert "values of the fork fork" in coordinator.client.explain(job)[0].what


@pytest.mark.parametrize("lost", ["due", "jobs", "summary", "ended", "retries", "status"])
def test_the_sweep_rebuilds_a_lost_index(coordinator: Coordinator, lost: str) -> None:
    """No report comes of a job that waits, so a job that is not due any more would wait for
    ever.
    """
    first = running(coordinator)
    fails(coordinator, first)
    again = coordinator.client.retry(first).id
    coordinator.read()
    indexes = (
        [getattr(coordinator.keys, lost)]
        if lost != "status"
        else [coordinator.keys.status(s) for s in Status]
    )

    def stands() -> list[object]:
        entries = [
            coordinator.redis.zrange(key, 0, -1)
            for key in indexes
            if coordinator.redis.type(key) == "zset"
        ]
        hashes = [
            coordinator.redis.hgetall(key)
            for key in indexes
            if coordinator.redis.type(key) == "hash"
        ]
        ended = coordinator.redis.zscore(coordinator.keys.ended, first)
        times = [
            coordinator.redis.zscore(key, again) for key in indexes if key == coordinator.keys.jobs
        ]
        return [entries, hashes, times, ended and round(ended / 60)]

    def listed() -> list[object]:
        jobs = coordinator.client.jobs()
        return [jobs, *(coordinator.client.jobs(status=[status]) for status in Status)]

    before, seen = stands(), listed()
    assert len(seen[0]) == 2  # type: ignore[arg-type]
    assert coordinator.redis.delete(*indexes)
    assert stands() != before
    for _ in range(20):  # the keys are looked at in pieces
        coordinator.sweep.run()
    assert stands() == before
    assert listed() == seen
    coordinator.redis.zadd(coordinator.keys.due, {again: 0}, xx=True)
    assert coordinator.drive(again) is Status.FINISHED


def test_a_large_index_is_rebuilt_in_bounded_pieces(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = {coordinator.submit(group("a")) for _ in range(40)}
    monkeypatch.setattr("unstuck.coordinator.store.indexes.KEYS_AFTER_A_LOSS", 20)
    coordinator.redis.delete(coordinator.keys.due)
    coordinator.sweep.run()
    found = coordinator.redis.zcard(coordinator.keys.due)
    assert 0 < found < 40, "one sweep looks at a piece"
    for _ in range(40):
        coordinator.sweep.run()
    assert set(coordinator.redis.zrange(coordinator.keys.due, 0, -1)) == jobs


def succeeds(coordinator: Coordinator, job: str, runner: str) -> None:
    """Claim the group of the job, unless ``runner1`` holds it, and finish it with one staged
    file.
    """
    if runner != "runner1":
        coordinator.read()
        coordinator.claim(coordinator.offers(job)[0], runner)
    offer = coordinator.offer_of(job, "a")
    coordinator.finish(offer.held_by(runner), staged(coordinator, offer, "out", runner=runner))
    coordinator.read()


def appending(coordinator: Coordinator) -> str:
    """A running job that appends to a dataset."""
    job = coordinator.submit(group("a", retry=ONCE), outputs={"out": {"mode": "append"}})
    coordinator.read()
    coordinator.claim(coordinator.offers()[0])
    coordinator.read()
    return job


def test_a_job_that_reruns_after_a_rollback_does_not_publish_beside_its_retry(
    coordinator: Coordinator,
) -> None:
    first = appending(coordinator)
    back = snapshot(coordinator)
    fails(coordinator, first)
    second = coordinator.client.retry(first).id
    succeeds(coordinator, second, "runner2")
    assert coordinator.show(second).version == 1
    back()
    succeeds(coordinator, first, "runner1")
    assert coordinator.status(first) is Status.FINISHED
    assert coordinator.show(first).version == 1, "the package of the retry"
    assert Warehouse(coordinator.settings.warehouse).head() == 1


def test_a_retry_lost_in_a_rollback_is_repeated_only_by_a_user(
    coordinator: Coordinator,
) -> None:
    first = appending(coordinator)
    fails(coordinator, first)
    back = snapshot(coordinator)
    second = coordinator.client.retry(first).id
    succeeds(coordinator, second, "runner2")
    back()
    with pytest.raises(
        Refused, match=f"retried before, as job {second}, which published version 1"
    ):
        coordinator.client.retry(first, reason="again")
    third = coordinator.client.retry(first, rerun=["a"]).id
    succeeds(coordinator, third, "runner3")
    assert coordinator.show(third).version == 2
