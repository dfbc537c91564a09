"""Staging of jobs that have ended is removed when nobody can need it, and never before.

Real Valkey, real folders.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.guarantees.one_at_a_time.test_refused_outcomes import held, refused
from tests.support.coordinator import Coordinator, failed, group
from tests.support.programs.thread_limit import no_new_threads
from tests.support.servers import RedisServer, wait_until
from unstuck import Status, published_files
from unstuck.coordinator.publishing import staging_gc
from unstuck.coordinator.publishing.background import Background
from unstuck.coordinator.publishing.vacuum import Vacuumed, vacuum
from unstuck.coordinator.store.answers import Submission
from unstuck.coordinator.store.staging_index import StagingIndex
from unstuck.coordinator.store.submissions import Submissions
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.protocol.staging import Staged
from unstuck.tasks.protocol.token import Offer, Token, log_folder
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Change, Entry
from unstuck.tasks.warehouse.marker import DataFile, Marker, StagedOutput, read_marker, write_marker

SCHEMA = json.dumps({"type": "struct", "fields": []})


def stage(coordinator: Coordinator, token: Token, *outputs: str) -> Outcome:
    """Write what a runner would: a file per output, the marker, the log beside them."""
    files, made = Files(coordinator.settings.warehouse), {}
    for name in outputs or (token.group.partition("[")[0],):
        path = f"{token.staging}/{name}/part-0.parquet"
        files.write_durable(path, f"{token}".encode())
        made[name] = StagedOutput([DataFile(path, 1, len(str(token)))], 1, SCHEMA)
    write_marker(files, token.staging, Marker(str(token), "same", made, {}, {}, 1.0))
    files.write_durable(token.log, b"hello")
    return Outcome(OutcomeKind.SUCCEEDED, staging=token.staging, rows=dict.fromkeys(made, 1))


def work(
    coordinator: Coordinator,
    offer: Offer,
    outcome: Outcome | None = None,
    claimant: str = "runner1",
) -> Token:
    """Claim, stage and finish one attempt."""
    token = offer.held_by(claimant)
    assert coordinator.claim(offer, claimant).answer == "CLAIMED"
    staged = stage(coordinator, token)
    assert coordinator.finish(token, outcome or staged) == "APPLIED"
    coordinator.read()
    return token


def finished(
    coordinator: Coordinator, *groups: dict[str, Any], **spec: Any
) -> tuple[str, dict[str, Token]]:
    """A job that is FINISHED, and the token that counts of each group."""
    job = coordinator.submit(*(groups or (group("out"),)), **spec)
    coordinator.read()
    tokens = {}
    while offers := coordinator.offers(job):
        tokens |= {offer.group: work(coordinator, offer) for offer in offers}
    assert coordinator.status(job) is Status.FINISHED
    return job, tokens


def look(coordinator: Coordinator, *jobs: str) -> None:
    """As if it were time to look at the staging of ``jobs``."""
    coordinator.redis.zadd(coordinator.keys.staging_index, dict.fromkeys(jobs, 1.0), xx=True)
    coordinator.sweep.run()


def forget(coordinator: Coordinator, job: str) -> None:
    """As if the job's retention were over: its keys have expired."""
    coordinator.redis.delete(*coordinator.redis.keys(f"*{{{job}}}*"))
    known = json.loads(str(coordinator.redis.hget(coordinator.keys.staged, job)))
    coordinator.redis.hset(coordinator.keys.staged, job, json.dumps({**known, "forget_at": 1.0}))
    coordinator.redis.zadd(coordinator.keys.ended, {job: 1.0})


def stands(coordinator: Coordinator, path: str) -> bool:
    return (Path(coordinator.settings.warehouse) / path).exists()


def readable(coordinator: Coordinator, dataset: str) -> list[str]:
    """What a reader finds in the files of a dataset."""
    return [
        Path(path).read_text() for path in published_files(coordinator.settings.warehouse, dataset)
    ]


