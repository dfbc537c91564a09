"""When a worker counts as stalled: only when nothing at all excuses it."""

from __future__ import annotations

import pytest
import redis
from kombu import Connection, Consumer, Producer, Queue

from tests.support.servers import RedisServer, free_port
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.settings import Settings
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.transport.stall_detector import LOOKS, StallDetector, _waiting

KEYS = Keys()


def test_a_worker_that_takes_nothing_though_it_could_at_all_looks_has_stalled() -> None:
    detector = StallDetector(None)
    assert [detector._has_stalled(True, None) for _ in range(LOOKS + 1)] == [False] * LOOKS + [True]


@pytest.mark.parametrize(
    ("should_receive", "received", "connection", "why"),
    [
        (True, 1, None, "it has received a message"),
        (False, 0, None, "it is busy, or was told to stop, or its queues are empty, or Redis did not answer"),
        (True, 0, "another", "it had lost its connection, and has connected again"),
    ],
)
def test_one_excuse_begins_the_count_again(
    should_receive: bool, received: int, connection: str | None, why: str
) -> None:
    detector = StallDetector(None)
    assert not any(detector._has_stalled(True, None) for _ in range(LOOKS))
    detector._received += received
    assert not detector._has_stalled(should_receive, connection), why
    assert [detector._has_stalled(True, connection) for _ in range(LOOKS + 1)] == [False] * LOOKS + [True], why


def test_a_store_that_does_not_answer_is_held_against_nobody(client: redis.Redis, redis_server: RedisServer) -> None:
    client.rpush(KEYS.queue("some"), "offer")
    with connect(redis_server.url) as here, connect(f"redis://127.0.0.1:{free_port()}/0", repeats=0) as away:
        assert _waiting(here, KEYS, ["none", "some"])
        assert not _waiting(here, KEYS, ["none"])
        assert not _waiting(here, KEYS, []), "a worker told by `celery control cancel_consumer` to listen to nothing"
        assert not _waiting(away, KEYS, ["some"])
        client.config_set("min-replicas-to-write", 1)
        try:
            assert not _waiting(here, KEYS, ["some"]), "to take it is a write, which is refused"
        finally:
            client.config_set("min-replicas-to-write", 0)


def test_a_stall_detector_that_fails_ends_its_worker_for_nobody_else_would_notice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(StallDetector):
        given_up = False

        def at_work(self) -> bool:
            return not self.given_up

        def give_up(self) -> None:
            self.given_up = True

    detector = Failing(None)
    detector._watch_or_give_up(None, Settings(stalled_after=0.01, redis_url=f"redis://127.0.0.1:{free_port()}/0"))
    assert detector.given_up
    assert "has failed, so it ends" in caplog.text


def test_every_message_that_arrives_is_heard_whatever_celery_makes_of_it() -> None:
    detector = StallDetector(None)
    with Connection("memory://") as broker:
        channel = broker.default_channel
        queue = Queue("stalling")(channel)
        queue.declare()
        detector._count(channel.qos)
        got: list[object] = []
        with Consumer(channel, [queue], on_message=lambda message: (got.append(message.payload), message.ack())):
            for text in ("no task of ours", "another"):
                Producer(channel).publish(text, routing_key="stalling")
                broker.drain_events()
    assert (len(got), detector._received) == (2, 2)
