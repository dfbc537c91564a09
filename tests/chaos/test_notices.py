"""Receivers that are away, refuse, hang and answer twice, while the coordinators that send to them
are killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.network.receivers import Receiver, answers_twice, hangs, notice, status
from tests.support.paths import ROOT
from tests.support.servers import RedisServer, wait_until
from unstuck.coordinator.notices.outbox import Outbox
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.transport.redis_client import connect

pytestmark = pytest.mark.variant

KEYS = Keys()
PROBLEMS, NOTICES = 6, 24


class Coordinators:
    """Real coordinators, which the test kills as it likes."""

    def __init__(
        self, server: RedisServer, folder: Path, targets: dict[str, dict[str, str]]
    ) -> None:
        self._log = (folder / "coordinators.log").open("ab")
        self._env = {
            **os.environ,
            "UNSTUCK_REDIS_URL": server.url,
            "UNSTUCK_WAREHOUSE": str(folder / "warehouse"),
            "UNSTUCK_NOTIFY": json.dumps({"targets": targets}),
        }
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "unstuck.coordinator",
            "worker",
            "-P",
            "threads",
        ]
        self.running.append(
            subprocess.Popen(
                [*command, "-n", f"c{len(self.running)}@%h"],
                cwd=ROOT,
                env=self._env,
                stdout=self._log,
                stderr=self._log,
            )
        )

    def kill(self, number: int) -> None:
        self.running[number].send_signal(signal.SIGKILL)
        self.running[number].wait()

    def stop(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()
        self._log.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path, aof=True)
    made.start()
    yield made
    made.stop()


@pytest.mark.claim(
    "Each notice reaches each of its targets, in order, also if a receiver is unreachable."
)
def test_notices_arrive_in_order_with_stable_ids_while_coordinators_are_killed(
    server: RedisServer, tmp_path: Path
) -> None:
    receivers = {name: Receiver() for name in ("away", "refuses", "hangs", "twice")}
    targets = {name: {"webhook": one.url, "timeout": "1s"} for name, one in receivers.items()}
    receivers["refuses"].answer = status(500)
    receivers["hangs"].answer = hangs
    receivers["twice"].answer = answers_twice
    for name in ("refuses", "hangs", "twice"):
        receivers[name].start()
    fleet = Coordinators(server, tmp_path, targets)
    store = connect(server.url)
    outbox = Outbox(store, KEYS)
    try:
        fleet.start()
        fleet.start()
        for number in range(NOTICES):
            event = "recovered" if number >= NOTICES // 2 else "failed"
            told = notice(number, problem=f"p{number % PROBLEMS}", event=event, to=tuple(receivers))
            store.xadd(KEYS.outbox, {"notice": told.to_json()})
        # Each is killed while it sends: a receiver has a request that it does not answer.
        wait_until(
            lambda: receivers["hangs"].received and receivers["twice"].received,
            60,
            "the first tries",
        )
        fleet.kill(0)
        fleet.start()
        heard = len(receivers["hangs"].received)
        wait_until(
            lambda: len(receivers["hangs"].received) > heard, 60, "another coordinator to try"
        )
        fleet.kill(1)
        # Redis forgets nothing that it has confirmed; its clients are cut off.
        server.stop()
        server.start()
        receivers["away"].start()
        for one in receivers.values():
            one.answer = status(200)
        wait_until(
            lambda: _reachable(outbox) and not outbox.waiting(), 240, "all notices to be sent"
        )
        fleet.kill(2)
    finally:
        fleet.stop()
        for one in receivers.values():
            one.stop()
    assert store.xlen(KEYS.dead) == 0
    assert store.xlen(KEYS.outbox) == 0
    expected = {f"n{number}" for number in range(NOTICES)}
    for name, one in receivers.items():
        assert set(one.ids) == expected, name
        assert one.received[-1].headers["webhook-id"] == one.ids[-1]
        for problem in range(PROBLEMS):
            numbers = [
                int(id_[1:]) for id_ in dict.fromkeys(one.ids) if int(id_[1:]) % PROBLEMS == problem
            ]
            assert numbers == sorted(numbers), f"{name}: the notices of a problem came out of order"
    store.close()


def _reachable(outbox: Outbox) -> bool:
    try:
        return outbox.spread() is not None
    except redis.RedisError:
        return False