@pytest.mark.claim("If a job was ended by force, a late success of its worker is refused.")
def test_a_late_success_of_a_force_stopped_job_is_refused_and_its_staging_is_swept(
    coordinator: Coordinator,
) -> None:
    other, tokens = finished(coordinator, group("kept"))
    job, zombie = held(coordinator)
    coordinator.client.force_stop(job)
    coordinator.read()
    outcome = stage(coordinator, zombie)
    assert coordinator.finish(zombie, outcome) == "STALE"
    coordinator.read()
    coordinator.sweep.run()
    assert stands(coordinator, zombie.staging), "it is too early to look"
    keys = coordinator.redis.keys(f"*{{{job}}}*")
    before = {key: coordinator.redis.dump(key) for key in keys}

    look(coordinator, job, other)

    assert not stands(coordinator, zombie.staging)
    assert stands(coordinator, zombie.log), "its log can be read until the retention is over"
    assert len(refused(coordinator, job)) == 1
    assert {
        key: coordinator.redis.dump(key) for key in coordinator.redis.keys(f"*{{{job}}}*")
    } == before
    assert coordinator.status(job) is Status.CANCELED
    assert readable(coordinator, "kept") == [str(tokens["kept"])]


def test_a_job_is_swept_only_when_no_worker_can_hold_a_lease(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(lease_ttl=100, cancel_grace=50, retention=1000)
    job, _ = finished(coordinator)
    ended = coordinator.show(job).ended_at
    stored = coordinator.show(job).at  # the store's clock, when all was committed

    def looked_at_next() -> float:
        return float(str(coordinator.redis.zscore(coordinator.keys.staging_index, job)))

    assert ended <= looked_at_next() - 150 - staging_gc.MARGIN <= stored
    look(coordinator, job)
    assert ended <= looked_at_next() - 1000 - staging_gc.MARGIN <= stored


def test_markers_of_a_failed_job_stay_until_its_retention_ends(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("good"), group("bad", "good"))
    coordinator.read()
    (offer,) = coordinator.offers()
    good = work(coordinator, offer)
    (offer,) = coordinator.offers()
    bad = work(coordinator, offer, failed(recoverable=False))
    assert coordinator.status(job) is Status.FAILED

    look(coordinator, job)
    assert read_marker(Files(coordinator.settings.warehouse), good.staging) is not None, (
        "a retry may adopt it"
    )
    assert not stands(coordinator, bad.staging)
    assert stands(coordinator, bad.log)

    stage(coordinator, bad)  # a zombie thaws and writes once more
    (Path(coordinator.settings.warehouse) / f"_staging/{job}/notes").write_text(
        "a file of somebody else's"
    )
    look(coordinator, job)
    assert read_marker(Files(coordinator.settings.warehouse), good.staging) is not None
    assert not stands(coordinator, bad.staging)
    stage(coordinator, bad)  # and again
    forget(coordinator, job)
    look(coordinator, job)
    assert not stands(coordinator, f"_staging/{job}")
    assert not coordinator.redis.exists(coordinator.keys.staging_index)
    assert not coordinator.redis.exists(coordinator.keys.staged)


@pytest.mark.claim(
    "A published version stays readable until a retention rule or a vacuum removes it."
)
def test_published_data_of_a_finished_job_stays_readable(coordinator: Coordinator) -> None:
    inner, fork = group("inner"), group("fork", "inner", for_each={"n": [1, 2]})
    job, tokens = finished(coordinator, inner, fork)
    zombie = replace(tokens["fork[0]"], claimant="zombie")
    stage(coordinator, zombie)
    published = sorted(readable(coordinator, "fork"))
    assert len(published) == 2

    look(coordinator, job)
    assert sorted(readable(coordinator, "fork")) == published
    assert stands(coordinator, tokens["inner"].staging)
    assert not stands(coordinator, zombie.staging)

    newer, _ = finished(
        coordinator, inner, fork
    )  # it replaces the dataset: the older version can still be read
    for name in (job, newer):
        forget(coordinator, name)
        look(coordinator, name)
    assert sorted(readable(coordinator, "fork")) != published
    older = published_files(coordinator.settings.warehouse, "fork", version=1)
    assert sorted(Path(path).read_text() for path in older) == published
    assert not stands(coordinator, f"_staging/{job}/inner")
    assert (
        sorted(
            p.name
            for p in (Path(coordinator.settings.warehouse) / f"_staging/{job}").rglob("*.log")
        )
        == []
    )


@pytest.mark.claim(
    "A published version stays readable until a retention rule or a vacuum removes it."
)
def test_published_data_of_an_older_job_survives_an_earlier_sweep_of_a_newer_job(
    coordinator: Coordinator,
) -> None:
    """What was read of the log for the newer job begins after the entry of the older one."""
    older, tokens = finished(coordinator, group("kept"))
    newer, zombie = canceled(coordinator)
    look(coordinator, newer)
    assert not stands(coordinator, zombie.staging), "the log was read for it"
    forget(coordinator, older)
    look(coordinator, older)
    assert not stands(coordinator, tokens["kept"].log), "the older one was swept, too"
    assert readable(coordinator, "kept") == [str(tokens["kept"])]


def test_an_object_store_is_swept_like_a_folder(
    redis_server: RedisServer, coordinator: Coordinator
) -> None:
    elsewhere: Any = f"memory://{coordinator.redis.client_id()}"
    coordinator = Coordinator(redis_server.url, elsewhere)
    files = Files(elsewhere)
    job, tokens = finished(coordinator, group("inner"), group("out", "inner"))
    zombie = replace(tokens["out"], claimant="zombie")
    stage(coordinator, zombie)

    look(coordinator, job)
    assert zombie.log.rpartition("/")[2] in files.names(log_folder(job))
    assert read_marker(files, zombie.staging) is None
    assert read_marker(files, tokens["inner"].staging) is not None

    forget(coordinator, job)
    look(coordinator, job)
    assert files.names(f"_staging/{job}") == ["out"]
    (file,) = Warehouse(elsewhere).dataset("out").files
    assert files.read(file.path) == str(tokens["out"]).encode()
    assert files.names(f"_staging/{job}/out") == [tokens["out"].staging.rpartition("/")[2]]


def test_the_staging_of_a_job_with_a_missing_record_is_kept(coordinator: Coordinator) -> None:
    job, zombie = held(coordinator)
    coordinator.client.force_stop(job)
    coordinator.read()
    stage(coordinator, zombie)
    coordinator.redis.delete(*coordinator.redis.keys(f"*{{{job}}}*"))
    look(coordinator, job)
    assert stands(coordinator, zombie.staging), "nobody can say which attempt counted"


def retry(coordinator: Coordinator, of: str, *groups: dict[str, Any]) -> str:
    """A job that is known as a retry of another, with other groups than a real one would have."""
    submit = Submissions.submit

    def as_retry(store: Submissions, submission: Submission, *more: Any) -> tuple[str, bool]:
        return submit(store, replace(submission, job=replace(submission.job, retry_of=of)), *more)

    with patch.object(Submissions, "submit", as_retry):
        job = coordinator.submit(*groups)
    coordinator.read()
    return job


def test_work_adopted_by_a_retry_stays_with_the_retry(
    coordinator: Coordinator,
) -> None:
    groups = group("out"), group("more", "out"), group("last", "more")
    job = coordinator.submit(*groups, publish=["out"])
    coordinator.read()
    out = work(coordinator, coordinator.offers()[0])
    more = work(coordinator, coordinator.offers()[0])
    work(coordinator, coordinator.offers()[0], failed(recoverable=False))
    again = retry(coordinator, job, group("out"), group("more", "out"))
    forget(coordinator, job)

    look(coordinator, job)
    assert stands(coordinator, out.staging), "its retry has not ended and may adopt anything"
    assert stands(coordinator, more.staging)

    for adopted in (out, more):
        (offer,) = coordinator.offers(again)
        taken_over = replace(stage(coordinator, adopted), adopted=True)
        coordinator.work(offer, taken_over)
        coordinator.read()
    assert coordinator.status(again) is Status.FINISHED
    assert readable(coordinator, "more") == [str(more)]
    look(coordinator, job, again)
    assert stands(coordinator, out.staging), (
        "a record of the retry names it, also where the log does not"
    )
    assert stands(coordinator, more.staging)

    forget(coordinator, again)
    look(coordinator, again)
    assert not coordinator.redis.exists(coordinator.keys.retries)
    look(coordinator, job)
    assert readable(coordinator, "more") == [str(more)], "the retry's entry in the log names it"
    assert not stands(coordinator, out.staging)
    assert not coordinator.redis.exists(coordinator.keys.staging_index)


def canceled(coordinator: Coordinator) -> tuple[str, Token]:
    """A force-stopped job with a folder that counts for nothing."""
    job, zombie = held(coordinator)
    coordinator.client.force_stop(job)
    coordinator.read()
    stage(coordinator, zombie)
    return job, zombie


def test_an_incomplete_or_outdated_log_prevents_any_removal(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    job, zombie = canceled(coordinator)
    for _ in range(2):
        finished(coordinator)
    entry = Path(coordinator.settings.warehouse) / "_log/000000000001.json"
    text = entry.read_bytes()
    entry.unlink()
    look(coordinator, job)
    assert stands(coordinator, zombie.staging)
    assert f"the staging of job {job}" in caplog.text
    assert "It is tried again in 60 minutes" in caplog.text

    entry.write_bytes(text)
    look(coordinator, job)
    assert not stands(coordinator, zombie.staging)

    stage(coordinator, zombie)
    newest = Path(coordinator.settings.warehouse) / "_log/000000000002.json"
    newest.rename(newest.with_suffix(".gone"))
    look(coordinator, job)
    assert stands(coordinator, zombie.staging), "the log has grown shorter than it was seen"


def test_a_different_warehouse_at_the_address_is_left_alone_and_checked_again(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    job, zombie = canceled(coordinator)
    mark = Path(coordinator.settings.warehouse) / "_warehouse_id"
    own = mark.read_text()
    mark.write_text("another")
    before = coordinator.show(job).at
    look(coordinator, job)
    assert stands(coordinator, zombie.staging)
    assert "WarehouseMismatch" in caplog.text
    asked_again = float(str(coordinator.redis.zscore(coordinator.keys.staging_index, job)))
    assert before <= asked_again - staging_gc.TERM <= coordinator.show(job).at
    mark.write_text(own)
    look(coordinator, job)
    assert not stands(coordinator, zombie.staging)


def test_a_missing_warehouse_is_not_checked_forever(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    job, zombie = canceled(coordinator)
    (Path(coordinator.settings.warehouse) / "_warehouse_id").unlink()
    forget(coordinator, job)
    look(coordinator, job)
    assert stands(coordinator, zombie.staging)
    assert "for people to remove" in caplog.text
    assert coordinator.redis.zscore(coordinator.keys.staging_index, job) is None


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_link_from_staging_to_an_outside_folder_is_not_followed(
    coordinator: Coordinator, tmp_path: Path, caplog: pytest.LogCaptureFixture, forgotten: bool
) -> None:
    # Given a job whose staging folder is a link to a precious folder with the same names in it
    job, _ = canceled(coordinator)
    precious, folder = (
        tmp_path / "precious",
        Path(coordinator.settings.warehouse) / "_staging" / job,
    )
    folder.rename(precious)
    folder.symlink_to(precious)
    before = sorted(precious.rglob("*"))
    # When its staging is swept, while the job is known and when it is forgotten
    if forgotten:
        forget(coordinator, job)
    look(coordinator, job)
    # Then all stays there; the link goes with its job, or it is told
    assert before
    assert sorted(precious.rglob("*")) == before
    assert not folder.exists() if forgotten else "lies outside of the warehouse" in caplog.text


def test_a_failing_warehouse_delays_only_its_own_jobs(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, (kept, other) = canceled(coordinator), canceled(coordinator)
    remove = Files.remove_tree

    def broken_under_one(self: Files, folder: str) -> None:
        if broken[0] in folder:
            raise RuntimeError("the client of this store raises what it likes")
        remove(self, folder)

    monkeypatch.setattr(Files, "remove_tree", broken_under_one)
    look(coordinator, broken[0], kept)
    assert stands(coordinator, broken[1].staging)
    assert not stands(coordinator, other.staging)
    monkeypatch.undo()
    look(coordinator, broken[0])
    assert not stands(coordinator, broken[1].staging)


def test_a_warehouse_that_hangs_during_the_sweep_delays_no_job(
    make_coordinator: Callable[..., Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = make_coordinator(background=Background(2, "staging-collector"))
    job, zombie = canceled(coordinator)
    thaw, hangs, remove = threading.Event(), threading.Event(), Files.remove_tree

    def hang(self: Files, folder: str) -> None:
        hangs.set()
        thaw.wait()
        remove(self, folder)

    monkeypatch.setattr(Files, "remove_tree", hang)
    look(coordinator, job)
    hangs.wait()
    try:
        other = coordinator.submit(group("quick"))
        coordinator.sweep.run()
        (offer,) = coordinator.offers(other)
        coordinator.work(offer)
        coordinator.read()
        coordinator.wait_for(other, Status.FINISHED)
        look(coordinator, job)  # it is being swept: nobody queues up behind it

        def one_is_left() -> bool:  # the publisher of the other job goes by the same name
            return [t.name for t in threading.enumerate()].count("staging-collector") == 1

        wait_until(one_is_left, 10, "one that sweeps, and nobody else")
    finally:
        thaw.set()
    wait_until(lambda: not stands(coordinator, zombie.staging), 10, "the folder to go")


def test_a_sweep_that_gets_no_thread_starts_later_and_disturbs_nothing(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(background=Background(1, "staging-collector"))
    job, zombie = canceled(coordinator)
    with no_new_threads():
        look(coordinator, job)
    assert stands(coordinator, zombie.staging)
    look(coordinator, job)
    wait_until(lambda: not stands(coordinator, zombie.staging), 10, "the folder to go")


def test_a_sweep_that_hung_continues_when_the_warehouse_responds(
    make_coordinator: Callable[..., Coordinator],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It knows an older head of the log than the one beside it, which does not mean that the log
    was set back.
    """
    coordinator = make_coordinator(
        collecting=Background(1, "staging-collector", term=0.0, beside=3)
    )
    (job, zombie), (later, other) = canceled(coordinator), canceled(coordinator)
    thaw, hangs, head_of = threading.Event(), threading.Event(), Warehouse.head

    def hang(self: Warehouse) -> int:
        found = head_of(self)
        if threading.current_thread().name == "staging-collector" and not hangs.is_set():
            hangs.set()
            thaw.wait()
        return found

    monkeypatch.setattr(Warehouse, "head", hang)
    try:
        look(coordinator, job)
        hangs.wait()
        finished(coordinator)
        look(coordinator, later)
        wait_until(
            lambda: not stands(coordinator, other.staging), 10, "the other to be swept beside it"
        )
    finally:
        thaw.set()
    wait_until(lambda: not stands(coordinator, zombie.staging), 10, "the first to sweep on")
    assert "could not be swept" not in caplog.text


@pytest.mark.claim(
    "A published version stays readable until a retention rule or a vacuum removes it."
)
def test_only_the_requested_number_of_versions_is_kept(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(keep_versions=2, keep_versions_for=0.0)
    made = [finished(coordinator) for _ in range(4)]
    files = [f"{tokens['out'].staging}/out/part-0.parquet" for _, tokens in made]
    look(coordinator, made[0][0])

    assert [stands(coordinator, file) for file in files] == [False, False, True, True]
    assert readable(coordinator, "out") == [str(made[3][1]["out"])]
    assert Warehouse(coordinator.settings.warehouse).readable() == (3, 4)

    made.append(finished(coordinator))
    look(coordinator, made[4][0])
    assert stands(coordinator, files[2]), "not again within the hour"


@pytest.mark.claim(
    "A published version stays readable until a retention rule or a vacuum removes it."
)
def test_each_warehouse_keeps_its_own_number_of_versions(
    coordinator: Coordinator, redis_server: RedisServer, tmp_path: Path
) -> None:
    keep = {str(tmp_path / "few"): 1, str(tmp_path / "some"): 3}
    for name, kept in {"few": 1, "some": 3, "others": 4}.items():
        one = Coordinator(
            redis_server.url, tmp_path / name, keep_versions=keep, keep_versions_for=0.0
        )
        made = [finished(one) for _ in range(4)]
        look(one, made[0][0])
        assert (
            sum(stands(one, f"{tokens['out'].staging}/out/part-0.parquet") for _, tokens in made)
            == kept
        ), name


def test_one_sweep_covers_all_due_warehouses(redis_server: RedisServer, tmp_path: Path) -> None:
    keep = {"keep_versions": 1, "keep_versions_for": 0.0}
    fleets = [
        Coordinator(redis_server.url, tmp_path / name, **keep) for name in ("one", "two", "three")
    ]
    made = [[finished(one) for _ in range(2)] for one in fleets]
    look(fleets[0], *(job for jobs in made for job, _ in jobs))
    for one, jobs in zip(fleets, made, strict=True):
        files = [f"{tokens['out'].staging}/out/part-0.parquet" for _, tokens in jobs]
        assert [stands(one, file) for file in files] == [False, True], one.settings.warehouse


def test_the_oldest_version_read_by_any_open_job_is_found(
    coordinator: Coordinator,
) -> None:
    jobs = [f"job-{n}" for n in range(450)]  # more than are read in one round trip
    with coordinator.redis.pipeline() as pipe:
        for job in jobs:
            fields = {"warehouse_id": "w", "status": "RUNNING", "base": 7}
            pipe.hset(coordinator.keys.of(job).job, mapping=fields)
            pipe.zadd(coordinator.keys.due, {job: 1})
        pipe.execute()
    for oldest in (jobs[0], jobs[225], jobs[-1]):
        key = coordinator.keys.of(oldest).job
        coordinator.redis.hset(key, "base", 1)
        assert coordinator.staging_index.oldest_read("w", 0) == (1, oldest)
        coordinator.redis.hset(key, "base", 7)


def test_a_vacuum_keeps_work_that_a_retry_of_a_failed_job_may_reuse(
    coordinator: Coordinator,
) -> None:
    """A retry published what it took over from the job that had failed, and a newer version has
    replaced it since.
    """

    def cleaned() -> Vacuumed:
        warehouse = Warehouse(coordinator.settings.warehouse)
        needed = StagingIndex(coordinator.redis, coordinator.keys).needed()
        newest = warehouse.existing_entry(warehouse.head()).at
        return vacuum(warehouse, needed, keep=1, before=newest + 1)

    # Given: a job that failed after its first group, and a retry of it that published what that
    # group had made
    job = coordinator.submit(group("out"), group("last", "out"), publish=["out"])
    coordinator.read()
    out = work(coordinator, coordinator.offers()[0])
    work(coordinator, coordinator.offers()[0], failed(recoverable=False))
    assert coordinator.status(job) is Status.FAILED
    again = retry(coordinator, job, group("out"))
    (offer,) = coordinator.offers(again)
    coordinator.work(offer, replace(stage(coordinator, out), adopted=True))
    coordinator.read()
    assert coordinator.status(again) is Status.FINISHED
    finished(coordinator)
    file = f"{out.staging}/out/part-0.parquet"

    # When: a vacuum keeps the newest version alone. Then: another retry may take that file over, so
    # it stays
    told = cleaned()
    assert (told.files, told.kept) == (0, 1)
    assert stands(coordinator, file)

    # When: the retry is forgotten, but the failed job is not. Then: nothing has changed
    forget(coordinator, again)
    look(coordinator, again)
    assert not coordinator.redis.exists(coordinator.keys.retries)
    told = cleaned()
    assert (told.files, told.kept) == (0, 1)
    assert stands(coordinator, file)

    # When: that one is forgotten, too. Then: the file goes
    coordinator.redis.delete(*coordinator.redis.keys(f"*{{{job}}}*"))
    told = cleaned()
    assert (told.files, told.kept) == (1, 0)
    assert not stands(coordinator, file)


def test_all_versions_are_kept_by_default_and_for_a_day_with_a_limit(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    for coordinator in (make_coordinator(), make_coordinator(keep_versions=1)):
        made = [finished(coordinator) for _ in range(3)]
        look(coordinator, *(job for job, _ in made))
        assert all(stands(coordinator, tokens["out"].staging) for _, tokens in made)


def test_files_of_a_dead_compaction_are_removed_and_logged_files_stay(
    coordinator: Coordinator,
) -> None:
    finished(coordinator)
    warehouse = Warehouse(coordinator.settings.warehouse)
    index = StagingIndex(coordinator.redis, coordinator.keys)
    for name in ("compact-died", "compact-done"):
        index.add(
            Staged(
                name,
                coordinator.settings.warehouse,
                str(warehouse.identity()),
                warehouse.head(),
                1.0,
            )
        )
        path = f"_staging/{name}/out/0-compact-compact/part-00000.parquet"
        warehouse.storage.write_durable(path, b"rows")
        if name == "compact-done":
            change = Change("compact", [DataFile(path, 1, 4)], [], 1, SCHEMA)
            warehouse.create_entry(
                2, Entry(2, 1, name, "package", name, "compact", 1.0, datasets={"out": change})
            )

    look(coordinator, "compact-died", "compact-done")

    assert not stands(coordinator, "_staging/compact-died")
    assert stands(coordinator, "_staging/compact-done/out/0-compact-compact/part-00000.parquet")


def test_many_coordinators_can_sweep_simultaneously(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinators = [make_coordinator() for _ in range(3)]
    coordinator = coordinators[0]
    _, tokens = finished(coordinator, group("kept"))
    jobs = [canceled(coordinator) for _ in range(8)]
    coordinator.redis.zadd(coordinator.keys.staging_index, {job: 1.0 for job, _ in jobs}, xx=True)
    start = threading.Barrier(len(coordinators))

    def run(one: Coordinator) -> None:
        start.wait()
        for job, _ in jobs:  # each looks at every job, whoever took it first
            look(one, job)

    threads = [threading.Thread(target=run, args=(one,)) for one in coordinators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not [zombie for _, zombie in jobs if stands(coordinator, zombie.staging)]
    assert readable(coordinator, "kept") == [str(tokens["kept"])]
    assert coordinator.redis.zcard(coordinator.keys.staging_index) == len(jobs) + 1, (
        "each is looked at once more"
    )


def test_each_job_goes_to_one_coordinator_and_is_reassigned_if_that_is_silent(
    coordinator: Coordinator,
) -> None:
    job, _ = canceled(coordinator)
    index = coordinator.staging_index
    coordinator.redis.zadd(coordinator.keys.staging_index, {job: 1.0}, xx=True)
    assert [staged.job for staged in index.take(10.0, 5, 60.0)] == [job]
    assert index.take(10.0, 5, 60.0) == []
    assert [staged.job for staged in index.take(71.0, 5, 60.0)] == [job]


def test_a_log_entry_is_read_once_for_any_number_of_swept_jobs(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [canceled(coordinator)[0] for _ in range(5)]
    for _ in range(10):
        finished(coordinator)
    reads, entry = [], Warehouse.entry

    def counted(self: Warehouse, n: int) -> Any:
        reads.append(n)
        return entry(self, n)

    monkeypatch.setattr(Warehouse, "entry", counted)
    look(coordinator, *jobs)
    assert sorted(reads) == list(range(1, 11))
