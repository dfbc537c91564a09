"""Jobs in this process: what a fleet would have done, in milliseconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unstuck import Status
from unstuck.coordinator.errors import NoSuchGroup
from unstuck.coordinator.model.status import GroupState
from unstuck.in_process.run import InProcess
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.published import read_arrow

STEPS = "tests.support.steps.small_steps"


def group(name: str, step: str, *needs: str, output: str = "", **more: Any) -> dict[str, Any]:
    params = more.pop("params", {})
    step_spec = {"python": f"{STEPS}:{step}", "params": params, **({"output": output} if output else {})}
    return {"name": name, "spark": False, "needs": list(needs), "steps": [step_spec], **more}


THREE = group("rows", "three", output="rows")
DOUBLED = group("twice", "doubled", "rows", output="twice", params={"of": "rows"})


@pytest.fixture
def here(tmp_path: Path) -> Iterator[InProcess]:
    with InProcess(tmp_path / "warehouse") as made:
        yield made


def rows(here: InProcess, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_arrow(Warehouse(here.settings.warehouse), name).to_pylist()
    return found


def test_a_job_runs_and_publishes_without_redis_and_without_a_fleet(here: InProcess) -> None:
    ended = here.run({"name": "tiny", "groups": [THREE, DOUBLED]})
    assert ended.finished
    assert ended.results == {"twice": {"sum": 12}}
    assert rows(here, "twice") == [{"n": 2}, {"n": 4}, {"n": 6}]
    assert [event["kind"] for event in ended.events()][-2:] == ["PUBLISHING", "FINISHED"]


def test_backoffs_are_jumped_over_and_retries_are_those_of_the_spec(here: InProcess) -> None:
    flaky = {**THREE, "retry": {"max": 3, "backoff": "2h", "max_backoff": "1d", "jitter": 0}}
    began = here.clock()
    ended = here.run({"name": "tiny", "groups": [flaky]}, fail={"rows": TimeoutError("no answer")}, times=3)
    assert ended.finished
    assert ended.group("rows").attempts == 4
    assert here.clock() - began > 3 * 7200


def test_a_step_that_fails_for_good_publishes_nothing_and_says_why(here: InProcess) -> None:
    failing = {**group("bad", "refuse", "rows"), "retry": {"max": 1}}
    ended = here.run({"name": "tiny", "groups": [THREE, failing]})
    assert (ended.status, ended.group("bad").state) == (Status.FAILED, GroupState.FAILED)
    assert "this row is not to be had" in ended.why()
    assert Warehouse(here.settings.warehouse).head() == 0


def test_a_fork_runs_each_member_and_a_failing_one_is_named(here: InProcess) -> None:
    fork = group("by_day", "of_member", output="days", for_each={"day": [1, 2, 3]})
    ended = here.run({"name": "tiny", "groups": [fork]}, fail={"by_day[2]": KeyError})
    assert ended.finished
    assert [ended.group(f"by_day[{n}]").attempts for n in range(3)] == [1, 1, 2]
    assert sorted(row["day"] for row in rows(here, "days")) == [1, 2, 3]


def test_jobs_of_one_process_share_the_warehouse(here: InProcess) -> None:
    here.run({"name": "first", "groups": [THREE]})
    reads = {**group("twice", "doubled", output="twice", params={"of": "rows"}), "inputs": {"rows": "rows"}}
    assert here.run({"name": "second", "groups": [reads]}).results == {"twice": {"sum": 12}}


def test_a_group_that_runs_longer_than_its_timeout_is_interrupted(here: InProcess) -> None:
    ended = here.run({"name": "tiny", "groups": [group("slow", "sleep", timeout=0.1, retry={"max": 0})]})
    assert ended.status is Status.FAILED
    assert "TIMEOUT: the group ran longer than its timeout of 0.1s" in ended.why()


def test_a_failure_that_is_asked_for_names_a_fork_for_all_its_members(here: InProcess) -> None:
    fork = group("by_day", "of_member", output="days", for_each={"day": [1, 2]})
    ended = here.run({"name": "tiny", "groups": [fork]}, fail={"by_day": KeyError("gone")}, times=2)
    assert [ended.group(f"by_day[{n}]").attempts for n in range(2)] == [3, 3]


def test_a_failure_that_is_asked_for_of_no_group_is_refused_with_the_one_that_is_meant(here: InProcess) -> None:
    with pytest.raises(NoSuchGroup, match="did you mean 'rows'"):
        here.run({"name": "tiny", "groups": [THREE]}, fail={"row": KeyError})


def test_steps_have_the_time_zone_of_the_settings_and_this_process_keeps_its_own(here: InProcess) -> None:
    before = time.tzname
    here.settings.time_zone = "Asia/Tokyo"
    assert here.run({"name": "tiny", "groups": [group("zone", "zone")]}).results == {"zone": {"zone": "JST"}}
    assert time.tzname == before
