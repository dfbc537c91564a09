"""A warehouse that hangs for good, as a dead mount or a connection that died without a word does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from guarantees.test_shown_is_true import staged
from head import Head, group
from servers import wait_until

from coordinator.background import Background
from coordinator.consumer import AllHang
from coordinator.status import Status
from tasks.warehouse import Warehouse

TERM = 0.5


def done(head: Head, name: str) -> str:
    """A job that is to be published, with an output."""
    job = head.submit(group("make"), name=name)
    head.read()
    (hint,) = head.hints(job)
    head.claim(hint)
    head.finish(hint.held_by("runner1"), staged(head, hint, name))
    head.read()
    return job


def looked_at(head: Head, job: str) -> Status:
    """Its status after one more look, at which its next try of publishing has come."""
    head.redis.hset(head.keys.of(job).job, "publish_next", "1")
    head.coordinator._cache.clear()
    head.coordinator.handle(job)
    return head.status(job)


@contextmanager
def hanging(head: Head, tries: int) -> Iterator[list[str]]:
    """The first tries of publishing hang until the block is left; the names of the threads that they hang in."""
    inside: list[str] = []
    thaw, mutex = threading.Event(), threading.Lock()

    def hang() -> None:
        with mutex:
            hangs = len(inside) < tries
            if hangs:
                inside.append(threading.current_thread().name)
        if hangs:
            thaw.wait(60)

    head.hands.before_publish = hang
    try:
        yield inside
    finally:
        thaw.set()


def published(head: Head) -> list[str]:
    warehouse = Warehouse(head.settings.warehouse)
    entries = [warehouse.entry(slot) for slot in range(1, warehouse.head() + 1)]
    return [entry.publish_id for entry in entries if entry is not None]


def test_jobs_whose_publishing_hangs_leave_their_room_to_others(make_head: Callable[..., Head]) -> None:
    head = make_head(background=Background(2, term=TERM))
    with hanging(head, tries=2) as inside:
        stuck = [done(head, name) for name in ("one", "two")]
        wait_until(lambda: len(inside) == 2, 5, "two jobs to hang")
        well = done(head, "well")
        wait_until(lambda: looked_at(head, well) is Status.FINISHED, 10, "the third to have its turn", every=0.1)
        assert [head.status(job) for job in stuck] == [Status.RUNNING] * 2
    for job in stuck:
        head.wait_for(job, Status.FINISHED)


def test_a_publish_that_hangs_for_good_is_tried_again_by_the_same_coordinator(make_head: Callable[..., Head]) -> None:
    head = make_head(background=Background(2, term=TERM))
    with hanging(head, tries=1) as inside:
        job = done(head, "one")
        wait_until(lambda: len(inside) == 1, 5, "its publishing to hang")
        wait_until(lambda: looked_at(head, job) is Status.FINISHED, 10, "a second try beside it", every=0.1)
        assert published(head) == [job]
    wait_until(lambda: not _publishers(), 10, "the first to come back")
    assert published(head) == [job], "and to find its package in the log"


def test_publishing_that_hangs_is_told_to_everybody_and_tried_again_when_it_was_said(
    make_head: Callable[..., Head],
) -> None:
    head, other = make_head(background=Background(2)), make_head()
    with hanging(head, tries=1) as inside:
        job = done(head, "one")
        wait_until(lambda: len(inside) == 1, 5, "its publishing to hang")
        assert [head.status(job), other.show(job).job.reason] == [Status.RUNNING, None]
        _go_by(head, job, 120.0)
        head.coordinator.handle(job)

        seen = other.show(job)
        assert seen.job.reason is not None
        assert seen.job.reason.code == "PUBLISH_HANGS"
        assert seen.job.publish_tries == 1
        told = next(event for _, event in other.client.queries.events(job) if event["kind"] == "PUBLISH_TROUBLE")
        assert (told["code"], told["text"]) == ("PUBLISH_HANGS", seen.job.reason.text)
        why = other.client.explain(job)[0]
        assert (why.tried, why.next_what) == (f"tried once: {told['text']}", "publishing is tried again")
        assert why.next_at == seen.job.publish_next

        _go_by(head, job, 2.0)
        head.coordinator.handle(job)
        head.wait_for(job, Status.FINISHED)
        assert published(head) == [job], "beside the one that still hangs"


def _go_by(head: Head, job: str, seconds: float) -> None:
    """As if so much time had gone by for this job's publishing, and somebody had looked after it meanwhile."""
    keys, now = head.keys.of(job), head.redis.time()[0]
    asked = float(str(head.redis.hget(keys.job, "publish_asked") or 0.0))
    head.redis.hset(keys.job, "publish_next", str(now))
    if asked:
        head.redis.hset(keys.job, "publish_asked", str(asked - seconds))
    head.coordinator._cache.clear()


def _publishers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "publisher"]


def test_a_coordinator_in_which_too_many_publishers_hang_ends_itself(make_head: Callable[..., Head]) -> None:
    """As one whose consumer died: see tests/chaos/test_coordinator_process.py."""
    head = make_head(background=Background(2, term=TERM, most=2))
    with hanging(head, tries=2) as inside:
        for name in ("one", "two"):
            done(head, name)
        wait_until(lambda: len(inside) == 2, 5, "two jobs to hang")
        head.consumer.step()
        wait_until(lambda: head.coordinator.exhausted, 5, "their term to be over")
        head.consumer._next_trim = 0.0
        with pytest.raises(AllHang):
            head.consumer.step()
