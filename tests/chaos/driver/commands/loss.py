"""Loss: a busy consumer is killed with SIGKILL again and again; how many messages does nobody ever
see?
"""

# Once on our report path: the real consumer of the report stream, which acks a report in the script
# that applies it. Once on a queue of kombu's Redis transport, acknowledged late, as Celery consumes
# with ``acks_late``. Both on one Valkey that is never touched, and with the same kills. A message
# is lost if it was sent, was not worked on, and can be delivered to nobody any more, however long
# one waits.

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import redis
from kombu import Connection, Exchange, Queue

from tests.chaos.driver.fleet import plain
from tests.chaos.driver.judging.reports import Account, Sent, judge, transactions
from tests.chaos.driver.server import Server
from tests.support.servers import wait_until
from unstuck import Client, Settings
from unstuck.coordinator.publishing.background_tries import Warehouses
from unstuck.coordinator.reconcile.consumer import Consumer
from unstuck.coordinator.reconcile.heartbeat import Heartbeat
from unstuck.coordinator.reconcile.reconciler import Reconciler
from unstuck.coordinator.reconcile.sweep import Sweep
from unstuck.coordinator.reconcile.wiring import mint
from unstuck.coordinator.store.job_store import Store
from unstuck.coordinator.store.reports import ReportStream
from unstuck.in_process.at_once import AtOnce
from unstuck.local.parent_death import end_with
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.report import Outcome, OutcomeKind, ReportKind
from unstuck.tasks.transport.lease import Lease
from unstuck.tasks.transport.redis_client import connect

KEYS = Keys("unstuck")
QUEUE, SEEN, WORKED = "loss", "loss:seen", "loss:worked"
WIDTH = 200  # groups of each job, whose reports are sent
JOBS = 3  # that are open at a time
SHOWN = 20  # sentences
AHEAD = 200  # messages that wait, so that the consumer is always busy
LIVES = (0.02, 0.25)  # seconds of work before a kill
QUIET = 60.0  # seconds for what is left after the last kill; it takes a few

NOOP = {"python": "examples.noop:noop"}
SPEC = {
    "name": "loss",
    "defaults": {"worker_losses": 1000},
    "groups": [
        {"name": "w", "spark": False, "for_each": {"n": list(range(WIDTH))}, "steps": [NOOP]}
    ],
}


def loss(folder: Path, seed: int, kills: int, *, as_json: bool = False) -> int:
    """Count both. What kombu loses is printed beside.

    Returns: 0 if the report path lost nothing, doubled nothing and set nothing aside; else 1.
    """
    server = Server(folder)
    try:
        server.start()
        client = redis.Redis.from_url(server.url, decode_responses=True)
        client.config_set("auto-aof-rewrite-percentage", 0)  # the account is read from the file
        told: dict[str, Account] = {}
        for name, path in (
            ("report path", ReportPath(server.url, client, folder)),
            ("kombu queue", KombuQueue(server.url, client)),
        ):
            if not as_json:
                plain(f"{name}: {kills} times SIGKILL to its busy consumer …")
            told[name] = _kill_again_and_again(path, kills, random.Random(seed))
        client.close()
    finally:
        server.end(signal.SIGKILL)
    if as_json:
        numbers = {name: account.to_dict() for name, account in told.items()}
        sys.stdout.write(json.dumps({"seed": seed, "kills": kills, **numbers}) + "\n")
    else:
        plain(f"{kills} SIGKILLs of a busy consumer (seed {seed}):")
        for name, account in told.items():
            lost, doubled = len(account.lost), len(account.doubled)
            plain(f"  {name}: {lost} lost, {doubled} worked on twice, of {account.sent} sent")
    ours = told["report path"]
    for sentence in [*ours.lost, *ours.doubled, *ours.aside][:SHOWN]:
        sys.stderr.write(f"report path: {sentence}\n")
    return 0 if ours.kept else 1


class MessageRoute(Protocol):
    """A way on which messages travel to a consumer."""

    def consumer(self) -> tuple[Callable[..., None], tuple[str, ...]]:
        """What a consumer process runs."""

    def feed(self) -> None:
        """Send more, if too few wait."""

    def worked_on(self) -> int:
        """Messages that were worked on so far, each time counted."""

    def left(self) -> int:
        """Messages that wait or can be delivered again."""

    def account(self) -> Account:
        """What became of what was sent."""


def _kill_again_and_again(path: MessageRoute, kills: int, rng: random.Random) -> Account:
    """Kill a consumer that is at work, ``kills`` times; then let one work off what is left,
    undisturbed.
    """
    context = multiprocessing.get_context(
        "forkserver"
    )  # a consumer is there in milliseconds, with all it imports
    context.set_forkserver_preload(["tests.chaos.driver.commands.loss"])
    fed = threading.Event()

    def feed() -> None:
        while not fed.wait(0.005):
            path.feed()

    feeder = threading.Thread(target=feed, name="feeder", daemon=True)
    feeder.start()
    for number in range(kills + 1):
        target, arguments = path.consumer()
        process = context.Process(target=target, args=arguments, daemon=True)
        process.start()
        try:
            if number < kills:
                _await_work(path)
                time.sleep(rng.uniform(*LIVES))  # at any point of its work: nothing is awaited
            else:
                fed.set()
                feeder.join()
                wait_until(lambda: not path.left(), QUIET, "the last messages to be worked on")
        finally:
            process.kill()
            process.join()
    return path.account()


