"""Docstrings: those of modules are short, and those of the product do not begin with What or Who."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PRODUCT = ("tasks", "coordinator", "src/unstuck")
FOLDERS = (*PRODUCT, "tests", "bench", "scripts", "examples")
MODULE_DOCSTRING = re.compile(r'(?:#.*\n|\s)*r?"""(.*?)"""', re.DOTALL)  # of which there are too many to parse
SENTENCE_END = re.compile(r"""[.!?][)"'`]*(?:\s|$)""")


def sources(folder: str) -> Iterator[tuple[Path, str]]:
    for path, folders, names in os.walk(ROOT / folder):
        folders[:] = [name for name in folders if not name.startswith(".")]  # not installed packages
        for name in filter(lambda name: name.endswith(".py"), names):
            yield Path(path, name).relative_to(ROOT), Path(path, name).read_text()


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_module_docstring_has_one_to_three_sentences(folder: str) -> None:
    found = {path: MODULE_DOCSTRING.match(text) for path, text in sources(folder)}
    ends = {path: len(SENTENCE_END.findall(text[1])) for path, text in found.items() if text}
    assert ends
    assert {path: count for path, count in ends.items() if not 1 <= count <= 3} == {}


@pytest.mark.parametrize("folder", PRODUCT)
def test_no_docstring_of_the_product_begins_with_what_or_who(folder: str) -> None:
    """A reader of another language has to guess which noun is meant."""
    places = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        (path, text.splitlines()[0])
        for path, source in sources(folder)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, places) and (text := ast.get_docstring(node))
    ]
    assert found
    assert [first for first in found if re.match(r"(What|Who)\b", first[1])] == []
