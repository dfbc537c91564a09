"""Staging of jobs that have ended is removed when nobody can need it, and never before. Real Valkey, real folders."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.guarantees.one_at_a_time.test_refused_outcomes import held, refused
from tests.support.coordinator import Head, failed, group
from tests.support.servers import RedisServer, wait_until
from tests.support.thread_limit import no_new_threads
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.publishing import staging_gc
from unstuck.coordinator.publishing.background import Background
from unstuck.coordinator.store.jobs import Submission
from unstuck.coordinator.store.staging_index import StagingIndex
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Hint, Token
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse, published_files
from unstuck.tasks.warehouse.marker import DataFile, Marker, StagedOutput, read_marker, write_marker

SCHEMA = json.dumps({"type": "struct", "fields": []})


def stage(head: Head, token: Token, *outputs: str) -> Outcome:
    """Write what a runner would: a file per output, the marker, the log beside them."""
    files, made = Files(head.settings.warehouse), {}
    for name in outputs or (token.group.partition("[")[0],):
        path = f"{token.staging}/{name}/part-0.parquet"
        files.write_durable(path, f"{token}".encode())
        made[name] = StagedOutput([DataFile(path, 1, len(str(token)))], 1, SCHEMA)
    write_marker(files, token.staging, Marker(str(token), "same", made, {}, {}, 1.0))
    files.write_durable(f"{token.staging}.log", b"hello")
    return Outcome(OutcomeKind.SUCCEEDED, staging=token.staging, rows=dict.fromkeys(made, 1))


def work(head: Head, hint: Hint, outcome: Outcome | None = None, claimant: str = "runner1") -> Token:
    """Claim, stage and finish one attempt."""
    token = hint.held_by(claimant)
    assert head.claim(hint, claimant).answer == "CLAIMED"
    staged = stage(head, token)
    assert head.finish(token, outcome or staged) == "APPLIED"
    head.read()
    return token


def finished(head: Head, *groups: dict[str, Any], **spec: Any) -> tuple[str, dict[str, Token]]:
    """A job that is FINISHED, and the token that counts of each group."""
    job = head.submit(*(groups or (group("out"),)), **spec)
    head.read()
    tokens = {}
    while hints := head.hints(job):
        tokens |= {hint.group: work(head, hint) for hint in hints}
    assert head.status(job) is Status.FINISHED
    return job, tokens


def look(head: Head, *jobs: str) -> None:
    """As if it were time to look at the staging of ``jobs``."""
    head.redis.zadd(head.keys.sweepable, dict.fromkeys(jobs, 1.0), xx=True)
    head.sweep.run()


def forget(head: Head, job: str) -> None:
    """As if the job's retention were over: its keys have expired."""
    head.redis.delete(*head.redis.keys(f"*{{{job}}}*"))
    known = json.loads(str(head.redis.hget(head.keys.staged, job)))
    head.redis.hset(head.keys.staged, job, json.dumps({**known, "forget_at": 1.0}))
    head.redis.zadd(head.keys.ended, {job: 1.0})


def stands(head: Head, path: str) -> bool:
    return (Path(head.settings.warehouse) / path).exists()


def readable(head: Head, dataset: str) -> list[str]:
    """What a reader finds in the files of a dataset."""
    return [Path(path).read_text() for path in published_files(head.settings.warehouse, dataset)]


def test_a_force_stopped_jobs_late_success_is_refused_visibly_and_its_staging_is_swept(head: Head) -> None:
    other, tokens = finished(head, group("kept"))
    job, zombie = held(head)
    head.client.force_stop(job)
    head.read()
    outcome = stage(head, zombie)
    assert head.finish(zombie, outcome) == "STALE"
    head.read()
    head.sweep.run()
    assert stands(head, zombie.staging), "it is too early to look"
    keys = head.redis.keys(f"*{{{job}}}*")
    before = {key: head.redis.dump(key) for key in keys}

    look(head, job, other)

    assert not stands(head, zombie.staging)
    assert stands(head, f"{zombie.staging}.log"), "its log can be read until the retention is over"
    assert len(refused(head, job)) == 1
    assert {key: head.redis.dump(key) for key in head.redis.keys(f"*{{{job}}}*")} == before
    assert head.status(job) is Status.CANCELED
    assert readable(head, "kept") == [str(tokens["kept"])]


def test_a_job_is_looked_at_when_no_worker_can_hold_a_lease_any_more(make_head: Callable[..., Head]) -> None:
    head = make_head(lease_ttl=100, cancel_grace=50, retention=1000)
    job, _ = finished(head)
    ended = head.show(job).job.ended_at
    assert head.redis.zscore(head.keys.sweepable, job) == pytest.approx(ended + 150 + staging_gc.MARGIN, abs=5)
    look(head, job)
    assert head.redis.zscore(head.keys.sweepable, job) == pytest.approx(ended + 1000 + staging_gc.MARGIN, abs=5)


