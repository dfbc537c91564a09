"""Failpoints: an order strikes once, nothing that ships arms a process, and the page says what the
code says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.failpoints import Armed, Effect, arm_this_process, order, reached_by
from tests.support.paths import ROOT
from unstuck.tasks import failpoints as points
from unstuck.tasks.failpoints import Point, reach


@pytest.fixture
def arms(tmp_path: Path) -> Iterator[Path]:
    assert points.arm(None) is None, "a process is not armed by itself"
    arm_this_process(str(tmp_path))
    yield tmp_path
    points.arm(None)


def test_an_armed_process_fails_once_for_the_intended_job(arms: Path) -> None:
    reach(Point.AFTER_MARKER, "a")  # nothing was ordered
    shot = order(arms, Point.AFTER_MARKER, Effect.RAISE, "a")
    reach(Point.AFTER_MARKER, "b")
    reach(Point.BEFORE_FINISH, "a")
    assert reached_by(shot) == []
    with pytest.raises(Armed, match="after-marker"):
        reach(Point.AFTER_MARKER, "a")
    assert reached_by(shot) == [os.getpid()]
    reach(Point.AFTER_MARKER, "a")  # and never again


def test_a_failpoint_for_any_job_fires_at_the_first_job(
    arms: Path,
) -> None:
    order(arms, Point.AFTER_COMMIT, Effect.LOSE)
    with pytest.raises(redis.ConnectionError):
        reach(Point.AFTER_COMMIT, "whichever")
    reach(Point.AFTER_COMMIT, "the next")


def test_product_code_never_arms_a_failpoint() -> None:
    folders = ("tasks", "coordinator", "src", "scripts", "examples")
    shipped = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    shipped += [
        ROOT / name
        for name in ("Dockerfile", "docker-compose.yml", "Makefile", "pyproject.toml", ".ci/run")
    ]
    armed = [
        file for file in shipped if re.search(r"UNSTUCK_ARM|(?<!def )\barm\(", file.read_text())
    ]
    assert armed == []


def test_every_failpoint_occurs_at_exactly_one_place_in_the_code() -> None:
    source = "\n".join(
        file.read_text()
        for room in ("tasks", "coordinator")
        for file in (ROOT / room).rglob("*.py")
    )
    assert {point.name: source.count(f"reach(Point.{point.name}, ") for point in Point} == {
        point.name: 1 for point in Point
    }


def test_the_page_documents_each_failpoint_and_each_effect() -> None:
    page = (ROOT / "docs" / "internals" / "failpoints.md").read_text()
    named = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert sorted(named) == sorted([*Point, *Effect])
