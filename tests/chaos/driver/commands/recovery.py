"""Recovery: how fast what a killed worker ran runs again, and what a killed coordinator had read is
applied.

A worker is killed with everything below it, as when its host is lost, so that nobody is left to say
so: only its lease tells. A coordinator is killed that has read reports and not applied them: its
link is held just before, so that it can do nothing more.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.driver.faults import send
from tests.chaos.driver.fleet import ChaosFleet, plain
from tests.chaos.driver.proxy import Link
from tests.chaos.driver.screen import Screen
from tests.chaos.driver.watch import Watch
from tests.support.machine import Limit
from tests.support.servers import wait_until
from unstuck import Status
from unstuck.local.programs import Size
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.processes import ProcessRegistry

SIZE = Size(workers=0, coordinators=2, light=2)
STEP = {"python": "examples.noop:noop"}
WIDE = {"name": "w", "spark": False, "for_each": {"n": list(range(200))}, "steps": [STEP]}
MANY = {"name": "many", "groups": [WIDE]}
GOES_ON_WITHIN = 120.0  # seconds for anything that should take a few


@dataclass(frozen=True, slots=True)
class Bounds:
    """Settings, and what is promised under them, in seconds."""

    name: str
    settings: Mapping[str, str]
    worker: float
    coordinator: float


DEFAULT = Bounds("the default settings", {}, worker=20.0, coordinator=8.0)
SHORT = Bounds("UNSTUCK_LEASE_TTL=3s", {"UNSTUCK_LEASE_TTL": "3s"}, worker=5.0, coordinator=5.0)


def recovery(folder: Path, seed: int, times: int, *, as_json: bool = False) -> int:
    """Measure both, ``times`` times each, under both settings.

    Returns 0 if the slowest of each is within its bound.
    """
    told: list[dict[str, object]] = []
    for number, bounds in enumerate((DEFAULT, SHORT)):
        below = folder / str(number)
        below.mkdir()
        with Screen(quiet=as_json) as screen:
            screen.say(f"{bounds.name}: {SIZE}; each kill {times} times")
            workers, coordinators = _measure(below, seed, times, bounds, screen)
        for what, bound, took in (
            ("a killed worker's group runs again", bounds.worker, workers),
            ("a killed coordinator's reports are applied", bounds.coordinator, coordinators),
        ):
            told.append(
                {
                    "settings": bounds.name,
                    "what": what,
                    "bound": bound,
                    "slowest": round(max(took), 2),
                    "all": [round(one, 2) for one in took],
                    "kept": max(took) <= bound,
                }
            )
    if as_json:
        sys.stdout.write(json.dumps({"seed": seed, "recoveries": told}) + "\n")
    else:
        plain(f"Recovery (seed {seed}):")
        for line in told:
            word = "within" if line["kept"] else "NOT WITHIN"
            plain(
                f"  {line['what']}: {line['slowest']} s, {word} {line['bound']:g} s "
                f"({line['settings']}; {line['all']})"
            )
    return 0 if all(line["kept"] for line in told) else 1


def _measure(
    folder: Path, seed: int, times: int, bounds: Bounds, screen: Screen
) -> tuple[list[float], list[float]]:
    rng = random.Random(seed)
    with (
        ChaosFleet(folder, bounds.settings, SIZE, screen.say) as fleet,
        Watch(fleet.eye, fleet.keys) as watch,
    ):
        fleet.ready()
        screen.say("the fleet is ready")
        for _ in range(times):
            _kill_worker(fleet, watch, rng.uniform(0.0, 3.0))
            screen.say(f"a worker's group runs again after {watch.done[-1].took:.2f} s")
        for _ in range(times):
            _kill_coordinator(fleet, watch, rng.choice(fleet.coordinators))
            screen.say(f"a coordinator's reports are applied after {watch.done[-1].took:.2f} s")
        return (
            [one.took for one in watch.done if one.fault == "kill host"],
            [one.took for one in watch.done if one.fault == "kill coordinator"],
        )


def _kill_worker(fleet: ChaosFleet, watch: Watch, later: float) -> None:
    """Kill the worker that runs a group, ``later`` seconds after it began, at any point of its
    lease's renewal.
    """
    gate = fleet.folder / f"gate-{len(watch.done)}"
    step = {"python": "tests.chaos.driver.steps:until", "params": {"path": str(gate)}}
    group = {"name": "hold", "spark": False, "steps": [step], "worker_losses": 10}
    job = fleet.client.submit({"name": "hold", "groups": [group]}).id

    def record() -> dict[str, object]:
        text = fleet.eye.hget(fleet.keys.of(job).groups, "hold")
        return dict(json.loads(str(text))) if text else {}

    def running() -> RunnerInfo | None:
        runners = ProcessRegistry(fleet.eye, fleet.keys).runners()
        return next(
            (one for one in runners if one.job == job and record()["state"] == "RUNNING"), None
        )

    runner = wait_until(running, GOES_ON_WITHIN, "the group to run")
    assert runner
    time.sleep(later)  # at any point between two renewals: nothing is awaited
    name = next(name for name in fleet.workers if fleet.child(name).pid == runner.worker_pid)
    tree = fleet.tree(name)
    over = watch.attempts(tree)
    assert over is not None
    for process in tree:
        send(process, signal.SIGSTOP)  # so that no watchdog has the time to report the runner
    for process in tree:
        send(process, signal.SIGKILL)
    _awaited(watch, "kill host", name, over)
    gate.touch()
    _ended(fleet, job)
    wait_until(fleet.whole, GOES_ON_WITHIN, "the fleet to be whole again", every=0.2)


def _kill_coordinator(fleet: ChaosFleet, watch: Watch, name: str) -> None:
    """Kill the coordinator while it holds reports that it has read."""
    link, main = fleet.proxy.links[name], fleet.main(name)
    assert main is not None
    jobs = [fleet.client.submit(MANY).id]
    wait_until(
        lambda: fleet.client.show(jobs[0]).done > 5, GOES_ON_WITHIN, "some groups to be done"
    )
    limit = Limit(GOES_ON_WITHIN)
    while not _caught_with_reports(fleet, watch, link, main.pid):
        if not limit.kept:
            raise AssertionError(f"{name} was never seen to read reports: {limit}")
        if fleet.client.show(jobs[-1]).terminal:
            jobs.append(fleet.client.submit(MANY).id)
    over = watch.reports(main.pid)
    assert over is not None
    send(main, signal.SIGKILL)
    fleet.proxy.do(link.cut)  # what it had sent is lost with it
    fleet.proxy.do(lambda: link.hold_requests(False))
    _awaited(watch, "kill coordinator", name, over)
    for job in jobs:
        _ended(fleet, job)
    wait_until(fleet.whole, GOES_ON_WITHIN, "the fleet to be whole again", every=0.2)


def _caught_with_reports(fleet: ChaosFleet, watch: Watch, link: Link, pid: int) -> bool:
    """Hold what this coordinator asks. True if it was waiting for reports, has got some, and can do
    nothing with them.

    What it has asked for arrives, and what it would do with it does not. If it was at something
    else, it is let go.
    """
    fleet.proxy.do(lambda: link.hold_requests(True))
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        if watch.pending(pid):
            return True
        time.sleep(0.01)
    fleet.proxy.do(lambda: link.hold_requests(False))
    return False


def _awaited(watch: Watch, fault: str, victim: str, over: Callable[[], bool]) -> None:
    """Time it, and wait until it is over."""
    before = len(watch.done)
    watch.add(fault, victim, over)
    wait_until(
        lambda: len(watch.done) > before, GOES_ON_WITHIN, f"{victim}'s work to go on after {fault}"
    )


def _ended(fleet: ChaosFleet, job: str) -> None:
    wait_until(
        lambda: fleet.client.show(job).terminal, GOES_ON_WITHIN, f"job {job} to end", every=0.2
    )
    status = fleet.client.show(job).status
    if status is not Status.FINISHED:
        raise AssertionError(f"job {job} ended {status}")
