"""Partitions on a real fleet: a load replaces the partitions that it may replace, and no row of
another one goes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.guarantees.outputs_are_whole import test_quality
from unstuck import Client, Settings, Status, published_files
from unstuck.read_model.job import JobInfo

STEP = "tests.support.steps.frame_steps.partitions:load"
BY_DAY = {"mode": "partition_overwrite", "partition_by": ["day"], "partitions": {"day": ":day"}}
SECOND, FOURTH = "2013-01-02", "2013-01-04"


class Days(test_quality.QualityFleet):
    """Loads of flights by day."""

    redis_url: str

    def load(
        self, day: str, rows: int, late: dict[str, int] | None = None, **output: Any
    ) -> JobInfo:  # type: ignore[override]
        step = {"python": STEP, "output": "flights", "params": {"rows": rows, "late": late or {}}}
        group = {"name": "load", "steps": [step]}
        return self.run(group, params={"day": day}, outputs={"flights": {**BY_DAY, **output}})

    def rows(self, dataset: str = "flights") -> dict[str, int]:
        """The published rows of each day."""
        paths = published_files(self.warehouse, dataset)
        found = (
            duckdb.read_parquet(paths, union_by_name=True)
            .aggregate("day, count(*)")
            .order("day")
            .fetchall()
        )
        return {str(day): rows for day, rows in found}


running = test_quality.running


@pytest.fixture
def days(running: str, tmp_path: Path) -> Days:
    """A dataset with 1,931 rows of the second day."""
    days = Days(running, str(tmp_path / "warehouse"))
    days.redis_url = running
    assert days.load(SECOND, 1931).status is Status.FINISHED
    return days


@pytest.mark.variant
def test_each_replaced_partition_is_listed_and_a_shrinking_one_is_a_warning(
    days: Days,
) -> None:
    """The second day is named, and has 19 of its 1,931 rows left."""
    assert days.load(FOURTH, 90).status is Status.FINISHED
    named = {"day": [SECOND, "2013-01-03", FOURTH]}
    done = days.load(FOURTH, 100, {SECOND: 19, "2013-01-03": 5}, partitions=named)
    assert (done.status, days.rows()) == (
        Status.FINISHED,
        {SECOND: 19, "2013-01-03": 5, FOURTH: 100},
    )

    warning = (
        "partitions of flights have lost more than half of their rows: day=2013-01-02: "
        "1,931 "
        "→ 19 rows"
    )
    job = done.id
    for command in (("show", job), ("watch", job), ("events", job)):
        assert warning in " ".join(days.told(*command).split()), command
    counted = {
        "examples": [
            {"partition": {"day": SECOND}, "before": 1931, "after": 19},
            {"partition": {"day": FOURTH}, "before": 90, "after": 100},
        ],
        "count": 2,
        "shrunk": 1,
    }
    shown = json.loads(days.told("show", job, "--json"))
    assert (shown["replaced"], warning in shown["reason"]["text"]) == ({"flights": counted}, True)
    both = "day=2013-01-02: 1,931 → 19 rows, day=2013-01-04: 90 → 100 rows"
    assert f"flights: {both}" in " ".join(days.told("show", job).split())
    history = json.loads(days.told("datasets", "flights", "--history", "--json"))
    assert [version["replaced_partitions"] for version in history] == [counted, None, None]
    assert f"version 3 replaced {both}" in days.told("datasets", "flights", "--history")


@pytest.mark.claim("A load replaces no partition that it does not name.")
def test_late_rows_of_another_day_fail_the_attempt_and_erase_nothing(days: Days) -> None:
    failed = days.load(FOURTH, 100, {SECOND: 19, "2013-01-03": 1}, partitions={"day": ":day"})

    assert failed.status is Status.FAILED
    record = failed.groups[0].members[0]
    assert record.attempt == 1, "no retry would help"
    assert record.reason is not None
    assert record.reason.code == "ROWS_OUTSIDE"
    assert "20 of 120 rows of flights" in record.reason.text
    assert "day=2013-01-02 (19 rows), day=2013-01-03 (1 row)" in record.reason.text
    assert "The first one: day=2013-01-02, id=100" in record.reason.text
    assert days.rows() == {SECOND: 1931}


@pytest.mark.claim("A load replaces no partition that it does not name.")
def test_repeated_loads_of_a_day_append_late_rows_once(days: Days) -> None:
    for rows in (50, 100):  # the second load replaces the fourth day, and no other
        done = days.load(FOURTH, rows, {SECOND: 19}, partitions={"day": ":day"}, outside="append")
        assert done.status is Status.FINISHED, done.reason

    assert days.rows() == {SECOND: 1931 + 19, FOURTH: 100}


@pytest.mark.claim("A load replaces no partition that it does not name.")
def test_late_rows_are_rejected_if_the_spec_requests_it(days: Days) -> None:
    reject = {"partitions": {"day": ":day"}, "outside": "reject"}
    quality = {"rules": {"even": "id % 2 = 0"}, "max_rejected_ratio": 0.5}
    done = days.load(FOURTH, 100, {SECOND: 19}, **reject, quality=quality)

    assert done.status is Status.FINISHED, done.reason
    assert days.rows() == {SECOND: 1931, FOURTH: 50}
    rejected = duckdb.read_parquet(published_files(days.warehouse, "flights__rejected"))
    reasons = rejected.aggregate("day, _rejected_by, count(*)").order("1, 2").fetchall()
    assert [(str(day), *rest) for day, *rest in reasons] == [
        (SECOND, ["even", "outside partitions"], 9),
        (SECOND, ["outside partitions"], 10),
        (FOURTH, ["even"], 50),
    ]
    assert "outside partitions 19" in days.told("show", done.id)

    # All that was rejected of a load goes with the next load of its day; what was rejected of
    # another load stays.
    assert days.load("2013-01-05", 10, {SECOND: 1}, **reject).status is Status.FINISHED
    assert days.load(FOURTH, 10, **reject).status is Status.FINISHED
    assert days.rows("flights__rejected") == {SECOND: 1}


def test_a_listed_partition_without_rows_is_emptied_and_an_unlisted_one_stays(
    days: Days,
) -> None:
    assert days.load(FOURTH, 100).status is Status.FINISHED
    named = {"partitions": {"day": [":day", "2013-01-05"]}}
    emptied = days.load(FOURTH, 0, **named)
    assert emptied.status is Status.FINISHED
    assert "have lost more than half of their rows: day=2013-01-04: 100 → 0 rows" in str(
        emptied.reason
    )
    assert days.rows() == {SECOND: 1931}


def test_each_member_of_a_fork_replaces_its_own_partition(days: Days) -> None:
    def run(rows: int, late: dict[str, int], **output: Any) -> JobInfo:
        step = {"python": STEP, "output": "flights", "params": {"rows": rows, "late": late}}
        group = {"name": "load", "for_each": {"day": [SECOND, FOURTH]}, "steps": [step]}
        return days.run(
            group, outputs={"flights": {**BY_DAY, "partitions": {"day": ":day"}, **output}}
        )

    assert run(10, {}).status is Status.FINISHED
    assert days.rows() == {SECOND: 10, FOURTH: 10}

    # A row of the other member's day is outside for this one.
    failed = run(20, {SECOND: 1})
    assert failed.status is Status.FAILED
    assert "ROWS_OUTSIDE" in str(failed.reason)
    assert days.rows() == {SECOND: 10, FOURTH: 10}

    for rows in (15, 20):
        assert run(rows, {"2013-01-09": 1}, outside="append").status is Status.FINISHED
        assert days.rows() == {SECOND: rows, FOURTH: rows, "2013-01-09": 2}


@pytest.mark.parametrize(
    ("day", "says"),
    [
        ("2013-1-4", "'2013-1-4' is no value of the column day, of type date"),
        ("", "'' is no value of the column day"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(days: Days, day: str, says: str) -> None:
    named = {"partitions": {"day": day or ":empty"}}
    step = {"python": STEP, "output": "flights", "params": {"rows": 1, "day": FOURTH}}
    failed = days.run(
        {"name": "load", "steps": [step]},
        params={"empty": ""},
        outputs={"flights": {**BY_DAY, **named}},
    )

    reason = failed.groups[0].members[0].reason
    assert reason is not None
    assert reason.code == "OUTPUT_INVALID"
    assert says in reason.text


@pytest.mark.claim("A restored version becomes the newest version again, and reverts no other job.")
def test_erased_partitions_are_published_again(days: Days) -> None:
    days.load(FOURTH, 100, {SECOND: 19}, partitions={"day": [SECOND, FOURTH]})
    assert days.rows() == {SECOND: 19, FOURTH: 100}

    told = days.told(
        "restore", "flights", "--version", "1", "--reason", "late rows", "--by", "anna"
    )
    assert "flights is published as it was at version 1, with 1,931 rows, as version 3" in told
    assert "day=2013-01-02: 19 → 1,931 rows" in told
    assert days.rows() == {SECOND: 1931}
    history = days.told("datasets", "flights", "--history")
    assert "restore of version 1 by anna" in " ".join(history.split())
    assert "reason=late rows" in " ".join(history.split())

    # The rows of the fourth day come back with its load, now with the partitions that it may
    # replace.
    named: dict[str, Any] = {"partitions": {"day": ":day"}, "outside": "append"}
    assert days.load(FOURTH, 100, {SECOND: 19}, **named).status is Status.FINISHED
    assert days.rows() == {SECOND: 1950, FOURTH: 100}
    with Client(Settings(redis_url=days.redis_url, warehouse=days.warehouse)) as client:
        assert client.restore("flights", 4).new is False
        assert client.restore("flights", 3).rows == 1931
