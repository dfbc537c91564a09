"""Publishing: all outputs of a job together, once or not at all, whoever races, repeats, freezes or
dies.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest

import unstuck.coordinator.publishing.package
from tests.support.paths import ROOT
from unstuck.coordinator.errors import PublishFailed
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.publishing.publish_outputs import abort, publish
from unstuck.coordinator.publishing.publish_request import PublishRequest
from unstuck.tasks.errors import LogBroken, SchemaMismatch, WarehouseMismatch
from unstuck.tasks.failpoints import Point, arm
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.marker import (
    MARKER,
    DataFile,
    Marker,
    StagedOutput,
    read_marker,
    write_marker,
)


def schema(*columns: str, nullable: bool = True) -> str:
    """Spark's JSON of a struct; a column is ``name:type``."""
    fields = [
        {"name": name, "type": type_, "nullable": nullable, "metadata": {}}
        for name, _, type_ in (c.partition(":") for c in columns)
    ]
    return json.dumps({"type": "struct", "fields": fields})


FORCED = PublishResult(failed=Reason("FORCE_STOPPED", "by alice"))
FLIGHTS = schema("month:long", "flights:long")


@dataclass
class StagedJob:
    """A job whose groups have staged their outputs in the warehouse at ``root``."""

    root: str
    id: str = "job-1"
    publish_id: str = ""
    name: str = "flights"
    known: str = ""  # the id of the warehouse; made if need be
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def stage(
        self,
        group: str,
        rows: int = 3,
        ordinal: int | None = None,
        columns: str = FLIGHTS,
        *,
        reads: dict[str, list[int]] | None = None,
        code: str = "",
        **outputs: int,
    ) -> str:
        """One attempt with one file per output (``name=size``); returns its staging folder."""
        files = Files(self.root)
        member = group if ordinal is None else f"{group}.{ordinal}"
        staging = f"_staging/{self.id}/{member}/1-nonce-claimant"
        made = {}
        for name, size in outputs.items():
            path = f"{staging}/{name}/part-0.parquet"
            files.write_durable(path, b"x" * size)
            made[name] = StagedOutput([DataFile(path, rows, size)], rows, columns)
        marker = Marker(
            f"{self.id}/{group}", "same", made, {}, {}, 1.0, code=code, sources=reads or {}
        )
        write_marker(files, staging, marker)
        self.sources[group] = (*self.sources.get(group, ()), staging)
        return staging

    def request(self, base: int = 0, **more: Any) -> PublishRequest:
        known = self.known or Warehouse(self.root).ensure_id()
        return PublishRequest(
            self.root, known, self.publish_id or self.id, self.id, self.name, base, 1000.0, **more
        )

    def publish(
        self,
        wanted: tuple[str, ...] | None = None,
        base: int = 0,
        by: set[str] | None = None,
        **more: Any,
    ) -> PublishResult:
        more |= {"published_by": set(self.sources) if by is None else by, "requested": wanted}
        return publish(self.request(base, params={"year": 2013}, sources=self.sources, **more))

    def abort(
        self, base: int = 0, code: str = "FORCE_STOPPED", reason: str = "by alice"
    ) -> PublishResult:
        return abort(self.request(base), Reason(code, reason))


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "warehouse")


def two_outputs(root: str, job: str, name: str = "flights") -> StagedJob:
    made = StagedJob(root, job, name=name)
    made.stage("by_carrier", rows=2, carriers=10)
    made.stage("by_month", rows=5, months=20)
    return made


# What is published


@pytest.mark.parametrize("skipped", [set[str](), {"months"}])
def test_a_requested_output_may_be_missing_only_if_its_group_was_skipped(
    root: str, skipped: set[str]
) -> None:
    job = StagedJob(root)
    job.stage("by_carrier", rows=2, carriers=10)
    result = job.publish(("carriers", "months"), skipped=skipped)
    assert result.rows == ({"carriers": 2} if skipped else {})
    assert (result.failed is None) == bool(skipped)


