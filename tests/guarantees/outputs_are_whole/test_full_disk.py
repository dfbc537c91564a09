"""A disk that is full when a marker is written: a real coordinator, real runners, and the kernel's
own answer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.coordinator import Coordinator
from tests.support.programs.runner import single_runner
from tests.support.servers import wait_until
from unstuck import Status
from unstuck.coordinator.model.status import GroupState

# Whoever writes to /dev/full is told by the kernel that no space is left.
FULL = """
from unstuck.tasks.warehouse import files
write = files._write_temp
def full(target, data):
    if not target.endswith("/_marker.json"):
        return write(target, data)
    with open("/dev/full", "wb") as disk:
        disk.write(data)
files._write_temp = full
"""
STEP = {"python": "fleet_steps:table", "output": "numbers"}
GROUP = {"name": "make", "spark": False, "steps": [STEP], "retry": {"max": 2, "backoff": "10ms"}}


def run_next(coordinator: Coordinator, job: str, folder: Path, disk: str = "") -> str:
    """Run the attempt that is next, in a runner with ``disk``.

    Returns what the runner says of it.
    """
    coordinator.read()

    def offered() -> bool:
        coordinator.sweep.run()
        return bool(coordinator.sent)

    wait_until(offered, 10, "an attempt to be offered")
    (offer,) = coordinator.offers(job)
    with single_runner(coordinator.settings.redis_url, folder, offer, prepared=disk) as runner:
        said = runner.said()[-1]  # the step prints, too
    coordinator.read()
    return said


@pytest.mark.claim("A full disk costs a retry; if it stays full, the job fails and says why.")
def test_a_temporarily_full_disk_costs_a_retry_but_not_the_job(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    job = coordinator.submit(GROUP)
    assert run_next(coordinator, job, tmp_path, FULL) == "failed APPLIED"
    (group,) = coordinator.show(job).groups
    assert group.members[0].state is GroupState.BACKOFF, "it is tried again"

    assert run_next(coordinator, job, tmp_path) == "succeeded APPLIED"
    coordinator.wait_for(job, Status.FINISHED)


@pytest.mark.claim("A full disk costs a retry; if it stays full, the job fails and says why.")
@pytest.mark.variant
def test_a_full_disk_uses_up_the_retries_and_is_the_reason(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    job = coordinator.submit(GROUP)
    for _ in range(3):
        assert run_next(coordinator, job, tmp_path, FULL) == "failed APPLIED"

    shown = coordinator.show(job)
    assert shown.status is Status.FAILED
    record = shown.groups[0].members[0]
    assert (record.attempt, record.failures, record.state) == (3, 3, GroupState.FAILED)
    assert record.reason is not None
    assert record.reason.code == "MARKER_FAILED"
    for said in (
        "the marker of ",
        "No space left on device",
        "Look at the space",
        "all 2 retries are used up",
    ):
        assert said in record.reason.text


@pytest.mark.claim("A full disk costs a retry; if it stays full, the job fails and says why.")
@pytest.mark.variant
def test_a_failed_marker_write_does_not_hide_the_first_error(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    gate, log = tmp_path / "gate", tmp_path / "ran"
    given = {"log": str(log), "name": "make", "gate": str(gate)}
    step = {"python": "fleet_steps:fails_until", "output": "numbers", "params": given}
    job = coordinator.submit({**GROUP, "retry": {"max": 1, "backoff": "10ms"}, "steps": [step]})
    assert run_next(coordinator, job, tmp_path) == "failed APPLIED"
    gate.touch()
    assert run_next(coordinator, job, tmp_path, FULL) == "failed APPLIED"

    (group,) = coordinator.show(job).groups
    record = group.members[0]
    assert record.state is GroupState.FAILED
    assert record.reason is not None
    assert record.reason.code == "MARKER_FAILED"
    assert record.first_error is not None
    assert record.last_error is not None
    assert (record.first_error.code, record.last_error.code) == ("STEP_FAILED", "MARKER_FAILED")
    assert "not mended yet" in record.first_error.text
