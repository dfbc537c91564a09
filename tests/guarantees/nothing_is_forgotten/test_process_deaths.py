"""Processes that die or freeze at a trigger point: real runners, watchdogs and coordinators, real
signals.

One fleet for all. The jobs of a table are submitted and their shots ordered while no coordinator
lives; then all run at once, each to its own death, and each is looked at by a test of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pyarrow.parquet
import pytest

from tests.support import fleet
from tests.support.coordinator import NOOP
from tests.support.failpoints import OF_A_COORDINATOR, Effect, arming, order, reached_by
from tests.support.programs.coordinator_processes import CoordinatorProcesses, coordinator_processes
from tests.support.servers import RedisServer, wait_until
from tests.unit.coordinator.publishing.test_publish_outputs import two_outputs
from unstuck import Client, Settings, Status, published_files
from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.status import GroupState
from unstuck.read_model.group import Member
from unstuck.read_model.job import JobInfo
from unstuck.tasks.failpoints import Point
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.transport.lease import Lease
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.warehouse.log import Warehouse

SLOTS = 6  # one more than runners are frozen at a time
SOON = {
    "UNSTUCK_LEASE_TTL": "6s",
    "UNSTUCK_LEASE_RENEW": "300ms",
    "UNSTUCK_LOCK_TTL": "1s",
    "UNSTUCK_REPORT_IDLE": "1s",
    "UNSTUCK_SWEEP_EVERY": "500ms",
    "UNSTUCK_DISPATCH_TIMEOUT": "1s",
    "UNSTUCK_DISPATCH_WINDOW": "500",
}
HALF_A_MINUTE = Environment(now=0, nonce="").publish_timeout


@dataclass
class KilledJob:
    """One job, what strikes it, and where its attempts and readers leave their traces."""

    job: str
    home: Path
    orders: list[Path] = field(default_factory=list)
    seen: set[str] = field(
        default_factory=set
    )  # what readers saw while it was published: the jobs, joined by "+"

    @property
    def warehouse(self) -> str:
        return str(self.home / "warehouse")

    @property
    def ran(self) -> list[int]:
        """The epoch of each attempt whose step ran, in order."""
        return [int(line) for line in (self.home / "ran").read_text().split()]

    def struck(self) -> bool:
        return all(map(reached_by, self.orders))

    def entries(self) -> list[str]:
        """The kinds of this job's entries in the warehouse log."""
        log = Warehouse(self.warehouse)
        entries = [log.entry(n) for n in range(1, log.head() + 1)]
        return [entry.kind for entry in entries if entry is not None and entry.job == self.job]

    def read(self) -> set[int]:
        """The epochs that readers find in the outputs: whose files they read."""
        return {
            row["epoch"]
            for name in ("carriers", "months")
            for row in pyarrow.parquet.read_table(published_files(self.warehouse, name)).to_pylist()
        }

    def look(self) -> None:
        """What a reader sees now."""
        state = Warehouse(self.warehouse).state()
        assert set(state) == {"carriers", "months"}
        self.seen.add("+".join(sorted({dataset.job for dataset in state.values()})))