def test_a_failed_jobs_good_markers_stay_until_its_retention_is_over(head: Head) -> None:
    job = head.submit(group("good"), group("bad", "good"))
    head.read()
    (hint,) = head.hints()
    good = work(head, hint)
    (hint,) = head.hints()
    bad = work(head, hint, failed(recoverable=False))
    assert head.status(job) is Status.FAILED

    look(head, job)
    assert read_marker(Files(head.settings.warehouse), good.staging) is not None, "a retry may adopt it"
    assert not stands(head, bad.staging)
    assert stands(head, f"{bad.staging}.log")

    stage(head, bad)  # a zombie thaws and writes once more
    (Path(head.settings.warehouse) / f"_staging/{job}/notes").write_text("a file of somebody else's")
    look(head, job)
    assert read_marker(Files(head.settings.warehouse), good.staging) is not None
    assert not stands(head, bad.staging)
    stage(head, bad)  # and again
    forget(head, job)
    look(head, job)
    assert not stands(head, f"_staging/{job}")
    assert not head.redis.exists(head.keys.sweepable)
    assert not head.redis.exists(head.keys.staged)


def test_what_a_finished_job_published_can_be_read_for_ever(head: Head) -> None:
    inner, fork = group("inner"), group("fork", "inner", for_each={"n": [1, 2]})
    job, tokens = finished(head, inner, fork)
    zombie = replace(tokens["fork[0]"], claimant="zombie")
    stage(head, zombie)
    published = sorted(readable(head, "fork"))
    assert len(published) == 2

    look(head, job)
    assert sorted(readable(head, "fork")) == published
    assert stands(head, tokens["inner"].staging)
    assert not stands(head, zombie.staging)

    newer, _ = finished(head, inner, fork)  # it replaces the dataset: the older version can still be read
    for name in (job, newer):
        forget(head, name)
        look(head, name)
    assert sorted(readable(head, "fork")) != published
    older = published_files(head.settings.warehouse, "fork", version=1)
    assert sorted(Path(path).read_text() for path in older) == published
    assert not stands(head, f"_staging/{job}/inner")
    assert sorted(p.name for p in (Path(head.settings.warehouse) / f"_staging/{job}").rglob("*.log")) == []


def test_what_an_older_job_published_stays_although_a_newer_one_was_swept_before_it(head: Head) -> None:
    """What was read of the log for the newer job begins after the entry of the older one."""
    older, tokens = finished(head, group("kept"))
    newer, zombie = canceled(head)
    look(head, newer)
    assert not stands(head, zombie.staging), "the log was read for it"
    forget(head, older)
    look(head, older)
    assert not stands(head, f"{tokens['kept'].staging}.log"), "the older one was swept, too"
    assert readable(head, "kept") == [str(tokens["kept"])]


def test_an_object_store_is_swept_like_a_folder(redis_server: RedisServer, head: Head) -> None:
    elsewhere: Any = f"memory://{head.redis.client_id()}"
    head = Head(redis_server.url, elsewhere)
    files = Files(elsewhere)
    job, tokens = finished(head, group("inner"), group("out", "inner"))
    zombie = replace(tokens["out"], claimant="zombie")
    stage(head, zombie)

    look(head, job)
    assert f"{zombie.staging}.log".rpartition("/")[2] in files.names(f"_staging/{job}/out")
    assert read_marker(files, zombie.staging) is None
    assert read_marker(files, tokens["inner"].staging) is not None

    forget(head, job)
    look(head, job)
    assert files.names(f"_staging/{job}") == ["out"]
    (file,) = Warehouse(elsewhere).dataset("out").files
    assert files.read(file.path) == str(tokens["out"]).encode()
    assert files.names(f"_staging/{job}/out") == [tokens["out"].staging.rpartition("/")[2]]


def test_a_job_whose_record_is_gone_too_early_is_left_alone(head: Head) -> None:
    job, zombie = held(head)
    head.client.force_stop(job)
    head.read()
    stage(head, zombie)
    head.redis.delete(*head.redis.keys(f"*{{{job}}}*"))
    look(head, job)
    assert stands(head, zombie.staging), "nobody can say which attempt counted"


