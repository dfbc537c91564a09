"""Promise 4: every wait has an end; a wide job is no exception, and stands in nobody's way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.coordinator import Head, failed, group, join
from tests.support.servers import wait_until
from unstuck.coordinator.model.decision import MAX_TRANSITIONS, Decision
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.store.jobs import BeginAnswer, CommitAnswer, EndAnswer


def listening(head: Head, queue: str, slots: int) -> None:
    """As if ``slots`` runners listened on ``queue``."""
    for number in range(slots):
        head.note_runner(f"r{number}", heard=-3600, queues=(queue,))


@pytest.mark.parametrize("by", ["reports", "sweep"])
def test_a_fork_of_10000_is_queued_in_commits_of_at_most_500_and_a_small_job_behind_it_starts_at_once(
    make_head: Callable[..., Head], by: str
) -> None:
    """Protocol rule 9. Both are submitted before anybody looks; who comes to look hears of them, or finds them due."""
    head = make_head(dispatch_window=10_000)
    sizes: list[tuple[str, int]] = []
    commit = head.store.commit

    def measured(decision: Decision, *args: Any) -> CommitAnswer:
        sizes.append((decision.job.id, decision.moves))
        return commit(decision, *args)

    head.store.commit = measured  # type: ignore[method-assign]
    wide = head.submit(group("wide", for_each={"n": list(range(10_000))}), name="wide")
    small = head.submit(group("only"), name="small")
    if by == "reports":
        head.read()
    else:
        head.sweep.run()

    before = [moves for job, moves in sizes[: [job for job, _ in sizes].index(small)] if job == wide]
    assert sum(before) <= 3 * MAX_TRANSITIONS, "the small job has its turn although the wide one was submitted first"
    assert head.hints(small)

    def queued() -> int:
        head.consumer.step()
        return int(head.client.jobs(name="wide")[0].groups.get("QUEUED", 0))

    wait_until(lambda: queued() == 10_000, 60, "all 10,000 to be queued")
    assert max(moves for _, moves in sizes) <= MAX_TRANSITIONS
    assert len(set(head.hints(wide))) == 10_000
    assert head.redis.hlen(head.keys.of(wide).attempts) == 10_000


def test_a_lost_hint_on_a_queue_that_is_never_empty_is_sent_again_all_the_same(
    make_head: Callable[..., Head],
) -> None:
    """The queue's length does not matter, only that nobody claimed in time."""
    head = make_head(dispatch_timeout=0.5)
    listening(head, "light", 2)
    head.redis.rpush(head.keys.queue("light"), *["somebody else's message"] * 500)
    job = head.submit(group("w", for_each={"n": list(range(20))}))
    head.read()
    hints = head.hints()
    lost = hints.pop(3)
    again: list[Any] = []

    def steady_stream() -> bool:
        head.read()
        head.sweep.run()
        if hints and head.claim(hint := hints.pop(0)).answer == "CLAIMED":  # a surplus copy costs one claim call
            head.finish(hint.held_by("runner1"))
        for hint in head.hints():
            (again if hint == lost else hints).append(hint)
        return bool(again)

    wait_until(steady_stream, 10, "the lost hint to be sent again")
    for hint in again[:1] + hints:
        if head.claim(hint).answer == "CLAIMED":
            head.finish(hint.held_by("runner1"))
    assert head.drive(job) is Status.FINISHED


def test_hints_sent_again_neither_flood_nor_starve(make_head: Callable[..., Head]) -> None:
    """Rule 6: the oldest first, at most twice the slots that listen and at least 8, in one dispatch_timeout.

    No hint is sent a third time while another of its job was not sent again, and no job keeps another from its turn.
    """
    head = make_head(dispatch_timeout=2.0)
    head.redis.rpush(
        head.keys.queue("light"), "somebody else's message"
    )  # a queue that is not empty: nobody can say what was lost
    old = head.submit(group("w", for_each={"n": list(range(30))}), name="old")
    head.read()
    first = head.hints()
    time_of_old = head.show(old).at
    new = head.submit(group("w", for_each={"n": list(range(30))}), name="new")
    head.read()
    second = head.hints()

    wait_until(lambda: head.show(new).at > time_of_old + 2.5, 20, "all hints to be overdue")
    head.sweep.run()
    sent = head.hints()
    assert len(sent) == 8, "nobody listens: 8 in all, for both jobs together"
    assert set(sent) <= set(first), "of the job whose hints are the oldest"
    head.sweep.run()
    assert not head.hints(), "no more in this dispatch_timeout"

    listening(head, "light", 10)

    def next_term() -> list[Any]:
        head.redis.zadd(head.keys.due, {old: 0, new: 0})
        head.sweep.run()
        return head.hints()

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


