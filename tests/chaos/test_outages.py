"""A real fleet and a Redis that restarts, freezes, goes away or forgets: nobody's work is taken for
that.

Every step writes down that it began, so that a second run of it is seen whatever the records say.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from tests.support.fleet import send_wake_up
from tests.support.jobs.stored import record_of, versions_of
from tests.support.paths import PYTHONPATH
from tests.support.programs.processes import below, command_line
from tests.support.servers import RedisServer, wait_until
from unstuck import Client, Settings, Status
from unstuck.local.local_fleet import LocalFleet
from unstuck.local.programs import Size
from unstuck.read_model.group import Member
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.token import Offer

KEYS = Keys("unstuck")
LEASE_TTL = 4.0
SLOTS = 3
ENVIRON = {
    "UNSTUCK_LEASE_TTL": f"{LEASE_TTL}s",
    "UNSTUCK_LEASE_RENEW": "1s",
    "UNSTUCK_SWEEP_EVERY": "500ms",
    "UNSTUCK_DISPATCH_TIMEOUT": "3s",
    "UNSTUCK_LOCK_TTL": "2s",
    "UNSTUCK_REPORT_IDLE": "3s",
    "PYTHONPATH": PYTHONPATH,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis with an append-only file, which a restart reads again."""
    running = RedisServer(tmp_path_factory.mktemp("redis"), aof=True)
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def fleet(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """Two coordinators, a beat, and one light worker with three runners."""
    home = tmp_path_factory.mktemp("fleet")
    patch = pytest.MonkeyPatch()
    for name, value in {**ENVIRON, "UNSTUCK_WAREHOUSE": str(home / "warehouse")}.items():
        patch.setenv(name, value)
    size = Size(workers=0, coordinators=2, light=1, light_slots=SLOTS)
    try:
        with LocalFleet(size, home, server.url) as running:
            running.wait_ready(150)
            yield running
    finally:
        patch.undo()


@pytest.fixture
def client(fleet: LocalFleet) -> Iterator[Client]:
    with Client(
        Settings(redis_url=fleet.redis_url, warehouse=str(fleet.home.path / "warehouse"))
    ) as client:
        yield client


@pytest.fixture
def store(server: RedisServer, fleet: LocalFleet) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, decode_responses=True) as store:
        yield store


class Work:
    """Groups of one test, that write down each of their runs."""

    def __init__(self, folder: Path) -> None:
        self._ran = folder / "ran"
        self._ran.mkdir()
        self._gates = folder
        self._names: list[str] = []  # a group's place is its number for the step

    def group(self, name: str, gate: str = "", seconds: float = 0.0) -> dict[str, Any]:
        """Takes ``seconds``, or ends once ``open(gate)`` was called."""
        number = len(self._names)
        self._names.append(name)
        params = {"folder": str(self._ran), "n": number, "seconds": seconds, "gated": 0}
        if gate:
            params |= {"gate": str(self._gates / f"gate-{gate}"), "gated": number + 1}
        step = {"python": "fleet_steps:counted", "params": params}
        return {"name": name, "spark": False, "retry": {"max": 0}, "steps": [step]}

    def open(self, gate: str) -> None:
        (self._gates / f"gate-{gate}").touch()

    def ran(self) -> dict[str, list[str]]:
        """What each group has written down, by its name."""
        return {
            self._names[int(file.name)]: file.read_text().split() for file in self._ran.iterdir()
        }

    def began(self, *names: str) -> Callable[[], bool]:
        return lambda: all("began" in self.ran().get(name, ()) for name in names)

    def once(self, *names: str) -> bool:
        """Each began once, and was done."""
        ran = self.ran()
        return all(ran.get(name) == ["began", "done"] for name in names)


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path)


def record(client: Client, job: str, group: str) -> Member:
    (found,) = [one for one in client.show(job).groups if one.name == group]
    return found.members[0]


def live(store: redis.Redis, job: str, group: str) -> dict[str, Any]:
    """The record of its live attempt; empty if there is none."""
    raw = store.hget(KEYS.of(job).attempts, group)
    return json.loads(str(raw)) if raw else {}


def everybody_hears(client: Client, work: Work) -> None:
    """All runners take work, at the same time: none has stalled."""
    groups = [work.group(f"h{n}", gate="heard") for n in range(SLOTS)]
    job = client.submit({"name": "hears", "groups": groups}).id
    wait_until(work.began(*(f"h{n}" for n in range(SLOTS))), 60, "all runners to have work at once")
    work.open("heard")
    assert client.wait(job).status is Status.FINISHED