class KilledFleet:
    """The fleet of these tests."""

    def __init__(
        self,
        server: RedisServer,
        worker: fleet.FleetWorker,
        coordinators: CoordinatorProcesses,
        home: Path,
        environ: dict[str, str],
    ) -> None:
        self.server, self.worker, self.coordinators, self.home, self.environ = (
            server,
            worker,
            coordinators,
            home,
            environ,
        )
        self.store = connect(server.url)
        self.arms = home / "arms"
        self.client = Client(Settings(redis_url=server.url), redis_client=self.store)

    def case(self, name: str, shots: dict[Point, Effect], *, before: bool = False) -> KilledJob:
        """Submit a job and order its shots. ``before``: another job has published the same datasets
        already.
        """
        # One that lives could have the job claimed before its shots are ordered.
        self.coordinators.kill()
        made = KilledJob("", self.home / name)
        made.home.mkdir()
        if before:
            two_outputs(made.warehouse, "before", name).publish()
        step = {"python": "fleet_steps:two_outputs", "params": {"log": str(made.home / "ran")}}
        spec = {
            "name": name,
            "groups": [
                {"name": "make", "spark": False, "steps": [step]},
                {
                    "name": "after",
                    "spark": False,
                    "needs": ["make"],
                    "steps": [{"python": "fleet_steps:my_pid"}],
                },
            ],
            "publish": ["carriers", "months"],
        }
        settings = Settings(redis_url=self.server.url, warehouse=made.warehouse)
        made.job = Client(settings, redis_client=self.store).submit(spec).id
        made.orders = [order(self.arms, point, effect, made.job) for point, effect in shots.items()]
        return made

    def status(self, case: KilledJob) -> Status:
        return self.client.show(case.job).status

    def made(self, case: KilledJob) -> Member:
        return self.client.show(case.job).groups[0].members[0]

    def kinds(self, case: KilledJob, group: str | None) -> list[str]:
        events = [event for _, event in self.client.events(case.job)]
        return [event["kind"] for event in events if event.get("group") == group]

    def until(
        self, what: str, happened: Callable[[], bool], cases: Iterable[KilledJob] = ()
    ) -> None:
        """Until it has happened; those that died are followed by others all the while."""

        def look() -> bool:
            self.coordinators.tend()
            for case in cases:
                self.follow(case)
            return happened()

        wait_until(look, 150, what, every=0.1)

    def follow(self, case: KilledJob) -> None:
        """A publisher that was not heard of is followed after a second, instead of half a
        minute.
        """
        keys = fleet.KEYS.of(case.job)
        phase, due = self.store.hmget(keys.job, "phase", "publish_next")
        if phase and self.store.time()[0] > float(due or 0) - HALF_A_MINUTE + 1:
            self.store.hset(keys.job, "publish_next", "1")
            self.store.zadd(fleet.KEYS.due, {case.job: 0}, xx=True)

    def run(self, cases: Iterable[KilledJob]) -> None:
        """Until every job has ended."""
        left = list(cases)
        self.until(
            "all jobs to end", lambda: all(self.status(case).terminal for case in left), left
        )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KilledFleet]:
    home = tmp_path_factory.mktemp("deaths")
    (home / "arms").mkdir()
    server = RedisServer(home)
    server.start()
    environ = {**SOON, "UNSTUCK_REDIS_URL": server.url, **arming(home / "arms")}
    try:
        with (
            fleet.worker(server.url, home, concurrency=SLOTS, environ=environ) as worker,
            coordinator_processes(home, environ) as coordinators,
        ):
            yield KilledFleet(server, worker, coordinators, home, environ)
    finally:
        server.stop()


def _stored(place: KilledFleet, case: KilledJob) -> JobInfo:
    """Return what is stored of a job, whenever it is read."""
    info = place.client.show(case.job)
    return replace(info, at=0.0, due_at=None, why="", groups=(), explanations={})


def thaw(pids: Iterable[int]) -> None:
    for pid in pids:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGCONT)


# -- runners ---------------------------------------------------------------------------------------

# What a runner's death costs: how often the step runs, and in which attempt it succeeds.
RUNNER_DEATHS: dict[str, tuple[list[Point], list[int], int]] = {
    "after the claim": ([Point.AFTER_CLAIM], [2], 2),
    "in the middle of a step": ([Point.AFTER_OUTPUT], [1, 2], 2),
    "in the middle of a step, its watchdog too": (
        [Point.AFTER_OUTPUT, Point.BEFORE_LOSS_REPORT],
        [1, 2],
        2,
    ),
    "before the marker": ([Point.BEFORE_MARKER], [1, 2], 2),
    "after the marker": ([Point.AFTER_MARKER], [1], 2),
    "before the outcome": ([Point.BEFORE_FINISH], [1], 2),
    "after the outcome": ([Point.AFTER_FINISH], [1], 1),
}