def test_hints_lost_with_the_whole_queue_are_all_sent_again_at_once(make_head: Callable[..., Head]) -> None:
    """On an empty queue there is nothing to pile up behind; what is overdue is lost."""
    head = make_head(dispatch_timeout=0.3)
    head.submit(group("w", for_each={"n": list(range(60))}))
    head.read()
    lost = head.hints()
    assert len(lost) == 60
    sent = wait_until(lambda: head.sweep.run() and head.hints(), 5, "the hints to be sent again")
    assert sorted(map(str, sent)) == sorted(map(str, lost))


def test_at_most_a_window_of_hints_is_unclaimed_per_job_and_queue(head: Head) -> None:
    job = head.submit(group("w", for_each={"n": list(range(500))}))
    head.read()
    hints = head.hints()
    assert len(hints) == 64
    for hint in hints[:10]:
        head.claim(hint)
    head.read()
    assert len(head.hints()) == 10, "a claim makes room for the next"
    assert head.status(job) is Status.RUNNING


def test_max_parallel_is_never_exceeded(head: Head) -> None:
    job = head.submit(group("w", for_each={"n": list(range(9))}), max_parallel=2)
    seen = 0
    while not head.status(job).terminal:
        head.read()
        open_attempts = head.redis.hlen(head.keys.of(job).attempts)
        assert open_attempts <= 2
        seen = max(seen, open_attempts)
        for hint in head.hints():
            head.work(hint)
    assert seen == 2
    assert head.status(job) is Status.FINISHED


@pytest.mark.parametrize("rule", ["all_succeeded", "all_done", "any_succeeded", "none_failed", {"at_least": 2}])
def test_every_join_rule_ends_with_all_branches_succeeded(head: Head, rule: Any) -> None:
    job = head.submit(
        group("a"), group("b"), group("c"), join("j", "a", "b", "c", rule=rule), group("after", "j"), name="joins"
    )
    assert head.drive(job) is Status.FINISHED
    assert head.events(job, "j") == ["SUCCEEDED"]
    assert head.events(job, "after") == ["QUEUED", "RUNNING", "SUCCEEDED"]


def test_a_quorum_that_can_no_longer_be_reached_fails_at_once_with_its_reason(head: Head) -> None:
    job = head.submit(
        *(group(name, retry={"max": 0}) for name in "abc"),
        join("j", "a", "b", "c", rule={"at_least": 3}),
    )
    head.read()
    a, b, _ = sorted(head.hints(), key=lambda hint: hint.group)
    head.work(a)
    head.work(b, failed())
    head.read()
    view = head.show(job)
    assert view.job.status is Status.FAILED
    assert view.job.reason is not None
    assert "at_least: 3" in view.job.reason.text
    assert head.events(job, "c")[-1] == "CANCELED"


def test_an_empty_fork_is_skipped_and_its_join_decides_by_its_rule(head: Head) -> None:
    job = head.submit(
        group("none", for_each={"n": []}),
        join("lenient", "none", rule="none_failed"),
        join("strict", "none"),
        group("after_lenient", "lenient"),
    )
    assert head.drive(job) is Status.FINISHED
    assert head.events(job, "none") == ["SKIPPED"]
    assert head.events(job, "lenient") == ["SUCCEEDED"]
    assert head.events(job, "strict") == ["SKIPPED"]
    assert head.events(job, "after_lenient")[-1] == "SUCCEEDED"


def test_a_job_that_is_let_go_of_although_somebody_met_its_lock_busy_is_due_at_once(head: Head) -> None:
    """Whoever met the lock busy went away again. Nobody else would look before the pass's own time is over."""
    job = head.submit(group("only"))
    head.read()
    assert head.store.begin(job, "one").answer is BeginAnswer.LOCKED
    assert head.store.begin(job, "other").answer is BeginAnswer.BUSY
    assert head.due_in(job) > 0
    assert head.store.end(job, "one") is EndAnswer.AGAIN
    assert head.store.end(job, "one", anyway=True) is EndAnswer.RELEASED
    assert head.due_in(job) <= 0


def test_every_non_terminal_job_is_in_the_due_index(make_head: Callable[..., Head]) -> None:
    head = make_head(sweep_every=4.0)
    jobs = [
        head.submit(group("only"), name="queued"),
        head.submit(group("a"), group("b", "a"), name="running"),
        head.submit(group("only", retry={"max": 3, "backoff": "1h"}), name="backoff"),
    ]
    head.read()
    for hint in head.hints():
        if hint.job == jobs[1]:
            head.claim(hint)
        elif hint.job == jobs[2]:
            head.work(hint, failed())
    head.read()
    assert [head.status(job) for job in jobs] == [Status.PENDING, Status.RUNNING, Status.RETRYING]
    for job in jobs:
        assert head.redis.zscore(head.keys.due, job) is not None
        assert 0 < head.due_in(job) <= head.settings.lease_ttl
