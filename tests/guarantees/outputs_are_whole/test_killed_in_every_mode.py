"""Processes are killed at every failpoint from the first staged byte to FINISHED, in each mode of
an output.

Readers poll all the while: in both outputs of the job they see all rows of the version before or
all of the new one, and never FINISHED before the new one can be read. Real runners, coordinators
and signals; a warehouse on local disk, and one on S3.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.guarantees.nothing_is_forgotten.test_process_deaths import SOON, KilledFleet, KilledJob
from tests.support import fleet
from tests.support.failpoints import OF_A_COORDINATOR, OF_A_RUNNER, Effect, arming, order
from tests.support.looks import Looks, readers
from tests.support.network.s3_server import SeaweedFS
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer, wait_until
from unstuck import Client, Settings, Status
from unstuck.coordinator.publishing.publish_outputs import publish
from unstuck.coordinator.publishing.publish_request import PublishRequest
from unstuck.tasks.failpoints import Point
from unstuck.tasks.frames.output import stage
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.marker import Marker, write_marker

pytestmark = pytest.mark.variant

POINTS = [*OF_A_RUNNER, *OF_A_COORDINATOR]
# These two are passed once: the job is alone there, so that no other job's death takes its process
# away.
ALONE = [Point.AFTER_FINISH, Point.AFTER_ENTRY]
OUTPUTS = ("flights", "returns")
# What must be read in the end, in each output: whose rows of which day.
MODES = {
    "replace": {"new 2013-01-02": 3, "new 2013-01-03": 3},
    "append": {"old 2013-01-01": 3, "old 2013-01-02": 3, "new 2013-01-02": 3, "new 2013-01-03": 3},
    "partition_overwrite": {"old 2013-01-01": 3, "new 2013-01-02": 3, "new 2013-01-03": 3},
}
OLD = {"old 2013-01-01": 3, "old 2013-01-02": 3}


@dataclass
class ModeCase(KilledJob):
    mode: str = ""
    uri: str = ""
    looks: Looks = field(default_factory=Looks)
    found: str = ""  # what the last reader found: "old" or "new"
    version: int = -1  # of the warehouse, when that was read
    ended: float = 0.0  # when a reader had first seen it FINISHED
    wrong: list[str] = field(default_factory=list)

    @property
    def warehouse(self) -> str:
        return self.uri

    def rows(self, version: int) -> list[dict[str, int]]:
        """How many rows of each load and day readers find in each output, at a version of the
        warehouse.
        """
        warehouse, found = Warehouse(self.uri), []
        state = warehouse.state(version)
        for name in OUTPUTS:
            counted = Counter[str]()
            for data_file in state[name].files:
                with warehouse.storage.open(data_file.path) as file:
                    table = pq.ParquetFile(io.BytesIO(file.read())).read()
                counted.update(f"{row['made_by']} {row['day']}" for row in table.to_pylist())
            found.append(dict(counted))
        return found

    def poll(self, place: KilledFleet) -> None:
        """Look for the newest version, and read all of it: at once if it is a new one, else every
        tenth time.
        """
        finished = place.store.hget(fleet.KEYS.of(self.job).job, "status") == Status.FINISHED
        found_before = self.found == "new"
        if (version := Warehouse(self.uri).head()) != self.version or len(self.looks) % 10 == 0:
            rows = self.rows(version)
            new = [MODES[self.mode]] * len(OUTPUTS)
            self.version, self.found = version, "new" if rows == new else "old"
            if rows not in (new, [OLD] * len(OUTPUTS)):
                self.wrong.append(f"a mixture: {rows}")
        if self.found == "old" and (finished or found_before):
            self.wrong.append(
                "the old rows after "
                f"{'FINISHED' if finished else 'a reader had found the new ones'}"
            )
        self.looks.note()
        if finished and not self.ended:
            self.ended = self.looks.last


def publish_before(uri: str, job: str, output: OutputSpec) -> None:
    """Publish the version that stands before."""
    files, staging = Files(uri), "_staging/before/load/1-nonce-claimant"
    rows = pa.table(
        {
            "day": [day for day in ("2013-01-01", "2013-01-02") for _ in range(3)],
            "n": [0, 1, 2] * 2,
            "made_by": ["old"] * 6,
        }
    )
    made = {name: stage(files, f"{staging}/{name}", rows, output.partition_by) for name in OUTPUTS}
    write_marker(files, staging, Marker("before/load", "same", made, {}, {}, 1.0))
    request = PublishRequest(
        *(uri, Warehouse(uri).ensure_id(), "before", "before", job, 0, 1000.0),
        sources={"load": (staging,)},
        published_by={"load"},
        outputs=dict.fromkeys(OUTPUTS, output),
    )
    assert publish(request).failed is None


def case_of(place: KilledFleet, base: str, mode: str, point: Point) -> ModeCase:
    """Publish the version before, submit a job that publishes the next one, and order the death."""
    place.coordinators.kill()
    made = ModeCase("", place.home, mode=mode, uri=f"{base}/{mode}-{point}")
    parts: dict[str, Any] = {} if mode == "replace" else {"partition_by": ["day"]}
    if mode == "partition_overwrite":
        parts["partitions"] = {"day": ["2013-01-02", "2013-01-03"]}
    publish_before(made.uri, mode, OutputSpec.model_validate({"mode": mode, **parts}))
    step = {
        "python": "fleet_steps:flights_of",
        "params": {"names": [*OUTPUTS], "days": ["2013-01-02", "2013-01-03"], "made_by": "new"},
    }
    spec = {
        "name": mode,
        "outputs": {name: {"mode": mode, **parts} for name in OUTPUTS},
        "groups": [{"name": "load", "spark": False, "steps": [step]}],
        "publish": [*OUTPUTS],
    }
    settings = Settings(redis_url=place.server.url, warehouse=made.uri)
    made.job = Client(settings, redis_client=place.store).submit(spec).id
    made.orders = [order(place.arms, point, Effect.KILL, made.job)]
    return made


def play(place: KilledFleet, cases: list[ModeCase]) -> None:
    """Until all jobs have ended and a reader of each has seen that."""
    with readers([partial(case.poll, place) for case in cases]):
        wait_until(lambda: all(len(case.looks) for case in cases), 60, "each reader to look")
        place.run(cases)
        place.until("readers to see the end", lambda: all(case.ended for case in cases))


@pytest.fixture(
    scope="module", params=["on local disk", pytest.param("on S3", marks=pytest.mark.long)]
)
def deaths(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[KilledFleet, dict[tuple[str, Point], ModeCase]]]:
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
            place = KilledFleet(server, worker, coordinators, home, environ)
            cases: dict[tuple[str, Point], ModeCase] = {}
            # Few at once, so that each is read often.
            for point in POINTS:
                for modes in [[mode] for mode in MODES] if point in ALONE else [[*MODES]]:
                    now = {(mode, point): case_of(place, base, mode, point) for mode in modes}
                    cases |= now
                    play(place, list(now.values()))
            yield place, cases
    finally:
        server.stop()


@pytest.mark.claim(
    "Readers see the old or the new version, whichever process is killed, in every output mode."
)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("mode", MODES)
def test_a_process_killed_anywhere_leaves_the_old_or_the_new_version(
    deaths: tuple[KilledFleet, dict[tuple[str, Point], ModeCase]], mode: str, point: Point
) -> None:
    place, cases = deaths
    case = cases[mode, point]
    assert case.struck(), "a process was killed there"
    assert place.status(case) is Status.FINISHED
    assert not case.wrong, case.wrong[0]
    assert case.rows(2) == [MODES[mode]] * len(OUTPUTS)
    assert case.entries() == ["package"]
    assert Warehouse(case.warehouse).head() == 2
