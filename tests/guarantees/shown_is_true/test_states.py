"""Promises 5 and 6: what is shown is true, a terminal state is published last, outputs are whole or
absent.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from tests.support.coordinator import SUCCEEDED, Coordinator, failed, group
from tests.support.machine import Limit
from tests.support.programs.status_observer import ENDS, observer
from tests.support.servers import RedisServer
from unstuck import KeyConflict, SpecError, Status
from unstuck.coordinator.model.decision import Decision
from unstuck.coordinator.store.answers import CommitAnswer
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Offer
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.marker import DataFile, Marker, StagedOutput, write_marker


def staged(
    coordinator: Coordinator, offer: Offer, output: str, rows: int = 3, runner: str = "runner1"
) -> Outcome:
    """What a runner leaves behind before it finishes: a data file and the marker that vouches for
    it.
    """
    token = offer.held_by(runner)
    files = Files(coordinator.settings.warehouse)
    path = f"{token.staging}/{output}/part-0.parquet"
    local = files.local_path(path)
    assert local is not None
    local.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table({"n": list(range(rows))}), local)
    data = DataFile(path, rows, local.stat().st_size)
    schema = '{"type":"struct","fields":[{"name":"n","type":"long","nullable":true,"metadata":{}}]}'
    marker = Marker(str(token), "f", {output: StagedOutput((data,), rows, schema)}, {}, {}, 0.0)
    write_marker(files, token.staging, marker)
    return replace(SUCCEEDED, staging=token.staging, rows={output: rows})


def to_publish(coordinator: Coordinator) -> str:
    """A job whose only group has staged its output and is done; it is published when it is decided
    next.
    """
    job = coordinator.submit(group("make"))
    coordinator.read()
    (offer,) = coordinator.offers()
    coordinator.claim(offer)
    coordinator.finish(offer.held_by("runner1"), staged(coordinator, offer, "data"))
    return job


@pytest.mark.claim("A terminal status appears only once all results are stored, and never changes.")
def test_a_terminal_status_is_visible_only_after_outcome_marker_and_package_exist(
    make_coordinator: Callable[..., Coordinator], redis_server: RedisServer
) -> None:
    """An observer that polls as fast as it can, in a process of its own, of jobs that end in each
    way.
    """
    coordinator = make_coordinator()
    settings = coordinator.settings
    wanted = [*ENDS] * 10
    with observer(redis_server.url, settings.prefix, settings.warehouse) as reader:
        for number, end in enumerate(wanted):
            job = coordinator.submit(group("make", retry={"max": 0}), name=f"job{number}")
            reader.watch(job)
            coordinator.read()
            (offer,) = coordinator.offers()
            coordinator.claim(offer)
            outcome = staged(coordinator, offer, f"data{number}")
            if end is Status.FAILED:
                outcome = failed()
            elif end is not Status.FINISHED:
                (coordinator.client.cancel if end is Status.CANCELED else coordinator.client.stop)(
                    job
                )
                coordinator.read()
                outcome = Outcome(OutcomeKind.CANCELED)
            coordinator.finish(offer.held_by("runner1"), outcome)
            coordinator.read()
            assert coordinator.status(job) is end
        seen = reader.seen()
    assert not seen.lies
    assert seen.met == wanted
    assert seen.looks > len(wanted), "the observer polled while jobs ran"


@pytest.mark.claim(
    "If a publisher dies or the warehouse is unreachable, the job is still published once."
)
def test_the_package_exists_before_the_job_finishes_and_a_dead_publisher_is_replaced(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """The coordinator dies in the middle of publishing."""

    class PublisherKilled(BaseException):
        pass

    def die() -> None:
        raise PublisherKilled

    coordinator = make_coordinator()
    job = to_publish(coordinator)
    coordinator.warehouses.before_publish = die
    with pytest.raises(PublisherKilled):
        coordinator.read()
    view = coordinator.show(job)
    assert (view.status, view.phase) == (Status.RUNNING, "publishing")
    assert view.due_at is not None, "somebody will look again"

    other = make_coordinator()
    other.redis.hset(
        coordinator.keys.of(job).job, "publish_next", "1"
    )  # as if publish_timeout had passed
    other.reconciler.reconcile(job)

    assert other.status(job) is Status.FINISHED
    assert Warehouse(coordinator.settings.warehouse).head() == 1
    other.reconciler.reconcile(job)
    assert Warehouse(coordinator.settings.warehouse).head() == 1, "published once"


@pytest.mark.claim(
    "If a publisher dies or the warehouse is unreachable, the job is still published once."
)
def test_an_unreachable_warehouse_does_not_fail_the_job(
    make_coordinator: Callable[..., Coordinator], tmp_path: Path
) -> None:
    """A publish whose outcome is unknown is never called FAILED."""
    coordinator = make_coordinator()
    job = to_publish(coordinator)
    warehouse = Path(coordinator.settings.warehouse)
    away = tmp_path / "away"
    warehouse.rename(away)
    coordinator.read()
    view = coordinator.show(job)
    assert view.status is Status.RUNNING
    assert view.reason is not None
    record = coordinator.record(job)
    assert record.publish_tries == 1
    assert record.publish_next > view.at

    away.rename(warehouse)
    other = make_coordinator()
    other.redis.hset(coordinator.keys.of(job).job, "publish_next", "1")  # as if its time had come
    other.reconciler.reconcile(job)
    assert other.status(job) is Status.FINISHED


@pytest.mark.claim("A terminal status appears only once all results are stored, and never changes.")
@pytest.mark.parametrize("seed", range(12))
def test_any_order_and_repetition_of_reports_leads_to_the_same_state(
    make_coordinator: Callable[..., Coordinator], seed: int
) -> None:
    """The property over the pure core is in tests/unit/coordinator/decide/test_live_attempts.py."""
    rng = random.Random(seed)
    coordinator = make_coordinator()
    job = coordinator.submit(
        group("start"),
        group("wide", "start", for_each={"n": list(range(6))}),
        group("end", "wide"),
        name="any",
    )
    while not coordinator.status(job).terminal:
        reports = coordinator.stream.read(500, 0.001)
        doubled = [entry for entry in reports for _ in range(rng.choice([0, 1, 1, 2]))]
        rng.shuffle(doubled)
        coordinator.consumer.apply(doubled)
        if rng.random() < 0.5:
            coordinator.redis.zadd(coordinator.keys.due, {job: 0})
            coordinator.sweep.run()
        for offer in coordinator.offers():
            coordinator.work(offer)
    assert coordinator.status(job) is Status.FINISHED
    for name in ("start", *(f"wide[{n}]" for n in range(6)), "end"):
        assert coordinator.events(job, name) == ["QUEUED", "RUNNING", "SUCCEEDED"]


@pytest.mark.claim("A wrong spec stores nothing, and a key identifies one job.")
def test_an_invalid_spec_stores_nothing(coordinator: Coordinator) -> None:
    """The error texts are held by tests/unit/coordinator/spec/test_model.py."""
    before = sorted(coordinator.redis.keys("*"))
    for groups in (
        [],
        [group("a", "a")],
        [group("a", "ghost")],
        [group("a", "b"), group("b", "a")],
        [group("a"), group("a")],
        [group("../etc")],
        [group("a", surprise=1)],
        [group("a", timeout="soon")],
    ):
        with pytest.raises(SpecError):
            coordinator.submit(*groups)
    assert sorted(coordinator.redis.keys("*")) == before


@pytest.mark.claim("A wrong spec stores nothing, and a key identifies one job.")
def test_the_same_key_is_the_same_job_and_refuses_another_spec(
    coordinator: Coordinator,
) -> None:
    spec = {"name": "daily", "params": {"day": 1}, "groups": [group("only")]}
    first = coordinator.client.submit(spec, key="daily-1")
    again = coordinator.client.submit(spec, key="daily-1")
    assert (again.id, first.new, again.new) == (first.id, True, False)
    with pytest.raises(KeyConflict, match=first.id):
        coordinator.client.submit(spec, key="daily-1", params={"day": 2})
    assert len(coordinator.client.jobs()) == 1


def test_an_ended_job_and_its_key_are_forgotten_after_its_retention(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(retention=3)
    spec = {"name": "daily", "groups": [group("only")]}
    job = coordinator.client.submit(spec, key="k").id
    coordinator.drive(job)
    from tests.support.servers import wait_until

    wait_until(
        lambda: not coordinator.redis.exists(coordinator.keys.of(job).job),
        20,
        "the record to expire",
        every=0.05,
    )
    wait_until(
        lambda: coordinator.sweep.run() == 0 and not coordinator.client.jobs(),
        20,
        "the indexes to forget it",
        every=0.05,
    )
    assert not [key for key in coordinator.redis.keys("*") if job in key]
    answers = coordinator.redis.keys(coordinator.keys.answer("*"))
    assert answers
    assert all(coordinator.redis.ttl(key) > 0 for key in answers), "those expire by themselves"
    assert coordinator.client.submit(spec, key="k").new


@pytest.mark.claim(
    "If a publisher dies or the warehouse is unreachable, the job is still published once."
)
def test_a_published_job_finishes_when_its_busy_lock_is_free(
    make_coordinator: Callable[..., Coordinator], redis_server: RedisServer
) -> None:
    """The package stands; recording that must not wait until somebody publishes once more."""
    coordinator = make_coordinator()
    job = to_publish(coordinator)
    lock = coordinator.keys.of(job).lock

    def somebody_takes_the_lock() -> None:
        coordinator.redis.set(lock, "another coordinator", px=300)

    coordinator.warehouses.before_publish = somebody_takes_the_lock
    limit = Limit(10.0)
    coordinator.read()
    assert coordinator.status(job) is Status.FINISHED
    assert limit.kept, f"when publishing is tried again, after half a minute: {limit}"


def test_a_published_job_with_a_refused_commit_and_a_busy_lock_is_published_once(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """What came of publishing is told again: neither the refusal nor the lock makes it unsaid."""
    coordinator = make_coordinator()
    job = to_publish(coordinator)
    commit, published, answers = coordinator.store.commit, [], []

    def meddled(decision: Decision, *rest: Any) -> CommitAnswer:
        first = decision.job.terminal and not answers
        if first:
            coordinator.redis.hset(coordinator.keys.of(job).job, "commit", "of somebody else")
        answer = commit(decision, *rest)
        if first:
            answers.append(answer)
            coordinator.redis.set(coordinator.keys.of(job).lock, "another coordinator", px=300)
        return answer

    coordinator.store.commit = meddled  # type: ignore[method-assign, assignment]
    coordinator.warehouses.before_publish = lambda: published.append(job)
    coordinator.read()
    assert answers == [CommitAnswer.CONFLICT]
    assert published == [job]
    assert coordinator.status(job) is Status.FINISHED
