"""The page of the first hour holds: each of its commands does what the page says, with the wheel
alone.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.first_hour.page import Change, Command, match, read, renamed
from tests.first_hour.player import PAGE, play


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_first_hour_page_works_as_written(tmp_path: Path) -> None:
    played = play(tmp_path)
    told = re.search(r"(\d+) files.* (\d+) commands", PAGE.read_text())
    assert told is not None
    assert (len(played.files), len(played.commands)) == (int(told[1]), int(told[2])), played.table()


def test_a_page_is_parsed_into_files_changes_commands_and_outputs(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Save it as `a.py`:\n\n```python\nx = 1\ny = 2\n```\n\nNow change `a.py`:\n\n```diff\n-y = "
        "2\n+y = 3\n```\n\n"
        "Type:\n\n```console\nls\npytest a.py  # exit code 1\n```\n\nand see\n\n```text\n1 "
        "failed\n```\n"
    )
    save, change, ls, tested = read(page)
    assert isinstance(change, Change)
    assert change.made(getattr(save, "text", "")) == "x = 1\ny = 3\n"
    assert (ls, tested) == (Command("ls"), Command("pytest a.py", "1 failed\n", 1))


def test_expected_output_is_matched_by_words_and_its_ids_are_reused() -> None:
    shown = "shop 20261127T175724-ycv8jq5h RUNNING 3.2s\n ● one   step 1/1  vm:18628\n"
    said = (
        "before\nshop  20270101T000000-aaaaaaaa  RUNNING  10m2s\n ● other\n ● one  step 1/1  "
        "host-7:4711\n"
    )
    names = match(shown, said)
    assert names == {"20261127T175724-ycv8jq5h": "20270101T000000-aaaaaaaa", "18628": "4711"}
    assert renamed("kill -9 18628", names) == "kill -9 4711"
    assert match(shown, said.replace("one", "two")) is None
    assert match("b\na\n", "a\nb\n") is None
    assert match("one …\n", "one two three\nfour\n") == {}