def _await_work(path: MessageRoute) -> None:
    before = path.worked_on()
    wait_until(lambda: path.worked_on() > before, QUIET, "the consumer to work")


class ReportPath:
    """Reports of real jobs; the test plays their workers."""

    def __init__(self, url: str, client: redis.Redis, folder: Path) -> None:
        self._url, self._redis, self._folder = url, client, folder
        self._warehouse = folder / "warehouse"
        self._client = Client(_settings(url, str(self._warehouse)), redis_client=client)
        self._lease = Lease(client, KEYS, 600.0, "runner")
        self._sent: set[Sent] = set()
        self._open: list[str] = []

    def consumer(self) -> tuple[Callable[..., None], tuple[str, ...]]:
        return consume_reports, (self._url, str(self._warehouse))

    def feed(self) -> None:
        status = {job.id: job.status for job in self._client.jobs(limit=None)}
        self._open = [job for job in self._open if not status[job].terminal]
        while len(self._open) < JOBS:
            self._open.append(self._client.submit(SPEC).id)
        while self._work():
            pass

    def _work(self) -> bool:
        """Take what stands ready and finish it, as a worker does: two reports. False: nothing
        stands ready.
        """
        claim = self._lease.take(["light"], mint(), "host:1", mint())
        if claim is None:
            return False
        self._lease.finish(claim.token, Outcome(OutcomeKind.SUCCEEDED), mint())
        sent = (ReportKind.CLAIMED, ReportKind.SUCCEEDED)
        self._sent |= {Sent(claim.token.job, claim.token.group, kind) for kind in sent}
        return True

    def worked_on(self) -> int:
        """Counted in the script that applies a report and acks it."""
        counted = self._redis.hgetall(KEYS.counters)
        return sum(int(n) for n in counted.values())

    def left(self) -> int:
        (group,) = self._redis.xinfo_groups(KEYS.reports) or [{"pending": 0, "lag": 1}]
        return int(group["pending"]) + int(group["lag"] or 0)

    def account(self) -> Account:
        return judge(self._sent, transactions(self._folder), KEYS)


class KombuQueue:
    """Messages on a queue of kombu's Redis transport."""

    def __init__(self, url: str, client: redis.Redis) -> None:
        self._url, self._redis = url, client
        self._connection = Connection(url)
        self._producer = self._connection.Producer()
        self._sent = 0

    def consumer(self) -> tuple[Callable[..., None], tuple[str, ...]]:
        return consume_queue, (self._url,)

    def feed(self) -> None:
        for _ in range(AHEAD - int(self._redis.llen(QUEUE))):
            self._producer.publish(
                self._sent, exchange="", routing_key=QUEUE, headers={"n": self._sent}
            )
            self._sent += 1

    def worked_on(self) -> int:
        return int(self._redis.get(WORKED) or 0)

    def left(self) -> int:
        return int(self._redis.llen(QUEUE))

    def account(self) -> Account:
        """What is unacked may be delivered again when its visibility timeout is over, so it is not
        lost.
        """
        times = {int(n): int(times) for n, times in self._redis.hgetall(SEEN).items()}
        unacked = {json.loads(text)[0]["headers"]["n"] for text in self._redis.hvals("unacked")}
        self._connection.release()
        lost = [f"message {n}" for n in range(self._sent) if n not in times and n not in unacked]
        doubled = [
            f"message {n} was worked on {found} times" for n, found in times.items() if found > 1
        ]
        return Account(self._sent, lost, doubled)


def consume_reports(url: str, warehouse: str) -> None:
    """A process: the consumer of a coordinator, without wake-ups and without a beat."""
    end_with(os.getppid())  # the server of the forks, which ends with the driver
    os.setsid()
    logging.disable(
        logging.WARNING
    )  # it says that nobody swept for a while, which is what is done to it
    settings = _settings(url, warehouse)
    client = connect(url)
    store = Store(settings, client)
    reconciler = Reconciler(store, lambda _: None, Warehouses(), settings, mint, AtOnce())
    name = f"host:{os.getpid()}:{mint()[:4]}"
    stream, heartbeat = ReportStream(client, KEYS, name), Heartbeat(client, KEYS, name)
    Consumer(stream, reconciler, Sweep(store, reconciler, settings), settings, heartbeat).run()


def consume_queue(url: str) -> None:
    """A process: works on a message and acknowledges it, as Celery does with ``acks_late``."""
    end_with(os.getppid())  # the server of the forks, which ends with the driver
    os.setsid()
    client = redis.Redis.from_url(url)

    def work(body: int, message: Any) -> None:
        with client.pipeline(transaction=True) as pipe:
            pipe.hincrby(SEEN, str(body), 1)
            pipe.incr(WORKED)
            pipe.execute()
        message.ack()

    with Connection(url) as connection:
        consumer = connection.Consumer(
            Queue(QUEUE, Exchange(""), QUEUE), callbacks=[work], prefetch_count=4
        )
        with consumer:
            while True:
                connection.drain_events()


def _settings(url: str, warehouse: str) -> Settings:
    """Short terms, so that a kill costs half a second and not five."""
    return Settings(
        redis_url=url, warehouse=warehouse, lock_ttl=0.5, report_idle=0.5, sweep_every=0.2
    )