def test_running_work_survives_three_redis_restarts(
    client: Client, server: RedisServer, fleet: LocalFleet, work: Work
) -> None:
    names = [f"g{n:02}" for n in range(5 * SLOTS)]
    job = client.submit(
        {"name": "restarts", "groups": [work.group(name, seconds=0.8) for name in names]}
    ).id
    for done in (1, 5, 9):
        wait_until(
            lambda done=done: client.show(job).done >= done, 60, "some more groups to be done"
        )  # type: ignore[misc]
        server.stop()
        server.start()
    view = client.wait(job)
    assert view.status is Status.FINISHED, view.reason
    assert work.once(*names), work.ran()
    assert {record(client, job, name).attempt for name in names} == {1}
    everybody_hears(client, work)


@contextmanager
def _frozen(server: RedisServer) -> Iterator[None]:
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


@contextmanager
def _away(server: RedisServer) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


@contextmanager
def _stopped(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def runner_of(client: Client, job: str) -> psutil.Process:
    """The process that runs the one group of ``job`` that runs."""
    (mine,) = wait_until(
        lambda: [r for r in client.fleet().runners if r.job == job], 30, "it to be shown"
    )
    return psutil.Process(mine.pid)


def watchdog_of(runner: psutil.Process) -> psutil.Process:
    (found,) = [p for p in below(runner) if "unstuck.tasks.watchdog" in command_line(p)]
    return found


@pytest.mark.variant
@pytest.mark.parametrize("trouble", [_frozen, _away])
def test_leases_survive_an_outage_longer_than_the_lease(
    client: Client, server: RedisServer, fleet: LocalFleet, work: Work, trouble: Any
) -> None:
    ends = client.submit({"name": "ends", "groups": [work.group("ends", gate="meanwhile")]}).id
    goes_on = client.submit({"name": "goes-on", "groups": [work.group("goes-on", gate="later")]}).id
    wait_until(work.began("ends", "goes-on"), 60, "both to run")
    coordinators = [child for child in fleet.processes if child.name.startswith("coordinator")]
    # Given: whoever keeps the lease is the last one to come back, so that coordinators sweep before
    # it renews. Its runner stands still as well, for it would replace a watchdog that is stopped
    # alone.
    runner = runner_of(client, goes_on)
    with _stopped(watchdog_of(runner)), _stopped(runner):
        with trouble(server):
            began = time.monotonic()
            for coordinator in (
                coordinators
            ):  # their supervisor starts others, which know nothing of what was before
                assert coordinator.pid is not None
                os.kill(coordinator.pid, signal.SIGKILL)
            work.open("meanwhile")
            wait_until(
                lambda: "done" in work.ran()["ends"], 30, "one step to end, with nobody to tell"
            )
            wait_until(lambda: time.monotonic() - began > 1.5 * LEASE_TTL, 60, "the lease to lapse")
        back = client.fleet().at
        wait_until(lambda: (client.fleet().swept_at or 0) > back, 60, "a first sweep")
        first = client.fleet().swept_at or 0
        wait_until(
            lambda: (client.fleet().swept_at or 0) > first + 0.5,
            60,
            "the sweeps that see a lapsed lease",
        )
    assert client.wait(ends).status is Status.FINISHED, "its report has arrived"
    wait_until(
        lambda: (client.fleet().swept_at or 0) > first + LEASE_TTL + 1.0, 60, "the grace to be over"
    )
    work.open("later")
    assert client.wait(goes_on).status is Status.FINISHED
    for job, name in ((ends, "ends"), (goes_on, "goes-on")):
        made = record(client, job, name)
        assert (made.attempt, made.losses, made.failures, made.first_error) == (1, 0, 0, None), name
    assert work.once("ends", "goes-on"), work.ran()


@pytest.mark.variant
def test_a_worker_on_a_busy_machine_is_not_declared_dead(client: Client, work: Work) -> None:
    """Twice as much to do as this machine can, for longer than a lease."""
    job = client.submit({"name": "busy", "groups": [work.group("only", gate="go")]}).id
    wait_until(work.began("only"), 60, "it to run")
    hogs = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * (os.cpu_count() or 2))
    ]
    try:
        until = client.fleet().at + 1.5 * LEASE_TTL
        wait_until(lambda: client.fleet().at > until, 60, "more than a lease", every=0.1)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    work.open("go")
    assert client.wait(job).status is Status.FINISHED
    assert (record(client, job, "only").attempt, work.once("only")) == (1, True)


