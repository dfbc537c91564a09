"""Arming: only on purpose, loudly, and once; and the page of the failpoints says what the code says."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.paths import ROOT
from unstuck.tasks import failpoints as points
from unstuck.tasks.failpoints import VARIABLE, Armed, Point, Strike, arm_this_process, order, reach, reached_by


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    assert points.arm(None) is None, "a process is not armed by itself"
    yield
    points.arm(None)


@pytest.fixture
def arms(tmp_path: Path) -> Path:
    folder = tmp_path / "arms"
    folder.mkdir(mode=0o700)
    return folder


def test_without_the_variable_nothing_is_armed() -> None:
    assert not arm_this_process({})
    assert not arm_this_process({VARIABLE: ""})
    reach(Point.AFTER_CLAIM, "job")


def test_an_armed_process_says_so_loudly_and_strikes_once_for_the_job_that_was_meant(
    arms: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert arm_this_process({VARIABLE: str(arms)})
    (said,) = caplog.records
    assert said.levelno == logging.CRITICAL
    assert said.getMessage().startswith("ARMED: ")
    assert str(arms) in said.getMessage()

    reach(Point.AFTER_MARKER, "a")  # nothing was ordered
    shot = order(arms, Point.AFTER_MARKER, Strike.RAISE, "a")
    reach(Point.AFTER_MARKER, "b")
    reach(Point.BEFORE_FINISH, "a")
    assert reached_by(shot) == []
    with pytest.raises(Armed, match="after-marker"):
        reach(Point.AFTER_MARKER, "a")
    assert reached_by(shot) == [os.getpid()]
    reach(Point.AFTER_MARKER, "a")  # and never again
    assert [record.levelno for record in caplog.records] == [logging.CRITICAL] * 2


def test_a_shot_for_any_job_strikes_whoever_comes_first_and_a_lost_reply_is_that_of_redis(arms: Path) -> None:
    arm_this_process({VARIABLE: str(arms)})
    order(arms, Point.AFTER_COMMIT, Strike.LOSE)
    with pytest.raises(redis.ConnectionError):
        reach(Point.AFTER_COMMIT, "whichever")
    reach(Point.AFTER_COMMIT, "the next")


def test_an_order_that_cannot_be_read_is_named_and_not_obeyed(arms: Path, caplog: pytest.LogCaptureFixture) -> None:
    arm_this_process({VARIABLE: str(arms)})
    (arms / "after-claim").write_text("explode")
    reach(Point.AFTER_CLAIM, "a")
    said = caplog.records[-1].getMessage()
    assert str(arms / "after-claim") in said
    assert "'explode'" in said
    assert "kill, freeze" in said
    assert (arms / "after-claim").exists()


@pytest.mark.parametrize("what", ["absent", "a file", "writable by others"])
def test_a_folder_that_may_not_be_believed_arms_nothing_and_the_log_says_why(
    arms: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    named = arms
    if what == "absent":
        named = arms / "no such"
    elif what == "a file":
        named = arms / "file"
        named.touch()
    else:
        arms.chmod(0o777)
    assert not arm_this_process({VARIABLE: str(named)})
    (said,) = caplog.records
    assert said.levelno == logging.ERROR
    assert f"{VARIABLE}={named} is ignored" in said.getMessage()
    order(arms, Point.AFTER_CLAIM, Strike.RAISE)
    reach(Point.AFTER_CLAIM, "a")


def test_nothing_that_ships_arms_a_process() -> None:
    shipped = ["Dockerfile", "docker-compose.yml", "Makefile", "pyproject.toml", ".ci/run"]
    files = [ROOT / name for name in shipped]
    files += [file for folder in ("scripts", "examples", "coordinator") for file in (ROOT / folder).rglob("*.*")]
    assert [file for file in files if file.suffix != ".pyc" and VARIABLE in file.read_text(errors="replace")] == []


def test_every_point_is_reached_at_exactly_one_place_of_the_code() -> None:
    source = "\n".join(file.read_text() for room in ("tasks", "coordinator") for file in (ROOT / room).rglob("*.py"))
    assert {point.name: source.count(f"reach(Point.{point.name}, ") for point in Point} == {
        point.name: 1 for point in Point
    }


def test_the_page_of_the_points_is_the_catalogue() -> None:
    page = (ROOT / "docs" / "failpoints.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    told = [(name.strip("`"), said) for name, said in rows]
    assert told[: len(Point)] == [(point.value, point.sentence) for point in Point]
    assert {name for name, _ in told[len(Point) :]} == set(Strike)
