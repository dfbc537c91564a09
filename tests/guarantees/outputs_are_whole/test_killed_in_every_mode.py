"""Processes are killed at every failpoint from the first staged byte to FINISHED, in each mode of an output.

Readers poll all the while: they see all rows of the version before or all of the new one, and never FINISHED before the
new one can be read. Real runners, coordinators and signals; a warehouse on local disk, and one on S3.
"""

from __future__ import annotations

import io
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow.parquet as pq
import pytest

from tests.guarantees.nothing_is_forgotten.test_process_deaths import SOON, Case, Place
from tests.support import fleet
from tests.support.failpoints import OF_A_COORDINATOR, OF_A_RUNNER, Strike, arming, order
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.s3_server import SeaweedFS
from tests.support.servers import RedisServer
from tests.unit.coordinator.publishing.test_compact import Loads
from unstuck.coordinator.client import Client
from unstuck.coordinator.model.status import Status
from unstuck.tasks.failpoints import Point
from unstuck.tasks.settings import Settings
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.warehouse.log import Warehouse

POINTS = [*OF_A_RUNNER, *OF_A_COORDINATOR]
# What must be read in the end: whose rows of which day.
MODES = {
    "replace": {"new 2013-01-02": 3, "new 2013-01-03": 3},
    "append": {"old 2013-01-01": 3, "old 2013-01-02": 3, "new 2013-01-02": 3, "new 2013-01-03": 3},
    "partition_overwrite": {"old 2013-01-01": 3, "new 2013-01-02": 3, "new 2013-01-03": 3},
}
OLD = {"old 2013-01-01": 3, "old 2013-01-02": 3}


@dataclass
class ModeCase(Case):
    mode: str = ""
    uri: str = ""
    reads: list[float] = field(default_factory=list)  # when each was over, in seconds
    found_new: bool = False
    wrong: list[str] = field(default_factory=list)

    @property
    def warehouse(self) -> str:
        return self.uri

    def rows(self) -> dict[str, int]:
        """How many rows of each load and day readers find."""
        warehouse, found = Warehouse(self.uri), Counter[str]()
        for data_file in warehouse.files_of("flights").files:
            with warehouse.storage.open(data_file.path) as file:
                table = pq.ParquetFile(io.BytesIO(file.read())).read()
            found.update(f"{row['made_by']} {row['day']}" for row in table.to_pylist())
        return dict(found)

    def poll(self, place: Place) -> None:
        finished = place.store.hget(fleet.KEYS.of(self.job).job, "status") == Status.FINISHED
        found_before = self.found_new
        rows = self.rows()
        self.reads.append(time.monotonic())
        if rows == MODES[self.mode]:
            self.found_new = True
        elif rows != OLD:
            self.wrong.append(f"a mixture: {rows}")
        elif finished or found_before:
            self.wrong.append(f"the old rows after {'FINISHED' if finished else 'a reader had found the new ones'}")


def case_of(place: Place, base: str, mode: str, point: Point) -> ModeCase:
    """Publish the version before, submit a job that publishes the next one, and order the death."""
    place.coordinators.kill()
    made = ModeCase("", place.home, mode=mode, uri=f"{base}/{mode}-{point}")
    parts = {} if mode == "replace" else {"partition_by": ["day"]}
    days = [day for day in ("2013-01-01", "2013-01-02") for _ in range(3)]
    output = OutputSpec.model_validate({"mode": mode, **parts})
    Loads(made.uri).load("before", output, day=days, n=[0, 1, 2] * 2, made_by=["old"] * 6)
    step = {
        "python": "fleet_steps:flights_of",
        "params": {"days": ["2013-01-02", "2013-01-03"], "made_by": "new"},
    }
    spec = {
        "name": mode,
        "outputs": {"flights": {"mode": mode, **parts}},
        "groups": [{"name": "load", "spark": False, "steps": [step]}],
    }
    settings = Settings(redis_url=place.server.url, warehouse=made.uri)
    made.job = Client(settings, redis_client=place.store).submit(spec).id
    made.orders = [order(place.arms, point, Strike.KILL, made.job)]
    return made


def play(place: Place, cases: list[ModeCase]) -> None:
    """Until all jobs have ended, with readers beside them."""
    stop = threading.Event()

    def read() -> None:
        while not stop.wait(0.01):
            for case in cases:
                case.poll(place)

    readers = [threading.Thread(target=read) for _ in range(4)]
    begun = time.monotonic()
    for reader in readers:
        reader.start()
    try:
        place.run(cases)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    looks = sum(len(case.reads) for case in cases)
    print(f"{looks / (time.monotonic() - begun):.0f} looks a second at {len(cases)} jobs")


@pytest.fixture(scope="module", params=["on local disk", pytest.param("on S3", marks=pytest.mark.long)])
def deaths(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Place, dict[tuple[str, Point], ModeCase]]]:
    home = tmp_path_factory.mktemp("modes")
    (home / "arms").mkdir()
    base, keys = str(home), dict[str, str]()
    if request.param == "on S3":
        store: SeaweedFS = request.getfixturevalue("seaweedfs")
        base, keys = store.make_bucket(), store.environ
    server = RedisServer(home)
    server.start()
    environ = {**SOON, "UNSTUCK_REDIS_URL": server.url, **arming(home / "arms"), **keys}
    try:
        with (
            pytest.MonkeyPatch.context() as patch,
            fleet.worker(server.url, home, concurrency=3, environ=environ) as worker,
            coordinator_processes(home, environ) as coordinators,
        ):
            for name, value in keys.items():
                patch.setenv(name, value)
            place = Place(server, worker, coordinators, home, environ)
            cases: dict[tuple[str, Point], ModeCase] = {}
            # These two are passed once: the job is alone there, so that no other job's death takes its process away.
            alone = [Point.AFTER_FINISH, Point.AFTER_ENTRY]
            for points in ([point for point in POINTS if point not in alone], *([point] for point in alone)):
                for mode in MODES:
                    now = {(mode, point): case_of(place, base, mode, point) for point in points}
                    cases |= now
                    play(place, list(now.values()))
            yield place, cases
    finally:
        server.stop()


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("mode", MODES)
def test_a_process_killed_anywhere_leaves_readers_the_version_before_or_the_new_one(
    deaths: tuple[Place, dict[tuple[str, Point], ModeCase]], mode: str, point: Point
) -> None:
    place, cases = deaths
    case = cases[mode, point]
    assert case.struck(), "a process was killed there"
    assert place.status(case) is Status.FINISHED
    assert not case.wrong, case.wrong[0]
    assert len(case.reads) > 1, "readers polled meanwhile"
    assert case.rows() == MODES[mode]
    assert case.entries() == ["package"]
    assert Warehouse(case.warehouse).head() == 2