@pytest.fixture(scope="module")
def runner_deaths(place: KilledFleet) -> dict[str, KilledJob]:
    cases: dict[str, KilledJob] = {}
    # With its outcome a runner takes another group along. So that case is played when nothing else
    # stands ready.
    for names in (set(RUNNER_DEATHS) - {"after the outcome"}, {"after the outcome"}):
        for name in names:
            points = dict.fromkeys(RUNNER_DEATHS[name][0], Effect.KILL)
            cases[name] = place.case(name.replace(" ", "-").replace(",", ""), points)
        place.run(cases.values())
    return cases


@pytest.mark.claim(
    "If a worker is killed at any point, its job still ends, and finished work is not repeated."
)
@pytest.mark.parametrize("name", RUNNER_DEATHS)
def test_a_runner_killed_at_any_point_loses_no_finished_work(
    place: KilledFleet, runner_deaths: dict[str, KilledJob], name: str
) -> None:
    _, ran, epoch = RUNNER_DEATHS[name]
    case = runner_deaths[name]
    assert case.struck(), "it was killed there"
    assert place.status(case) is Status.FINISHED
    assert case.ran == ran
    record = place.made(case)
    assert (record.state, record.attempt, record.failures) == (GroupState.SUCCEEDED, epoch, 0)
    assert record.adopted == (epoch == 2 and ran == [1]), (
        "the second attempt takes over what the marker vouches for"
    )
    assert place.kinds(case, "make").count("SUCCEEDED") == 1
    assert place.kinds(case, "after") == ["QUEUED", "RUNNING", "SUCCEEDED"]
    assert case.entries() == ["package"]
    assert case.read() == {ran[-1]}


RUNNER_FREEZES = {
    Point.AFTER_CLAIM: 2,
    Point.AFTER_OUTPUT: 2,
    Point.BEFORE_MARKER: 2,
    Point.AFTER_MARKER: 1,  # attempt 2 takes over what attempt 1 has vouched for
    Point.BEFORE_FINISH: 1,
}


@pytest.fixture(scope="module")
def thawed(place: KilledFleet) -> dict[Point, KilledJob]:
    """Jobs whose first runner was frozen until the job had ended, and has let go or ended itself
    since.
    """
    cases = {
        point: place.case(f"frozen-{point}", {point: Effect.FREEZE}) for point in RUNNER_FREEZES
    }
    pids: list[int] = []
    try:
        place.run(cases.values())
    finally:
        for case in cases.values():
            pids += reached_by(case.orders[0])
            case.seen.add(str(_stored(place, case)))
        seconds, micros = place.store.time()
        thawed_at = seconds + micros / 1e6
        thaw(pids)

    def let_go() -> bool:
        """Each has ended itself, or has asked for other work since: a runner does one thing at a
        time.
        """
        ids = {one.pid: one.id for one in fleet.listed(place.store)}

        def asked_at(pid: int) -> float:
            return abs(float(place.store.hget(fleet.KEYS.polled, ids.get(pid, "")) or 0))

        return all(fleet.gone(pid) or asked_at(pid) > thawed_at for pid in pids)

    place.until("the thawed runners to let go", let_go)
    return cases


@pytest.mark.claim("A process that was frozen past its lease changes nothing when it thaws.")
@pytest.mark.parametrize("point", RUNNER_FREEZES)
def test_a_runner_frozen_past_its_lease_at_any_point_changes_nothing_when_it_thaws(
    place: KilledFleet, thawed: dict[Point, KilledJob], point: Point
) -> None:
    case = thawed[point]
    assert case.struck()
    view = place.client.show(case.job)
    assert view.status is Status.FINISHED
    assert case.seen == {str(_stored(place, case))}, "as it was before the thaw"
    record = place.made(case)
    assert (record.state, record.attempt, record.failures, record.losses) == (
        GroupState.SUCCEEDED,
        2,
        0,
        0,
    )
    assert record.first_error is not None
    assert record.first_error.code == "LEASE_LAPSED"
    assert place.kinds(case, "make").count("SUCCEEDED") == 1
    assert case.entries() == ["package"]
    assert case.read() == {RUNNER_FREEZES[point]}, "readers see the files of one attempt alone"


