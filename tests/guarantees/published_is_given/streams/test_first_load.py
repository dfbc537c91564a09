"""A bad file in the very first load of a stream can be skipped, though no dataset holds a position
yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from unstuck import Refused
from unstuck.coordinator.publishing.streams.skip_file import skip_file
from unstuck.coordinator.publishing.streams.sources_read import sources_of
from unstuck.in_process.run_job import InProcess, JobResult
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.streams.arrived.stream_look import Look, Looks
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.published import read_arrow

FILES = {"a.csv": "id,name\n1,ann\n", "bad.csv": "id,name\nx,dan\n", "c.csv": "id,name\n3,cid\n"}


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    (folder := tmp_path / "in").mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def stream_of(landing: Path) -> dict[str, Any]:
    columns = "id BIGINT, name STRING"
    return {
        "stream": str(landing),
        "format": "csv",
        "schema": columns,
        "options": {"header": "true"},
    }


@pytest.fixture
def load(landing: Path, tmp_path: Path) -> Iterator[Callable[..., JobResult]]:
    with InProcess(tmp_path / "warehouse") as here:

        def run(**more: Any) -> JobResult:
            step = {"python": "tests.support.steps.small_steps:passes_on", "output": "loads"}
            group = {
                "name": "load",
                "spark": False,
                "inputs": {"events": stream_of(landing)},
                "steps": [step],
                **more,
            }
            return here.run(
                {"name": "loads", "groups": [group], "outputs": {"loads": {"mode": "append"}}}
            )

        yield run


@pytest.fixture
def warehouse(load: Callable[..., JobResult], tmp_path: Path) -> Warehouse:
    load_nothing = Warehouse(str(tmp_path / "warehouse"))
    load_nothing.ensure_id()
    return load_nothing


def ids(warehouse: Warehouse) -> list[int]:
    return sorted(row["id"] for row in read_arrow(warehouse, "loads").to_pylist())


def test_a_bad_file_of_the_first_load_can_be_skipped(
    landing: Path, load: Callable[..., JobResult], warehouse: Warehouse
) -> None:
    assert "BAD_FILE" in load().why()
    bad = str(landing / "bad.csv")
    done = skip_file(warehouse, "loads", bad, by="anna", reason="cut short")
    assert (done.path, done.version, done.new) == (bad, 0, True)
    assert not skip_file(warehouse, "loads", bad, by="anna").new, "asked again"
    look = Looks().look(
        StreamInput.model_validate(stream_of(landing)), {"loads": None}, warehouse.storage
    )
    assert look == Look(2, bytes=28, oldest=look.oldest, looked=3), (
        "what a schedule and a backlog see"
    )
    assert load().finished
    assert ids(warehouse) == [1, 3]
    sources = {
        Path(one.source).name: one.put_aside
        for one in sources_of(warehouse, "loads", warehouse.existing_entry(1))
    }
    assert sources == {"a.csv": "", "bad.csv": "skipped by anna: cut short", "c.csv": ""}
    (landing / "d.csv").write_text("id,name\n4,dan\n")
    assert load().finished, "the published position knows the file"
    assert ids(warehouse) == [1, 3, 4]


def test_a_skipped_file_that_was_fixed_before_the_first_load_is_read(
    landing: Path, load: Callable[..., JobResult], warehouse: Warehouse
) -> None:
    skip_file(warehouse, "loads", str(landing / "bad.csv"), by="anna")
    (landing / "bad.csv").write_text("id,name\n22,ben\n")
    assert load().finished
    assert ids(warehouse) == [1, 3, 22]


def test_each_member_of_a_fork_skips_its_own_files(
    landing: Path, load: Callable[..., JobResult], warehouse: Warehouse
) -> None:
    bad = str(landing / "bad.csv")
    skip_file(warehouse, "loads", bad, by="anna")
    # One member has no other file, and one may have none.
    (name,) = [
        f"{n}.csv"
        for n in range(99)
        if crc32(f"{landing}/{n}.csv".encode()) % 3 != crc32(bad.encode()) % 3
    ][:1]
    (landing / "a.csv").rename(landing / name)
    (landing / "c.csv").unlink()
    parts = {"part": [0, 1, 2]}
    assert load(for_each=parts).finished
    (landing / "d.csv").write_text("id,name\n4,dan\n")
    assert load(for_each=parts).finished
    assert ids(warehouse) == [1, 4]


def test_skipping_an_impossible_file_of_a_first_load_is_refused(
    landing: Path, warehouse: Warehouse
) -> None:
    for dataset, file, why in (
        ("loads", "bad.csv", "give the whole path"),
        ("loads", str(landing / "gone.csv"), "there is no file"),
        ("../loads", str(landing / "bad.csv"), "is not the name of a dataset"),
    ):
        with pytest.raises(Refused, match=why):
            skip_file(warehouse, dataset, file, by="anna")
    assert warehouse.storage.names("_skipped") == []
