"""What stands for the code of a group."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from unstuck.tasks.spec.group import GroupSpec
from unstuck.tasks.spec.work_order import FrozenInputs, GroupPlan, WorkOrder
from unstuck.tasks.steps.code import code_of, forget_code

FORMS = ["{}", "{}\n", "\ufeff{}", "{}\n\n"]


def code(*steps: str, version: str | None = None) -> str:
    return code_of_steps([{"sql": text} for text in steps], version)


def code_of_steps(steps: list[dict[str, Any]], version: str | None = None) -> str:
    spec = GroupSpec.model_validate({"name": "a", "steps": steps, "code_version": version})
    return code_of(WorkOrder(plan=GroupPlan(group=spec, warehouse="/w"), frozen=FrozenInputs()))


def test_the_code_of_an_sql_step_is_its_text() -> None:
    assert code("SELECT 1") == code("SELECT 1")
    assert code("SELECT 1").startswith("sql:")
    assert (
        len(
            {
                code("SELECT 1"),
                code("SELECT 2"),
                code("SELECT 1", "SELECT 2"),
                code("SELECT 1, SELECT 2"),
            }
        )
        == 4
    )
    assert code("SELECT 1", version="v1") == "version v1"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("form", FORMS)
def test_line_endings_and_a_byte_order_mark_do_not_change_sql_code(form: str, end: str) -> None:
    text = "SELECT 1,\n  2"
    assert code(form.format(text).replace("\n", end)) == code(text)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("form", FORMS)
def test_line_endings_and_a_byte_order_mark_do_not_change_python_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, end: str
) -> None:
    """Git checks a file out with CRLF on one host and with LF on another."""
    monkeypatch.syspath_prepend(tmp_path)
    file, text = tmp_path / "line_ends.py", 'def step(spark, ctx):\n    return """a\n\xe9"""'

    def digest(source: str) -> str:
        file.write_bytes(source.encode())
        forget_code(["line_ends"])
        return code_of_steps([{"python": "line_ends:step"}])

    assert digest(form.format(text).replace("\n", end)) == digest(text)
    assert digest(text) != digest(text + "\n# more")


def test_code_in_the_working_folder_is_read_before_its_step_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new runner asks for the code before it imports a step. Code that it does not find looks the
    same after each change, so what the old code made would be taken over.
    """
    elsewhere = [place for place in sys.path if place]
    digests = set()
    for version in (1, 2):
        folder = tmp_path / str(version)
        folder.mkdir()
        (folder / "in_working_folder.py").write_text(f"def step(spark, ctx):\n    return {version}")
        monkeypatch.chdir(folder)
        monkeypatch.setattr("sys.path", [*elsewhere])
        forget_code(["in_working_folder"])
        digests.add(code_of_steps([{"python": "in_working_folder:step"}]))
    assert len(digests) == 2
