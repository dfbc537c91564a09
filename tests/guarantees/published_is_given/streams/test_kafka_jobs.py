"""Jobs load a Kafka topic without Spark: each message is published once, whoever dies in
between.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.support.failpoints import OF_A_RUNNER
from tests.support.network.s3_server import S3Server
from tests.support.servers import RedisServer, wait_until
from tests.support.streams.kafka import KafkaBroker, mock_broker
from tests.support.streams.kafka_server import kafka_server
from tests.support.streams.stream_fleet import StreamFleet, published_ids, stream_fleet
from unstuck import Client, Status, published_files
from unstuck.cli.app import app
from unstuck.read_model.job import JobInfo
from unstuck.tasks.failpoints import Point
from unstuck.tasks.warehouse.log import Warehouse

STEPS = """
def load(spark, ctx):
    return ctx.input("events")
"""


@dataclass
class Topic:
    """A topic of a test's own, and a warehouse that jobs load it into."""

    name: str
    warehouse: str
    fleet: StreamFleet
    broker: KafkaBroker
    client: Client

    def arrive(self, *ids: Any, partition: int = 0) -> None:
        self.broker.produce(self.name, *({"id": one} for one in ids), partition=partition)

    def spec(
        self, outputs: dict[str, Any] | None = None, retries: int = 0, **events: Any
    ) -> dict[str, Any]:
        stream = {
            "stream": self.broker.stream(self.name),
            "format": "json",
            "schema": "id BIGINT",
            **events,
        }
        group = {
            "name": "load",
            "spark": False,
            "retry": {"max": retries, "backoff": "1s"},
            "inputs": {"events": stream},
            "steps": [{"python": "kafka_steps:load", "output": "loads"}],
        }
        outputs = {"loads": {"mode": "append", **(outputs or {})}}
        return {"name": "load", "groups": [group], "outputs": outputs}

    def submit(self, **given: Any) -> str:
        return self.client.submit(self.spec(**given)).id

    def load(self, **events: Any) -> JobInfo:
        return self.client.wait(self.submit(**events))

    def ids(self, dataset: str = "loads") -> list[int]:
        """Those of all published rows."""
        return published_ids(Warehouse(self.warehouse), dataset)

    @property
    def version(self) -> int:
        return Warehouse(self.warehouse).head()


@pytest.fixture(scope="module")
def running(
    redis_server: RedisServer, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[StreamFleet, KafkaBroker]]:
    home = tmp_path_factory.mktemp("fleet")
    with (
        mock_broker() as broker,
        stream_fleet(redis_server, home, {"kafka_steps": STEPS}, **s3_server.environ) as running,
    ):
        yield running, broker
        assert "is replaced" not in running.workers[0].text(), (
            "the client of Kafka leaves nothing behind"
        )


@pytest.fixture
def topic(
    running: tuple[StreamFleet, KafkaBroker], tmp_path: Path, request: pytest.FixtureRequest
) -> Topic:
    started, broker = running
    warehouse = str(tmp_path / "warehouse")
    return Topic(
        f"t{abs(hash(request.node.name))}", warehouse, started, broker, started.client(warehouse)
    )


def finished(view: JobInfo) -> JobInfo:
    assert view.status is Status.FINISHED, view
    return view


def failed(view: JobInfo) -> tuple[str, str]:
    assert view.status is Status.FAILED, view
    reason = view.groups[0].members[0].reason
    assert reason is not None
    return reason.code, reason.text


@pytest.mark.claim("A Kafka stream publishes each message once, whichever process is killed.")
def test_each_job_publishes_the_messages_unpublished_by_earlier_jobs(topic: Topic) -> None:
    topic.arrive(1, 2)
    topic.arrive(3, partition=2)
    finished(topic.load())
    assert topic.ids() == [1, 2, 3]
    topic.arrive(4, partition=1)
    view = finished(topic.load())
    assert view.groups[0].members[0].results == {"events": {"messages": 1}}
    assert topic.ids() == [1, 2, 3, 4]
    environ = {
        "UNSTUCK_REDIS_URL": topic.fleet.server.url,
        "UNSTUCK_WAREHOUSE": topic.warehouse,
        "COLUMNS": "200",
    }
    told = CliRunner().invoke(app, ["datasets", "loads", "--sources"], env=environ).stdout
    assert f"/{topic.name}, partition 1, offsets 0 to 0" in told
    version = topic.version
    finished(topic.load())
    assert (topic.ids(), topic.version) == ([1, 2, 3, 4], version), (
        "a run for which nothing came makes no version"
    )
    topic.arrive(5, 6, 7)
    finished(topic.load(max_offsets_per_run=2))
    assert len(topic.ids()) == 6
    finished(topic.load())
    assert topic.ids() == [1, 2, 3, 4, 5, 6, 7]
    finished(topic.load(generation=2))
    assert topic.ids() == sorted([1, 2, 3, 4, 5, 6, 7] * 2)


