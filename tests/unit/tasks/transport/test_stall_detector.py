"""When a worker counts as stalled: only when nothing at all excuses it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import redis
from kombu import Connection, Consumer, Producer, Queue

from tests.support.servers import RedisServer, free_port, wait_until
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.settings import Settings
from unstuck.tasks.transport import stall_detector
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.transport.stall_detector import (
    LOOKS,
    Silence,
    StallDetector,
    messages_wait,
    on_each_message,
)

KEYS = Keys()


def test_a_worker_that_takes_nothing_in_all_checks_although_it_could_has_stalled() -> None:
    silence = Silence()
    assert [silence.look(True, None) for _ in range(LOOKS + 1)] == [False] * LOOKS + [True]


@pytest.mark.parametrize(
    ("should_receive", "received", "connection", "why"),
    [
        (True, 1, None, "it has received a message"),
        (
            False,
            0,
            None,
            "it is busy, or was told to stop, or its queues are empty, or Redis did not answer",
        ),
        (True, 0, "another", "it had lost its connection, and has connected again"),
    ],
)
def test_one_excuse_restarts_the_count(
    should_receive: bool, received: int, connection: str | None, why: str
) -> None:
    silence = Silence()
    assert not any(silence.look(True, None) for _ in range(LOOKS))
    for _ in range(received):
        silence.received()
    assert not silence.look(should_receive, connection), why
    assert [silence.look(True, connection) for _ in range(LOOKS + 1)] == [False] * LOOKS + [True], (
        why
    )


def test_an_unresponsive_store_never_counts_as_a_stall(
    client: redis.Redis, redis_server: RedisServer
) -> None:
    client.rpush(KEYS.queue("some"), "offer")
    with (
        connect(redis_server.url) as here,
        connect(f"redis://127.0.0.1:{free_port()}/0", repeats=0) as away,
    ):
        assert messages_wait(here, KEYS, ["none", "some"])
        assert not messages_wait(here, KEYS, ["none"])
        assert not messages_wait(here, KEYS, []), (
            "a worker told by `celery control cancel_consumer` to listen to nothing"
        )
        assert not messages_wait(away, KEYS, ["some"])
        client.config_set("min-replicas-to-write", 1)
        try:
            assert not messages_wait(here, KEYS, ["some"]), (
                "to take it is a write, which is refused"
            )
        finally:
            client.config_set("min-replicas-to-write", 0)


def test_a_failing_stall_detector_ends_its_worker(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_at_once = Settings(stalled_after=0.01, redis_url=f"redis://127.0.0.1:{free_port()}/0")
    monkeypatch.setattr(stall_detector, "settings", lambda: fails_at_once)

    class Failing(StallDetector):
        given_up = False

        def at_work(self) -> bool:
            return not self.given_up

        def give_up(self) -> None:
            self.given_up = True

    channel = SimpleNamespace(qos=SimpleNamespace(append=list))
    detector = Failing(None)
    detector.start(
        SimpleNamespace(task_consumer=SimpleNamespace(channel=channel))
    )  # no Celery has so little
    wait_until(lambda: detector.given_up, 10, "the detector to end its worker")
    assert "has failed, so it ends" in caplog.text


def test_every_arriving_message_counts_even_if_celery_rejects_it() -> None:
    heard: list[None] = []
    with Connection("memory://") as broker:
        channel = broker.default_channel
        queue = Queue("stalling")(channel)
        queue.declare()
        on_each_message(channel.qos, lambda: heard.append(None))
        got: list[object] = []
        with Consumer(
            channel,
            [queue],
            on_message=lambda message: (got.append(message.payload), message.ack()),
        ):
            for text in ("no task of ours", "another"):
                Producer(channel).publish(text, routing_key="stalling")
                broker.drain_events()
    assert (len(got), len(heard)) == (2, 2)
