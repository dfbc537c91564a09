"""Promise 4: every wait has an end; a wide job is no exception, and stands in nobody's way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.coordinator import Coordinator, failed, group, join
from tests.support.servers import wait_until
from unstuck import Status
from unstuck.coordinator.model.decision import MAX_TRANSITIONS, Decision
from unstuck.coordinator.store.answers import BeginAnswer, CommitAnswer, EndAnswer


def listening(coordinator: Coordinator, queue: str, slots: int) -> None:
    """As if ``slots`` runners listened on ``queue``."""
    for number in range(slots):
        coordinator.note_runner(f"r{number}", heard=-3600, queues=(queue,))


@pytest.mark.variant
@pytest.mark.parametrize("by", ["reports", pytest.param("sweep", marks=pytest.mark.long)])
def test_a_fork_of_10000_is_queued_in_batches_and_a_small_job_starts_immediately(
    make_coordinator: Callable[..., Coordinator], by: str
) -> None:
    """Protocol rule 9. Both are submitted before anybody looks; who comes to look hears of them, or
    finds them due.
    """
    coordinator = make_coordinator(dispatch_window=10_000)
    sizes: list[tuple[str, int]] = []
    commit = coordinator.store.commit

    def measured(decision: Decision, *args: Any) -> CommitAnswer:
        sizes.append((decision.job.id, decision.moves))
        return commit(decision, *args)

    coordinator.store.commit = measured  # type: ignore[method-assign]
    wide = coordinator.submit(group("wide", for_each={"n": list(range(10_000))}), name="wide")
    small = coordinator.submit(group("only"), name="small")
    if by == "reports":
        coordinator.read()
    else:
        coordinator.sweep.run()

    before = [
        moves for job, moves in sizes[: [job for job, _ in sizes].index(small)] if job == wide
    ]
    assert sum(before) <= 3 * MAX_TRANSITIONS, (
        "the small job has its turn although the wide one was submitted first"
    )
    assert [offer.job for offer in coordinator.sent].count(small) == 1

    def queued() -> int:
        coordinator.consumer.step()
        return int(coordinator.client.jobs(name="wide")[0].states.get("QUEUED", 0))

    wait_until(lambda: queued() == 10_000, 60, "all 10,000 to be queued")
    assert max(moves for _, moves in sizes) <= MAX_TRANSITIONS
    assert len({offer for offer in coordinator.sent if offer.job == wide}) == 10_000
    assert coordinator.redis.hlen(coordinator.keys.of(wide).attempts) == 10_000
    # Whoever takes now, with the 10,000 standing, is given the group of the small job among the
    # first.
    taken = [
        coordinator.lease.take(["light"], f"runner{n}", "host:1", f"event{n}") for n in range(3)
    ]
    assert small in {claim.token.job for claim in taken if claim is not None}


def test_a_lost_offer_is_repeated_even_if_the_ready_set_is_never_empty(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """The length of the ready set does not matter, only that nobody claimed in time."""
    coordinator = make_coordinator(dispatch_timeout=0.5)
    listening(coordinator, "light", 2)
    other = coordinator.submit(group("w", for_each={"n": list(range(60))}), name="other")
    job = coordinator.submit(group("w", for_each={"n": list(range(20))}))
    coordinator.read()
    lost = coordinator.sent[3::7]
    assert {offer.job for offer in lost} == {job, other}
    coordinator.redis.zrem(coordinator.keys.ready("light"), *map(str, lost))

    def steady_stream() -> bool:
        coordinator.read()
        coordinator.sweep.run()
        standing = coordinator.sent
        if len(standing) > 40:
            coordinator.work(standing[0])
        assert len(standing) > 30, "the ready set is never empty, or the test proves nothing"
        return set(lost) <= set(standing)

    wait_until(steady_stream, 10, "the lost offers to be made again")
    assert coordinator.drive(job) is Status.FINISHED
    assert coordinator.drive(other) is Status.FINISHED


def test_each_offer_lost_with_the_ready_set_is_repeated_once(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(dispatch_timeout=0.3)
    coordinator.submit(group("w", for_each={"n": list(range(60))}))
    coordinator.read()
    lost = coordinator.sent
    assert len(lost) == 60
    coordinator.redis.delete(coordinator.keys.ready("light"))
    sent = wait_until(
        lambda: coordinator.sweep.run() and coordinator.sent, 5, "the offers to be made again"
    )
    assert sorted(map(str, sent)) == sorted(map(str, lost))


def test_a_repeated_offer_keeps_its_turn(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """And no job keeps another from its turn."""
    coordinator = make_coordinator(dispatch_timeout=0.2)
    old, new = (
        coordinator.submit(group("w", for_each={"n": list(range(30))}), name=name)
        for name in ("old", "new")
    )
    coordinator.read()
    before = coordinator.sent
    for count in range(len(before)):
        taken = Counter(offer.job for offer in before[:count])
        assert abs(taken[old] - taken[new]) <= 2, (
            "which of two offers with the same turn is first does not matter"
        )
    begun = coordinator.show(new).at
    wait_until(lambda: coordinator.show(new).at > begun + 0.3, 10, "all offers to be made again")
    for _ in range(3):
        coordinator.redis.zadd(coordinator.keys.due, {old: 0, new: 0})
        coordinator.sweep.run()
    assert coordinator.sent == before


def test_wake_ups_are_limited_to_idle_runners_and_lost_ones_are_repeated(
    coordinator: Coordinator,
) -> None:
    for number in range(3):
        coordinator.note_runner(f"r{number}", heard=-3600, idle_since=1.0)
    coordinator.note_runner("busy", heard=-3600)
    coordinator.submit(group("w", for_each={"n": list(range(20))}))
    coordinator.read()
    assert coordinator.wake_ups == {"light": 3}, "20 offers, and 3 runners that are idle"
    coordinator.redis.rpush(
        coordinator.keys.queue("light"), "a wake-up", "a wake-up"
    )  # one was lost
    coordinator.wake_ups.clear()
    coordinator.sweep.run()
    assert coordinator.wake_ups == {"light": 1}
    coordinator.redis.rpush(coordinator.keys.queue("light"), "a wake-up")
    coordinator.wake_ups.clear()
    coordinator.sweep.run()
    assert not coordinator.wake_ups, "the wake-ups of all idle runners lie in the queue"


def test_a_runner_on_two_queues_gets_one_wake_up(coordinator: Coordinator) -> None:
    """The default worker listens on ``spark`` and ``light``; whoever is woken takes the offers of
    all its queues.
    """
    coordinator.note_runner("both", heard=-3600, idle_since=1.0, queues=("spark", "light"))
    coordinator.submit(group("a"), group("b", queue="spark"))
    coordinator.read()
    assert coordinator.wake_ups.total() == 1, "two queues have offers, and one runner is idle"
    coordinator.redis.rpush(coordinator.keys.queue(next(iter(coordinator.wake_ups))), "a wake-up")
    coordinator.wake_ups.clear()
    coordinator.sweep.run()
    assert not coordinator.wake_ups, "the wake-up of the only idle runner lies in one of its queues"
    coordinator.submit(group("c"), group("d", queue="spark"))
    coordinator.read()
    assert not coordinator.wake_ups
    coordinator.note_runner("light", heard=-3600, idle_since=1.0)
    coordinator.redis.delete(*map(coordinator.keys.queue, ("light", "spark")))
    coordinator.reconciler.wake(
        coordinator.show(coordinator.submit(group("e"))).at + 2.0, coordinator.store.lanes()
    )
    assert coordinator.wake_ups == {"light": 1, "spark": 1}, (
        "each queue has a runner, if another choice leaves it one"
    )


def test_one_wake_up_waits_if_there_are_no_listeners(coordinator: Coordinator) -> None:
    coordinator.submit(group("w", for_each={"n": list(range(20))}))
    coordinator.read()
    assert coordinator.wake_ups == {"light": 1}
    coordinator.redis.rpush(coordinator.keys.queue("light"), "a wake-up")
    coordinator.wake_ups.clear()
    coordinator.sweep.run()
    assert not coordinator.wake_ups


def test_unclaimed_offers_are_limited_per_job_and_queue(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("w", for_each={"n": list(range(500))}))
    coordinator.read()
    offers = coordinator.offers()
    assert len(offers) == 64
    for offer in offers[:10]:
        coordinator.claim(offer)
    coordinator.read()
    assert len(coordinator.offers()) == 10, "a claim makes room for the next"
    assert coordinator.status(job) is Status.RUNNING


def test_max_parallel_is_never_exceeded(coordinator: Coordinator) -> None:
    job = coordinator.submit(group("w", for_each={"n": list(range(9))}), max_parallel=2)
    seen = 0
    while not coordinator.status(job).terminal:
        coordinator.read()
        open_attempts = coordinator.redis.hlen(coordinator.keys.of(job).attempts)
        assert open_attempts <= 2
        seen = max(seen, open_attempts)
        for offer in coordinator.offers():
            coordinator.work(offer)
    assert seen == 2
    assert coordinator.status(job) is Status.FINISHED


@pytest.mark.claim("Every join ends, and a quorum that can no longer be reached fails at once.")
@pytest.mark.parametrize(
    "rule", ["all_succeeded", "all_done", "any_succeeded", "none_failed", {"at_least": 2}]
)
def test_every_join_rule_ends_with_all_branches_succeeded(
    coordinator: Coordinator, rule: Any
) -> None:
    job = coordinator.submit(
        group("a"),
        group("b"),
        group("c"),
        join("j", "a", "b", "c", rule=rule),
        group("after", "j"),
        name="joins",
    )
    assert coordinator.drive(job) is Status.FINISHED
    assert coordinator.events(job, "j") == ["SUCCEEDED"]
    assert coordinator.events(job, "after") == ["QUEUED", "RUNNING", "SUCCEEDED"]


@pytest.mark.claim("Every join ends, and a quorum that can no longer be reached fails at once.")
def test_an_unreachable_quorum_fails_immediately_with_its_reason(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(
        *(group(name, retry={"max": 0}) for name in "abc"),
        join("j", "a", "b", "c", rule={"at_least": 3}),
    )
    coordinator.read()
    a, b, _ = sorted(coordinator.offers(), key=lambda offer: offer.group)
    coordinator.work(a)
    coordinator.work(b, failed())
    coordinator.read()
    view = coordinator.show(job)
    assert view.status is Status.FAILED
    assert view.reason is not None
    assert "at_least: 3" in view.reason.text
    assert coordinator.events(job, "c")[-1] == "CANCELED"


@pytest.mark.claim("Cleanup groups run after a failure, also in a job that fails fast.")
def test_failure_handlers_run_in_a_fail_fast_job_and_again_in_its_retry(
    coordinator: Coordinator,
) -> None:
    groups = [group("load", retry={"max": 0}), group("use", "load"), group("other")]
    cleaning = {**group("clean", "load", "use"), "join": "all_done"}
    telling = {**group("tell", "load", "use"), "join": "any_failed"}
    job, fingerprints = coordinator.submit(*groups, cleaning, telling), []
    for _ in range(2):
        coordinator.read()
        coordinator.work(
            next(offer for offer in coordinator.sent if offer.group == "load"), failed()
        )
        coordinator.read()
        assert {offer.group for offer in coordinator.sent} == {"clean", "tell"}
        assert coordinator.status(job) is Status.RUNNING
        (why, *_) = coordinator.client.explain(job)
        assert (
            "group load failed, so the job will be FAILED once what runs after a failure has ended"
            in why.what
        )
        for offer in coordinator.offers():
            taken = coordinator.claim(offer)
            fingerprints += [taken.work_order.fingerprint] if offer.group == "clean" else []
            coordinator.finish(offer.held_by("runner1"))
            coordinator.read()
        view = coordinator.show(job)
        assert view.status is Status.FAILED
        assert view.reason is not None
        assert "group load failed" in view.reason.text
        assert [coordinator.events(job, name)[-1] for name in ("use", "other")] == ["CANCELED"] * 2
        job = coordinator.client.retry(job).id
    assert fingerprints[0] != fingerprints[1], (
        "the retry takes no work over from a group that cleaned up before"
    )


@pytest.mark.claim("Cleanup groups run after a failure, also in a job that fails fast.")
def test_a_retry_repeats_the_cleanup_after_skipped_predecessors(
    coordinator: Coordinator,
) -> None:
    cleaning = {**group("clean", "use"), "join": "all_done"}
    groups = group("load", retry={"max": 0}), group("use", "load"), cleaning
    job, fingerprints = coordinator.submit(*groups, on_failure="finish_others"), []
    for _ in range(2):
        coordinator.read()
        coordinator.work(
            next(offer for offer in coordinator.sent if offer.group == "load"), failed()
        )
        coordinator.read()
        (offer,) = coordinator.offers()
        assert offer.group == "clean"
        fingerprints.append(coordinator.claim(offer).work_order.fingerprint)
        coordinator.finish(offer.held_by("runner1"))
        coordinator.read()
        assert coordinator.status(job) is Status.FAILED
        assert coordinator.events(job, "use") == ["SKIPPED"]
        job = coordinator.client.retry(job).id
    assert fingerprints[0] != fingerprints[1], (
        "the retry takes no work over from a group that cleaned up before"
    )


@pytest.mark.claim("Cleanup groups run after a failure, also in a job that fails fast.")
@pytest.mark.parametrize("rule", ["all_done", "any_failed", "all_failed"])
def test_a_retry_repeats_the_cleanup_after_a_tolerated_failure(
    coordinator: Coordinator, rule: str
) -> None:
    """When the cleanup ran, nothing had failed the job yet.

    In the retry what it cleans up after fails again.
    """
    groups = (
        group("load", optional=True, retry={"max": 0}),
        {**group("clean", "load"), "join": rule},
    )
    job, fingerprints = coordinator.submit(*groups, group("other", retry={"max": 0})), []
    for _ in range(2):
        coordinator.read()
        by_name = {offer.group: offer for offer in coordinator.offers()}
        coordinator.work(by_name["load"], failed())
        coordinator.read()
        (offer,) = (offer for offer in coordinator.offers() if offer.group == "clean")
        fingerprints.append(coordinator.claim(offer).work_order.fingerprint)
        coordinator.finish(offer.held_by("runner1"))
        coordinator.work(by_name["other"], failed())
        coordinator.read()
        assert coordinator.status(job) is Status.FAILED
        job = coordinator.client.retry(job).id
    assert fingerprints[0] != fingerprints[1], (
        "the retry takes no work over from a group that cleaned up before"
    )


@pytest.mark.claim("Every join ends, and a quorum that can no longer be reached fails at once.")
def test_an_empty_fork_is_skipped_and_its_join_applies_its_rule(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(
        group("none", for_each={"n": []}),
        join("lenient", "none", rule="none_failed"),
        join("strict", "none"),
        group("after_lenient", "lenient"),
    )
    assert coordinator.drive(job) is Status.FINISHED
    assert coordinator.events(job, "none") == ["SKIPPED"]
    assert coordinator.events(job, "lenient") == ["SUCCEEDED"]
    assert coordinator.events(job, "strict") == ["SKIPPED"]
    assert coordinator.events(job, "after_lenient")[-1] == "SUCCEEDED"


def test_a_released_job_is_due_immediately_if_its_lock_was_contended(
    coordinator: Coordinator,
) -> None:
    """Whoever met the lock busy went away again.

    Nobody else would look before the pass's own time is over.
    """
    job = coordinator.submit(group("only"))
    coordinator.read()
    assert coordinator.store.begin(job, "one").answer is BeginAnswer.LOCKED
    assert coordinator.store.begin(job, "other").answer is BeginAnswer.BUSY
    assert coordinator.due_in(job) > 0
    assert coordinator.store.end(job, "one") is EndAnswer.AGAIN
    assert coordinator.store.end(job, "one", anyway=True) is EndAnswer.RELEASED
    assert coordinator.due_in(job) <= 0


def test_every_non_terminal_job_is_in_the_due_index(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(sweep_every=4.0)
    jobs = [
        coordinator.submit(group("only"), name="queued"),
        coordinator.submit(group("a"), group("b", "a"), name="running"),
        coordinator.submit(group("only", retry={"max": 3, "backoff": "1h"}), name="backoff"),
    ]
    coordinator.read()
    for offer in coordinator.offers():
        if offer.job == jobs[1]:
            coordinator.claim(offer)
        elif offer.job == jobs[2]:
            coordinator.work(offer, failed())
    coordinator.read()
    assert [coordinator.status(job) for job in jobs] == [
        Status.PENDING,
        Status.RUNNING,
        Status.RETRYING,
    ]
    for job in jobs:
        assert coordinator.redis.zscore(coordinator.keys.due, job) is not None
        assert 0 < coordinator.due_in(job) <= coordinator.settings.lease_ttl


def test_a_waiting_client_gets_the_final_view_or_times_out(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("only"))
    coordinator.read()
    with pytest.raises(TimeoutError, match=f"job {job} is still PENDING; it goes on without you"):
        coordinator.client.wait(job, timeout=0.1, every=0.02)
    assert coordinator.drive(job) is Status.FINISHED
    assert coordinator.client.wait(job, timeout=0).status is Status.FINISHED
