"""A copy of a script that lay in an old connection changes nothing, and jobs take turns on a queue.

redis-py repeats a command on a new connection when no reply came. The first copy may be executed
afterwards, when its caller has long had its answer and asked for something else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.coordinator import SUCCEEDED, Coordinator, group
from unstuck.coordinator.store.runner_wake_ups import idle_runner
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.runner.take import run_ready
from unstuck.tasks.transport.lease import FinishAnswer, Lease


@pytest.fixture
def coordinator(make_coordinator: Callable[..., Coordinator]) -> Coordinator:
    return make_coordinator()


def copies(lease: Lease, script: str) -> list[Callable[[], Any]]:
    """Each call of a script of ``lease`` from now on, to be made once more."""
    made: list[Callable[[], Any]] = []
    run = getattr(lease, script)

    def recorded(*arguments: Any, **values: Any) -> Any:
        made.append(partial(run, *arguments, **values))
        return run(*arguments, **values)

    setattr(lease, script, recorded)
    return made


def take(lease: Lease, claimant: str, *queues: str) -> Any:
    return lease.take(queues or ("light",), claimant, "host:1", f"claim-{claimant}")


def test_a_delayed_copy_of_a_take_claims_nothing(coordinator: Coordinator) -> None:
    coordinator.submit(group("a"), group("b"), group("c"))
    coordinator.read()
    lease = coordinator.lease_of("r1")
    made = copies(lease, "_take")
    first = take(lease, "c1")
    assert made[0]()[1] == str(first.token.offer), "a repeat gets the same attempt while it runs"
    assert lease.finish(first.token, SUCCEEDED, "f1") is FinishAnswer.APPLIED
    standing = coordinator.sent
    assert made[0]() == ["EMPTY"], "and none when it has ended"
    second = take(lease, "c2")
    assert made[0]() == ["EMPTY"]
    assert made[1]()[1] == str(second.token.offer), (
        "nor does an old copy change what a repeat of the last take gets"
    )
    assert coordinator.sent == standing[1:]


def test_a_delayed_copy_of_an_empty_take_claims_nothing_later(coordinator: Coordinator) -> None:
    lease = coordinator.lease_of("r1")
    made = copies(lease, "_take")
    assert take(lease, "c1") is None
    coordinator.submit(group("a"))
    coordinator.read()
    assert made[0]() == ["EMPTY"]
    assert len(coordinator.sent) == 1
    assert take(lease, "c2") is not None


def test_a_delayed_copy_of_a_finish_is_not_a_refusal(coordinator: Coordinator) -> None:
    job = coordinator.submit(group("a"), group("b"))
    coordinator.read()
    lease = coordinator.lease_of("r1")
    made = copies(lease, "_finish")
    for n in (1, 2):
        claim = take(lease, f"c{n}")
        assert lease.finish(claim.token, SUCCEEDED, f"f{n}") is FinishAnswer.APPLIED
    coordinator.read()
    assert [copy() for copy in made] == ["DUPLICATE", "DUPLICATE"]
    coordinator.read()
    assert "REPORT_REFUSED" not in coordinator.events(job)


def test_a_small_job_goes_first_regardless_of_takes_on_other_queues(
    coordinator: Coordinator,
) -> None:
    wide = coordinator.submit(group("w", for_each={"n": list(range(64))}, queue="slow"))
    coordinator.read()
    lease = coordinator.lease_of("r1")
    for n in range(10):
        coordinator.submit(group("quick"))
        coordinator.read()
        assert take(lease, f"q{n}") is not None
    small = coordinator.submit(group("s", queue="slow"))
    coordinator.read()
    taken = [take(lease, f"s{n}", "slow").token.job for n in range(3)]
    assert small in taken
    assert wide in taken


def test_offers_withdrawn_by_a_pause_do_not_cost_the_job_its_turn(coordinator: Coordinator) -> None:
    wide = coordinator.submit(group("w", for_each={"n": list(range(64))}))
    coordinator.read()
    for _ in range(3):
        coordinator.client.pause(wide)
        coordinator.read()
        coordinator.client.resume(wide)
        coordinator.read()
    other = coordinator.submit(group("o", for_each={"n": list(range(64))}))
    coordinator.read()
    lease = coordinator.lease_of("r1")
    taken = [take(lease, f"c{n}").token.job for n in range(8)]
    assert min(taken.count(wide), taken.count(other)) >= 3, "they take turns from the next turn on"


def test_an_internal_error_replaces_the_runner() -> None:
    """Else it would wait for work as if it could do any, and every wake-up for it would be lost."""
    replaced: list[bool] = []

    def broken(*_: Any, **__: Any) -> Any:
        raise MemoryError

    lease = SimpleNamespace(take=broken, taken=lambda claimant: None)
    runner: Any = SimpleNamespace(
        watchdog=SimpleNamespace(taken=lambda: None),
        queues=("light",),
        may_take=lambda: True,
        takes_from=list,
        lease=lease,
        name="host:1",
        settings=SimpleNamespace(dispatch_timeout=1.0),
        replace=lambda: replaced.append(True),
    )
    with pytest.raises(MemoryError):
        run_ready(runner)
    assert replaced


def test_a_wake_up_of_a_queue_added_later_is_served() -> None:
    """`celery control add_consumer` gives a worker a queue of which its runners were not told."""
    asked: list[list[str]] = []
    lease = SimpleNamespace(take=lambda queues, *_, **__: asked.append(list(queues)))
    runner: Any = SimpleNamespace(
        watchdog=SimpleNamespace(taken=lambda: None),
        queues=("light",),
        may_take=lambda: True,
        takes_from=list,
        lease=lease,
        name="host:1",
        settings=SimpleNamespace(dispatch_timeout=1.0),
    )
    run_ready(runner, "added")
    assert asked == [["added", "light"], ["light", "added"]], "and no queue always comes first"


@pytest.mark.parametrize(
    ("said", "idle_since", "idle"),
    [
        (0.0, 5.0, True),  # it never said anything
        (0.0, None, False),
        (11.0, 5.0, False),  # it took offers after its watchdog spoke
        (-11.0, None, True),  # it went to sleep after its watchdog spoke
        (9.0, 5.0, True),  # its watchdog spoke after it took offers: it cannot say that it sleeps
        (5000.0, 5.0, True),  # said before the clock was set back
    ],
)
def test_the_latest_message_decides_whether_a_runner_is_idle(
    said: float, idle_since: float | None, idle: bool
) -> None:
    one = RunnerInfo(
        id="r",
        host="h",
        pid=1,
        worker_pid=1,
        queues=("light",),
        heard_at=10.0,
        idle_since=idle_since,
    )
    assert idle_runner(one, said, now=12.0) is idle


def test_a_resume_caused_by_a_report_repeats_dropped_offers_immediately(
    coordinator: Coordinator,
) -> None:
    """The pass for a report may come before that for the command, and looks at one group alone."""
    job = coordinator.submit(group("a"), group("b"))
    coordinator.read()
    a, b = coordinator.offers()
    coordinator.claim(a)
    coordinator.read()  # a coordinator knows the job now
    coordinator.client.pause(job)
    assert coordinator.claim(b).answer == "REFUSED"
    coordinator.client.resume(job)
    coordinator.finish(a.held_by("runner1"))
    reports = [
        entry for entry in coordinator.stream.read(500, 0.001) if entry.fields["kind"] != "due"
    ]
    coordinator.consumer.apply(reports)
    assert coordinator.sent == [b]