def test_fork_members_together_read_each_partition_of_a_topic_once(topic: Topic) -> None:
    def forked() -> JobInfo:
        spec = topic.spec()
        spec["groups"][0]["for_each"] = {"part": [0, 1, 2]}
        return finished(topic.client.wait(topic.client.submit(spec).id))

    topic.arrive(1, 2)
    topic.arrive(3, partition=2)
    topic.arrive(4, partition=3)
    results = [one.results for one in forked().groups[0].members]
    assert [one and one["events"]["messages"] for one in results] == [3, 0, 1], (
        "partitions 0 and 3, 1, and 2"
    )
    topic.arrive(5, partition=1)
    forked()
    finished(topic.load())
    assert topic.ids() == [1, 2, 3, 4, 5]


@pytest.mark.claim("A Kafka stream publishes each message once, whichever process is killed.")
@pytest.mark.variant
@pytest.mark.parametrize("point", [Point.AFTER_OUTPUT, Point.AFTER_MARKER])
def test_a_runner_that_dies_before_or_after_its_marker_publishes_each_message_once(
    topic: Topic, point: Point
) -> None:
    topic.arrive(1)
    finished(topic.load())
    topic.arrive(2, 3)
    with topic.fleet.death(point):
        finished(topic.load())
    assert topic.ids() == [1, 2, 3]
    topic.arrive(4)
    finished(topic.load())
    assert topic.ids() == [1, 2, 3, 4]


def test_the_second_of_two_jobs_with_the_same_messages_fails_and_names_the_first(
    topic: Topic,
) -> None:
    topic.arrive(1)
    finished(topic.load())
    topic.arrive(2)
    topic.fleet.coordinators.kill()  # so that both are submitted before either publishes
    jobs = [topic.submit(), topic.submit()]
    topic.fleet.coordinators.tend(1)
    views = sorted(map(topic.client.wait, jobs), key=lambda view: view.status is Status.FAILED)
    assert [view.status for view in views] == [Status.FINISHED, Status.FAILED]
    reason = views[1].reason
    assert reason is not None
    assert reason.code == "STREAM_MOVED"
    assert f"job {views[0].id} has read on" in reason.text
    assert topic.ids() == [1, 2]


def test_an_undecodable_message_fails_the_group_with_its_place_and_publishes_nothing(
    topic: Topic,
) -> None:
    topic.arrive(1, "x", 3)
    code, text = failed(topic.load())
    assert (code, "offset 1 of partition 0" in text, topic.version) == ("BAD_RECORD", True, 0)


def test_undecodable_messages_are_stored_with_their_places_if_the_spec_requests_it(
    topic: Topic,
) -> None:
    skip = {"on_bad_record": "skip"}
    topic.arrive("x", 2)
    finished(topic.load(**skip))
    assert topic.ids() == [2]
    rejected = {"_rejected_by": ["on_bad_record"], "_line": 0, "_text": '{"id": "x"}'}
    paths = published_files(Warehouse(topic.warehouse), "loads__rejected")
    (row,) = (row for path in paths for row in pq.read_table(path).to_pylist())
    assert "the column id (bigint) cannot hold 'x'" in row.pop("_error")
    assert row.pop("_file").endswith(f"/{topic.name}/0")
    assert row == rejected
    topic.arrive(3)
    finished(topic.load(**skip))
    topic.arrive("y", partition=1)
    finished(topic.load(**skip))
    paths = published_files(Warehouse(topic.warehouse), "loads__rejected")
    found = [row for path in paths for row in pq.read_table(path).to_pylist()]
    assert sorted((row["_file"][-1], row["_line"]) for row in found) == [("0", 0), ("1", 0)]
    assert topic.ids() == [2, 3]


