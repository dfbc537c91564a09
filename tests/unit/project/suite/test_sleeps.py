"""A test waits for a condition: whoever sleeps looks again, or says why on the same line."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

# What users' steps do: some are slow, and some hang.
STEPS = ROOT / "tests" / "support" / "steps"


def unexplained(path: Path) -> Iterator[int]:
    """The lines on which a program sleeps outside of a ``while``, with no comment."""
    text = path.read_text()
    if "sleep(" not in text:
        return
    tree, lines = ast.parse(text), text.splitlines()
    looks_again = {id(inner) for loop in ast.walk(tree) if isinstance(loop, ast.While) for inner in ast.walk(loop)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="sleep", value=ast.Name(id="time")) | ast.Name(id="sleep")):
                if id(node) not in looks_again and "#" not in lines[node.lineno - 1]:
                    yield node.lineno


def test_no_test_sleeps_where_it_could_wait_for_a_condition(tmp_path: Path) -> None:
    bare = tmp_path / "bare.py"
    bare.write_text("while not done():\n    time.sleep(1)\ntime.sleep(2)\ntime.sleep(3)  # a slow user\n")
    assert list(unexplained(bare)) == [3]
    files = [path for path in (ROOT / "tests").rglob("*.py") if STEPS not in path.parents]
    assert [f"{path.relative_to(ROOT)}:{line}" for path in files for line in unexplained(path)] == []