@pytest.mark.variant
def test_the_outcome_of_a_runner_that_dies_before_reporting_is_kept(
    client: Client, server: RedisServer, fleet: LocalFleet, work: Work
) -> None:
    """Its marker stands, and its lapsed lease tells the rest: the next attempt takes the work
    over.
    """
    groups = [work.group("only", gate="go"), {"name": "end", "needs": ["only"]}]
    job = client.submit({"name": "unsent", "groups": groups})
    wait_until(work.began("only"), 60, "it to run")
    runner = runner_of(client, job.id)
    with _away(server):
        work.open("go")
        staging = fleet.home.path / "warehouse" / "_staging" / job.id / "only"
        wait_until(
            lambda: list(staging.glob("*/_marker.json")), 20, "the marker, which needs no Redis"
        )
        for one in (watchdog_of(runner), runner):
            one.kill()  # the watchdog first, so that nobody can report in the runner's stead
    view = client.wait(job.id)
    assert view.status is Status.FINISHED, view.reason
    made = record(client, job.id, "only")
    assert (made.attempt, made.adopted, made.failures) == (2, True, 0)
    assert work.once("only"), work.ran()


@pytest.mark.variant
def test_cut_connections_and_a_repeated_offer_cause_only_one_attempt(
    client: Client, store: redis.Redis, fleet: LocalFleet, work: Work
) -> None:
    job = client.submit({"name": "cut", "groups": [work.group("only", gate="go")]}).id
    wait_until(work.began("only"), 60, "it to run")
    claimed = live(store, job, "only")
    stale = client.counters().get("STALE", 0)
    for kind in ("normal", "pubsub"):
        store.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    offer = Offer(job, "only", claimed["epoch"], claimed["nonce"])
    for _ in range(SLOTS):
        send_wake_up(store, offer, "light")
    wait_until(lambda: store.llen(KEYS.queue("light")) == 0, 60, "all wake-ups to be received")
    wait_until(
        lambda: store.zscore(KEYS.ready("light"), str(offer)) is None,
        60,
        "an idle runner to drop the offer",
    )
    wait_until(
        lambda: live(store, job, "only")["lease"] > claimed["lease"] + 1.0, 30, "renewals to go on"
    )
    work.open("go")
    assert client.wait(job).status is Status.FINISHED
    made = record(client, job, "only")
    assert (made.attempt, made.losses, made.failures) == (1, 0, 0)
    assert work.once("only"), work.ran()
    assert client.counters().get("STALE", 0) == stale, "nor did any other runner report"


@pytest.mark.variant
def test_offers_deleted_with_all_broker_keys_are_restored(
    client: Client, store: redis.Redis, fleet: LocalFleet, work: Work
) -> None:
    held = [f"held{n}" for n in range(SLOTS)]
    lost = [f"lost{n}" for n in range(6)]
    job = client.submit(
        {"name": "broker", "groups": [work.group(name, gate="go") for name in held]}
    ).id
    wait_until(work.began(*held), 60, "all runners to be busy")
    after = client.submit({"name": "broker2", "groups": [work.group(name) for name in lost]}).id
    ready = KEYS.ready("light")
    wait_until(lambda: store.zcard(ready) == len(lost), 30, "the offers to stand ready")
    offers = store.zrange(ready, 0, -1)
    store.delete(ready, KEYS.lanes, *store.scan_iter(KEYS.queue("*"), count=1000))
    assert store.llen(KEYS.queue("light")) == store.zcard(ready) == 0
    wait_until(lambda: store.zcard(ready) == len(lost), 30, "all offers to stand again")
    assert set(store.zrange(ready, 0, -1)) == set(offers)
    work.open("go")
    for one in (job, after):
        assert client.wait(one).status is Status.FINISHED
    assert work.once(*held, *lost), work.ran()


@pytest.mark.variant
def test_an_unreceived_wake_up_is_sent_again(
    client: Client, store: redis.Redis, fleet: LocalFleet, work: Work
) -> None:
    """The worker's main process stands still, so that wake-ups lie in the queue, from which they
    are deleted.
    """
    (light,) = [child for child in fleet.processes if child.name.startswith("light")]
    assert light.pid is not None
    main, queue = psutil.Process(light.pid), KEYS.queue("light")

    def asleep() -> bool:
        """No runner takes offers by itself; for a moment after each attempt it would."""
        runners = [
            one.id
            for one in client.fleet().runners
            if one.worker_pid == main.pid and not one.silent
        ]
        return len(runners) >= SLOTS and all(
            float(store.hget(KEYS.polled, one) or -1) < 0 for one in runners
        )

    def asks() -> bool:
        ports = {each.laddr.port for each in main.net_connections("tcp") if each.laddr}
        asking = [
            one["addr"]
            for one in store.client_list()
            if one["cmd"] == "brpop" and "b" in one["flags"]
        ]
        return any(int(address.rpartition(":")[2]) in ports for address in asking)

    wait_until(asleep, 30, "all runners to wait for wake-ups")
    with _stopped(main):
        wait_until(lambda: not asks(), 30, "the worker's last BRPOP to be over")
        job = client.submit(
            {"name": "unheard", "groups": [work.group(f"g{n}") for n in range(6)]}
        ).id
        for _ in range(3):
            wait_until(lambda: store.llen(queue) > 0, 30, "a wake-up")
            assert store.llen(queue) <= SLOTS
            store.delete(queue)
    assert client.wait(job).status is Status.FINISHED
    assert work.once(*(f"g{n}" for n in range(6))), work.ran()