@pytest.mark.claim("All outputs of a job become visible together, or none of them.")
def test_all_outputs_of_a_job_appear_in_one_entry(root: str) -> None:
    job = two_outputs(root, "job-1")

    assert job.publish() == PublishResult(version=1, rows={"carriers": 2, "months": 5})

    entry = Warehouse(root).entry(1)
    assert entry is not None
    assert (entry.kind, entry.publish_id, entry.job, entry.job_name) == (
        "package",
        "job-1",
        "job-1",
        "flights",
    )
    assert (entry.params, entry.at) == ({"year": 2013}, 1000.0)
    assert entry.tokens == [job.sources["by_carrier"][0], job.sources["by_month"][0]]
    assert sorted(Warehouse(root).state()) == ["carriers", "months"]


def test_an_entry_records_the_inputs_and_the_job_of_its_outputs(root: str) -> None:
    job = StagedJob(root)
    job.stage("by_month", ordinal=0, reads={"flights": [3], "planes": [1]}, code="shop:1", months=1)
    job.stage("by_month", ordinal=1, reads={"flights": [2]}, code="shop:2", months=1)
    job.stage("hidden", reads={"secret": [9]}, code="other:1", hidden=1)
    assert job.publish(by={"by_month"}).version == 1
    change = Warehouse(root).existing_entry(1).datasets["months"]
    assert change.inputs == {"flights": [2, 3], "planes": [1]}
    assert change.steps == {"by_month": "shop:1, shop:2"}


def test_a_version_lists_only_the_lineage_of_its_own_dataset(root: str) -> None:
    job = StagedJob(root)
    job.stage("clean", reads={"flights": [3], "absent": [0]}, code="shop:1", flights=10)
    job.stage("report", reads={"flights": [3], "prices": [2]}, code="shop:2", report=10)
    job.stage("fleet", reads={"planes": [1]}, code="other:1", planes=10)
    needs = {"clean": (), "fleet": (), "all": ("clean",), "report": ("all",)}
    assert job.publish(wanted=("flights", "report", "planes"), needs=needs).version == 1
    changes = Warehouse(root).existing_entry(1).datasets
    assert {name: (change.inputs, change.steps) for name, change in changes.items()} == {
        "flights": ({"flights": [3]}, {"clean": "shop:1"}),
        "report": ({"flights": [3], "prices": [2]}, {"clean": "shop:1", "report": "shop:2"}),
        "planes": ({"planes": [1]}, {"fleet": "other:1"}),
    }


def test_the_next_job_replaces_only_its_own_datasets(root: str) -> None:
    two_outputs(root, "job-1").publish()
    second = StagedJob(root, "job-2")
    second.stage("by_month", rows=9, months=20)
    second.publish(base=1)

    state = Warehouse(root).state()
    assert [f.path for f in state["months"].files] == [
        "_staging/job-2/by_month/1-nonce-claimant/months/part-0.parquet"
    ]
    assert (state["carriers"].job, state["months"].job) == ("job-1", "job-2")


def test_the_members_of_a_fork_form_one_dataset(root: str) -> None:
    job = StagedJob(root)
    for month in (1, 2, 3):
        job.stage("by_month", rows=month, ordinal=month, months=10)

    assert job.publish() == PublishResult(version=1, rows={"months": 6})
    assert [f.rows for f in Warehouse(root).dataset("months").files] == [1, 2, 3]


def test_members_that_differ_only_in_nullability_are_compatible(root: str) -> None:
    job = StagedJob(root)
    job.stage("by_month", ordinal=0, columns=schema("month:long", nullable=False), months=10)
    job.stage("by_month", ordinal=1, columns=schema("month:long"), months=10)

    job.publish()

    assert json.loads(Warehouse(root).state()["months"].schema) == json.loads(schema("month:long"))


def test_by_default_only_final_groups_are_published(root: str) -> None:
    job = StagedJob(root)
    job.stage("clean", flights=10)
    job.stage("report", report=10)
    assert job.publish(by={"report"}) == PublishResult(version=1, rows={"report": 3})


def test_a_requested_output_is_published_from_any_group(root: str) -> None:
    job = StagedJob(root)
    job.stage("clean", flights=10, rejected=10)
    job.stage("report", report=10)
    assert job.publish(wanted=("flights",), by={"report"}) == PublishResult(
        version=1, rows={"flights": 3}
    )
    entry = Warehouse(root).entry(1)
    assert entry is not None
    assert entry.tokens == [job.sources["clean"][0]]


