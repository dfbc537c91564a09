"""The lines of lists: in which order they stand, and what is added up in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.coordinator.schedules.test_decide_schedule import STANDS, T0
from unstuck.coordinator.model.fleet import FleetInfo
from unstuck.coordinator.model.schedule_record import RunFailure, ScheduleStatus
from unstuck.coordinator.schedules.decide_schedule import settled
from unstuck.coordinator.schedules.schedule_state import state_of
from unstuck.read_model.schedule import ScheduleInfo
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.warehouse.marker import DataFile
from unstuck.web.pages.datasets import PartitionRow, partitions_of
from unstuck.web.pages.fleet import runners_of
from unstuck.web.pages.schedules import in_order


def test_files_and_rows_of_a_partition_are_summed_and_the_last_partition_comes_first() -> None:
    days = ("02", "01", "02", None, "02")
    files = [
        DataFile(f"{n}.parquet", 10 + n, 1, {"day": day, "air": "UA"}) for n, day in enumerate(days)
    ]
    assert partitions_of([*files, DataFile("plain.parquet", 99, 1)]) == [
        PartitionRow("day=null, air=UA", 13, 1),
        PartitionRow("day=02, air=UA", 36, 3),
        PartitionRow("day=01, air=UA", 11, 1),
    ]


def runner(number: int, **more: Any) -> RunnerInfo:
    return RunnerInfo(
        id=str(number),
        host="host",
        pid=number,
        worker_pid=1,
        queues=("light",),
        heard_at=T0,
        **more,
    )


def test_problem_runners_come_first_and_then_the_longest_running() -> None:
    runners = (
        *(runner(number, idle_since=T0) for number in (1, 2)),
        *(runner(3, job="a", claimed_at=T0 - 10), runner(4, job="b", claimed_at=T0 - 900)),
        *(
            runner(5, unfit="no Java", idle_since=T0),
            runner(6, silent=True, job="c", claimed_at=T0 - 5),
        ),
    )
    assert [row.runner.pid for row in runners_of(fleet_of(*runners))] == [6, 5, 4, 3, 1, 2]
    assert [row.runner.pid for row in runners_of(fleet_of(*reversed(runners)))] == [
        6,
        5,
        4,
        3,
        1,
        2,
    ]


def fleet_of(*runners: RunnerInfo) -> FleetInfo:
    return FleetInfo(at=T0, runners=runners, coordinators=(), queues=(), swept_at=T0)


def schedule(name: str, status: ScheduleStatus, **more: Any) -> ScheduleInfo:
    record = replace(STANDS[status], name=name, policy="{}", spec="{}", **more)
    info = ScheduleInfo.of(state_of(settled(record, T0), T0, None))
    assert info.status is status
    return info


@pytest.mark.parametrize("turned", [False, True])
def test_unhealthy_schedules_precede_others_regardless_of_their_last_runs(
    turned: bool,
) -> None:
    failure = RunFailure("job", T0, T0, "USER_ERROR", "it broke")
    failed = {"failures": 3, "first_error": failure, "last_error": failure}
    views = [
        schedule("a_stopped", ScheduleStatus.STOPPED, **failed),
        schedule("b_waits", ScheduleStatus.WAITING),
        schedule("c_failed", ScheduleStatus.RETRYING, **failed),
        schedule("d_finished", ScheduleStatus.FINISHED),
        schedule("e_trouble", ScheduleStatus.PAUSED, **failed),
        schedule("f_halted", ScheduleStatus.HALTED),
    ]
    order = [info.name[0] for info in in_order(views[::-1] if turned else views)]
    assert order == ["f", "c", "e", "b", "a", "d"]
