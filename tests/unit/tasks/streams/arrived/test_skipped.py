"""Files that a person skips before the first load: noted once for each content, and for each
dataset.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from unstuck.tasks.streams.arrived.listing import found_as
from unstuck.tasks.streams.arrived.skipped import Skipped, note_skipped, skipped
from unstuck.tasks.warehouse.files import Files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(str(tmp_path / "warehouse"))


def note(files: Files, dataset: str, path: Path, why: str = "cut short") -> bool:
    return note_skipped(files, dataset, Skipped(str(path), found_as(str(path)), why))


def test_a_fixed_file_that_is_bad_again_can_be_skipped_with_its_new_content(
    files: Files, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    assert [note(files, "loads", bad), note(files, "loads", bad, "once more")] == [True, False]
    bad.write_text("{{{")
    assert skipped(files, ["loads"]) == []
    assert note(files, "loads", bad, "still bad")
    assert [(one.content, one.why) for one in skipped(files, ["loads"])] == [
        (found_as(str(bad)), "still bad")
    ]


def test_the_first_load_of_several_datasets_skips_files_skipped_for_any_of_them(
    files: Files, tmp_path: Path
) -> None:
    paths = [tmp_path / name for name in ("a.json", "b.json", "c.json")]
    for path, dataset in zip(paths, ("one", "two", "two"), strict=True):
        path.write_text("{")
        assert note(files, dataset, path)
    assert sorted(one.path for one in skipped(files, ["one", "two"])) == [*map(str, paths)]
    assert sorted(one.path for one in skipped(files, ["two"])) == [*map(str, paths[1:])]
    assert skipped(files, ["three"]) == []
