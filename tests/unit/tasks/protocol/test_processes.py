"""The registry of processes: each comes back as it described itself, and none can be hurt by what
others wrote.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import redis

from unstuck.tasks.identity import RunsOn
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.process_info import (
    CoordinatorInfo,
    ProcessInfo,
    RunnerInfo,
    WarehouseSeen,
)
from unstuck.tasks.protocol.processes import ProcessRegistry

KEYS = Keys("unstuck")
RUNNER = RunnerInfo(
    id="h:1-a",
    host="h",
    pid=1,
    queues=("light", "spark"),
    heard_at=100.0,
    warehouse=WarehouseSeen("/w", "id1", looked_at=90.0),
    runs_on=RunsOn("0.1.0", "3.11.7"),
    worker_pid=7,
    claimed_at=95.0,
    job="j",
    group="g[3]",
    attempt=2,
    step="counting",
)
COORDINATOR = CoordinatorInfo(
    id="h:2:b",
    host="h",
    pid=2,
    queues=("control",),
    heard_at=101.0,
    swept_at=99.0,
    oldest_since={"light": 40.0},
)


@pytest.mark.parametrize("status", [RUNNER, COORDINATOR])
def test_a_process_record_is_read_back_unchanged(client: redis.Redis, status: ProcessInfo) -> None:
    registry = ProcessRegistry(client, KEYS)
    registry.note(lambda _now: status)
    client.hset(
        KEYS.processes,
        mapping={"odd": "no line of ours", "odder": "[]", "oddest": '{"kind": "runner"}'},
    )
    assert registry.read() == [status]
    assert registry.runners() == [one for one in [status] if one is RUNNER]
    registry.leave(status.id)
    assert registry.read() == []


def test_fields_computed_by_the_reader_are_not_written(client: redis.Redis) -> None:
    ProcessRegistry(client, KEYS).note(
        lambda _now: RunnerInfo(
            id="r", host="h", pid=1, queues=(), heard_at=1.0, silent=True, worker_pid=2
        )
    )
    assert "silent" not in str(client.hget(KEYS.processes, "r"))


def test_the_running_since_time_is_the_last_claim() -> None:
    assert RUNNER.since == 95.0
    assert (
        RunnerInfo(
            id="r", host="h", pid=1, queues=(), heard_at=1.0, worker_pid=2, claimed_at=95.0
        ).since
        is None
    )


def test_a_warehouse_path_that_is_not_text_stops_no_process(client: redis.Redis) -> None:
    odd = replace(RUNNER, warehouse=WarehouseSeen(os.fsdecode(b"/w/\xff")))
    ProcessRegistry(client, KEYS).note(lambda _now: odd)
    assert client.hexists(KEYS.processes, RUNNER.id)
