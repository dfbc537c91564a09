"""A warehouse that hangs for good, as a dead mount or a connection that died without a word
does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest
import redis

from tests.cli.conftest import Cli
from tests.guarantees.shown_is_true.test_states import staged
from tests.support.coordinator import Coordinator, group
from tests.support.paths import ROOT
from tests.support.servers import RedisServer, app_of_strangers, wait_until
from unstuck import Client, KeyConflict, Settings, Status, WarehouseSilent
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import Intent
from unstuck.coordinator.publishing import background_tries
from unstuck.coordinator.publishing.background import Background
from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.coordinator.reconcile.consumer import PublishersExhausted
from unstuck.coordinator.store.answers import Submitted
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import ID_FILE, Warehouse

TERM = 0.5
LIMIT = 1.0  # seconds; see unstuck.coordinator.publishing.breaker
SPEC = {"name": "nightly", "groups": [group("a")]}


def done(coordinator: Coordinator, name: str) -> str:
    """A job that is to be published, with an output."""
    job = coordinator.submit(group("make"), name=name)
    coordinator.read()
    (offer,) = coordinator.offers(job)
    coordinator.claim(offer)
    coordinator.finish(offer.held_by("runner1"), staged(coordinator, offer, name))
    coordinator.read()
    return job


def looked_at(coordinator: Coordinator, job: str) -> Status:
    """Its status after one more look, at which its next try of publishing has come."""
    coordinator.redis.hset(
        coordinator.keys.of(job).job, mapping={"publish_next": "1", "phase": "publish_retrying"}
    )
    coordinator.reconciler.cache.clear()
    coordinator.reconciler.reconcile(job)
    return coordinator.status(job)


@contextmanager
def hanging(coordinator: Coordinator, tries: int) -> Iterator[list[str]]:
    """The first tries of publishing hang until the block is left; the names of the threads that
    they hang in.
    """
    inside: list[str] = []
    thaw, mutex = threading.Event(), threading.Lock()

    def hang() -> None:
        with mutex:
            hangs = len(inside) < tries
            if hangs:
                inside.append(threading.current_thread().name)
        if hangs:
            thaw.wait()

    coordinator.warehouses.before_publish = hang
    try:
        yield inside
    finally:
        thaw.set()


def published(coordinator: Coordinator) -> list[str]:
    warehouse = Warehouse(coordinator.settings.warehouse)
    entries = [warehouse.entry(slot) for slot in range(1, warehouse.head() + 1)]
    return [entry.publish_id for entry in entries if entry is not None]


@pytest.mark.claim("A warehouse that hangs under one job does not stop the other jobs.")
def test_jobs_whose_publish_hangs_do_not_block_others(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(background=Background(2, term=TERM))
    with hanging(coordinator, tries=2) as inside:
        stuck = [done(coordinator, name) for name in ("one", "two")]
        wait_until(lambda: len(inside) == 2, 5, "two jobs to hang")
        well = done(coordinator, "well")
        wait_until(
            lambda: looked_at(coordinator, well) is Status.FINISHED,
            10,
            "the third to have its turn",
            every=0.1,
        )
        assert [coordinator.status(job) for job in stuck] == [Status.RUNNING] * 2
    for job in stuck:
        coordinator.wait_for(job, Status.FINISHED)


@pytest.mark.claim("A warehouse that hangs under one job does not stop the other jobs.")
def test_a_coordinator_retries_a_publish_that_hangs_forever(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(background=Background(2, term=TERM))
    with hanging(coordinator, tries=1) as inside:
        job = done(coordinator, "one")
        wait_until(lambda: len(inside) == 1, 5, "its publishing to hang")
        wait_until(
            lambda: looked_at(coordinator, job) is Status.FINISHED,
            10,
            "a second try beside it",
            every=0.1,
        )
        assert published(coordinator) == [job]
    wait_until(lambda: not _publishers(), 10, "the first to come back")
    assert published(coordinator) == [job], "and to find its package in the log"


def test_a_hanging_publish_is_reported_everywhere_and_retried_at_the_stated_time(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator, other = make_coordinator(background=Background(2)), make_coordinator()
    with hanging(coordinator, tries=1) as inside:
        job = done(coordinator, "one")
        wait_until(lambda: len(inside) == 1, 5, "its publishing to hang")
        assert [coordinator.status(job), other.show(job).reason] == [Status.RUNNING, None]
        _go_by(coordinator, job, 120.0)
        coordinator.reconciler.reconcile(job)

        seen = other.show(job)
        assert seen.reason is not None
        assert seen.reason.code == "PUBLISH_HANGS"
        record = other.record(job)
        assert record.publish_tries == 1
        told = next(
            event for _, event in other.client.events(job) if event["kind"] == "PUBLISH_TROUBLE"
        )
        assert (told["code"], told["text"]) == ("PUBLISH_HANGS", seen.reason.text)
        why = other.client.explain(job)[0]
        assert (why.tried, why.next.what) == (
            f"tried once: {told['text']}",
            "publishing is tried again",
        )
        assert why.next.at == record.publish_next

        _go_by(coordinator, job, 2.0)
        coordinator.reconciler.reconcile(job)
        coordinator.wait_for(job, Status.FINISHED)
        assert published(coordinator) == [job], "beside the one that still hangs"


def test_a_slow_publish_runs_once_and_is_not_called_hanging(
    make_coordinator: Callable[..., Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of ten thousand files on an object store takes an hour to look at each of them."""
    monkeypatch.setattr(background_tries, "PROGRESS_EVERY", 0.0)
    coordinator = make_coordinator(background=Background(2))
    asks, may_answer = threading.Semaphore(0), threading.Semaphore(0)
    publish, begun = coordinator.warehouses.publish, []

    def long(state: JobState, answered: Callable[[], None]) -> PublishResult:
        begun.append(state.job.id)
        for _ in range(5):
            asks.release()
            may_answer.acquire()
            answered()
        asks.release()
        may_answer.acquire()
        return publish(state, lambda: None)

    monkeypatch.setattr(coordinator.warehouses, "publish", long)
    answered_at = coordinator.redis.time()[0]
    job = done(coordinator, "one")
    for _ in range(6):
        asks.acquire()
        assert coordinator.record(job).publish_heard >= answered_at, "it was heard of just now"
        _go_by(coordinator, job, 100.0)
        coordinator.reconciler.reconcile(job)
        answered_at = coordinator.redis.time()[0]
        may_answer.release()
    coordinator.wait_for(job, Status.FINISHED)
    assert begun == [job]
    assert "PUBLISH_TROUBLE" not in coordinator.events(job)


