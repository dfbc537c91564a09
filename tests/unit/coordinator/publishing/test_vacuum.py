"""Vacuum: what goes, what stays, and that a vacuum may die at any point."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.failpoints import Died
from tests.unit.coordinator.publishing.test_modes import APPEND, BY_DAY, Nightly
from unstuck.coordinator.publishing.vacuum import Vacuumed, vacuum
from unstuck.tasks.errors import DatasetNotFound, InputNotPublished, LogBroken
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.steps.step_inputs import PublishedDatasets
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Change, Entry, State
from unstuck.tasks.warehouse.marker import Read

PUBLISHED_AT = 1000.0  # of all jobs of `Nightly`


@pytest.fixture
def nightly(tmp_path: Path) -> Nightly:
    return Nightly(str(tmp_path / "warehouse"))


def files_of(nightly: Nightly) -> list[str]:
    """The jobs whose files stand in the warehouse."""
    return sorted({path.parts[-5] for path in Path(nightly.root).rglob("*.parquet")})


def clean(
    nightly: Nightly, keep: int = 1, before: float = PUBLISHED_AT + 1, **more: Any
) -> Vacuumed:
    more = {"needed": lambda path: False, **more}
    return vacuum(Warehouse(nightly.root), keep=keep, before=before, **more)


def test_files_used_only_by_old_versions_are_removed(nightly: Nightly) -> None:
    for job in ("one", "two", "three"):
        nightly.publish(job, OutputSpec())

    assert clean(nightly, keep=2) == Vacuumed(oldest=2, files=1, bytes=10, kept=0)
    assert files_of(nightly) == ["three", "two"]
    assert clean(nightly, keep=1).oldest == 3
    assert files_of(nightly) == ["three"]


def test_old_files_of_every_dataset_of_an_entry_are_removed(nightly: Nightly) -> None:
    # Given two versions, each of which published a second dataset beside the first
    for number, job in enumerate(("one", "two"), 1):
        nightly.publish(job, OutputSpec())
        entry = Path(nightly.root) / f"_log/{number:012}.json"
        data = json.loads(entry.read_text())
        data["datasets"]["weather"] = second = json.loads(json.dumps(data["datasets"]["flights"]))
        second["removed"] = [path.replace(".parquet", "-2.parquet") for path in second["removed"]]
        for file in second["added"]:
            whole, file["path"] = (
                Path(nightly.root) / file["path"],
                file["path"].replace(".parquet", "-2.parquet"),
            )
            (Path(nightly.root) / file["path"]).write_bytes(whole.read_bytes())
        entry.write_text(json.dumps(data))
    # Then the files of both go with the first version
    assert clean(nightly, keep=1).files == 2
    assert files_of(nightly) == ["two"]


@pytest.mark.parametrize(
    "alias", ["_staging/./two", "_staging//two", "_staging/one/../two", "_staging/two/."]
)
def test_a_live_file_with_another_spelling_in_the_log_is_not_removed(
    nightly: Nightly, alias: str
) -> None:
    # Given a log edited by hand, in which an old entry took out a file that is live
    for job in ("one", "two"):
        nightly.publish(job, OutputSpec())
    entry = Path(nightly.root) / "_log/000000000002.json"
    data = json.loads(entry.read_text())
    (live,) = data["datasets"]["flights"]["added"]
    data["datasets"]["flights"]["removed"].append(live["path"].replace("_staging/two", alias))
    entry.write_text(json.dumps(data))
    # Then a vacuum removes nothing
    with pytest.raises(LogBroken, match="cannot be read"):
        clean(nightly)
    assert files_of(nightly) == ["one", "two"]


def test_a_link_out_of_the_warehouse_is_not_followed(nightly: Nightly, tmp_path: Path) -> None:
    # Given the folder of an old version, which somebody has replaced by a link to a precious one
    for job in ("one", "two"):
        nightly.publish(job, OutputSpec())
    precious = tmp_path / "precious"
    (Path(nightly.root) / "_staging/one").rename(precious)
    (Path(nightly.root) / "_staging/one").symlink_to(precious)
    # Then the vacuum says so, and removes nothing there
    with pytest.raises(OSError, match="lies outside of the warehouse"):
        clean(nightly)
    assert len(list(precious.rglob("*.parquet"))) == 1


def test_the_requested_twelve_versions_are_kept(nightly: Nightly) -> None:
    jobs = [f"job{n:02d}" for n in range(15)]
    for job in jobs:
        nightly.publish(job, OutputSpec())
    assert clean(nightly, keep=12) == Vacuumed(oldest=4, files=3, bytes=30, kept=0)
    assert files_of(nightly) == jobs[3:]


def test_appended_files_stay(nightly: Nightly) -> None:
    for job in ("one", "two", "three"):
        nightly.publish(job, APPEND)

    assert clean(nightly).files == 0
    assert files_of(nightly) == ["one", "three", "two"]


def test_unreplaced_partitions_stay(nightly: Nightly) -> None:
    nightly.publish("one", BY_DAY, "2013-01-01", "2013-01-02")
    nightly.publish("two", BY_DAY, "2013-01-02")

    assert clean(nightly).files == 1
    assert nightly.files == ["one 2013-01-01", "two 2013-01-02"]
    assert all(
        (Path(nightly.root) / file.path).exists()
        for file in Warehouse(nightly.root).dataset("flights").files
    )


def test_a_recently_newest_version_stays(nightly: Nightly) -> None:
    for job in ("one", "two", "three"):
        nightly.publish(job, OutputSpec())

    assert clean(nightly, before=PUBLISHED_AT - 1).files == 0
    assert files_of(nightly) == ["one", "three", "two"]


def test_a_job_that_started_with_an_empty_warehouse_still_reads_it_empty(nightly: Nightly) -> None:
    """Such as the first one of a stream, which waits while others publish."""
    for job in ("one", "two"):
        nightly.publish(job, OutputSpec())
    clean(nightly)

    published = PublishedDatasets(Warehouse(nightly.root), base=0)
    assert published.checkpoint("flights") is None
    assert published.changed([Read("flights", 0, 0)]) == ""


def test_a_job_stored_before_the_vacuum_counts_keeps_its_version(
    nightly: Nightly,
) -> None:
    for job in ("one", "two", "three"):
        nightly.publish(job, OutputSpec())
    log, jobs = Warehouse(nightly.root), list[tuple[int, str]]()

    done = clean(
        nightly,
        reading=lambda removed: min(jobs, default=None),
        counted=lambda: jobs.append((2, "late")),
    )
    assert done == Vacuumed(oldest=3, files=1, bytes=10, kept=0, kept_for="late")
    assert files_of(nightly) == ["three", "two"]
    # The job reads it, and all others are told.
    (part,) = PublishedDatasets(log, base=2).read("flights").parts
    assert "/two/" in part.files[0].path
    with pytest.raises(DatasetNotFound, match="removed by a vacuum"):
        log.dataset("flights", 2)
    assert clean(nightly, reading=lambda removed: (2, "late")).files == 0

    assert clean(nightly) == Vacuumed(oldest=3, files=1, bytes=10, kept=0)
    with pytest.raises(InputNotPublished, match="removed by a vacuum"):
        PublishedDatasets(log, base=2).read("flights")


def test_a_reader_of_a_removed_version_gets_an_error(nightly: Nightly) -> None:
    for job in ("one", "two"):
        nightly.publish(job, OutputSpec())
    clean(nightly)

    with pytest.raises(
        DatasetNotFound,
        match=r"version 1 .* removed by a vacuum; the oldest one that can be read is 2",
    ):
        Warehouse(nightly.root).dataset("flights", version=1)
    assert Warehouse(nightly.root).dataset("flights").job == "two"


def test_a_dry_run_changes_nothing(nightly: Nightly) -> None:
    for job in ("one", "two"):
        nightly.publish(job, OutputSpec())

    assert clean(nightly, dry_run=True) == Vacuumed(oldest=2, files=1, bytes=10, kept=0)
    assert files_of(nightly) == ["one", "two"]
    assert Warehouse(nightly.root).dataset("flights", version=1).job == "one"


def test_files_an_open_job_may_need_stay_until_it_ends(nightly: Nightly) -> None:
    for job in ("one", "two", "three"):
        nightly.publish(job, OutputSpec())

    assert clean(nightly, needed=lambda path: "/one/" in path) == Vacuumed(
        oldest=3, files=1, bytes=10, kept=1
    )
    assert files_of(nightly) == ["one", "three"]
    assert clean(nightly) == Vacuumed(oldest=3, files=1, bytes=10, kept=0)
    assert files_of(nightly) == ["three"]


@pytest.mark.parametrize(("keep", "stay"), [(1, ["one"]), (2, ["one", "two"])])
def test_a_republished_file_stays(nightly: Nightly, keep: int, stay: list[str]) -> None:
    """Two retries of one job publish what it had made, one after the other, with another job in
    between.
    """
    nightly.publish("one", OutputSpec())
    nightly.publish("two", OutputSpec())
    log = Warehouse(nightly.root)
    made = log.dataset("flights", version=1)

    def again(n: int, state: State) -> Entry:
        removed = [file.path for file in state["flights"].files]
        change = Change("replace", made.files, removed, made.rows, made.schema)
        return Entry(
            n, n - 1, "retry", "package", "retry", "flights", PUBLISHED_AT, {}, {"flights": change}
        )

    log.append("retry", 0, again)
    assert clean(nightly, keep=keep).files == 2 - keep
    assert files_of(nightly) == stay


def test_a_vacuum_that_keeps_more_finishes_an_interrupted_one(nightly: Nightly) -> None:
    for job in ("one", "two", "three", "four"):
        nightly.publish(job, OutputSpec())
    assert clean(nightly, needed=lambda path: "/two/" in path) == Vacuumed(
        oldest=4, files=2, bytes=20, kept=1
    )

    assert clean(nightly, keep=3, dry_run=True) == Vacuumed(oldest=4, files=1, bytes=10, kept=0)
    assert clean(nightly, keep=3, reading=lambda removed: (1, "job")) == Vacuumed(
        4, 0, 0, 0, kept_for="job"
    )
    assert clean(nightly, keep=3) == Vacuumed(oldest=4, files=1, bytes=10, kept=0)
    assert files_of(nightly) == ["four"]


def test_an_unreadable_log_permits_no_removal(nightly: Nightly) -> None:
    for job in ("one", "two", "three"):
        nightly.publish(job, OutputSpec())
    (entry,) = Path(nightly.root).rglob("000000000002.json")
    entry.write_text("{")

    with pytest.raises(LogBroken):
        clean(nightly)
    assert Warehouse(nightly.root).readable() == (0, 3)


# What a vacuum writes or removes, in its order: of four versions the files of three go.
WRITES = [(Warehouse, "keep_from"), *[(Files, "remove_file")] * 3, (Warehouse, "finish_vacuum")]


@pytest.mark.variant
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "nth", range(len(WRITES)), ids=[f"{n} {name}" for n, (_, name) in enumerate(WRITES)]
)
@pytest.mark.parametrize("place", ["a folder", "S3"])
def test_the_next_vacuum_finishes_one_that_died_anywhere(
    request: pytest.FixtureRequest, tmp_path: Path, place: str, nth: int, after: bool
) -> None:
    nightly = Nightly(
        f"{request.getfixturevalue('bucket')}/w" if place == "S3" else str(tmp_path / "warehouse")
    )
    for job in ("one", "two", "three", "four"):
        nightly.publish(job, OutputSpec())
    log, done = Warehouse(nightly.root), list[str]()
    files = {
        job: log.dataset("flights", version=n).files
        for n, job in enumerate(("one", "two", "three", "four"), 1)
    }

    def standing() -> list[str]:
        return [job for job, (file,) in files.items() if log.storage.size(file.path) is not None]

    def dying(name: str, write: Callable[..., None]) -> Callable[..., None]:
        def dies(*arguments: Any) -> None:
            if len(done) == nth and not after:
                raise Died
            write(*arguments)
            done.append(name)
            if len(done) == nth + 1:
                raise Died

        return dies

    with pytest.MonkeyPatch.context() as patched:
        for kind, name in {*WRITES}:
            patched.setattr(kind, name, dying(name, getattr(kind, name)))
        with pytest.raises(Died):
            clean(nightly)
    assert done == [name for _, name in WRITES[: nth + after]]
    assert "four" in standing()
    assert nightly.files == ["four"], "the version that is kept is whole"
    for version, job in enumerate(("one", "two", "three"), 1):
        if job not in standing():  # then nobody is led to it
            with pytest.raises(DatasetNotFound, match="removed by a vacuum"):
                log.dataset("flights", version)

    left = len(standing()) - 1
    assert left == 3 - min(max(nth + after - 1, 0), 3)
    assert clean(nightly) == Vacuumed(oldest=4, files=left, bytes=10 * left, kept=0)
    assert standing() == ["four"]
    assert log.vacuumed() == 4
    assert clean(nightly) == Vacuumed(oldest=4, files=0, bytes=0, kept=0)


@pytest.mark.variant
def test_later_versions_continue_as_before(nightly: Nightly) -> None:
    for number in range(120):  # past two snapshots
        nightly.publish(f"job-{number}", BY_DAY, f"day-{number % 3}")
        if number % 40 == 39:
            clean(nightly, keep=5)

    assert nightly.files == ["job-117 day-0", "job-118 day-1", "job-119 day-2"]
    assert len(files_of(nightly)) <= 3 + 5
    assert not [
        folder for folder, folders, files in os.walk(nightly.root) if not folders and not files
    ]


def test_an_empty_warehouse_has_nothing_to_remove(nightly: Nightly) -> None:
    Warehouse(nightly.root).ensure_id()
    assert clean(nightly) == Vacuumed(0, 0, 0, 0)


def test_versions_read_by_an_open_job_stay_until_it_ends(nightly: Nightly) -> None:
    for job in ("one", "two", "three"):
        nightly.publish(job, OutputSpec())

    assert clean(nightly, keep=1, reading=lambda removed: (2, "job")) == Vacuumed(
        oldest=2, files=1, bytes=10, kept=0, kept_for="job"
    )
    assert files_of(nightly) == ["three", "two"]
    assert clean(nightly, keep=1, reading=lambda removed: (3, "job")) == Vacuumed(
        oldest=3, files=1, bytes=10, kept=0
    )
