"""No process that a step started outlives its attempt, however it was started, and none of them
becomes a runner.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
import redis

from tests.support import fleet
from tests.support.programs.runner import single_runner
from tests.support.servers import RedisServer, wait_until
from tests.support.steps import child_steps
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Offer


@pytest.fixture(scope="module")
def worker(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[fleet.FleetWorker]:
    folder = tmp_path_factory.mktemp("worker")
    with fleet.worker(redis_server.url, folder, queues="leaving", concurrency=2) as running:
        yield running


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


def make_offer(store: redis.Redis, home: Path, *steps: dict[str, object]) -> Offer:
    last = {"python": "child_steps:last", "params": {"ends": str(home / "ends")}}
    group = {"name": "g", "spark": False, "queue": "leaving", "steps": [*steps, last]}
    return fleet.make_offer(store, home / "warehouse", f"job-{os.urandom(4).hex()}", group)


def ended(store: redis.Redis, offer: Offer, timeout: float = 20) -> Outcome:
    """The outcome. A runner that is to be replaced takes nothing; the wake-up that came to it is
    sent again.
    """

    def done() -> bool:
        record = fleet.attempt(store, offer)
        if not record.get("claimant"):
            fleet.send_wake_up(store, offer, "leaving")
        return "outcome" in record

    wait_until(done, timeout, f"the outcome of {offer}", every=1.0)
    return fleet.outcome(store, offer, 0)


def batched(ways: Sequence[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(ways[at : at + size]) for at in range(0, len(ways), size)]


def living(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if not fleet.gone(int(file.name))]


def all_are_ours(worker: fleet.FleetWorker) -> bool:
    """Nothing is there but two runners, each with its watchdog; no zombie either."""
    below = psutil.Process(worker.process.pid).children(recursive=True)
    return len(below) == 4 and len(worker.runners) == 2 == len(worker.watchdogs)


@pytest.mark.claim("No process that a step starts outlives its attempt.")
def test_processes_left_by_a_step_end_with_its_attempt(
    worker: fleet.FleetWorker, store: redis.Redis, tmp_path: Path
) -> None:
    folders = {way: tmp_path / str(number) for number, way in enumerate(child_steps.WAYS)}
    for folder in folders.values():
        folder.mkdir()
    # When: all of them run, four in one attempt, and the late one alone, in a runner that stays and
    # is idle then.
    ways = [way for way in child_steps.WAYS if way != child_steps.LATER]
    offers = {}
    for together in (*batched(ways, 4), (child_steps.LATER,)):
        steps = [
            {"python": "child_steps:leave", "params": {"way": way, "folder": str(folders[way])}}
            for way in together
        ]
        if together == (child_steps.LATER,):
            for one in offers.values():
                fleet.outcome(store, one, 120)
        offers[together] = make_offer(store, tmp_path, *steps)
    for together, offer in offers.items():
        found = fleet.outcome(store, offer)
        assert found.kind is OutcomeKind.SUCCEEDED, (
            f"{together}: {found}"
        )  # it counts, whatever it left
    # Then: each has started a process, and none lives on.
    for way, folder in folders.items():
        wait_until(lambda folder=folder: [*folder.iterdir()], 20, f"a process of {way}")  # type: ignore[misc]

    def left() -> dict[str, list[str]]:
        return {way: pids for way, folder in folders.items() if (pids := living(folder))}

    try:
        wait_until(lambda: not left(), 30, "all that was left to be gone")
    except AssertionError as error:
        raise AssertionError(f"{len(left())} of {len(folders)} live on: {left()}") from error
    wait_until(
        lambda: all_are_ours(worker), 30, "two runners with their watchdogs, and nothing else"
    )
    # And: each attempt was one, with one word on how it ended.
    said = [(report["token"].rpartition("/")[0], report["kind"]) for report in fleet.reports(store)]
    for together, offer in offers.items():
        assert [kind for token, kind in said if token == str(offer)] == ["claimed", "succeeded"], (
            together
        )
    assert sorted((tmp_path / "ends").read_text().split()) == sorted(map(str, offers.values()))
    assert "WorkerLostError" not in worker.text()


@pytest.mark.claim("No process that a step starts outlives its attempt.")
@pytest.mark.variant
def test_a_process_just_started_by_a_killed_runner_is_ended(
    worker: fleet.FleetWorker, store: redis.Redis, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    started.mkdir()
    offer = make_offer(
        store, tmp_path, {"python": "child_steps:start_and_die", "params": {"folder": str(started)}}
    )
    assert ended(store, offer, 30).kind is OutcomeKind.LOST
    assert len([*started.iterdir()]) == 2
    wait_until(lambda: not living(started), 30, "both to be gone")
    wait_until(
        lambda: all_are_ours(worker), 30, "two runners with their watchdogs, and nothing else"
    )


@pytest.mark.claim("No process that a step starts outlives its attempt.")
def test_a_runner_adopts_a_daemon_of_a_step_and_ends_it(
    redis_server: RedisServer, store: redis.Redis, tmp_path: Path
) -> None:
    """And not before the attempt is over, as the main process of the worker would."""
    folder = tmp_path / "started"
    folder.mkdir()
    steps = [{"python": "child_steps:leave", "params": {"way": "a daemon", "folder": str(folder)}}]
    offer = fleet.make_offer(
        store, tmp_path / "w", "alone", {"name": "g", "spark": False, "steps": steps}, send=False
    )
    with single_runner(redis_server.url, tmp_path, offer) as runner:
        assert runner.said() == ["succeeded APPLIED"]
    (daemon,) = folder.iterdir()
    assert fleet.gone(int(daemon.name))
    assert f"left the process {daemon.name}; this runner is replaced" in runner.log.read_text()


@pytest.mark.variant
def test_a_fork_during_the_import_of_a_step_does_not_become_a_second_runner(
    store: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    steps = ("at_import.forks:done", "fleet_steps:my_pid", "fleet_steps:my_pid")
    offers = [
        fleet.make_offer(
            store,
            tmp_path / "w",
            f"job-{os.urandom(4).hex()}",
            {"name": "g", "spark": False, "steps": [{"python": step}]},
            send=False,
        )
        for step in steps
    ]
    with single_runner(redis_server.url, tmp_path, *offers) as runner:
        assert runner.said() == ["succeeded APPLIED"] * 3
    assert len({fleet.outcome(store, offer).results["pid"] for offer in offers}) == 1
    said = [(report["token"].rpartition("/")[0], report["kind"]) for report in fleet.reports(store)]
    for offer in offers:
        assert [kind for token, kind in said if token == str(offer)] == ["claimed", "succeeded"]


@pytest.mark.variant
def test_a_forked_child_that_returns_from_its_step_exits_as_a_program(
    worker: fleet.FleetWorker, store: redis.Redis, tmp_path: Path
) -> None:
    offer = make_offer(
        store, tmp_path, {"python": "child_steps:codes", "params": {"folder": str(tmp_path)}}
    )
    found = ended(store, offer)
    assert found.kind is OutcomeKind.SUCCEEDED, found
    assert found.results == {"returns": 0, "raises": 1, "exits": 3}
    assert "RuntimeError: the child fails" in worker.text()