def retry(head: Head, of: str, *groups: dict[str, Any]) -> str:
    """A job that is known as a retry of another, with other groups than a real one would have."""
    submit = head.client._store.submit

    def as_retry(submission: Submission, summary: str, reason: str) -> tuple[str, bool]:
        return submit(replace(submission, job=replace(submission.job, retry_of=of)), summary, reason)

    head.client._store.submit = as_retry  # type: ignore[method-assign]
    job = head.submit(*groups)
    head.client._store.submit = submit  # type: ignore[method-assign]
    head.read()
    return job


def test_what_a_retry_adopted_stays_with_it_and_for_ever_once_it_is_published(head: Head) -> None:
    groups = group("out"), group("more", "out"), group("last", "more")
    job = head.submit(*groups, publish=["out"])
    head.read()
    out = work(head, head.hints()[0])
    more = work(head, head.hints()[0])
    work(head, head.hints()[0], failed(recoverable=False))
    again = retry(head, job, group("out"), group("more", "out"))
    forget(head, job)

    look(head, job)
    assert stands(head, out.staging), "its retry has not ended and may adopt anything"
    assert stands(head, more.staging)

    for adopted in (out, more):
        (hint,) = head.hints(again)
        taken_over = replace(stage(head, adopted), adopted=True)
        head.work(hint, taken_over)
        head.read()
    assert head.status(again) is Status.FINISHED
    assert readable(head, "more") == [str(more)]
    look(head, job, again)
    assert stands(head, out.staging), "a record of the retry names it, also where the log does not"
    assert stands(head, more.staging)

    forget(head, again)
    look(head, again)
    assert not head.redis.exists(head.keys.retries)
    look(head, job)
    assert readable(head, "more") == [str(more)], "the retry's entry in the log names it"
    assert not stands(head, out.staging)
    assert not head.redis.exists(head.keys.sweepable)


def canceled(head: Head) -> tuple[str, Token]:
    """A force-stopped job with a folder that counts for nothing."""
    job, zombie = held(head)
    head.client.force_stop(job)
    head.read()
    stage(head, zombie)
    return job, zombie


def test_a_log_with_a_hole_or_from_an_older_copy_proves_nothing_and_all_stays(
    head: Head, caplog: pytest.LogCaptureFixture
) -> None:
    job, zombie = canceled(head)
    for _ in range(2):
        finished(head)
    entry = Path(head.settings.warehouse) / "_log/000000000001.json"
    text = entry.read_bytes()
    entry.unlink()
    look(head, job)
    assert stands(head, zombie.staging)
    assert f"the staging of job {job}" in caplog.text
    assert "It is tried again in 60 minutes" in caplog.text

    entry.write_bytes(text)
    look(head, job)
    assert not stands(head, zombie.staging)

    stage(head, zombie)
    newest = Path(head.settings.warehouse) / "_log/000000000002.json"
    newest.rename(newest.with_suffix(".gone"))
    look(head, job)
    assert stands(head, zombie.staging), "the log has grown shorter than it was seen"


def test_a_warehouse_that_is_another_one_is_left_alone_and_asked_again(
    head: Head, caplog: pytest.LogCaptureFixture
) -> None:
    job, zombie = canceled(head)
    mark = Path(head.settings.warehouse) / "_warehouse_id"
    own = mark.read_text()
    mark.write_text("another")
    look(head, job)
    assert stands(head, zombie.staging)
    assert "WarehouseMismatch" in caplog.text
    asked_again = float(str(head.redis.zscore(head.keys.sweepable, job)))
    assert asked_again - head.show(job).at == pytest.approx(staging_gc.TERM, abs=60)
    mark.write_text(own)
    look(head, job)
    assert not stands(head, zombie.staging)


def test_a_warehouse_that_is_gone_is_not_asked_for_ever(head: Head, caplog: pytest.LogCaptureFixture) -> None:
    job, zombie = canceled(head)
    (Path(head.settings.warehouse) / "_warehouse_id").unlink()
    forget(head, job)
    look(head, job)
    assert stands(head, zombie.staging)
    assert "for people to remove" in caplog.text
    assert head.redis.zscore(head.keys.sweepable, job) is None


