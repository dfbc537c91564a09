"""Processes are killed at every failpoint from the first staged byte to FINISHED, while Delta and
Iceberg tables are written.

One job writes a table of each format in each mode. A reader of each table polls all the while, on
local disk and on S3: it has the version before or the new one, and the new one once the job is
FINISHED.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from tests.guarantees.nothing_is_forgotten.test_process_deaths import SOON, KilledFleet, KilledJob
from tests.support import fleet
from tests.support.failpoints import OF_A_COORDINATOR, OF_A_RUNNER, Effect, arming, order
from tests.support.looks import Looks, readers
from tests.support.network.s3_server import SeaweedFS
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer, wait_until
from tests.support.tables.lakes import settings_in_environ
from tests.support.tables.tables_read import DeltaRead, IcebergRead, TableRead
from unstuck import Client, Settings, Status
from unstuck.tasks.failpoints import Point

POINTS = [*OF_A_RUNNER, *OF_A_COORDINATOR, Point.BEFORE_TABLE, Point.AFTER_TABLE]
MODES: dict[str, dict[str, Any]] = {
    "replaced": {"mode": "replace"},
    "appended": {"mode": "append"},
    "parted": {"mode": "partition_overwrite", "partition_by": ["n"], "partitions": {"n": [2, 3]}},
    "merged": {"mode": "merge", "keys": ["n"]},
}
Rows = Sequence[tuple[int, str]]
OLD: Rows = [(1, "old"), (2, "old")]
NEW: dict[str, Rows] = {
    "replaced": [(2, "new"), (3, "new")],
    "appended": [(1, "old"), (2, "new"), (2, "old"), (3, "new")],
    "parted": [(1, "old"), (2, "new"), (3, "new")],
    "merged": [(1, "old"), (2, "new"), (3, "new")],
}


@dataclass
class Reader:
    """One reader of one table."""

    mode: str
    table: TableRead
    looks: Looks = field(default_factory=Looks)
    found: tuple[int, Rows] = (-1, ())  # the version and the rows that it read last
    ended: float = 0.0  # when it had first seen the job FINISHED
    wrong: list[str] = field(default_factory=list)

    def poll(self, place: KilledFleet, job: str) -> None:
        """Look for the newest version, and read all of it: at once if it is a new one, else every
        tenth time.
        """
        finished = place.store.hget(fleet.KEYS.of(job).job, "status") == Status.FINISHED
        before = self.found
        version = self.table.refresh()
        if version != before[0] or len(self.looks) % 10 == 0:
            rows = self.table.rows()
            self.found = version, sorted((row["n"], row["made_by"]) for row in rows)
        new = (1, NEW[self.mode])
        if self.found != new and (finished or before == new or self.found != (0, OLD)):
            self.wrong.append(
                f"{self.table.output} of a job that is {'' if finished else 'not '}FINISHED: {self.found}"
            )
        self.looks.note()
        if finished and not self.ended:
            self.ended = self.looks.last


@dataclass
class TableCase(KilledJob):
    uri: str = ""
    tables: dict[str, Reader] = field(default_factory=dict)

    @property
    def warehouse(self) -> str:
        return self.uri


def case_of(
    place: KilledFleet, base: str, storage_options: dict[str, str], catalog: Catalog, point: Point
) -> TableCase:
    """Make the tables, submit a job that writes them, and order the death."""
    place.coordinators.kill()  # one that lives could pass the point before it is armed
    made = TableCase("", place.home, uri=f"{base}/warehouse-{point}")
    rows = pa.table(
        {"n": pa.array([n for n, _ in OLD], pa.int64()), "made_by": [by for _, by in OLD]}
    )
    outputs = {}
    for mode, output in MODES.items():
        by = output.get("partition_by", ())
        tables = (
            DeltaRead(f"{base}/{point}/{mode}", rows, by, storage_options),
            IcebergRead(catalog, f"ice.{point}.{mode}", rows, by),
        )
        for table in tables:
            name = f"{mode}_{table.output['format']}"
            made.tables[name] = Reader(mode, table)
            outputs[name] = {**table.output, **output}
    params = {"names": [*outputs], "made_by": "new"}
    step = {"python": "fleet_steps:rows_of_tables", "params": params}
    groups = [{"name": "make", "spark": False, "steps": [step]}]
    spec = {"name": "tables", "outputs": outputs, "publish": [*outputs], "groups": groups}
    settings = Settings(redis_url=place.server.url, warehouse=made.warehouse)
    made.job = Client(settings, redis_client=place.store).submit(spec).id
    made.orders = [order(place.arms, point, Effect.KILL, made.job)]
    return made


def play(place: KilledFleet, case: TableCase) -> None:
    """Until the job has ended and each reader has seen that."""
    tables = case.tables.values()
    with readers([partial(table.poll, place, case.job) for table in tables]):
        wait_until(lambda: all(len(table.looks) for table in tables), 60, "each reader to look")
        place.run([case])
        place.until("readers to see the end", lambda: all(table.ended for table in tables))


@pytest.fixture(scope="module", params=["on local disk", "on S3"])
def deaths(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[KilledFleet, dict[Point, TableCase]]]:
    home = tmp_path_factory.mktemp("tables")
    (home / "arms").mkdir()
    base, storage_options = str(home / "tables"), dict[str, str]()
    if request.param == "on S3":
        store: SeaweedFS = request.getfixturevalue("seaweedfs")
        base, storage_options = store.make_bucket(), store.environ
    server = RedisServer(home)
    server.start()
    settings = {
        "type": "sql",
        "uri": f"sqlite:///{home}/catalog.db",
        "warehouse": f"{base}/iceberg" if "://" in base else f"file://{base}/iceberg",
        **iceberg_storage(storage_options),
    }
    catalog = load_catalog("ice", **settings)
    delta_options = storage_options
    storage_options = storage_options | settings_in_environ("ice", settings)
    environ = {**SOON, "UNSTUCK_REDIS_URL": server.url, **arming(home / "arms"), **storage_options}
    try:
        with (
            pytest.MonkeyPatch.context() as patch,
            fleet.worker(server.url, home, concurrency=3, environ=environ) as worker,
            coordinator_processes(home, environ) as coordinators,
        ):
            for name, value in storage_options.items():
                patch.setenv(name, value)
            place = KilledFleet(server, worker, coordinators, home, environ)
            cases: dict[Point, TableCase] = {}
            for point in POINTS:  # one at a time, so that each is read often
                cases[point] = case_of(place, base, delta_options, catalog, point)
                play(place, cases[point])
            yield place, cases
    finally:
        catalog.close()
        server.stop()


def iceberg_storage(storage_options: dict[str, str]) -> dict[str, str]:
    """Return the options of an object store by the names of pyiceberg."""
    names = {
        "AWS_ENDPOINT_URL": "s3.endpoint",
        "AWS_ACCESS_KEY_ID": "s3.access-key-id",
        "AWS_SECRET_ACCESS_KEY": "s3.secret-access-key",
        "AWS_REGION": "s3.region",
    }
    return {names[name]: value for name, value in storage_options.items() if name in names}


@pytest.mark.claim(
    "Readers see the old or the new version, whichever process is killed, in every output mode."
)
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_anywhere_leaves_each_table_at_a_whole_commit(
    deaths: tuple[KilledFleet, dict[Point, TableCase]], point: Point
) -> None:
    place, cases = deaths
    case = cases[point]
    assert case.struck(), "a process was killed there"
    assert place.status(case) is Status.FINISHED
    for name, table in case.tables.items():
        assert not table.wrong, table.wrong[0]
        assert (table.table.refresh(), table.found) == (1, (1, NEW[table.mode])), name
    assert case.entries() == ["package"]
