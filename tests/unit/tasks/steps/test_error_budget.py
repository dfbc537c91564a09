"""The error budget: whose rejected rows count together with those of a run, and when they are too
many.
"""

from __future__ import annotations

from typing import Any

import pytest

from unstuck.tasks.errors import TooManyRejectedRows
from unstuck.tasks.spec.outputs import Quality
from unstuck.tasks.steps.error_budget import check_budget
from unstuck.tasks.warehouse.log_entry import Change, Entry
from unstuck.tasks.warehouse.marker import StagedOutput

NOW = 1_000_000.0


def run(
    good: int,
    rejected: int,
    *,
    ago: float = 60.0,
    mode: str = "append",
    judged_at: float | None = None,
) -> Entry:
    """The entry of a run that has loaded so many rows."""
    changes = {"loads": good, "loads__rejected": rejected}
    datasets = {name: Change(mode, [], [], rows, "") for name, rows in changes.items()}
    at = NOW - ago
    return Entry(1, 0, "job", "package", "job", "load", at, datasets=datasets, judged_at=judged_at)


def passes(
    good: int,
    rejected: int,
    *before: Entry,
    over: str = "3 runs",
    ratio: float = 0.1,
    judged_at: float = NOW,
) -> bool:
    """Whether a run with so many rows passes after those of ``before``, the newest first."""
    quality = Quality(rules={"ok": "true"}, max_rejected_ratio=ratio, over=over)
    try:
        check_budget(
            "loads", made(good, ok=rejected), made(rejected), quality, iter(before), judged_at
        )
    except TooManyRejectedRows:
        return False
    return True


def made(rows: int, **rejected_by: int) -> StagedOutput:
    return StagedOutput([], rows, "", rejected_by=rejected_by)


def test_good_runs_allow_a_bad_run_and_a_share_at_the_limit_passes() -> None:
    assert not passes(5, 5)
    assert passes(5, 5, run(40, 0))
    assert not passes(4, 6, run(40, 0)), "strictly above"


def test_runs_that_pass_individually_can_fail_together() -> None:
    assert passes(8, 1, run(9, 1), ratio=0.12)
    assert not passes(8, 1, run(9, 1), run(7, 3), ratio=0.12)


def test_only_the_configured_number_of_runs_counts() -> None:
    before = [run(9, 1), run(8, 2), run(100, 0)]
    assert not passes(9, 1, *before)
    assert passes(9, 1, *before, over="4 runs")
    assert not passes(8, 2, *before, over="1 run"), "this run alone"


def test_only_runs_in_the_configured_period_count() -> None:
    before = [run(8, 2, ago=3599), run(100, 0, ago=3601)]
    assert not passes(9, 1, *before, over="1h")
    assert passes(9, 1, *before, over="1d")


@pytest.mark.parametrize("over", ["1d", "20 runs"])
def test_a_backfill_run_counts_with_the_ticks_before_it(over: str) -> None:
    """A backfill publishes the runs of many days within minutes."""
    day = 86400.0
    tick = NOW - 5 * day
    before, later = run(9, 1, judged_at=tick - 3600), run(100, 0, judged_at=tick + 3600)
    assert not passes(8, 2, later, before, over=over, judged_at=tick)
    assert passes(8, 2, later, run(100, 0, judged_at=tick - 3600), over=over, judged_at=tick)
    older = run(100, 0, judged_at=tick - day)
    assert passes(8, 2, older, over=over, judged_at=tick) is (over == "20 runs")


@pytest.mark.parametrize(
    "between", [run(500, 0, mode="compact"), run(500, 0, mode="restore"), run(0, 0, mode="skip")]
)
def test_versions_that_are_not_loads_do_not_count_as_runs(between: Entry) -> None:
    assert not passes(9, 1, between, run(9, 0), run(1, 9), over="3 runs")
    assert passes(9, 1, between, run(9, 0), run(1, 9), over="2 runs")


def test_a_run_without_rejected_rows_always_passes() -> None:
    assert passes(1, 0, run(0, 100))


def test_the_failure_reports_both_shares_and_the_rules() -> None:
    quality = Quality(rules={"ok": "true"}, max_rejected_ratio=0.01, over="20 runs")
    with pytest.raises(TooManyRejectedRows) as failed:
        check_budget("loads", made(88, ok=12), made(12), quality, [run(899, 1)], NOW)
    assert str(failed.value) == (
        "13 of 1,000 rows of loads were rejected in 2 runs, this one included (1.30%; "
        "max_rejected_ratio: 0.01, over: 20 runs). This run has 12 of 100, by rule: ok 12. Mend "
        "what makes the rows, or the rules"
    )


@pytest.mark.parametrize("over", ["0 runs", "1001 runs", "soon", "20", "0s", "-1d", ""])
def test_an_over_value_that_is_neither_runs_nor_a_duration_is_refused(over: str) -> None:
    told: dict[str, Any] = {"rules": {"ok": "true"}, "over": over}
    with pytest.raises(ValueError, match="runs"):
        Quality.model_validate(told)