@pytest.mark.parametrize("wanted", [None, ()])
def test_a_job_without_outputs_writes_no_entry(root: str, wanted: tuple[str, ...] | None) -> None:
    job = StagedJob(root)
    job.stage("check")
    assert job.publish(wanted=wanted) == PublishResult()
    assert Warehouse(root).head() == 0


# What cannot be published


def missing(job: StagedJob) -> PublishResult:
    job.stage("report", report=10)
    return job.publish(wanted=("report", "summary"))


def doubled(job: StagedJob) -> PublishResult:
    job.stage("left", report=10)
    job.stage("right", report=10)
    return job.publish()


def mixed(job: StagedJob) -> PublishResult:
    job.stage("by_month", ordinal=0, months=10)
    job.stage("by_month", ordinal=1, columns=schema("month:string", "flights:long"), months=10)
    return job.publish()


def reordered(job: StagedJob) -> PublishResult:
    job.stage("by_month", ordinal=0, months=10)
    job.stage("by_month", ordinal=1, columns=schema("flights:long", "month:long"), months=10)
    return job.publish()


def unmarked(job: StagedJob) -> PublishResult:
    staging = job.stage("report", report=10)
    (Path(job.root) / staging / MARKER).unlink()
    return job.publish()


def emptied(job: StagedJob) -> PublishResult:
    staging = job.stage("report", report=10)
    (Path(job.root) / staging / "report/part-0.parquet").write_bytes(b"cut")
    return job.publish()


@pytest.mark.parametrize(
    ("case", "code", "says"),
    [
        (missing, "OUTPUT_MISSING", r"job-1 is to publish summary.*They made: report"),
        (
            doubled,
            "DUPLICATE_OUTPUT",
            r"job-1: the groups left and right both made the output report",
        ),
        (mixed, "SCHEMA_MISMATCH", r"members of by_month.*changed month from bigint to string"),
        (reordered, "SCHEMA_MISMATCH", r"members of by_month.*another order"),
        (unmarked, "MARKER_GONE", r"job-1, group report: its marker is gone.*submit the job again"),
        (
            emptied,
            "MARKER_GONE",
            r"job-1, group report: files of its output report are gone or cut short",
        ),
    ],
)
def test_an_unpublishable_output_gives_a_reason_and_stays_invisible(
    root: str, case: Callable[[StagedJob], PublishResult], code: str, says: str
) -> None:
    failed = case(StagedJob(root)).failed
    assert failed is not None
    assert failed.code == code
    assert re.search(says, failed.text)
    assert Warehouse(root).state() == {}


def test_a_failure_is_final_and_repeats_give_the_same_failure(root: str) -> None:
    job = StagedJob(root)
    first = unmarked(job)
    assert first.failed is not None
    job.stage(
        "report", report=10
    )  # the marker is back: too late, the job may be called FAILED already

    assert job.publish() == first
    assert job.abort().version == 0
    assert job.publish() == first, "the abort that came later has not taken its place"
    assert Warehouse(root).head() == 1


def test_a_replaced_warehouse_is_refused(root: str, tmp_path: Path) -> None:
    job = two_outputs(root, "job-1")
    request = job.request()
    with pytest.raises(WarehouseMismatch, match=request.warehouse_id):
        abort(
            replace(request, warehouse=str(tmp_path / "unshared")),
            Reason("FORCE_STOPPED", "by alice"),
        )
    assert not (tmp_path / "unshared").exists()


class VanishingWarehouse:
    """A warehouse that goes away and comes back."""

    def __init__(self, root: str) -> None:
        self.here, self.gone = Path(root), Path(f"{root}-gone")

    def away(self) -> None:
        self.here.rename(self.gone)
        self.here.mkdir()  # an empty mount point

    def back(self) -> None:
        self.here.rmdir()  # it is empty still
        self.gone.rename(self.here)


