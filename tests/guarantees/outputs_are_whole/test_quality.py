"""Rules and expectations on a real fleet: an output that breaks them does not appear, nor what is
beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from tests.support import fleet
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer
from unstuck import Client, JobSpec, Settings, Status, published_files
from unstuck.cli.app import app
from unstuck.read_model.job import JobInfo
from unstuck.tasks.warehouse.log import Warehouse

RULES = {"has_distance": "distance > 0", "known_carrier": "carrier is not null"}
STEPS = "tests.support.steps.frame_steps.quality"


class QualityFleet:
    """Jobs of plain Python, and a warehouse of a test's own."""

    def __init__(self, redis_url: str, warehouse: str) -> None:
        self._client, self.warehouse = (
            Client(Settings(redis_url=redis_url, warehouse=warehouse)),
            warehouse,
        )
        self._environ = {
            "UNSTUCK_REDIS_URL": redis_url,
            "UNSTUCK_WAREHOUSE": warehouse,
            "COLUMNS": "200",
        }

    def run(self, *groups: dict[str, Any], **more: Any) -> JobInfo:
        full = [{"spark": False, "retry": {"max": 5, "backoff": "1s"}, **group} for group in groups]
        job = self._client.submit(JobSpec.model_validate({"name": "x", "groups": full, **more})).id
        return self._client.wait(job)

    def load(self, outputs: dict[str, Any], **params: Any) -> JobInfo:
        """A job of one group that makes flights."""
        step = {"python": f"{STEPS}:flights", "output": "flights", "params": params}
        return self.run({"name": "load", "steps": [step]}, outputs={"flights": outputs})

    def told(self, *command: str) -> str:
        result = CliRunner().invoke(app, [*command], env=self._environ)
        assert result.exit_code == 0, result.output
        return result.stdout

    def count(self, dataset: str) -> int:
        paths = published_files(self.warehouse, dataset)
        return duckdb.read_parquet(paths, union_by_name=True).count("*").fetchall()[0][0]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def running(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A worker and a coordinator for the jobs of all tests; the URL of their Redis."""
    home = tmp_path_factory.mktemp("fleet")
    environ = {"UNSTUCK_REDIS_URL": redis_server.url, "UNSTUCK_SPARK_MASTER": "none"}
    with (
        fleet.worker(redis_server.url, home, concurrency=2, environ=environ),
        coordinator_processes(home, environ) as coordinators,
    ):
        coordinators.tend(1)
        yield redis_server.url


@pytest.fixture
def whole(running: str, tmp_path: Path) -> QualityFleet:
    return QualityFleet(running, str(tmp_path / "warehouse"))


@pytest.mark.claim(
    "An output that breaks its rules fails the job, and none of its outputs are published."
)
@pytest.mark.parametrize("caught", [False, True])
def test_one_output_beyond_its_limit_prevents_the_whole_publish(
    whole: QualityFleet, caught: bool
) -> None:
    def run(bad: int) -> JobInfo:
        quality = {"quality": {"rules": RULES, "max_rejected_ratio": 0.01}}
        outputs = dict.fromkeys(("first", "middle", "last"), quality)
        step = {"python": f"{STEPS}:three", "params": {"bad": bad, "caught": caught}}
        return whole.run({"name": "load", "steps": [step]}, outputs=outputs)

    failed = run(2)
    assert failed.status is Status.FAILED
    record = failed.groups[0].members[0]
    assert record.attempt == 1, "no retry would help"
    assert record.reason is not None
    assert record.reason.code == "TOO_MANY_REJECTED_ROWS"
    assert "2 of 100 rows of middle were rejected" in record.reason.text
    assert "has_distance 2, known_carrier 1" in record.reason.text
    assert Warehouse(whole.warehouse).state() == {}

    passed = run(1)
    assert passed.status is Status.FINISHED
    names = ("first", "middle", "last")
    assert sorted(passed.published) == sorted([*names, *(f"{name}__rejected" for name in names)])
    assert {name: whole.count(name) for name in names} == {"first": 100, "middle": 99, "last": 100}
    rejected = duckdb.read_parquet(published_files(whole.warehouse, "middle__rejected"))
    assert rejected.fetchall()[0][-1] == ["has_distance", "known_carrier"]


@pytest.mark.variant
def test_show_counts_good_rows_and_rejected_rows_by_rule(whole: QualityFleet) -> None:
    rules = {"quality": {"rules": {**RULES, "any": "true"}, "max_rejected_ratio": 0.1}}
    groups = [
        {
            "name": "load",
            "steps": [{"python": f"{STEPS}:flights", "output": "flights", "params": {"bad": 4}}],
        },
        {
            "name": "count",
            "needs": ["load"],
            "steps": [{"python": f"{STEPS}:count", "output": "counted"}],
        },
    ]
    view = whole.run(*groups, outputs={"flights": rules})
    assert view.status is Status.FINISHED, view.reason

    (member,) = json.loads(whole.told("show", view.id, "--json"))["groups"][0]["members"]
    counted = {"has_distance": 4, "known_carrier": 2, "any": 0}
    assert member["quality"] == {"flights": {"rows": 96, "rejected": 4, "rules": counted}}
    assert "96 rows · 4 rejected (has_distance 4, known_carrier 2)" in whole.told("show", view.id)
    paths = published_files(whole.warehouse, "counted")
    assert duckdb.read_parquet(paths).fetchall() == [(96, 4)], "the group after it reads both"


@pytest.mark.variant
def test_the_rejected_ratio_is_counted_per_fork_member_and_over_all_members(
    whole: QualityFleet,
) -> None:
    def run(bad: list[int], least: int) -> JobInfo:
        steps = [{"python": f"{STEPS}:flights", "output": "flights"}]
        quality = {"rules": RULES, "max_rejected_ratio": 0.05}
        outputs = {"flights": {"quality": quality, "expect": {"rows": {"min": least}}}}
        return whole.run(
            {"name": "load", "for_each": {"bad": bad}, "steps": steps}, outputs=outputs
        )

    assert run([0, 9], 1).status is Status.FAILED, "9 of 100, and not 9 of 200"
    short = run([0, 5], 196)
    assert (short.status, short.reason and short.reason.code) == (
        Status.FAILED,
        "EXPECTATION_FAILED",
    )
    assert Warehouse(whole.warehouse).state() == {}
    assert run([0, 5], 195).status is Status.FINISHED
    assert (whole.count("flights"), whole.count("flights__rejected")) == (195, 5)


@pytest.mark.variant
def test_expectations_apply_when_columns_change(whole: QualityFleet) -> None:
    def code(view: JobInfo) -> str:
        reasons = (view.reason, view.groups[0].members[0].reason)
        return next((one.code for one in reversed(reasons) if one is not None), "")

    fresh = {"column": "day", "within": "2d"}
    expect = {"rows": {"min": 100, "max": 100}, "unique": ["id"], "fresh": fresh}
    spec = {"mode": "append", "on_schema_change": "evolve", "expect": expect}
    assert whole.load(spec).status is Status.FINISHED
    assert whole.load(spec, columns="added").status is Status.FINISHED
    assert whole.count("flights") == 200
    found = duckdb.read_parquet(published_files(whole.warehouse, "flights"), union_by_name=True)
    assert found.filter("added is null").count("*").fetchall() == [(100,)]

    assert code(whole.load({**spec, "on_schema_change": "fail"})) == "SCHEMA_MISMATCH"
    assert code(whole.load({**spec, "expect": {"unique": ["day"]}})) == "EXPECTATION_FAILED"
    assert (
        code(whole.load({**spec, "expect": {"fresh": {"column": "day", "within": "1s"}}}))
        == "EXPECTATION_FAILED"
    )
    assert (
        code(whole.load({**spec, "quality": {"rules": {"odd": "no_such > 0"}}})) == "RULE_INVALID"
    )
    assert whole.count("flights") == 200
