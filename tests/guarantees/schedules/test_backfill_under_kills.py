"""Backfills whose ticks build on each other, while the coordinators are killed at random."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import fleet
from tests.support.machine import seconds
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer
from unstuck import Client, Settings
from unstuck.coordinator.model.schedule_record import Backfill
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.published import read_arrow

ROUNDS = int(os.environ.get("BACKFILL_ROUNDS", "1"))
AT_ONCE = 5  # backfills of a round, one for each schedule
AMOUNTS = {"2026-01-01": 1, "2026-01-02": 10, "2026-01-03": 100, "2026-01-04": 1000}
STEPS = f"""
import pathlib
import pyarrow as pa

def add(spark, ctx, day, dataset, failing):
    if day == failing and not (tried := pathlib.Path(f"{{dataset}}-tried")).exists():
        tried.touch()
        raise TimeoutError("the source does not answer")
    rows = ctx.input("before").to_pylist() or [{{"total": 0, "history": ""}}]
    history = (rows[0]["history"] + " " + day[-2:]).strip()
    return pa.table({{"total": [rows[0]["total"] + {AMOUNTS!r}[day]], "history": [history]}})
"""


def spec(dataset: str, failing: str) -> dict[str, Any]:
    return {
        "name": dataset,
        "schedule": {"cron": "0 6 * * *", "zone": "UTC", "retry": {"max": 5, "backoff": "50ms"}},
        "params": {"day": {"type": "date", "default": "tick"}},
        "groups": [
            {
                "name": "add",
                "spark": False,
                "retry": {"max": 0},
                "inputs": {
                    "before": {"dataset": dataset, "if_absent": "total BIGINT, history STRING"}
                },
                "steps": [
                    {
                        "python": "balance_steps:add",
                        "output": dataset,
                        "params": {"dataset": dataset, "failing": failing},
                    }
                ],
            }
        ],
    }


def backfill_of(client: Client, schedule: str) -> Backfill:
    backfill = client.schedules.show(schedule).backfill
    assert backfill is not None
    return backfill


@pytest.mark.variant
@pytest.mark.timeout(300 * ROUNDS)
def test_each_tick_of_a_cumulative_backfill_is_published_once_in_order_despite_kills(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "balance_steps.py").write_text(STEPS)
    rng = random.Random(seed := random.randrange(10**6))
    warehouse = str(tmp_path / "warehouse")
    settings = Settings(redis_url=redis_server.url, warehouse=warehouse)
    environ = {
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_WAREHOUSE": warehouse,
        "UNSTUCK_SWEEP_EVERY": "200ms",
        "UNSTUCK_LOCK_TTL": "1s",
    }
    days = sorted(AMOUNTS)
    kills = 0
    with (
        connect(redis_server.url) as store,
        fleet.worker(redis_server.url, tmp_path, concurrency=2, environ=environ),
        coordinator_processes(tmp_path, environ) as coordinators,
    ):
        client = Client(settings, redis_client=store)
        for number in range(ROUNDS):
            names = [f"balance_{number}_{index}" for index in range(AT_ONCE)]
            for name in names:
                client.schedules.set(spec(name, rng.choice(days)))
                assert client.schedules.backfill(name, days[0], days[-1]).answer == "DONE"
            began = time.monotonic()
            while not all(backfill_of(client, name).over for name in names):
                coordinators.tend(2)
                time.sleep(rng.uniform(0.05, 1.5))  # a kill comes at any moment
                coordinators.kill()
                kills += 1
                waited = time.monotonic() - began
                assert waited < seconds(120), (seed, coordinators.text()[-5000:])
            for name in names:
                assert backfill_of(client, name).status == "DONE", (seed, name)
                (row,) = read_arrow(Warehouse(warehouse), name).to_pylist()
                assert row == {"total": 1111, "history": "01 02 03 04"}, (seed, name)
