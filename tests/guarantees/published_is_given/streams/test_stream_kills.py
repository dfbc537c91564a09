"""Rows published = rows fed, exactly: files arrive all the time, jobs load them, and whoever is at
work is killed.
"""

from __future__ import annotations

import datetime
import json
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.failpoints import OF_A_RUNNER
from tests.support.network.s3_server import S3Server
from tests.support.servers import RedisServer
from tests.support.spark.jars import class_path
from tests.support.streams.stream_fleet import StreamFleet, published_ids, stream_fleet
from unstuck import Client, Status
from unstuck.tasks.failpoints import Point
from unstuck.tasks.warehouse.log import Warehouse

FILES, ROWS = 200, 5
EVERY = 0.3  # seconds between two files
BEGIN, LAST = datetime.datetime(2026, 1, 1), datetime.datetime(2030, 1, 1)
# With state, a row that was read twice is counted twice, and one that a watermark has passed over
# is lost.
STEPS = """
def load(spark, ctx):
    return ctx.input("events")

def windows(spark, ctx):
    from pyspark.sql.functions import window
    events = ctx.input("events").withWatermark("at", "0 seconds")
    return events.groupBy(window("at", "1 second"), "id").count().select("id", "count")
"""


@dataclass
class Feed:
    """A feeder that lets files arrive one by one, and jobs that load them.

    Attributes:
        reader: ``list``, also by a ``fork``; or ``state``: Structured Streaming with a watermark.
    """

    stream: str
    reader: str
    warehouse: Warehouse
    put: Callable[[str, bytes], None]
    client: Client
    fleet: StreamFleet
    fed: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def feed(self, files: int) -> None:
        while self.fed < files and not self.over.is_set():
            ids = range(self.fed * ROWS, (self.fed + 1) * ROWS)
            # Names come in no order, so that a position that is one name would lose some.
            self.arrive(
                f"{(self.fed * 7919) % 1000:03d}.json",
                BEGIN + datetime.timedelta(seconds=self.fed),
                *ids,
            )
            self.fed += 1
            self.over.wait(EVERY)

    def arrive(self, name: str, at: datetime.datetime, *ids: int) -> None:
        self.put(
            name,
            "".join(f"{json.dumps({'id': n, 'at': f'{at.isoformat()}Z'})}\n" for n in ids).encode(),
        )

    def submit(self) -> str:
        events = {"stream": self.stream, "format": "json", "schema": "id BIGINT, at TIMESTAMP"}
        state = self.reader == "state"
        group: dict[str, Any] = {
            "name": "load",
            "spark": state,
            "retry": {"max": 20, "backoff": "1s"},
            "inputs": {"events": {**events, "state": state}},
            "steps": [
                {"python": f"kill_steps:{'windows' if state else 'load'}", "output": "loads"}
            ],
        }
        if self.reader == "fork":
            group["for_each"] = {"part": [0, 1, 2]}
        return self.client.submit(
            {"name": "load", "groups": [group], "outputs": {"loads": {"mode": "append"}}}
        ).id

    def ended(self, *jobs: str) -> None:
        """One of the jobs has loaded what was new; others may have found that it did."""
        reasons = []
        for job in jobs:
            view = self.client.wait(job)
            if view.status is not Status.FINISHED:
                assert view.reason is not None
                reasons.append(view.reason.code)
        assert set(reasons) <= {"STREAM_MOVED"}
        assert len(reasons) < len(jobs)

    def last(self) -> None:
        """Load what is left. A watermark closes the windows of all rows before it."""
        if self.reader == "state":
            self.arrive("last.json", LAST, -1)
        for _ in range(2):
            self.ended(self.submit())

    def ids(self) -> list[int]:
        """Those of all published rows, each as often as it was read."""
        return published_ids(self.warehouse)


@pytest.fixture
def feed(
    redis_server: RedisServer,
    s3_server: S3Server,
    bucket: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Feed]:
    place, reader = request.param
    environ = {**s3_server.environ, **(with_spark(place) if reader == "state" else {})}
    (landing := tmp_path / "in").mkdir()

    def write(name: str, data: bytes) -> None:
        (landing / f"{name}.part").write_bytes(data)
        (landing / f"{name}.part").rename(landing / name)

    def put(name: str, data: bytes) -> None:
        s3_server.client("s3").put_object(
            Bucket=bucket.removeprefix("s3://"), Key=f"in/{name}", Body=data
        )

    on_disk = place == "disk"
    warehouse = str(tmp_path / "warehouse") if on_disk else f"{bucket}/warehouse"
    stream = str(landing) if on_disk else f"{bucket}/in"
    queues = "spark" if reader == "state" else "light"
    with stream_fleet(redis_server, tmp_path, {"kill_steps": STEPS}, queues, **environ) as running:
        yield Feed(
            stream,
            reader,
            Warehouse(warehouse),
            write if on_disk else put,
            running.client(warehouse),
            running,
        )


def with_spark(place: str) -> dict[str, str]:
    conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}
    conf |= {} if place == "disk" else {"spark.driver.extraClassPath": class_path()}
    return {"UNSTUCK_SPARK_MASTER": "local[1]", "UNSTUCK_SPARK_CONF": json.dumps(conf)}


@pytest.mark.claim("A stream of files publishes each row once, whichever process is killed.")
@pytest.mark.long
@pytest.mark.timeout(800)
@pytest.mark.parametrize(
    "feed",
    [("disk", "list"), ("s3", "list"), ("disk", "fork"), ("disk", "state"), ("s3", "state")],
    indirect=True,
    ids="-".join,
)
def test_exactly_the_arrived_files_are_published_despite_kills(feed: Feed) -> None:
    deeds: list[Any] = [
        *OF_A_RUNNER,
        "coordinator",
        "twins",
        "worker",
        "coordinator",
        "twins",
        "worker",
    ]
    played(feed, deeds * (1 if feed.reader == "state" else 2), FILES)


@pytest.mark.claim("A stream of files publishes each row once, whichever process is killed.")
@pytest.mark.parametrize("feed", [("disk", "fork")], indirect=True, ids="-".join)
def test_few_files_are_published_exactly_despite_one_death_of_each_kind(feed: Feed) -> None:
    played(feed, [Point.BEFORE_MARKER, Point.AFTER_MARKER, "coordinator", "worker", "twins"], 30)


def played(feed: Feed, deeds: list[Any], files: int) -> None:
    feeder = threading.Thread(target=feed.feed, args=(files,))
    feeder.start()
    random.Random(7).shuffle(deeds)
    try:
        for deed in deeds:
            if isinstance(deed, Point):
                with feed.fleet.death(deed):
                    feed.ended(feed.submit())
            elif deed == "twins":
                feed.fleet.coordinators.kill()  # so that both are submitted before either publishes
                jobs = [feed.submit(), feed.submit()]
                feed.fleet.coordinators.tend(1)
                feed.ended(*jobs)
            else:
                job = feed.submit()
                if deed == "worker":
                    feed.fleet.restart()
                else:
                    feed.fleet.coordinators.kill()
                    feed.fleet.coordinators.tend(1)
                feed.ended(job)
        feeder.join()
    finally:
        feed.over.set()
        feeder.join()
    feed.last()
    assert feed.fed == files
    assert feed.ids() == [*range(files * ROWS)]
