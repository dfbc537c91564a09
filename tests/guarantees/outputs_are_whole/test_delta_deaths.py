"""Processes are killed at every failpoint from the first staged byte to FINISHED, while Delta tables are written.

One job writes a table in each mode. Readers poll all the while, on local disk and on S3: each table has the version
before or the new one, and the new one once the job is FINISHED.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.guarantees.nothing_is_forgotten.test_process_deaths import SOON, Case, Place
from tests.support import fleet
from tests.support.failpoints import OF_A_COORDINATOR, OF_A_RUNNER, Strike, arming, order
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.s3_server import SeaweedFS
from tests.support.servers import RedisServer
from unstuck import Client, Settings, Status
from unstuck.tasks.failpoints import Point

# Passed once: the job is alone there, so that no other job's death takes its process away.
ALONE = [Point.AFTER_FINISH, Point.AFTER_ENTRY, Point.BEFORE_TABLE, Point.AFTER_TABLE]
POINTS = [*OF_A_RUNNER, *OF_A_COORDINATOR, Point.BEFORE_TABLE, Point.AFTER_TABLE]
MODES: dict[str, dict[str, Any]] = {
    "replaced": {"mode": "replace"},
    "appended": {"mode": "append"},
    "merged": {"mode": "merge", "keys": ["n"]},
}
OLD = [(1, "old"), (2, "old")]
NEW = {
    "replaced": [(2, "new"), (3, "new")],
    "appended": [(1, "old"), (2, "new"), (2, "old"), (3, "new")],
    "merged": [(1, "old"), (2, "new"), (3, "new")],
}


@dataclass
class TableCase(Case):
    tables: str = ""
    storage_options: dict[str, str] = field(default_factory=dict)
    reads: int = 0
    wrong: list[str] = field(default_factory=list)

    def found(self, name: str) -> tuple[int, list[tuple[int, str]]]:
        """The version of a table, and its rows."""
        table = DeltaTable(f"{self.tables}/{name}", storage_options=self.storage_options)
        return table.version(), sorted((row["n"], row["made_by"]) for row in table.to_pyarrow_table().to_pylist())

    def poll(self, place: Place) -> None:
        finished = place.store.hget(fleet.KEYS.of(self.job).job, "status") == Status.FINISHED
        for name in MODES:
            found = self.found(name)
            self.reads += 1
            if found != (1, NEW[name]) and (finished or found != (0, OLD)):
                self.wrong.append(f"{name} of a job that is {'' if finished else 'not '}FINISHED: {found}")


def case_of(place: Place, base: str, storage_options: dict[str, str], point: Point) -> TableCase:
    """Make the tables, submit a job that writes them, and order the death."""
    place.coordinators.kill()  # one that lives could pass the point before it is armed
    made = TableCase("", place.home / point, tables=f"{base}/{point}", storage_options=storage_options)
    made.home.mkdir()
    rows = pa.table({"n": pa.array([n for n, _ in OLD], pa.int64()), "made_by": [by for _, by in OLD]})
    for name in MODES:
        write_deltalake(f"{made.tables}/{name}", rows, storage_options=storage_options)
    outputs = {name: {"format": "delta", "path": f"{made.tables}/{name}", **mode} for name, mode in MODES.items()}
    step = {"python": "fleet_steps:rows_of_tables", "params": {"names": [*MODES], "made_by": "new"}}
    groups = [{"name": "make", "spark": False, "steps": [step]}]
    spec = {"name": "tables", "outputs": outputs, "publish": [*MODES], "groups": groups}
    settings = Settings(redis_url=place.server.url, warehouse=made.warehouse)
    made.job = Client(settings, redis_client=place.store).submit(spec).id
    made.orders = [order(place.arms, point, Strike.KILL, made.job)]
    return made


def play(place: Place, cases: list[TableCase]) -> None:
    """Until all jobs have ended, with a reader beside them."""
    stop = threading.Event()

    def read() -> None:
        while not stop.wait(0.01):
            for case in cases:
                case.poll(place)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        place.run(cases)
    finally:
        stop.set()
        reader.join()


@pytest.fixture(scope="module", params=["on local disk", "on S3"])
def deaths(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Place, dict[Point, TableCase]]]:
    home = tmp_path_factory.mktemp("delta")
    (home / "arms").mkdir()
    base, storage_options = str(home / "tables"), dict[str, str]()
    if request.param == "on S3":
        store: SeaweedFS = request.getfixturevalue("seaweedfs")
        base, storage_options = store.make_bucket(), store.environ
    server = RedisServer(home)
    server.start()
    environ = {**SOON, "UNSTUCK_REDIS_URL": server.url, **arming(home / "arms"), **storage_options}
    try:
        with (
            fleet.worker(server.url, home, concurrency=3, environ=environ) as worker,
            coordinator_processes(home, environ) as coordinators,
        ):
            place = Place(server, worker, coordinators, home, environ)
            cases: dict[Point, TableCase] = {}
            for points in ([point for point in POINTS if point not in ALONE], *([point] for point in ALONE)):
                now = {point: case_of(place, base, storage_options, point) for point in points}
                cases |= now
                play(place, list(now.values()))
            yield place, cases
    finally:
        server.stop()


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_anywhere_leaves_each_table_before_or_after_one_whole_commit(
    deaths: tuple[Place, dict[Point, TableCase]], point: Point
) -> None:
    place, cases = deaths
    case = cases[point]
    assert case.struck(), "a process was killed there"
    assert place.status(case) is Status.FINISHED
    assert not case.wrong, case.wrong[0]
    assert case.reads > len(MODES), "the reader polled meanwhile"
    assert {name: case.found(name) for name in MODES} == {name: (1, NEW[name]) for name in MODES}
    assert case.entries() == ["package"]
