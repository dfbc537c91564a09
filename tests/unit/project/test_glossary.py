"""The glossary and the code use the same words, one for each thing."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT

TERMS = re.findall(r"^\| \*\*([^*]+)\*\*", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
FILES = [
    path for room in ("tasks", "coordinator") for kind in ("py", "lua") for path in (ROOT / room).rglob(f"*.{kind}")
]
CODE = "\n".join(path.read_text() for path in FILES).lower()
# Words for mechanisms that the code had before. The field has words for them: docs/glossary.md and CONTRIBUTING.md.
RETIRED = (
    "ears seats leash vigil fuse lookout patience obeying vitals premises crew bell ring awake lying weather wishes "
    "twins settle orders"
)


@pytest.mark.parametrize("term", TERMS)
def test_each_term_is_a_word_of_the_code(term: str) -> None:
    (longest,) = sorted(re.findall(r"[a-z]+", term.lower()), key=len)[-1:]
    assert longest in CODE


@pytest.mark.parametrize("word", RETIRED.split())
def test_no_name_in_the_code_is_a_word_that_was_retired(word: str) -> None:
    names = re.compile(rf"(?<![a-z]){word}(?![a-z])")
    lines = [
        line for line in CODE.splitlines() if names.search(re.sub(r"#.*|--.*|\"\"\".*|'[^']*'|\"[^\"]*\"", "", line))
    ]
    assert lines == []


def test_no_two_files_of_one_side_have_the_same_name_but_those_of_one_thing() -> None:
    """A file says by its name which one it is, also in a list of files."""
    names: dict[str, list[str]] = {}
    for path in FILES:
        if path.suffix == ".py" and path.stem not in ("__init__", "__main__"):
            names.setdefault(path.stem, []).append(str(path.relative_to(ROOT)))
    assert {"jobs", "checks", "fleet", "deadlines"}.isdisjoint(name for name, found in names.items() if len(found) > 1)
