"""Promise 4: every wait has an end; a wide job is no exception, and stands in nobody's way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.coordinator import Coordinator, failed, group, join
from tests.support.servers import wait_until
from unstuck.coordinator.model.decision import MAX_TRANSITIONS, Decision
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.store.jobs import BeginAnswer, CommitAnswer, EndAnswer


def listening(coordinator: Coordinator, queue: str, slots: int) -> None:
    """As if ``slots`` runners listened on ``queue``."""
    for number in range(slots):
        coordinator.note_runner(f"r{number}", heard=-3600, queues=(queue,))


@pytest.mark.parametrize("by", ["reports", "sweep"])
def test_a_fork_of_10000_is_queued_in_commits_of_at_most_500_and_a_small_job_behind_it_starts_at_once(
    make_coordinator: Callable[..., Coordinator], by: str
) -> None:
    """Protocol rule 9. Both are submitted before anybody looks; who comes to look hears of them, or finds them due."""
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

    before = [moves for job, moves in sizes[: [job for job, _ in sizes].index(small)] if job == wide]
    assert sum(before) <= 3 * MAX_TRANSITIONS, "the small job has its turn although the wide one was submitted first"
    assert coordinator.hints(small)

    def queued() -> int:
        coordinator.consumer.step()
        return int(coordinator.client.jobs(name="wide")[0].groups.get("QUEUED", 0))

    wait_until(lambda: queued() == 10_000, 60, "all 10,000 to be queued")
    assert max(moves for _, moves in sizes) <= MAX_TRANSITIONS
    assert len(set(coordinator.hints(wide))) == 10_000
    assert coordinator.redis.hlen(coordinator.keys.of(wide).attempts) == 10_000


def test_a_lost_hint_on_a_queue_that_is_never_empty_is_sent_again_all_the_same(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """The queue's length does not matter, only that nobody claimed in time."""
    coordinator = make_coordinator(dispatch_timeout=0.5)
    listening(coordinator, "light", 2)
    coordinator.redis.rpush(coordinator.keys.queue("light"), *["somebody else's message"] * 500)
    job = coordinator.submit(group("w", for_each={"n": list(range(20))}))
    coordinator.read()
    hints = coordinator.hints()
    lost = hints.pop(3)
    again: list[Any] = []

    def steady_stream() -> bool:
        coordinator.read()
        coordinator.sweep.run()
        if hints and coordinator.claim(hint := hints.pop(0)).answer == "CLAIMED":  # a surplus copy costs one claim call
            coordinator.finish(hint.held_by("runner1"))
        for hint in coordinator.hints():
            (again if hint == lost else hints).append(hint)
        return bool(again)

    wait_until(steady_stream, 10, "the lost hint to be sent again")
    for hint in again[:1] + hints:
        if coordinator.claim(hint).answer == "CLAIMED":
            coordinator.finish(hint.held_by("runner1"))
    assert coordinator.drive(job) is Status.FINISHED


def test_hints_sent_again_neither_flood_nor_starve(make_coordinator: Callable[..., Coordinator]) -> None:
    """Rule 6: the oldest first, at most twice the slots that listen and at least 8, in one dispatch_timeout.

    No hint is sent a third time while another of its job was not sent again, and no job keeps another from its turn.
    """
    coordinator = make_coordinator(dispatch_timeout=2.0)
    coordinator.redis.rpush(
        coordinator.keys.queue("light"), "somebody else's message"
    )  # a queue that is not empty: nobody can say what was lost
    old = coordinator.submit(group("w", for_each={"n": list(range(30))}), name="old")
    coordinator.read()
    first = coordinator.hints()
    time_of_old = coordinator.show(old).at
    new = coordinator.submit(group("w", for_each={"n": list(range(30))}), name="new")
    coordinator.read()
    second = coordinator.hints()

    wait_until(lambda: coordinator.show(new).at > time_of_old + 2.5, 20, "all hints to be overdue")
    coordinator.sweep.run()
    sent = coordinator.hints()
    assert len(sent) == 8, "nobody listens: 8 in all, for both jobs together"
    assert set(sent) <= set(first), "of the job whose hints are the oldest"
    coordinator.sweep.run()
    assert not coordinator.hints(), "no more in this dispatch_timeout"

    listening(coordinator, "light", 10)

    def next_term() -> list[Any]:
        coordinator.redis.zadd(coordinator.keys.due, {old: 0, new: 0})
        coordinator.sweep.run()
        return coordinator.hints()

    terms = 0
    while not {*first, *second} <= set(sent):
        more = wait_until(next_term, 20, "the next dispatch_timeout", every=0.05)
        assert len(more) <= 20
        sent += more
        terms += 1
        assert terms <= 10, f"never sent again: {[str(hint) for hint in {*first, *second} - set(sent)]}"
    for hints in (first, second):
        again = [hint for hint in sent if hint in hints]
        assert set(again[: len(hints)]) == set(hints), "each once before any other has its second turn"


