"""A worker whose way to Redis breaks without a word finds that out by itself, and takes work
again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.chaos.driver.proxy import ChaosProxy, Link
from tests.support.fleet import KEYS, FleetWorker, attempt, make_offer, send_wake_up, worker
from tests.support.servers import RedisServer, wait_until
from unstuck.tasks.protocol.token import Offer

pytestmark = pytest.mark.variant

GROUP = {"name": "g", "spark": False, "steps": [{"python": "fleet_steps:my_pid"}]}


@pytest.fixture
def proxy(redis_server: RedisServer, client: redis.Redis) -> Iterator[ChaosProxy]:
    with ChaosProxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def link(proxy: ChaosProxy) -> Link:
    return proxy.link("worker")


@pytest.fixture
def listening(link: Link, client: redis.Redis, tmp_path: Path) -> Iterator[FleetWorker]:
    """A worker that is through with its first group and waits for the next.

    Without Celery's heartbeat: on a link that is stalled its sending is tried again until the link
    is well, and if it comes first, nothing is acknowledged meanwhile.
    """
    with worker(
        f"redis://127.0.0.1:{link.port}/0", tmp_path, arguments=["--without-heartbeat"]
    ) as fleet:
        first = make_offer(client, tmp_path / "w", "first", GROUP)
        wait_until(lambda: "outcome" in attempt(client, first), 30, "the first group to be done")
        wait_until(
            lambda: said(fleet, "succeeded") == said(fleet, "received"),
            10,
            "Celery to have its result",
        )
        so_far = asked(client)
        unacked = KEYS.queue("unacked")
        wait_until(
            lambda: not client.exists(unacked) and asked(client) > so_far + 1,
            10,
            "the worker to listen",
        )
        yield fleet


def asked(client: redis.Redis) -> int:
    """Commands on the connection that asks for messages; a worker whose only slot is taken asks for
    none.
    """
    return max(
        (int(one["tot-cmds"]) for one in client.client_list() if one["cmd"] == "brpop"), default=0
    )


def said(fleet: FleetWorker, what: str) -> int:
    """How many wake-ups were ``received``, and how many of them came to an end (``succeeded``)."""
    return len(re.findall(rf"Task unstuck\.run\[[^]]+\] {what}", fleet.text()))


def done(client: redis.Redis, offer: Offer) -> bool:
    """Whether the group is done; if not, a wake-up is sent once more, as a coordinator does."""
    if "outcome" in attempt(client, offer):
        return True
    send_wake_up(client, offer, "light")
    return False


def test_a_worker_recovers_from_a_half_open_connection(
    client: redis.Redis, proxy: ChaosProxy, link: Link, listening: FleetWorker, tmp_path: Path
) -> None:
    # Given that the other end of all its connections went away, and it was not told
    assert proxy.do(link.half_open) > 2
    # When there is something to do
    offer = make_offer(client, tmp_path / "w", "after", GROUP)
    # Then it does it. What it waits for are timeouts, which do not grow with the load of the
    # machine.
    wait_until(lambda: done(client, offer), 45, "the group to be done", every=1.0)


def test_a_worker_takes_work_after_a_failed_acknowledgement(
    client: redis.Redis, proxy: ChaosProxy, link: Link, listening: FleetWorker, tmp_path: Path
) -> None:
    # Given a wake-up that the worker got while its runner was slow to take it, so that it is
    # acknowledged later,
    (runner,) = listening.runners
    runner.suspend()
    before = said(listening, "received")
    make_offer(client, tmp_path / "w", "stalled", GROUP)
    wait_until(lambda: said(listening, "received") > before, 30, "the worker to get the wake-up")
    # and a link that was stalled until the acknowledgement timed out
    proxy.do(lambda: link.hold_requests(True))
    runner.resume()
    wait_until(lambda: "Couldn't ack" in listening.text(), 60, "the acknowledgement to fail")
    proxy.do(lambda: link.hold_requests(False))
    # When there is something to do
    offer = make_offer(client, tmp_path / "w", "after", GROUP)
    # Then it does it: a message that cannot be acknowledged must not take the worker's only slot
    # for ever.
    wait_until(lambda: done(client, offer), 30, "the group to be done", every=1.0)
