"""A guard with wide margins: what a group that does nothing costs, and a job that waits for a
person.

By counts of commands, since time says nothing on a machine that others use as well.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.fleet import Fleet, wide
from bench.server import Server
from tests.support.coordinator import Coordinator, group
from unstuck import Status
from unstuck.coordinator.store.indexes import KEYS_LOOKED_AT

pytestmark = pytest.mark.variant

SCRIPTS = 7.0  # a group; 1.2 on an idle machine, more on a busy one, where batches are small
COMMANDS = 160.0  # a group, those inside scripts included; 80 on a busy machine
GROWTH = 1.5  # of the commands of a group, from the narrow to the wide job


@dataclass(frozen=True)
class Cost:
    """Of one group."""

    scripts: float
    commands: float


def cost(fleet: Fleet, width: int) -> Cost:
    before = fleet.server.calls()
    fleet.finish(fleet.client.submit(wide(width)).id)
    calls = {name: count - before.get(name, 0) for name, count in fleet.server.calls().items()}
    return Cost(calls["evalsha"] / width, sum(calls.values()) / width)


def test_a_group_stays_within_its_budget_of_redis_commands(tmp_path: Path) -> None:
    with closing(Server(tmp_path)) as server, closing(Fleet(server, tmp_path)) as fleet:
        narrow, broad = cost(fleet, 100), cost(fleet, 500)
    assert broad.scripts <= SCRIPTS
    assert broad.commands <= COMMANDS
    assert broad.commands <= GROWTH * narrow.commands


def test_the_cost_of_a_sweep_does_not_grow_with_paused_jobs(tmp_path: Path) -> None:
    """What a sweep costs depends on what is due, not on what exists.

    All jobs are looked at once after an outage.
    """
    with closing(Server(tmp_path)) as server:
        coordinator = Coordinator(server.url(), tmp_path / "warehouse", dispatch_timeout=0.2)

        def commands_of_sweeps(jobs: int) -> int:
            for _ in range(jobs):
                coordinator.client.pause(coordinator.submit(group("only", queue="none")))
            coordinator.read()
            coordinator.sweep.run()
            assert len(coordinator.client.jobs(status=[Status.PAUSED], limit=None)) >= jobs
            end = time.monotonic() + 3 * coordinator.settings.dispatch_timeout
            sweeps, before = 0, sum(server.calls().values())
            while time.monotonic() < end or sweeps < 10:
                coordinator.sweep.run()
                sweeps += 1
            return (sum(server.calls().values()) - before) // sweeps

        few, many = commands_of_sweeps(20), commands_of_sweeps(180)
    a_piece = (
        6 * KEYS_LOOKED_AT
    )  # of the records, in search of lost indexes; the first sweeps find fewer of them
    assert many <= few + a_piece, f"{few} commands for a sweep with 20 paused jobs, {many} with 200"