# -- coordinators ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def coordinator_deaths(place: KilledFleet) -> dict[Point, KilledJob]:
    cases: dict[Point, KilledJob] = {}
    # Whoever writes an entry comes by AFTER_ENTRY, and nobody else ever: its job is alone, so that
    # no other job's death takes its writer away just before.
    for points in (
        [p for p in OF_A_COORDINATOR if p is not Point.AFTER_ENTRY],
        [Point.AFTER_ENTRY],
    ):
        now = {
            point: place.case(f"headless-{point}", {point: Effect.KILL}, before=True)
            for point in points
        }
        cases |= now
        stop = threading.Event()
        for case in now.values():
            case.look()
        reader = threading.Thread(target=_look_until, args=(stop, list(now.values())))
        reader.start()
        try:
            place.run(now.values())
        finally:
            stop.set()
            reader.join()
        for case in now.values():
            case.look()
    return cases


def _look_until(stop: threading.Event, cases: list[KilledJob]) -> None:
    while not stop.wait(0.005):
        for case in cases:
            case.look()


@pytest.mark.claim(
    "If a coordinator dies at any point, another one continues its jobs and applies nothing twice."
)
@pytest.mark.parametrize("point", OF_A_COORDINATOR)
def test_readers_see_all_old_or_all_new_data_when_a_coordinator_is_killed(
    place: KilledFleet, coordinator_deaths: dict[Point, KilledJob], point: Point
) -> None:
    case = coordinator_deaths[point]
    assert case.struck(), "it was killed there"
    assert place.status(case) is Status.FINISHED
    assert case.ran == [1], "nothing ran twice"
    for group in ("make", "after"):
        assert place.kinds(case, group) == ["QUEUED", "RUNNING", "SUCCEEDED"], (
            "nothing was applied twice"
        )
    assert place.kinds(case, None) == ["SUBMITTED", "PUBLISHING", "FINISHED"]
    assert case.entries() == ["package"]
    assert case.seen == {"before", case.job}


# What stands in the slot of a job that is ended by force while its publisher is frozen there.
PUBLISHER_FREEZES = {
    Point.BEFORE_PACKAGE: "abort",
    Point.BEFORE_ENTRY: "abort",
    Point.AFTER_ENTRY: "package",
    Point.AFTER_PUBLISH: "package",
}


@pytest.mark.claim(
    "A job that is ended while it publishes is FINISHED only if its package is in the log."
)
@pytest.mark.variant
@pytest.mark.parametrize("point", PUBLISHER_FREEZES)
def test_a_force_ended_job_with_a_frozen_publisher_keeps_its_log_entry_after_the_thaw(
    place: KilledFleet, point: Point
) -> None:
    case = place.case(f"publisher-{point}", {point: Effect.FREEZE}, before=True)
    place.until("the publisher to freeze", case.struck)
    (pid,) = reached_by(case.orders[0])
    try:
        wait_until(
            lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED,
            10,
            "the publisher to stand still",
        )
        assert place.client.force_stop(case.job).answer == "DONE"
        place.until("the job to end", lambda: place.status(case).terminal)
        entries, ended = case.entries(), _stored(place, case)
        passing = order(place.arms, Point.AFTER_LOCK, Effect.PASS, case.job)
    finally:
        thaw([pid])
    assert entries == [PUBLISHER_FREEZES[point]]
    assert ended.status is (Status.CANCELED if entries == ["abort"] else Status.FINISHED)

    def went_on() -> bool:
        """It has done with the warehouse, and has looked at the record."""
        return pid in reached_by(passing) and not place.store.exists(fleet.KEYS.of(case.job).lock)

    place.until("the thawed publisher to go on", went_on)
    passing.unlink()
    assert case.entries() == entries
    assert _stored(place, case) == ended
    case.look()
    assert case.seen == {case.job if entries == ["package"] else "before"}


