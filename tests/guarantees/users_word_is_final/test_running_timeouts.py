"""The timeout of a group or step that runs can be altered: its watchdog follows, as `why` says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import fleet
from tests.support.coordinator import Coordinator
from tests.support.servers import RedisServer, wait_until
from unstuck import Status

SHORT = 6  # seconds, in which a claim is seen and an alter is given


@pytest.fixture(scope="module")
def worker(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[fleet.FleetWorker]:
    with fleet.worker(redis_server.url, tmp_path_factory.mktemp("worker")) as running:
        yield running


def running(coordinator: Coordinator, step: dict[str, Any], **group: Any) -> str:
    """A job whose only group runs its only step."""
    job = coordinator.client.submit(
        {"name": "j", "groups": [{"name": "g", "spark": False, "steps": [step], **group}]}
    ).id
    coordinator.read()
    fleet.wake(coordinator.redis, "light")
    wait_until(
        lambda: act(coordinator) or coordinator.status(job) is Status.RUNNING, 30, "the step to run"
    )
    return job


def act(coordinator: Coordinator) -> None:
    coordinator.read()
    coordinator.sweep.run()


def ended(coordinator: Coordinator, job: str) -> Any:
    wait_until(lambda: act(coordinator) or coordinator.status(job).terminal, 30, "the job to end")
    return coordinator.show(job)


@pytest.mark.claim("A changed timeout applies to the attempt that is running.")
@pytest.mark.parametrize(
    ("path", "code"), [("timeout", "TIMEOUT"), ("steps.0.timeout", "STEP_TIMEOUT")]
)
def test_a_timeout_set_while_a_group_runs_ends_it(
    worker: fleet.FleetWorker, coordinator: Coordinator, path: str, code: str
) -> None:
    job = running(coordinator, {"python": "fleet_steps:wait_for_cancel"}, retry={"max": 0})
    assert coordinator.client.alter(job, {f"groups.g.{path}": "1s"}).answer == "DONE"
    (group,) = ended(coordinator, job).groups
    assert group.members[0].last_error.code == code
    assert "its timeout of 1s" in group.members[0].last_error.text


@pytest.mark.claim("A changed timeout applies to the attempt that is running.")
@pytest.mark.variant
def test_a_timeout_raised_while_a_group_runs_does_not_end_it(
    worker: fleet.FleetWorker, coordinator: Coordinator, tmp_path: Path
) -> None:
    path = tmp_path / "go"
    job = running(
        coordinator,
        {"python": "fleet_steps:until", "params": {"path": str(path)}, "timeout": SHORT},
        timeout=SHORT,
    )
    began = time.time()
    answer = coordinator.client.alter(
        job, {"groups.g.timeout": "2h", "groups.g.steps.0.timeout": None}
    )
    assert answer.answer == "DONE"
    assert any("timeout: 2h" in one.ends.what for one in coordinator.client.explain(job))
    wait_until(
        lambda: time.time() > began + SHORT + 1, 3 * SHORT, "the first timeout to have passed"
    )
    act(coordinator)
    assert coordinator.status(job) is Status.RUNNING
    path.touch()
    assert ended(coordinator, job).status is Status.FINISHED
