"""The recipes of docs/write-jobs.md that are SQL alone, run as they stand on the page, night after
night.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from unstuck.testing import Unstuck
from unstuck.testing.shared_spark import SharedSpark

pytestmark = pytest.mark.variant

PAGE = (ROOT / "docs" / "write-jobs.md").read_text()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSpark]:
    made = SharedSpark(tmp_path_factory.mktemp("jvm"))
    yield made
    made.stop()


@pytest.fixture
def unstuck(tmp_path: Path, shared: SharedSpark) -> Unstuck:
    return Unstuck(tmp_path, shared, root=ROOT, tell=lambda _: None)


def recipe(unstuck: Unstuck, heading: str, folder: Path) -> str:
    found = re.search(rf"^## {heading}\n.*?^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found, heading
    (folder / "recipe.yaml").write_text(found[1])
    return str(folder / "recipe.yaml")


def day(number: int) -> datetime.date:
    return datetime.date(2026, 11, number)


def test_the_newest_row_of_each_key_is_kept_from_the_first_run(
    unstuck: Unstuck, tmp_path: Path
) -> None:
    spec = recipe(unstuck, "Keep the newest row of each key", tmp_path)

    def order(number: int, state: str, hour: int) -> dict[str, Any]:
        return {"id": number, "state": state, "at": f"2026-11-20T{hour:02}:00:00Z"}

    def states() -> list[tuple[int, str]]:
        return [(row["id"], row["state"]) for row in unstuck.rows("orders", order_by="id")]

    unstuck.arrive("files", [order(1, "new", 1), order(2, "new", 1), order(1, "paid", 2)])
    assert unstuck.run(spec).finished
    assert states() == [(1, "paid"), (2, "new")]
    unstuck.arrive("files", [order(2, "sent", 3), order(1, "new", 1), order(3, "new", 3)])
    assert unstuck.run(spec).finished
    assert states() == [(1, "paid"), (2, "sent"), (3, "new")]
    idle = unstuck.run(spec)
    assert (idle.finished, str(idle.group("merge").state)) == (True, "SKIPPED")
    assert len(states()) == 3


def test_the_history_of_each_row_puts_late_files_in_order(unstuck: Unstuck, tmp_path: Path) -> None:
    spec = recipe(unstuck, "Keep the history of each row", tmp_path)
    for number, city in ((20, "Ulm"), (24, "Bonn"), (25, "Bonn"), (22, "Ulm")):
        unstuck.arrive("files", f"id,city,day\n7,{city},2026-11-{number}\n")
        assert unstuck.run(spec).finished
    kept = [
        (row["city"], row["since"], row["until"])
        for row in unstuck.rows("customers", order_by="since")
    ]
    assert kept == [("Ulm", day(20), day(24)), ("Bonn", day(24), None)]


def test_a_query_for_violations_prevents_the_publish_if_it_finds_one(
    unstuck: Unstuck, tmp_path: Path
) -> None:
    spec = recipe(unstuck, "Check one dataset against another", tmp_path)
    unstuck.publish("orders", [{"id": 1, "customer": 7}, {"id": 2, "customer": 8}])
    unstuck.publish("customers", [{"id": 7}])
    bad = unstuck.run(spec)
    assert (bad.finished, bad.published) == (False, [])
    assert "orphans: expect.rows: 1 row, and at most 0 are expected" in bad.why()
    unstuck.publish("customers", [{"id": 7}, {"id": 8}])
    assert unstuck.run(spec).finished