def _go_by(coordinator: Coordinator, job: str, seconds: float) -> None:
    """As if so much time had gone by for this job's publishing, and somebody had looked after it
    meanwhile.
    """
    keys, now = coordinator.keys.of(job), coordinator.redis.time()[0]
    asked = float(str(coordinator.redis.hget(keys.job, "publish_heard") or 0.0))
    coordinator.redis.hset(keys.job, "publish_next", str(now))
    if asked:
        coordinator.redis.hset(keys.job, "publish_heard", str(asked - seconds))
    coordinator.reconciler.cache.clear()


def _publishers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "publisher"]


@pytest.mark.variant
def test_a_coordinator_with_too_many_hanging_publishers_ends_itself(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """As one whose consumer died: see tests/chaos/test_coordinator_process.py."""
    coordinator = make_coordinator(background=Background(2, term=3.0, most=2))
    with hanging(coordinator, tries=2) as inside:
        for name in ("one", "two"):
            done(coordinator, name)
        wait_until(lambda: len(inside) == 2, 5, "two jobs to hang")
        coordinator.consumer.step()
        wait_until(lambda: coordinator.reconciler.exhausted, 20, "their term to be over")
        coordinator.clock.skip(60.0)
        with pytest.raises(PublishersExhausted):
            coordinator.consumer.step()


# -- submit and retry ------------------------------------------------------------------------------


@contextmanager
def silent(warehouse: Path) -> Iterator[None]:
    """Who reads the id of this warehouse waits until the block is left, as on a mount whose server
    is gone.
    """
    warehouse.mkdir(exist_ok=True)
    known = warehouse / ID_FILE
    kept = known.rename(warehouse.parent / "kept") if known.exists() else None
    os.mkfifo(known)
    try:
        yield
    finally:
        os.close(os.open(known, os.O_RDWR))  # whoever waits reads the end of it
        known.unlink()
        if kept is not None:
            kept.rename(known)


def canceled(coordinator: Coordinator) -> str:
    """A job that may be retried."""
    job = coordinator.submit(group("a"))
    coordinator.client.cancel(job)
    coordinator.read()
    assert coordinator.status(job) is Status.CANCELED
    return job


def test_submits_and_retries_into_a_hanging_warehouse_are_refused_in_time(
    coordinator: Coordinator,
) -> None:
    job = canceled(coordinator)
    place = coordinator.settings.warehouse
    client = impatient(coordinator)
    with silent(Path(place)):
        with pytest.raises(
            WarehouseSilent,
            match=f"job nightly is not stored: the warehouse {place} has not answered",
        ):
            client.submit(SPEC)
        with pytest.raises(
            WarehouseSilent,
            match=f"job {job} is not retried: the warehouse {place} has not answered",
        ):
            client.retry(job)
        assert [one.id for one in client.jobs()] == [job]
    wait_until(
        lambda: "warehouse-call" not in [one.name for one in threading.enumerate()],
        10,
        "all to be answered",
    )
    assert client.submit(SPEC).new


def impatient(coordinator: Coordinator) -> Client:
    """A client that waits for a warehouse for a moment, and knows of none that hang."""
    return Client(coordinator.settings, redis_client=coordinator.redis, breaker=CircuitBreaker(0.2))


def _hangs(place: Path) -> AbstractContextManager[None]:
    return silent(place)


@contextmanager
def _gone(place: Path) -> Iterator[None]:
    away = place.rename(place.parent / "away")
    yield
    away.rename(place)


@contextmanager
def _broken(place: Path) -> Iterator[None]:
    """Reading the id is an error: it cannot be told whether this is the warehouse."""
    known = place / ID_FILE
    kept = known.rename(place.parent / "kept")
    known.mkdir()
    yield
    known.rmdir()
    kept.rename(known)


@pytest.mark.parametrize("trouble", [_hangs, _gone, _broken])
def test_an_already_stored_job_is_not_reported_as_refused_when_the_warehouse_fails(
    coordinator: Coordinator, trouble: Callable[[Path], AbstractContextManager[None]]
) -> None:
    """Whoever believed that would submit under another key, and the work would be done twice."""
    place = Path(coordinator.settings.warehouse)
    old = canceled(coordinator)
    job, again = (
        coordinator.client.submit(SPEC, key="k").id,
        coordinator.client.retry(old, reason="once more").id,
    )
    with trouble(place):
        client = impatient(coordinator)
        assert client.submit(SPEC, key="k").submitted == Submitted(job, new=False)
        assert client.retry(old).submitted == Submitted(again, new=False)
        with pytest.raises(KeyConflict, match=f"the key 'k' belongs to job {job}"):
            client.submit({**SPEC, "max_parallel": 3}, key="k")
        assert len(client.jobs()) == 3
        assert trouble is not _gone or not place.exists(), (
            "nor is a second warehouse made for what is in the first"
        )


def _slow_to_list(monkeypatch: pytest.MonkeyPatch, until: Callable[[], object]) -> None:
    """Its files are read at once, and its log is listed after ``until``: a page of 1,000 names
    takes a while.
    """
    listed = Files.names

    def names(files: Files, folder: str) -> list[str]:
        until()
        return listed(files, folder)

    monkeypatch.setattr(Files, "names", names)


def test_a_log_that_lists_slowly_is_waited_for(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, client = canceled(coordinator), impatient(coordinator)
    _slow_to_list(monkeypatch, lambda: time.sleep(0.5))  # more than its breaker with a read
    assert client.submit(SPEC).new
    assert client.retry(job).new


def test_a_listing_that_never_ends_has_its_own_timeout(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    thaw = threading.Event()
    _slow_to_list(monkeypatch, thaw.wait)
    monkeypatch.setattr("unstuck.coordinator.submitter.LISTING", 0.4)
    with pytest.raises(
        WarehouseSilent,
        match=r"job nightly is not stored: the warehouse \S+ has not .* within 0.4s",
    ):
        impatient(coordinator).submit(SPEC)
    thaw.set()
    assert coordinator.client.jobs() == []
    assert not (Path(coordinator.settings.warehouse) / ID_FILE).exists(), (
        "no warehouse was made of which nobody is told"
    )


IMPATIENT = (
    "import unstuck.coordinator.publishing.breaker, sys; "
    f"unstuck.coordinator.publishing.breaker.LIMIT = {LIMIT}; "
)


@pytest.mark.variant
def test_the_command_line_reports_a_hanging_warehouse_and_exits(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    job, cli = canceled(coordinator), Cli(coordinator.settings.redis_url, tmp_path)
    (cli.folder / "nightly.json").write_text(json.dumps(SPEC))

    main = [sys.executable, "-c", IMPATIENT + "from unstuck.cli import main; main()"]
    told = {
        "env": cli.env,
        "cwd": cli.folder,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    with silent(Path(coordinator.settings.warehouse)):
        both = [
            subprocess.Popen([*main, *words], **told)
            for words in (("submit", "nightly.json"), ("retry", job))
        ]
        (out1, submit), (out2, retry) = (one.communicate() for one in both)
    assert [one.returncode for one in both] == [2, 4]
    assert submit.startswith("job nightly is not stored: the warehouse ")
    assert retry.startswith(f"job {job} is not retried: the warehouse ")
    assert (out1, out2) == ("", "")
    assert len(coordinator.client.jobs()) == 1


@pytest.mark.variant
def test_hanging_submit_messages_do_not_block_other_commands(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    """They take every thread of the coordinator, for a while.

    Nor does it take messages that it cannot begin with.
    """
    settings = Settings(redis_url=redis_server.url, warehouse=str(tmp_path / "warehouse"))
    main = (
        IMPATIENT + "sys.argv = 'celery -A unstuck.coordinator worker -P threads -l INFO'.split(); "
    )
    main += "from celery.__main__ import main; main()"
    env = {
        "UNSTUCK_REDIS_URL": settings.redis_url,
        "UNSTUCK_WAREHOUSE": settings.warehouse,
        "PYTHONPATH": str(ROOT),
    }
    log = tmp_path / "log"
    with Client(settings) as people, closing(app_of_strangers(redis_server.url)) as app:
        job = people.submit(SPEC).id
        with silent(Path(settings.warehouse)), log.open("wb") as out:
            for number in range(7):
                app.send_task(
                    "unstuck.submit", kwargs={"spec": SPEC, "key": str(number)}, queue="control"
                )
            app.send_task("unstuck.cancel", kwargs={"job": job}, queue="control")
            process = subprocess.Popen(
                [sys.executable, "-c", main],
                env={**os.environ, **env},
                cwd=tmp_path,
                stdout=out,
                stderr=out,
            )
            try:
                wait_until(
                    lambda: people.show(job).intent is Intent.CANCEL,
                    60,
                    "the cancel to be heard",
                )
            finally:
                process.kill()
                process.wait()
        assert len(people.jobs()) == 1
    before_the_first_was_refused = log.read_text().partition("has not answered")[0]
    taken = re.findall(r"Task unstuck\.submit\[\S+ received", before_the_first_was_refused)
    assert len(taken) == 4, "one for each of its threads; another coordinator could have the others"