@pytest.mark.parametrize(
    ("act", "at"),
    [
        (StagedJob.publish, Point.BEFORE_PACKAGE),
        (StagedJob.publish, Point.BEFORE_ENTRY),
        (StagedJob.abort, Point.BEFORE_ENTRY),
    ],
)
def test_a_warehouse_that_disappears_during_a_publish_is_not_a_failure_or_recreated(
    root: str, act: Callable[[StagedJob], PublishResult], at: Point
) -> None:
    job, warehouse = two_outputs(root, "job-1"), VanishingWarehouse(root)
    job.known = Warehouse(root).ensure_id()
    before = arm(lambda point, _: warehouse.away() if point is at else None)
    try:
        with pytest.raises(WarehouseMismatch, match="no warehouse at"):
            act(job)
    finally:
        arm(before)

    warehouse.back()
    assert Warehouse(root).head() == 0
    act(job)
    assert Warehouse(root).head() == 1


def test_a_warehouse_missing_for_one_check_fails_nothing(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, warehouse, looks = two_outputs(root, "job-1"), VanishingWarehouse(root), []

    def look(files: Files, staging: str) -> Marker | None:
        looks.append(staging)
        if len(looks) > 1:
            return read_marker(files, staging)
        warehouse.away()
        found = read_marker(files, staging)
        warehouse.back()
        return found

    monkeypatch.setattr(unstuck.coordinator.publishing.package, "read_marker", look)
    assert job.publish() == PublishResult(version=1, rows={"carriers": 2, "months": 5})


# Once


def test_a_repeated_publish_publishes_once(root: str) -> None:
    job = two_outputs(root, "job-1")
    first = job.publish()
    two_outputs(root, "job-2").publish()

    assert first == PublishResult(version=1, rows={"carriers": 2, "months": 5})
    assert job.publish() == PublishResult(version=1, rows={"carriers": 2, "months": 5})
    assert Warehouse(root).head() == 2
    assert Warehouse(root).state()["months"].job == "job-2", (
        "the repeat did not take the newer package back"
    )


def test_a_repeated_publish_finds_its_entry_after_the_staging_was_swept(root: str) -> None:
    job = two_outputs(root, "job-1")
    job.publish()
    for (staging,) in job.sources.values():
        (Path(root) / staging / MARKER).unlink()
    assert job.publish() == PublishResult(version=1, rows={"carriers": 2, "months": 5})


@pytest.mark.parametrize("base", [0, 1, 3])
def test_an_own_entry_is_found_from_any_earlier_base(root: str, base: int) -> None:
    for other in "abc":
        two_outputs(root, f"other-{other}").publish()
    job = two_outputs(root, "job-1")
    assert job.publish(base=3) == PublishResult(version=4, rows={"carriers": 2, "months": 5})
    for other in "de":
        two_outputs(root, f"other-{other}").publish()

    assert job.publish(base=base) == PublishResult(version=4, rows={"carriers": 2, "months": 5})
    assert Warehouse(root).head() == 6


def test_publishing_to_a_warehouse_restored_from_an_old_copy_is_refused(root: str) -> None:
    with pytest.raises(LogBroken, match="older copy"):
        two_outputs(root, "job-1").publish(base=3)
    assert Warehouse(root).head() == 0


def test_each_batch_of_a_streaming_job_is_a_package(root: str) -> None:
    for batch in (0, 1, 1):
        job = two_outputs(root, "job-1")
        job.publish_id = f"job-1/1/{batch}"
        job.publish()
    assert Warehouse(root).head() == 2


# Races


def publish_many(root: str, name: str, count: int) -> list[int | None]:
    versions = []
    for i in range(count):
        result = two_outputs(root, f"{name}-{i}").publish()
        assert result.failed is None
        versions.append(result.version)
    return versions


@pytest.mark.variant
def test_publishers_in_many_processes_publish_complete_packages(
    root: str,
) -> None:
    Warehouse(root).ensure_id()
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as pool:
        versions = [
            v for found in pool.map(publish_many, [root] * 3, "abc", [20] * 3) for v in found
        ]

    assert sorted(v for v in versions if v is not None) == list(range(1, 61))
    warehouse, standing = Warehouse(root), {"carriers": list[str](), "months": list[str]()}
    for n in range(1, 61):
        entry = warehouse.entry(n)
        assert entry is not None
        assert set(entry.datasets) == {"carriers", "months"}
        for name, change in entry.datasets.items():
            assert change.removed == standing[name], f"entry {n} replaces what entry {n - 1} added"
            assert all(entry.job in file.path for file in change.added)
            standing[name] = [file.path for file in change.added]
    assert len({state.job for state in warehouse.state().values()}) == 1


def test_two_publishers_of_one_entry_both_succeed_and_the_later_wins(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = two_outputs(root, "slow"), two_outputs(root, "fast")
    overtake_once(monkeypatch, lambda: fast.publish())

    assert slow.publish() == PublishResult(version=2, rows={"carriers": 2, "months": 5})

    first, second = Warehouse(root).entry(1), Warehouse(root).entry(2)
    assert first is not None
    assert second is not None
    assert (first.job, second.job) == ("fast", "slow")
    for name in ("carriers", "months"):
        assert second.datasets[name].removed == [file.path for file in first.datasets[name].added]


def overtake_once(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """The next publisher freezes with its entry in hand; ``act`` happens; it thaws."""
    real, done = Warehouse.create_entry, Event()

    def create(self: Warehouse, n: int, entry: Any) -> bool:
        if not done.is_set():
            done.set()
            act()
        return real(self, n, entry)

    monkeypatch.setattr(Warehouse, "create_entry", create)


def test_a_frozen_publisher_that_thaws_after_the_abort_changes_nothing(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, answers = two_outputs(root, "job-1"), []
    overtake_once(monkeypatch, lambda: answers.append(job.abort()))

    assert job.publish() == FORCED

    assert answers == [FORCED]
    assert Warehouse(root).head() == 1
    assert Warehouse(root).state() == {}


def test_a_frozen_publisher_finds_its_abort_after_others_took_its_entry(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, other = two_outputs(root, "job-1"), two_outputs(root, "other")
    overtake_once(monkeypatch, lambda: (other.publish(), job.abort()))

    assert job.publish() == FORCED
    assert Warehouse(root).head() == 2
    assert Warehouse(root).state()["months"].job == "other"


def test_an_abort_that_is_too_late_reports_the_published_entry(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = two_outputs(root, "job-1")
    overtake_once(monkeypatch, lambda: job.publish())

    assert job.abort() == PublishResult(version=1, rows={"carriers": 2, "months": 5})
    assert job.abort() == PublishResult(version=1, rows={"carriers": 2, "months": 5})
    assert Warehouse(root).head() == 1


def test_a_frozen_publisher_cannot_complete_a_failed_publish(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One coordinator has read the markers and freezes; they vanish; another one calls the job
    FAILED.
    """
    job, failed = two_outputs(root, "job-1"), []

    def vanish_and_fail() -> None:
        (Path(root) / job.sources["by_month"][0] / MARKER).unlink()
        failed.append(job.publish().failed)

    overtake_once(monkeypatch, vanish_and_fail)
    failed.append(job.publish().failed)
    assert failed[0] == failed[1]
    assert "marker is gone" in failed[0].text
    assert Warehouse(root).state() == {}
    assert Warehouse(root).head() == 1


def test_exactly_one_of_a_racing_abort_and_publish_succeeds(root: str) -> None:
    kinds = set()
    with ThreadPoolExecutor(4) as pool:
        for round_ in range(40):
            job, start = two_outputs(root, f"job-{round_}"), Barrier(4)

            def go(act: Callable[[], PublishResult], start: Barrier = start) -> PublishResult:
                start.wait()
                return act()

            acts = [job.publish, job.abort, job.publish, job.abort]
            results = list(pool.map(go, acts))

            standing = [
                e
                for n in range(1, round_ + 2)
                if (e := Warehouse(root).entry(n)) and e.job == job.id
            ]
            assert len(standing) == 1
            assert Warehouse(root).head() == round_ + 1
            published = standing[0].kind == "package"
            assert {(r.failed is None, r.version) for r in results} == {
                (published, standing[0].n if published else 0)
            }
            kinds.add(standing[0].kind)
    assert kinds <= {"package", "abort"}


# Death


class KilledAtCall(BaseException):
    """The process is gone at this call: nothing of ours runs after it, no cleanup either."""


class Reaper:
    """Kills at the ``at``-th call to the file system, before or after it took effect."""

    CALLS = ("open", "write", "fsync", "link", "replace", "unlink", "mkdir")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, after: bool) -> None:
        self.left, self.after, self.dead = at, after, False
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self.wrap(getattr(os, name)))

    def wrap(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                raise KilledAtCall
            self.left -= 1
            self.dead = self.left < 0
            if self.dead and not self.after:
                raise KilledAtCall
            result = real(*args, **kwargs)
            if self.dead:
                if real is REAL_OPEN:
                    os.close(result)
                raise KilledAtCall
            return result

        return call


REAL_OPEN = os.open


@pytest.mark.claim("All outputs of a job become visible together, or none of them.")
@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
def test_readers_see_all_old_or_all_new_data_when_a_publisher_is_killed(
    root: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "unstuck.tasks.warehouse.log.SNAPSHOT_EVERY", 1
    )  # so that every publish goes through all that is written
    old = two_outputs(root, "job-0")
    old.publish()
    seen, deaths = set(), 0
    while True:
        job = two_outputs(root, f"job-{deaths + 1}")
        head = Warehouse(root).head()
        with monkeypatch.context() as patch:
            reaper = Reaper(patch, deaths, after)
            with contextlib.suppress(KilledAtCall):
                job.publish()
        if not reaper.dead:
            break
        deaths += 1

        state = Warehouse(root).state()
        assert set(state) == {"carriers", "months"}
        (shown,) = {dataset.job for dataset in state.values()}
        assert shown in (f"job-{deaths - 1}", job.id), (
            "all of the version before, or all of the new one"
        )
        assert Warehouse(root).head() == head + (shown == job.id)
        seen.add("new" if shown == job.id else "old")

        again = job.publish()  # another coordinator takes over
        assert again == PublishResult(version=head + 1, rows={"carriers": 2, "months": 5})
        assert Warehouse(root).head() == head + 1
    assert deaths >= 8
    assert seen == {"old", "new"}


PUBLISHER = """
import sys
sys.path.insert(0, sys.argv[3])
from tests.unit.coordinator.publishing.test_publish_outputs import two_outputs
root, n = sys.argv[1], int(sys.argv[2])
while True:
    two_outputs(root, f"job-{n}").publish()
    n += 1
    print(n, flush=True)
"""


@pytest.mark.claim("All outputs of a job become visible together, or none of them.")
@pytest.mark.variant
def test_randomly_killed_publishers_publish_each_complete_package_once(root: str) -> None:
    Warehouse(root).ensure_id()
    chance, next_ = random.Random(7), 0
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", PUBLISHER, root, str(next_), str(ROOT)],
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            try:
                told = child.stdout.readline()
                assert told, "the publisher did not start"
                end = time.monotonic() + chance.uniform(0.02, 0.3)
                while time.monotonic() < end:  # a reader, all the while
                    assert len({(d.changed, d.job) for d in Warehouse(root).state().values()}) == 1
            finally:
                child.send_signal(signal.SIGKILL)
            lines = [told, *child.stdout.read().splitlines()]
            next_ = max(next_, *(int(line) for line in lines if line.strip()))
        # The reply of the last publish may be lost: its id is published again by the next process.
    warehouse = Warehouse(root)
    entries = [warehouse.entry(n) for n in range(1, warehouse.head() + 1)]
    ids = [entry.publish_id for entry in entries if entry is not None]
    assert len(ids) == len(entries)
    assert ids == [f"job-{n}" for n in range(len(ids))], "in order, each once, none lost"
    assert all(
        entry is not None and set(entry.datasets) == {"carriers", "months"} for entry in entries
    )
    assert next_ <= len(ids) <= next_ + 1


def test_the_codes_of_a_failed_publish_are_documented() -> None:
    doc, package = PublishFailed.__doc__ or "", unstuck.coordinator.publishing.package
    codes = (
        package.MARKER_GONE,
        package.OUTPUT_MISSING,
        package.DUPLICATE_OUTPUT,
        SchemaMismatch.code,
    )
    assert all(code in doc for code in codes)
