"""A look at what has arrived: exact, also after it has been idle, and it tells what a run would
fail with.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tasks.streams.arrived.test_listing import arrive, stream_of
from unstuck.tasks.streams.arrived import stream_look as module
from unstuck.tasks.streams.arrived.listing import listing
from unstuck.tasks.streams.arrived.position import FilesPosition, write_position
from unstuck.tasks.streams.arrived.stream_look import Look, Looks
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log_entry import DatasetState
from unstuck.tasks.warehouse.marker import Checkpoint


class WatchedFolder:
    """A folder in which files arrive, and what is published of them."""

    def __init__(self, home: Path) -> None:
        self.folder, self.files = home / "in", Files(str(home / "warehouse"))
        self.looks = Looks(max_idle=2, files_per_look=2)
        self.folder.mkdir()
        self.datasets: dict[str, DatasetState | None] = {"loads": None}
        self.loads = 0

    def load(self) -> None:
        """All that lies there is published."""
        self.loads += 1
        path = f"_staging/{self.loads}.position"
        size = write_position(
            self.files, path, FilesPosition(dict(listing(stream_of(self.folder)).files))
        )
        checkpoint = Checkpoint(path, size, str(self.folder), 1, "", "files")
        self.datasets["loads"] = DatasetState([], "{}", 1, 1.0, "job", "x", checkpoint=checkpoint)

    def look(self, **more: Any) -> Look:
        return self.looks.look(stream_of(self.folder, **more), self.datasets, self.files)


@pytest.fixture
def place(tmp_path: Path) -> WatchedFolder:
    return WatchedFolder(tmp_path)


def test_a_check_reports_the_number_and_age_of_new_files(place: WatchedFolder) -> None:
    assert place.look() == Look()
    arrive(place.folder, "a.json", "sub/b.json")
    os.utime(place.folder / "a.json", (1000, 1000))
    assert place.look() == Look(new=2, bytes=4, oldest=1000.0, looked=2)
    place.load()
    assert place.look() == Look(looked=2)


@pytest.mark.parametrize("name", ["c.json", "sub/c.json", "sub/deep/c.json"])
def test_after_idle_checks_a_new_file_in_any_folder_is_found_immediately(
    place: WatchedFolder, name: str
) -> None:
    arrive(place.folder, "a.json", "sub/b.json")
    place.load()
    assert [place.look().arrived for _ in range(3)] == [False] * 3
    arrive(place.folder, name)
    assert place.look().new == 1
    assert place.look().new == 1
    place.load()
    assert not place.look().arrived


def test_after_idle_checks_a_renamed_partial_file_is_found_immediately(
    place: WatchedFolder,
) -> None:
    arrive(place.folder, "a.json.part")
    assert [place.look().arrived for _ in range(2)] == [False] * 2
    (place.folder / "a.json.part").rename(place.folder / "a.json")
    assert place.look().new == 1


def test_after_idle_checks_changed_content_is_found_when_the_file_is_rechecked(
    place: WatchedFolder,
) -> None:
    arrive(place.folder, *(f"{n}.json" for n in range(5)))
    place.load()
    assert not place.look().arrived
    arrive(place.folder, "3.json", text="[1]")
    assert [look.changed for look in (place.look() for _ in range(3))].count(1) >= 1
    assert place.look().changed == 1, "and stays so"
    assert place.look(changed="ignore") == Look(looked=5)
    assert place.look(changed="again").arrived


@pytest.mark.parametrize("files", [10, 11])
def test_after_many_idle_checks_changed_content_is_still_found(
    place: WatchedFolder, files: int
) -> None:
    """The files are compared in turn, and the turns begin again: whatever their number, each file
    gets one.
    """
    arrive(place.folder, *(f"{n}.json" for n in range(files)))
    place.load()
    assert not any(place.look().arrived for _ in range(8))
    arrive(place.folder, "7.json", text="[1]")
    assert 1 in [place.look().changed for _ in range(8)]


def test_idle_streams_with_other_ignored_names_are_distinguished(place: WatchedFolder) -> None:
    arrive(place.folder, "a.json", "b.json")
    place.load()
    assert [place.look().looked, place.look().looked] == [2, 2]
    assert [place.look(ignore=["a*"]).looked, place.look().looked] == [1, 2]


def test_a_check_continues_at_the_position_of_another_job(place: WatchedFolder) -> None:
    arrive(place.folder, "a.json")
    place.load()
    assert not place.look().arrived
    place.datasets["loads"] = None
    assert place.look().new == 1, "as after a look at another warehouse"


def test_a_check_reports_the_error_that_a_run_would_have(place: WatchedFolder) -> None:
    arrive(place.folder, "a.json")
    place.load()
    assert not place.look().arrived
    (place.folder / "a.json").unlink()
    place.folder.rmdir()
    gone = place.look()
    assert (gone.arrived, f"cannot read {place.folder}: No such file" in gone.trouble) == (
        True,
        True,
    )
    place.folder.mkdir()
    other = place.looks.look(stream_of(place.folder.parent), place.datasets, place.files)
    assert f"was loaded from {place.folder} before" in other.trouble


def test_a_missing_position_is_reported_and_an_inaccessible_store_is_left_to_the_run(
    place: WatchedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(place.folder, "a.json")
    place.load()
    place.files.remove_file("_staging/1.position")
    assert "1.position" in place.look().trouble
    monkeypatch.setitem(sys.modules, "obstore", None)
    assert place.looks.look(
        stream_of("s3://bucket-of-nobody/in"), {"loads": None}, place.files
    ) == Look(reachable=False)


def test_the_number_of_remembered_idle_streams_is_limited(
    place: WatchedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for generation in range(1, 6):
        assert not place.look(generation=generation).arrived
    listed: list[int] = []
    monkeypatch.setattr(
        module, "listing", lambda stream: listed.append(stream.generation) or listing(stream)
    )
    for generation in (5, 4, 1):
        assert not place.look(generation=generation).arrived
    assert listed == [1], "the last two are remembered"


def test_a_dangling_link_is_found_when_it_leads_to_a_file(tmp_path: Path) -> None:
    """A link whose file comes later; or a file that was removed while its folder was read, and came
    again.
    """
    place = WatchedFolder(tmp_path)
    arrive(place.folder, "a.json")
    (place.folder / "b.json").symlink_to(tmp_path / "later.json")
    place.load()
    assert place.look().new == 0
    (tmp_path / "later.json").write_text('{"n": 1}')
    assert place.look().new == 1
