"""Coordinators are killed while they write two Delta tables; each table has one commit of the job, and it is whole."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.guarantees.nothing_is_forgotten.test_process_deaths import SOON, Case, Place
from tests.support import fleet
from tests.support.coordinator_processes import coordinator_processes
from tests.support.failpoints import Strike, arming, order
from tests.support.servers import RedisServer
from unstuck import Client, Settings, Status
from unstuck.tasks.failpoints import Point

POINTS = [
    *(Point.BEFORE_PACKAGE, Point.BEFORE_ENTRY, Point.AFTER_ENTRY, Point.BEFORE_TABLE, Point.AFTER_TABLE),
    Point.AFTER_PUBLISH,
]
NAMES = ("carriers", "months")
BEFORE = [7, 8]  # what stands in each table


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("delta")
    (home / "arms").mkdir()
    server = RedisServer(home)
    server.start()
    environ = {**SOON, "UNSTUCK_REDIS_URL": server.url, **arming(home / "arms")}
    try:
        with (
            fleet.worker(server.url, home, concurrency=2, environ=environ) as worker,
            coordinator_processes(home, environ) as coordinators,
        ):
            yield Place(server, worker, coordinators, home, environ)
    finally:
        server.stop()


def submitted(place: Place, point: Point) -> Case:
    """A job that replaces the rows of two tables, and the order to kill the coordinator that comes to ``point``."""
    place.coordinators.kill()  # one that lives could pass the point before it is armed
    case = Case("", place.home / point)
    case.home.mkdir()
    for name in NAMES:
        write_deltalake(str(case.home / name), pa.table({"epoch": pa.array(BEFORE, pa.int64())}))
    settings = Settings(redis_url=place.server.url, warehouse=case.warehouse)
    step = {"python": "fleet_steps:two_outputs", "params": {"log": str(case.home / "ran")}}
    tables = {name: {"format": "delta", "path": str(case.home / name), "mode": "replace"} for name in NAMES}
    groups = [{"name": "make", "spark": False, "steps": [step]}]
    spec = {"name": "tables", "outputs": tables, "publish": list(NAMES), "groups": groups}
    case.job = Client(settings, redis_client=place.store).submit(spec).id
    case.orders = [order(place.arms, point, Strike.KILL, case.job)]
    return case


def poll(case: Case, stop: threading.Event, wrong: list[str]) -> None:
    """Read both tables again and again."""
    while not stop.is_set():
        for name in NAMES:
            table = DeltaTable(str(case.home / name))
            found = (table.version(), sorted(table.to_pyarrow_table()["epoch"].to_pylist()))
            if found not in ((0, BEFORE), (1, [1])):
                wrong.append(f"{name}: {found}")


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_a_coordinator_killed_at_any_point_is_followed_and_each_table_has_one_whole_commit(
    place: Place, point: Point
) -> None:
    case = submitted(place, point)
    stop, wrong = threading.Event(), list[str]()
    reader = threading.Thread(target=poll, args=(case, stop, wrong))
    reader.start()
    try:
        place.run([case])
    finally:
        stop.set()
        reader.join()

    assert case.struck(), "a coordinator was killed there"
    assert place.status(case) is Status.FINISHED
    assert case.ran == [1]
    assert wrong == []
    for name in NAMES:
        table = DeltaTable(str(case.home / name))
        assert table.version() == 1, "one commit of the job"
        assert table.to_pyarrow_table()["epoch"].to_pylist() == [1]
    assert case.entries() == ["package"]
