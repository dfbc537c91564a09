"""A worker sends Celery task events only when a monitor asks: nobody else listens to them."""

from __future__ import annotations

import re
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import redis

from tests.support import fleet
from tests.support.machine import seconds
from tests.support.servers import RedisServer, app_of_strangers, wait_until
from unstuck.tasks.protocol.report import OutcomeKind

GROUP = {"name": "g", "spark": False, "steps": [{"python": "fleet_steps:my_pid"}]}


def test_task_events_are_sent_only_after_a_request_of_a_monitor(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    events: list[dict[str, Any]] = []
    stopped = threading.Event()

    def run(job: str) -> None:
        offer = fleet.make_offer(client, tmp_path / "w", job, GROUP)
        assert fleet.outcome(client, offer, 60).kind is OutcomeKind.SUCCEEDED

    def listens() -> bool:
        return any(one["psub"] != "0" for one in client.client_list(_type="pubsub"))

    def of_kind(kind: str) -> set[str]:
        return {event["uuid"] for event in list(events) if event["type"] == kind}

    with closing(app_of_strangers(redis_server.url)) as app, app.connection() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": events.append})

        def listen() -> None:
            with receiver.consumer_context() as (heard, _, _):
                while not stopped.is_set():
                    with suppress(TimeoutError):
                        heard.drain_events(timeout=0.1)

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            # Before there is a worker, which listens as well.
            wait_until(listens, 20, "Redis to know of somebody who listens to events")
            with fleet.worker(redis_server.url, tmp_path) as worker:
                run("first")
                # Else its runner, which lingers, takes the second one as well, for the same
                # wake-up.
                wait_until(
                    lambda: "] succeeded in " in worker.text(), 60, "the first wake-up to be over"
                )
                assert app.control.enable_events(reply=True, timeout=seconds(20), limit=1), (
                    "the worker has heard it"
                )
                run("second")
                wait_until(lambda: of_kind("task-succeeded"), 60, "the events of a task")
                first, second = re.findall(r"unstuck\.run\[(\S+)\] received", worker.text())
        finally:
            stopped.set()
            thread.join()
    assert of_kind("task-received") == {second}, (
        "events come in order, so none came of the first wake-up"
    )
    assert first not in {event.get("uuid") for event in events}