@pytest.mark.variant
def test_500_reports_read_by_a_killed_coordinator_are_each_applied_once(
    place: KilledFleet,
) -> None:
    members = 250
    fork = {
        "name": "w",
        "spark": False,
        "queue": "by-hand",
        "for_each": {"n": list(range(members))},
        "steps": NOOP,
    }
    job = place.client.submit({"name": "wide", "groups": [fork]}).id
    keys = fleet.KEYS.of(job)
    place.until("all members to be queued", lambda: place.store.hlen(keys.attempts) == members)
    place.coordinators.kill()
    lease = Lease(place.store, fleet.KEYS, 600, "by hand")
    for number in range(members):
        claim = lease.take(["by-hand"], f"me{number}", "host:1", f"{number}-claim")
        assert claim is not None
        lease.finish(claim.token, Outcome(OutcomeKind.SUCCEEDED, rows={"n": 1}), f"{number}-finish")
    assert lease.take(["by-hand"], "me", "host:1", "nothing") is None
    death = order(place.arms, Point.AFTER_READ, Effect.KILL, job)
    place.coordinators.tend(awake=1)
    wait_until(lambda: reached_by(death), 30, "the death")
    pending = place.store.xpending(fleet.KEYS.reports, "coordinators")["pending"]
    place.until("the job to end", lambda: place.client.show(job).status is Status.FINISHED)
    assert pending >= 500, "read, and applied by nobody"
    events = [(event.get("group"), event["kind"]) for _, event in place.client.events(job)]
    assert len(events) == len(set(events)) == 3 * members + 3


# -- a worker's main process: last, for the fleet's worker is gone with it -------------------------


# How often the attempts of the group were begun in all: with its main process a worker ends its
# runners.
MAIN_DEATHS = {Point.AFTER_MARKER: 2, Point.AFTER_FINISH: 1}


@pytest.fixture(scope="module")
def main_deaths(place: KilledFleet) -> dict[Point, KilledJob]:
    """Jobs whose runners stood at a point when the main process above them was killed.

    Another worker follows.
    """
    cases = {
        point: place.case(f"mainless-{point}", {point: Effect.FREEZE}) for point in MAIN_DEATHS
    }
    place.until("the runners to come there", lambda: all(case.struck() for case in cases.values()))
    runners = [runner.pid for runner in place.worker.runners]
    place.worker.process.kill()
    place.worker.process.wait()
    # By a newly started Python: its hashes have another seed than those of the dead.
    with fleet.worker(place.server.url, place.home, environ=place.environ, python=sys.executable):
        place.run(cases.values())
    wait_until(
        lambda: all(map(fleet.gone, runners)), 20, "its runners to be gone, the frozen ones too"
    )
    return cases


@pytest.mark.claim(
    "If a worker is killed at any point, its job still ends, and finished work is not repeated."
)
@pytest.mark.variant
@pytest.mark.parametrize("point", MAIN_DEATHS)
def test_a_main_process_killed_at_any_point_loses_no_finished_work(
    place: KilledFleet, main_deaths: dict[Point, KilledJob], point: Point
) -> None:
    case, epoch = main_deaths[point], MAIN_DEATHS[point]
    assert place.status(case) is Status.FINISHED
    assert case.ran == [1], "what the marker or the outcome vouches for is not done again"
    record = place.made(case)
    assert (record.state, record.attempt, record.failures) == (GroupState.SUCCEEDED, epoch, 0)
    assert record.adopted == (epoch == 2)
    assert place.kinds(case, "make").count("SUCCEEDED") == 1
    assert case.entries() == ["package"]
    assert case.read() == {1}
