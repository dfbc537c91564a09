"""Schedules on a real fleet, as a user has them: a coordinator, a worker, and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import redis

from tests.cli.conftest import Cli
from tests.support import fleet
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer, wait_until
from unstuck import Client, Settings, published_files
from unstuck.tasks.warehouse.log import Warehouse

LOAD = {
    "python": "tests.support.steps.frame_steps.columns:made",
    "output": "out",
    "params": {"columns": {"n": [1]}},
}


def test_a_schedule_runs_once_per_tick_while_coordinators_are_killed(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path, cli: Cli
) -> None:
    spec: dict[str, Any] = {
        "name": "load",
        "schedule": {"every": "2s"},
        "groups": [{"name": "a", "spark": False, "steps": [LOAD]}],
        "outputs": {"out": {"mode": "append", "shared_with": ["hand"]}},
    }
    (tmp_path / "load.json").write_text(json.dumps(spec))
    (tmp_path / "hand.json").write_text(json.dumps({**spec, "name": "hand", "schedule": {}}))
    environ = {
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_WAREHOUSE": str(tmp_path / "warehouse"),
    }
    with (
        fleet.worker(
            redis_server.url, tmp_path, environ={**environ, "UNSTUCK_SPARK_MASTER": "none"}
        ),
        coordinator_processes(tmp_path, environ) as coordinators,
    ):
        coordinators.tend(2)
        done = cli("schedule", "set", "load.json", "hand.json", "--reason", "every two seconds")
        assert done.returncode == 0, done.stderr
        assert "schedule load is set" in done.stdout
        assert "schedule load is unchanged" in cli("schedule", "set", "load.json").stdout

        known = Client(Settings(redis_url=redis_server.url, warehouse=str(tmp_path / "warehouse")))

        def ended_well() -> list[str]:
            jobs = known.jobs(name="load")
            assert {job.status for job in jobs} <= {"PENDING", "RUNNING", "FINISHED"}
            return [str(job.key) for job in jobs if job.status == "FINISHED"]

        for count in (1, 2, 3):
            wait_until(lambda count=count: len(ended_well()) >= count, 60, f"{count} runs")
            coordinators.kill()  # whatever they do just now
            coordinators.tend(2)
        wait_until(lambda: len(ended_well()) >= 4, 60, "a run after the last kill")
        (listed,) = [one for one in cli.json("schedule", "list") if one["name"] == "load"]
        assert listed["status"] in ("WAITING", "RUNNING")
        assert listed["last_success"]["rows"] == {"out": 1}
        assert cli("schedule", "pause", "load", "--reason", "the source is away").returncode == 0
        shown = cli("schedule", "show", "load", "--next", "2").stdout
        assert "PAUSED" in shown
        assert "USER_PAUSE" in shown
        assert "the source is away" in shown
        wait_until(lambda: not cli.json("schedule", "show", "load")["runs"], 30, "its run to end")
        keys = ended_well()
        assert len(keys) == len(set(keys)), "no tick twice"
        rows = sum(
            file.rows for file in Warehouse(str(tmp_path / "warehouse")).dataset("out").files
        )
        assert rows == len(keys), "each run is published once"
        assert published_files(str(tmp_path / "warehouse"), "out")

        assert cli("schedule", "run", "hand").returncode == 0
        wait_until(
            lambda: cli.json("schedule", "show", "hand")["last_success"], 30, "the run by hand"
        )
        why = cli("schedule", "why", "load").stdout
        assert "paused by" in why
        assert "unstuck schedule resume load" in why
        assert cli("schedule", "export", "--to", "out").returncode == 0
        assert (
            "schedule load is unchanged"
            in cli("schedule", "set", "out/load.yaml", "out/hand.yaml").stdout
        )
        assert cli("schedule", "resume", "load", "--json").returncode == 0
        wait_until(lambda: len(ended_well()) > len(keys), 30, "a run after the pause")
        assert cli("schedule", "stop", "load", "hand").returncode == 0
        refused = cli("schedule", "resume", "load")
        assert refused.returncode == 4
        assert "schedule load is STOPPED" in refused.stderr
        wait_until(lambda: cli("schedule", "remove", "load").returncode == 0, 30, "its run to end")
        assert cli("schedule", "show", "load").returncode == 3
        assert [one["name"] for one in cli.json("schedule", "list")] == ["hand"]
