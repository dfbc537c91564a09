"""What ``unstuck up --reload`` takes for a change of source."""

from __future__ import annotations

from pathlib import Path

import pytest

from unstuck.local.source import SourceWatch, holds_source


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in (
        "steps/load.py",
        "warehouse/x.py",
        ".venv/y.py",
        "venv/lib/site-packages/z.py",
        "notes.txt",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1\n")
    return tmp_path


def test_a_change_is_reported_once_after_the_last_save(project: Path) -> None:
    watch = SourceWatch([project], without=[project / "warehouse"])
    assert watch.changed() == []
    (project / "steps" / "load.py").write_text("22\n")
    assert watch.changed() == [], "more may come"
    (project / "steps" / "new.py").write_text("1\n")
    assert watch.changed() == []
    assert watch.changed() == [str(project / "steps" / name) for name in ("load.py", "new.py")]
    assert watch.changed() == []
    (project / "steps" / "load.py").unlink()
    watch.changed()
    assert watch.changed() == [str(project / "steps" / "load.py")]


@pytest.mark.parametrize(
    "name",
    ["warehouse/x.py", ".venv/y.py", "venv/lib/site-packages/z.py", "notes.txt", "steps/.#load.py"],
)
def test_files_that_workers_cannot_import_are_not_source(project: Path, name: str) -> None:
    watch = SourceWatch([project], without=[project / "warehouse"])
    (project / name).write_text("22\n")
    assert [watch.changed(), watch.changed(), watch.changed()] == [[], [], []]


def test_a_file_belongs_to_the_package_importable_from_each_folder(project: Path) -> None:
    watch = SourceWatch([project, project / "src"])
    assert watch.packages_of(str(project / "steps.py")) == {"steps"}
    assert watch.packages_of(str(project / "src" / "steps" / "load.py")) == {"src", "steps"}


def test_a_missing_folder_is_not_an_error(tmp_path: Path) -> None:
    watch = SourceWatch([tmp_path / "later"])
    assert watch.changed() == []
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "a.py").write_text("1\n")
    watch.changed()
    assert watch.changed() == [str(tmp_path / "later" / "a.py")]


def test_a_folder_with_modules_or_packages_contains_source(tmp_path: Path) -> None:
    assert not holds_source(tmp_path)
    (tmp_path / "notes.txt").touch()
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "__init__.py").touch()
    assert not holds_source(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    assert holds_source(tmp_path)
    (tmp_path / "mine").rename(tmp_path / ".gone")
    (tmp_path / "steps.py").touch()
    assert holds_source(tmp_path)