def test_a_schedule_runs_when_messages_arrive_in_a_topic(topic: Topic) -> None:
    topic.arrive(1)
    topic.client.schedules.set({**topic.spec(), "schedule": {"every": "1s", "only_if": "arrived"}})

    def quiet(*ids: int) -> bool:
        found = topic.client.schedules.show("load").quiet
        return (
            topic.version > 0 and topic.ids() == [*ids] and found is not None and found.count >= 1
        )

    try:
        wait_until(lambda: quiet(1), 60, "a run, and a tick with nothing new")
        topic.arrive(2)
        wait_until(lambda: quiet(1, 2), 60, "another run, and a tick with nothing new")
        assert topic.version == 2
    finally:
        topic.client.schedules.stop("load")


@pytest.mark.parametrize(
    ("events", "status", "code"),
    [
        (
            {"stream": "kafka://127.0.0.1:1/events", "options": {"socket.timeout.ms": "1000"}},
            "RETRYING",
            "SOURCE_UNAVAILABLE",
        ),
        ({}, "HALTED", "BAD_RECORD"),
    ],
)
def test_a_schedule_retries_recoverable_errors_and_halts_on_others(
    topic: Topic, events: dict[str, Any], status: str, code: str
) -> None:
    topic.arrive("no row")
    name = status.lower()
    topic.client.schedules.set({**topic.spec(**events), "name": name, "schedule": {"every": "1s"}})
    try:
        wait_until(
            lambda: topic.client.schedules.show(name).status == status,
            60,
            "a run to have failed",
        )
        error = topic.client.schedules.show(name).last_error
        assert error is not None
        assert error.code == code
        assert topic.version == 0
    finally:
        topic.client.schedules.stop(name)


def test_an_absent_broker_is_reported_and_the_group_may_run_again(topic: Topic) -> None:
    options = {"socket.timeout.ms": "1000"}
    code, text = failed(topic.load(stream="kafka://127.0.0.1:1/events", options=options))
    assert (code, "kafka://127.0.0.1:1/events cannot be read" in text) == (
        "SOURCE_UNAVAILABLE",
        True,
    )


def test_a_secret_missing_on_a_worker_is_named(topic: Topic) -> None:
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.password": "${secret:NOT_THERE}",
    }
    code, text = failed(topic.load(options=options))
    assert (code, "NOT_THERE" in text) == ("UNRECOVERABLE", True)


@pytest.mark.claim("A Kafka stream publishes each message once, whichever process is killed.")
@pytest.mark.long
@pytest.mark.parametrize("place", ["disk", "s3"])
def test_exactly_the_produced_messages_are_published_despite_kills(
    topic: Topic, tmp_path: Path, bucket: str, place: str
) -> None:
    if place == "s3":
        topic.warehouse = f"{bucket}/warehouse"
        topic.client = topic.fleet.client(topic.warehouse)
    (home := tmp_path / "kafka").mkdir()
    produced, over = 0, threading.Event()
    with kafka_server(home) as server:
        server.make("events", 3)
        broker = server.broker(**{"delivery.timeout.ms": 300_000})

        def produce() -> None:
            nonlocal produced
            while not over.is_set():
                broker.produce(
                    "events", *({"id": produced + n} for n in range(500)), partition=produced % 3
                )
                produced += 500
                over.wait(0.2)

        producing = threading.Thread(target=produce)
        producing.start()
        stream = {
            "stream": broker.stream("events"),
            "options": {"socket.timeout.ms": "10000"},
            "retries": 20,
        }
        rng = random.Random(7)
        deeds = [*OF_A_RUNNER, "broker", "coordinator", "broker", "coordinator", "both", "none"]
        rng.shuffle(deeds)
        try:
            for deed in deeds:
                if isinstance(deed, Point):
                    with topic.fleet.death(deed):
                        finished(topic.load(**stream))
                    continue
                job = topic.submit(**stream)
                if deed in ("broker", "both"):
                    server.kill()
                if deed in ("coordinator", "both"):
                    topic.fleet.coordinators.kill()
                    topic.fleet.coordinators.tend(1)
                if deed in ("broker", "both"):
                    server.start()
                finished(topic.client.wait(job))
        finally:
            over.set()
            producing.join()
        finished(topic.load(**stream))
        assert produced >= 500 * len(deeds)
        assert topic.ids() == list(range(produced))