def test_hints_lost_with_the_whole_queue_are_all_sent_again_at_once(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """On an empty queue there is nothing to pile up behind; what is overdue is lost."""
    coordinator = make_coordinator(dispatch_timeout=0.3)
    coordinator.submit(group("w", for_each={"n": list(range(60))}))
    coordinator.read()
    lost = coordinator.hints()
    assert len(lost) == 60
    sent = wait_until(lambda: coordinator.sweep.run() and coordinator.hints(), 5, "the hints to be sent again")
    assert sorted(map(str, sent)) == sorted(map(str, lost))


def test_at_most_a_window_of_hints_is_unclaimed_per_job_and_queue(coordinator: Coordinator) -> None:
    job = coordinator.submit(group("w", for_each={"n": list(range(500))}))
    coordinator.read()
    hints = coordinator.hints()
    assert len(hints) == 64
    for hint in hints[:10]:
        coordinator.claim(hint)
    coordinator.read()
    assert len(coordinator.hints()) == 10, "a claim makes room for the next"
    assert coordinator.status(job) is Status.RUNNING


def test_max_parallel_is_never_exceeded(coordinator: Coordinator) -> None:
    job = coordinator.submit(group("w", for_each={"n": list(range(9))}), max_parallel=2)
    seen = 0
    while not coordinator.status(job).terminal:
        coordinator.read()
        open_attempts = coordinator.redis.hlen(coordinator.keys.of(job).attempts)
        assert open_attempts <= 2
        seen = max(seen, open_attempts)
        for hint in coordinator.hints():
            coordinator.work(hint)
    assert seen == 2
    assert coordinator.status(job) is Status.FINISHED


@pytest.mark.parametrize("rule", ["all_succeeded", "all_done", "any_succeeded", "none_failed", {"at_least": 2}])
def test_every_join_rule_ends_with_all_branches_succeeded(coordinator: Coordinator, rule: Any) -> None:
    job = coordinator.submit(
        group("a"), group("b"), group("c"), join("j", "a", "b", "c", rule=rule), group("after", "j"), name="joins"
    )
    assert coordinator.drive(job) is Status.FINISHED
    assert coordinator.events(job, "j") == ["SUCCEEDED"]
    assert coordinator.events(job, "after") == ["QUEUED", "RUNNING", "SUCCEEDED"]


def test_a_quorum_that_can_no_longer_be_reached_fails_at_once_with_its_reason(coordinator: Coordinator) -> None:
    job = coordinator.submit(
        *(group(name, retry={"max": 0}) for name in "abc"),
        join("j", "a", "b", "c", rule={"at_least": 3}),
    )
    coordinator.read()
    a, b, _ = sorted(coordinator.hints(), key=lambda hint: hint.group)
    coordinator.work(a)
    coordinator.work(b, failed())
    coordinator.read()
    view = coordinator.show(job)
    assert view.job.status is Status.FAILED
    assert view.job.reason is not None
    assert "at_least: 3" in view.job.reason.text
    assert coordinator.events(job, "c")[-1] == "CANCELED"


def test_an_empty_fork_is_skipped_and_its_join_decides_by_its_rule(coordinator: Coordinator) -> None:
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


def test_a_job_that_is_let_go_of_although_somebody_met_its_lock_busy_is_due_at_once(coordinator: Coordinator) -> None:
    """Whoever met the lock busy went away again. Nobody else would look before the pass's own time is over."""
    job = coordinator.submit(group("only"))
    coordinator.read()
    assert coordinator.store.begin(job, "one").answer is BeginAnswer.LOCKED
    assert coordinator.store.begin(job, "other").answer is BeginAnswer.BUSY
    assert coordinator.due_in(job) > 0
    assert coordinator.store.end(job, "one") is EndAnswer.AGAIN
    assert coordinator.store.end(job, "one", anyway=True) is EndAnswer.RELEASED
    assert coordinator.due_in(job) <= 0


def test_every_non_terminal_job_is_in_the_due_index(make_coordinator: Callable[..., Coordinator]) -> None:
    coordinator = make_coordinator(sweep_every=4.0)
    jobs = [
        coordinator.submit(group("only"), name="queued"),
        coordinator.submit(group("a"), group("b", "a"), name="running"),
        coordinator.submit(group("only", retry={"max": 3, "backoff": "1h"}), name="backoff"),
    ]
    coordinator.read()
    for hint in coordinator.hints():
        if hint.job == jobs[1]:
            coordinator.claim(hint)
        elif hint.job == jobs[2]:
            coordinator.work(hint, failed())
    coordinator.read()
    assert [coordinator.status(job) for job in jobs] == [Status.PENDING, Status.RUNNING, Status.RETRYING]
    for job in jobs:
        assert coordinator.redis.zscore(coordinator.keys.due, job) is not None
        assert 0 < coordinator.due_in(job) <= coordinator.settings.lease_ttl
