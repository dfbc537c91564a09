"""A worker and a coordinator that load streams in tests: real processes, which a test may kill at a
named moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from tests.support import fleet
from tests.support.failpoints import Effect, arming, order, reached_by
from tests.support.programs.coordinator_processes import CoordinatorProcesses, coordinator_processes
from tests.support.servers import RedisServer
from unstuck import Client, Settings
from unstuck.tasks.failpoints import Point
from unstuck.tasks.warehouse.log import Warehouse


@dataclass
class StreamFleet:
    """The processes of one fleet.

    Attributes:
        workers: the last one is at work.
    """

    server: RedisServer
    home: Path
    coordinators: CoordinatorProcesses
    queues: str
    environ: dict[str, str]
    workers: list[fleet.FleetWorker] = field(default_factory=list)
    ends: ExitStack = field(default_factory=ExitStack)

    def client(self, warehouse: str) -> Client:
        return Client(Settings(redis_url=self.server.url, warehouse=warehouse))

    def restart(self) -> None:
        """Kill the main process of the worker, if there is one, and start another worker."""
        for one in self.workers[-1:]:
            one.process.kill()
            one.process.wait()
        started = fleet.worker(self.server.url, self.home, queues=self.queues, environ=self.environ)
        self.workers.append(self.ends.enter_context(started))

    @contextmanager
    def death(self, point: Point) -> Iterator[None]:
        """The runner of a job in this block is killed at ``point``, once."""
        shot = order(self.home / "arms", point, Effect.KILL)
        before = len(reached_by(shot))
        yield
        assert len(reached_by(shot)) == before + 1


@contextmanager
def stream_fleet(
    server: RedisServer, home: Path, steps: Mapping[str, str], queues: str = "light", **environ: str
) -> Iterator[StreamFleet]:
    """A fleet in ``home`` whose steps are the modules ``steps``: names and their text."""
    (home / "arms").mkdir()
    for name, text in steps.items():
        (home / f"{name}.py").write_text(text)
    environ = {
        "UNSTUCK_REDIS_URL": server.url,
        "UNSTUCK_LEASE_TTL": "6s",
        "UNSTUCK_SWEEP_EVERY": "500ms",
        "UNSTUCK_SPARK_MASTER": "none",
        **environ,
        **arming(home / "arms"),
    }
    with ExitStack() as ends, coordinator_processes(home, environ) as coordinators:
        made = StreamFleet(server, home, coordinators, queues, environ, ends=ends)
        made.restart()
        coordinators.tend(1)
        yield made
        assert "outside of the steps" not in "".join(worker.text() for worker in made.workers)


def published_ids(warehouse: Warehouse, dataset: str = "loads") -> list[int]:
    """Those of all published rows, each as often as its ``count`` says, if it has one."""
    found: list[int] = []
    for one in warehouse.dataset(dataset).files:
        with warehouse.storage.open(one.path) as file:
            found += [
                row["id"]
                for row in pq.read_table(file).to_pylist()
                for _ in range(row.get("count", 1))
            ]
    return sorted(found)
