"""A runner takes what its own outcome sets free, without another wake-up, and does early only what
is needed.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.coordinator import Coordinator, group
from tests.support.programs.runner import single_runner
from tests.support.servers import wait_until
from unstuck.coordinator.model.status import Status
from unstuck.tasks.steps.context import Scratch

WAIT = 60.0
NOTES_ITS_WAITS = f"""
import time
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.runner import take
from unstuck.tasks.transport.lease import Lease
from unstuck.tasks.transport.redis_client import connect
patient, keys = connect(runner.settings.redis_url, timeout={2 * WAIT}), Keys(runner.settings.prefix)
runner.lease = Lease(patient, keys, runner.settings.lease_ttl, runner.id, runner.runs_on.bound)
take.LINGER, at_once = {WAIT}, runner.lease.take
def noted(*arguments, linger=0.0):
    began = time.monotonic()
    claim = at_once(*arguments, linger=linger)
    if linger:
        take.LINGER = 0.05
        print(f"waited {{time.monotonic() - began}}", flush=True)
    return claim
runner.lease.take = noted
"""


def test_a_lingering_runner_is_woken_and_takes_work_freed_by_its_own_outcome(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    """Nobody sends a wake-up here: ``a`` is taken, and ``b`` is offered only when the runner waits
    already.
    """
    steps = [{"python": "fleet_steps:my_pid"}]
    job = coordinator.submit(group("a", steps=steps), group("b", "a", steps=steps))
    coordinator.read()
    (offer,) = coordinator.sent
    out = tmp_path / "runner"
    out.mkdir()
    with single_runner(
        coordinator.settings.redis_url, out, offer, prepared=NOTES_ITS_WAITS
    ) as runner:
        wait_until(lambda: _blocked(coordinator), 60, "the runner to wait for a notice")
        assert coordinator.events(job, "b") == []
        wait_until(lambda: _ended(coordinator, job), 30, "the job to end")
        assert coordinator.status(job) is Status.FINISHED
        first, second, done = runner.said()
    assert float(first.removeprefix("waited ")) < WAIT, "the notice ended the wait, not its time"
    assert second.startswith("waited "), "nothing stood ready after b"
    assert done == "succeeded APPLIED"


def _ended(coordinator: Coordinator, job: str) -> bool:
    coordinator.read()
    return coordinator.status(job).terminal


def _blocked(coordinator: Coordinator) -> bool:
    return any(
        client["cmd"] == "blpop" and "b" in client["flags"]
        for client in coordinator.redis.client_list()
    )


def test_a_scratch_folder_is_created_on_first_use(tmp_path: Path) -> None:
    with Scratch(tmp_path) as scratch:
        assert list(tmp_path.iterdir()) == []
        assert [scratch.folder] == list(tmp_path.iterdir())
        assert scratch.folder.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_the_plan_of_a_fork_is_parsed_once_for_all_members(coordinator: Coordinator) -> None:
    coordinator.submit(
        group("w", for_each={"n": list(range(5))}), params={"one": "of this test alone"}
    )
    coordinator.read()
    orders = [coordinator.claim(offer).work_order for offer in coordinator.offers()]
    assert sorted(str(order.frozen.value) for order in orders) == [str(n) for n in range(5)]
    assert all(order.plan is orders[0].plan for order in orders)
