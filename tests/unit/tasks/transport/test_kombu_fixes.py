"""How the broker is waited for: how long between two tries, and by whom."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import kombu.common
import kombu.utils.functional
import pytest
import redis
from kombu.exceptions import OperationalError

from tests.support.network.proxy import Proxy
from tests.support.servers import RedisServer, free_port, wait_until
from unstuck.coordinator.celery import app as coordinators
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.transport.celery_app import app as workers
from unstuck.tasks.transport.kombu_fixes import BrokerConnection

APPS = pytest.mark.parametrize("app", [workers, coordinators], ids=["workers", "coordinators"])


@APPS
def test_a_broker_is_found_again_within_seconds_after_a_long_outage(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kombu.utils.functional, "sleep", lambda _seconds: None)
    waits: list[float] = []
    with (
        _connection(app, f"redis://127.0.0.1:{free_port()}/0") as connection,
        pytest.raises(OperationalError),
    ):
        connection.ensure_connection(lambda _error, wait: waits.append(wait), 20)
    assert waits[:3] == [1.0, 2.0, 3.0]
    assert len(waits) == 20
    assert max(waits) == 5.0


@APPS
def test_only_consumers_wait_for_a_broker_that_refuses_writes(
    app: Any, client: redis.Redis, redis_server: RedisServer
) -> None:
    with _connection(app, redis_server.url) as listens, _connection(app, redis_server.url) as sends:
        client.config_set("min-replicas-to-write", 1)
        try:
            with pytest.raises(OperationalError, match="NOREPLICAS"):
                listens.ensure_connection(max_retries=0)
            assert sends.default_channel, (
                "the wake-up is refused when it is sent, and sent again later"
            )
        finally:
            client.config_set("min-replicas-to-write", 0)
        assert listens.ensure_connection(max_retries=0).connected
        assert client.dbsize() == 0, "it was asked for a write, and nothing was written"


@APPS
def test_a_monitor_heartbeat_that_cannot_be_sent_does_not_block_its_process(
    app: Any, tmp_path: Path
) -> None:
    server = RedisServer(tmp_path)
    server.start()
    with _connection(app, server.url) as connection:
        events = app.events.Dispatcher(connection, hostname="here")
        events.send("worker-online", retry=True)
        beat = Thread(
            target=events.send, args=("worker-heartbeat",), kwargs={"retry": True}, daemon=True
        )
        server.stop()
        beat.start()
        wait_until(lambda: not beat.is_alive(), 20, "the heartbeat to be given up")


@APPS
def test_blocking_kombu_reads_are_bounded_and_happen_only_with_pending_data(
    app: Any, client: redis.Redis, redis_server: RedisServer
) -> None:
    """It reads its pub/sub connection when the event loop has news of its number, which may be
    another's by then.
    """
    proxy = Proxy(redis_server.port)
    with _connection(app, proxy.url) as connection:
        channel = connection.default_channel
        channel.socket_timeout = 0.3
        pubsub = channel.subclient
        pubsub.psubscribe("there")
        wait_until(pubsub.parse_response, 10, "the answer")
        assert pubsub.parse_response() is None
        assert proxy.mute(b"PSUBSCRIBE", after=10) == 1
        client.publish(Keys().queue("there"), "and all that belongs to it")
        wait_until(lambda: pubsub.connection.can_read(timeout=0), 10, "the beginning of it")
        with pytest.raises(redis.TimeoutError):
            pubsub.parse_response()
    proxy.close()


def test_a_closed_connection_leaves_no_poller(redis_server: RedisServer) -> None:
    def pollers() -> int:
        found = 0
        for file in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # closed just now, by a thread of another test
                found += "eventpoll" in str(file.readlink())
        return found

    def connect() -> None:
        with _connection(workers, redis_server.url) as connection:
            connection.default_channel.subclient.psubscribe("there")

    before = pollers()
    gc.disable()
    try:
        for _ in range(5):
            connect()
        assert pollers() <= before + 1
    finally:
        gc.enable()


def test_a_worker_with_an_unacknowledged_message_survives_the_loss_of_redis(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    received: list[kombu.Message] = []
    # Given a worker that has a message, waits for the next, and listens for commands
    connection = _connection(workers, server.url)
    consumer = connection.Consumer([kombu.Queue("light")], on_message=received.append)
    consumer.consume()
    workers.control.mailbox.Node("here", channel=connection.channel()).listen()
    headers = {"task": "unstuck.run", "id": "1"}
    kombu.Producer(connection).publish([[], {}, {}], routing_key="light", headers=headers)
    wait_until(lambda: received or connection.drain_events(timeout=1), 10, "the message")
    with suppress(TimeoutError):
        connection.drain_events(timeout=0.1)
    # When Redis goes away
    server.stop()
    # Then the connection is closed in the two calls of Celery's consumer
    connection.collect(socket_timeout=1)
    kombu.common.ignore_errors(connection, connection.close)
    # And an acknowledgement that comes later fails as one of a lost connection does
    with pytest.raises(redis.ConnectionError):
        received[0].ack()


def _connection(app: Any, url: str) -> BrokerConnection:
    made = app.connection_for_read(url)
    assert isinstance(made, BrokerConnection)
    return made
