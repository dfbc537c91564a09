"""Docstrings: those of modules are short, and those of the product do not begin with What or Who."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PRODUCT = ("tasks", "coordinator", "src/unstuck")
FOLDERS = (*PRODUCT, "tests", "bench", "scripts", "examples")
SENTENCE_END = re.compile(r"""[.!?][)"'`]*(?:\s|$)""")


@cache
def modules(folder: str) -> list[tuple[Path, ast.Module]]:
    paths = [path.relative_to(ROOT) for path in sorted((ROOT / folder).rglob("*.py"))]
    ours = [path for path in paths if not any(part.startswith(".") for part in path.parts)]  # not installed packages
    return [(path, ast.parse((ROOT / path).read_text())) for path in ours]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_module_docstring_has_one_to_three_sentences(folder: str) -> None:
    texts = {path: ast.get_docstring(tree) for path, tree in modules(folder)}
    ends = {path: len(SENTENCE_END.findall(text)) for path, text in texts.items() if text}
    assert ends
    assert {path: count for path, count in ends.items() if not 1 <= count <= 3} == {}


@pytest.mark.parametrize("folder", PRODUCT)
def test_no_docstring_of_the_product_begins_with_what_or_who(folder: str) -> None:
    """A reader of another language has to guess which noun is meant."""
    places = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        (path, text.splitlines()[0])
        for path, tree in modules(folder)
        for node in ast.walk(tree)
        if isinstance(node, places) and (text := ast.get_docstring(node))
    ]
    assert found
    assert [first for first in found if re.match(r"(What|Who)\b", first[1])] == []