def test_a_warehouse_that_raises_costs_its_own_jobs_a_while_and_nobody_else(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, (kept, other) = canceled(head), canceled(head)
    remove = Files.remove_tree

    def broken_under_one(self: Files, folder: str) -> None:
        if broken[0] in folder:
            raise RuntimeError("the client of this store raises what it likes")
        remove(self, folder)

    monkeypatch.setattr(Files, "remove_tree", broken_under_one)
    look(head, broken[0], kept)
    assert stands(head, broken[1].staging)
    assert not stands(head, other.staging)
    monkeypatch.undo()
    look(head, broken[0])
    assert not stands(head, broken[1].staging)


def test_a_warehouse_that_hangs_while_it_is_swept_holds_up_no_job(
    make_head: Callable[..., Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = make_head(background=Background(2, "staging-collector"))
    job, zombie = canceled(head)
    thaw, hangs, remove = threading.Event(), threading.Event(), Files.remove_tree

    def hang(self: Files, folder: str) -> None:
        hangs.set()
        thaw.wait(30)
        remove(self, folder)

    monkeypatch.setattr(Files, "remove_tree", hang)
    look(head, job)
    hangs.wait()
    try:
        other = head.submit(group("quick"))
        head.sweep.run()
        (hint,) = head.hints(other)
        head.work(hint)
        head.read()
        head.wait_for(other, Status.FINISHED)
        look(head, job)  # it is being swept: nobody queues up behind it

        def one_is_left() -> bool:  # the publisher of the other job goes by the same name
            return [t.name for t in threading.enumerate()].count("staging-collector") == 1

        wait_until(one_is_left, 10, "one that sweeps, and nobody else")
    finally:
        thaw.set()
    wait_until(lambda: not stands(head, zombie.staging), 10, "the folder to go")


def test_a_sweep_of_staging_that_gets_no_thread_disturbs_nobody_and_is_begun_later(
    make_head: Callable[..., Head],
) -> None:
    head = make_head(background=Background(1, "staging-collector"))
    job, zombie = canceled(head)
    with no_new_threads():
        look(head, job)
    assert stands(head, zombie.staging)
    look(head, job)
    wait_until(lambda: not stands(head, zombie.staging), 10, "the folder to go")


def test_a_sweep_that_hung_and_was_overtaken_sweeps_on_when_it_comes_back(
    head: Head, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It knows an older head of the log than the one beside it, which does not mean that the log was set back."""
    collecting = Background(1, "staging-collector", term=0.0, beside=3)
    head.sweep._collector = staging_gc.StagingCollector(StagingIndex(head.redis, head.keys), head.store, collecting)
    (job, zombie), (later, other) = canceled(head), canceled(head)
    thaw, hangs, head_of = threading.Event(), threading.Event(), Warehouse.head

    def hang(self: Warehouse) -> int:
        found = head_of(self)
        if threading.current_thread().name == "staging-collector" and not hangs.is_set():
            hangs.set()
            thaw.wait(30)
        return found

    monkeypatch.setattr(Warehouse, "head", hang)
    try:
        look(head, job)
        hangs.wait()
        finished(head)
        look(head, later)
        wait_until(lambda: not stands(head, other.staging), 10, "the other to be swept beside it")
    finally:
        thaw.set()
    wait_until(lambda: not stands(head, zombie.staging), 10, "the first to sweep on")
    assert "could not be swept" not in caplog.text


def test_many_coordinators_sweep_at_once(make_head: Callable[..., Head]) -> None:
    heads = [make_head() for _ in range(3)]
    head = heads[0]
    _, tokens = finished(head, group("kept"))
    jobs = [canceled(head) for _ in range(8)]
    head.redis.zadd(head.keys.sweepable, {job: 1.0 for job, _ in jobs}, xx=True)
    start = threading.Barrier(len(heads))

    def run(one: Head) -> None:
        start.wait()
        for job, _ in jobs:  # each looks at every job, whoever took it first
            look(one, job)

    threads = [threading.Thread(target=run, args=(one,)) for one in heads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not [zombie for _, zombie in jobs if stands(head, zombie.staging)]
    assert readable(head, "kept") == [str(tokens["kept"])]
    assert head.redis.zcard(head.keys.sweepable) == len(jobs) + 1, "each is looked at once more"


def test_each_job_is_given_to_one_coordinator_and_again_if_nothing_is_heard(head: Head) -> None:
    job, _ = canceled(head)
    index = head.collector._index
    head.redis.zadd(head.keys.sweepable, {job: 1.0}, xx=True)
    assert [staged.job for staged in index.take(10.0, 5, 60.0)] == [job]
    assert index.take(10.0, 5, 60.0) == []
    assert [staged.job for staged in index.take(71.0, 5, 60.0)] == [job]


def test_an_entry_of_the_log_is_read_once_however_many_jobs_are_swept(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [canceled(head)[0] for _ in range(5)]
    for _ in range(10):
        finished(head)
    reads, entry = [], Warehouse.entry

    def counted(self: Warehouse, n: int) -> Any:
        reads.append(n)
        return entry(self, n)

    monkeypatch.setattr(Warehouse, "entry", counted)
    look(head, *jobs)
    assert sorted(reads) == list(range(1, 11))
