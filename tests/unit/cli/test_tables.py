"""No terminal is so narrow that an id or a word is split, in any table or sentence of the command
line.
"""

from __future__ import annotations

import ast

import pytest
from rich.text import Text

from tests.support.a_terminal import terminal
from tests.support.paths import ROOT
from unstuck.cli.render.terminal import hanging, table
from unstuck.views.words import first_line

CODE = sorted((ROOT / "src" / "unstuck" / "cli").rglob("*.py"))
# 87 columns.
ID = "20261127T074024-fa8esaga/by_month[3]/1/9cb4429862ba69e7/f4683b716d0d/of-a-shared-worker"
WORDS = (
    "group load failed: no file "
    "/data/landing/2026-11-27/customers_export_of_all_of_the_year.csv, 売上高の一覧 of it"
)
WIDTHS = (40, 60, 80, 120)


def _tables() -> dict[str, tuple[str, ...]]:
    """The names of the columns of each table in the code of the command line; a column of unknown
    name is MORE.
    """
    found = {}
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "table"
            ):
                names: list[str] = []
                for one in node.args:
                    inner = one.value if isinstance(one, ast.Starred) else one
                    unknown = [inner] * (
                        2 if inner is not one else 1
                    )  # at least two, for a row has a name and more
                    several = inner.elts if isinstance(inner, ast.Tuple) else unknown
                    names += [
                        str(each.value) if isinstance(each, ast.Constant) else "MORE"
                        for each in several
                    ]
                found[f"{path.name}:{node.lineno}"] = tuple(names)
    return found


TABLES = _tables()


def drawn(width: int, *printed: object) -> str:
    console, told = terminal(width)
    for one in printed:
        console.print(hanging(console, one, 10) if isinstance(one, Text) else one)
    return told.getvalue()


def too_long(said: str, width: int) -> list[str]:
    """Lines that are wider than the terminal, and hold more than one word."""
    return [
        line for line in said.splitlines() if len(line.rstrip()) > width and len(line.split()) > 1
    ]


def test_every_command_line_table_is_built_in_one_place() -> None:
    others = {
        path
        for path in CODE
        if "rich.table" in path.read_text() or "Table.grid" in path.read_text()
    }
    assert {path.name for path in others} == {"terminal.py", "job_tree.py"}
    assert len(TABLES) >= 12


@pytest.mark.variant
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("where", TABLES)
def test_no_table_splits_an_id_or_a_word(where: str, width: int) -> None:
    columns = TABLES[where]
    for long in range(len(columns)):  # each column in turn holds what is long, and then all do
        listing = table(*columns)
        listing.add_row(*(ID if n == long else f"short{n}" for n in range(len(columns))))
        listing.add_row(*(WORDS if n == long else "7" for n in range(len(columns))))
        said = drawn(width, listing).split()
        assert {
            ID,
            *WORDS.split(),
            *(f"short{n}" for n in range(len(columns)) if n != long),
        } <= set(said)
    listing = table(*columns)
    listing.add_row(ID, *(WORDS for _ in columns[1:]))
    said = drawn(width, listing)
    assert {ID, *WORDS.split()} <= set(said.split())
    assert said.count(ID) == 1


@pytest.mark.parametrize("width", WIDTHS)
def test_a_too_wide_column_is_printed_below_its_row(width: int) -> None:
    listing = table("NAME", "REASON", "TOOK", right=("TOOK",))
    listing.add_row("a_name_of_26_letters_in_all", WORDS, "3s")
    said = drawn(width, listing)
    lines = said.splitlines()
    assert not too_long(said, width)
    assert lines[0].split() == (["NAME", "REASON", "TOOK"] if width == 120 else ["NAME", "TOOK"])
    assert lines[1].split()[-1] == "3s"
    assert (width == 120) == (not any(line.startswith("    reason ") for line in lines))


@pytest.mark.parametrize("width", [20, 80])
def test_a_name_with_control_characters_is_shown_completely(width: int) -> None:
    """Its replaced characters were not counted in the width of the column, so its end was cut
    off.
    """
    listing = table("COLUMN", "TYPE")
    listing.add_row("a\x1b]0;pwned\u202e\x85b", "long")
    assert "a�]0;pwned��b" in drawn(width, listing)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_sentence_splits_an_id_or_a_word(width: int) -> None:
    said = drawn(width, Text(f"  why     {WORDS} {ID} {WORDS}\nsecond line"))
    assert said.split() == ["why", *WORDS.split(), ID, *WORDS.split(), "second", "line"]
    assert not too_long(said, width)
    assert all(line.startswith(" " * 10) for line in said.splitlines()[1:])
    assert drawn(width, "plain " + WORDS).split() == ["plain", *WORDS.split()]


def test_the_first_line_of_an_error_is_limited_in_length() -> None:
    assert first_line("one\ntwo") == "one …"
    assert first_line("one") == "one"
    long = first_line("word " * 10_000 + "\nmore")
    assert (len(long) <= 300, long.count("…"), long.endswith("word …")) == (True, 1, True)
    assert len(first_line("x" * 10_000)) <= 300