@pytest.mark.variant
def test_a_redis_rollback_of_two_seconds_repeats_no_work(
    client: Client, store: redis.Redis, server: RedisServer, fleet: LocalFleet, work: Work
) -> None:
    """As by a failover to a replica that lagged: the offers that were taken since then stand
    again.
    """
    groups = [
        work.group("early", gate="end"),
        work.group("ended", gate="a"),
        work.group("freed", gate="a"),
    ]
    job = client.submit({"name": "rollback", "groups": groups}).id
    wait_until(work.began("early", "ended", "freed"), 60, "all runners to be busy")
    later = client.submit({"name": "rollback2", "groups": [work.group("late", gate="end")]}).id
    wait_until(lambda: store.zcard(KEYS.ready("light")) == 1, 30, "its offer to stand")
    files = server.folder / "appendonlydir"
    shutil.copytree(files, server.folder / "then")

    # Two seconds that Redis forgets: two groups end, and one of the freed runners claims the
    # waiting one.
    work.open("a")
    wait_until(work.began("late"), 30, "the waiting group to run")
    wait_until(lambda: client.show(job).done == 2, 30, "both to have ended")
    holder = live(store, later, "late")["claimant"]
    busy = {
        int(live(store, *one)["worker"].rpartition(":")[2])
        for one in ((job, "early"), (later, "late"))
    }
    (idle,) = [one.pid for one in client.fleet().runners if not one.silent and one.pid not in busy]
    with _stopped(psutil.Process(idle)):  # it could come for the offer before the holder renews
        server.stop()
        shutil.rmtree(files)
        shutil.move(server.folder / "then", files)
        server.start()
        now = wait_until(lambda: live(store, later, "late").get("claimant"), 30)
    assert now == holder
    assert versions_of(client, later), (
        "its first claim was forgotten: the job keeps to its versions all the same"
    )
    wait_until(
        lambda: store.zcard(KEYS.ready("light")) == 0,
        30,
        "the idle runner to come for the offer, and drop it",
    )
    # What had ended runs no more, by its record, until its lease lapses; then its marker is found.
    wait_until(lambda: client.show(job).done == 2, 60, "both to have ended once more")
    work.open("end")
    for one in (job, later):
        assert client.wait(one).status is Status.FINISHED
    assert work.once("early", "ended", "freed", "late"), work.ran()
    assert [record(client, job, name).adopted for name in ("ended", "freed")] == [True, True]
    assert [record(client, job, "early").attempt, record(client, later, "late").attempt] == [1, 1]


@pytest.mark.variant
def test_a_job_whose_lock_is_held_by_a_frozen_coordinator_continues(
    client: Client, store: redis.Redis, fleet: LocalFleet
) -> None:
    noop = {"python": "examples.noop:noop"}
    wide = {"name": "w", "spark": False, "for_each": {"n": list(range(200))}, "steps": [noop]}
    job = client.submit(
        {"name": "freeze-coordinator", "groups": [wide, {"name": "end", "needs": ["w"]}]}
    ).id
    coordinator = next(child for child in fleet.processes if child.name.startswith("coordinator"))
    assert coordinator.pid is not None
    pid, lock = coordinator.pid, KEYS.of(job).lock

    def frozen_with_the_lock() -> bool:
        owner = store.get(lock)
        if owner is None:
            return False
        os.kill(pid, signal.SIGSTOP)
        until = (
            time.monotonic() + 0.3
        )  # a pass takes milliseconds; the other coordinator's would be over
        while time.monotonic() < until:
            if store.get(lock) != owner:
                os.kill(pid, signal.SIGCONT)
                return False
        return True

    try:
        wait_until(frozen_with_the_lock, 60, "it to hold the lock", every=0.0)
        assert not client.show(job).status.terminal, "frozen too late: proves nothing"
        view = client.wait(job)
        commit = record_of(client, job).commit
    finally:
        os.kill(pid, signal.SIGCONT)
    assert view.status is Status.FINISHED
    wait_until(
        lambda: [c for c in client.fleet().coordinators if c.pid == pid and not c.silent],
        30,
        "it to be back",
    )
    pending = KEYS.reports, "coordinators"
    wait_until(
        lambda: store.xpending(*pending)["pending"] == 0, 30, "what it had read to be applied"
    )
    assert record_of(client, job).commit == commit
    events = [(e.get("group"), e["kind"]) for _, e in client.events(job)]
    assert len(events) == len(set(events)), "no event twice, no group run twice"
