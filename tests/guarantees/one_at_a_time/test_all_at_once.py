"""Everybody at the same instant: still one attempt, and the user's own error stays in sight."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.support.coordinator import Coordinator, failed, group
from tests.support.servers import wait_until
from unstuck import Status
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind

WANTED: dict[str | None, Status] = {
    "pause": Status.PAUSED,
    "cancel": Status.CANCELED,
}


@pytest.mark.parametrize("given", [None, "resume", "pause", "cancel"], ids=str)
def test_concurrent_sweeps_and_a_command_start_only_one_attempt(
    make_coordinator: Callable[..., Coordinator], given: str | None
) -> None:
    coordinators = [make_coordinator() for _ in range(2)]
    coordinator = coordinators[0]
    job = coordinator.submit(group("a", retry={"max": 3, "backoff": "100ms", "jitter": 0}))
    coordinator.read()
    (first,) = coordinator.offers()
    coordinator.claim(first)
    coordinator.read()
    coordinator.finish(first.held_by("runner1"), failed())
    coordinator.read()
    assert coordinator.status(job) is Status.RETRYING
    assert not coordinator.sent, (
        "it waits out its backoff: the attempt below is made in the race, not before it"
    )
    wait_until(
        lambda: coordinator.due_in(job) < 0, 10, "the backoff to be over, and nobody to have looked"
    )
    start = threading.Barrier(13)

    def at_once(act: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            start.wait()
            act()

        return run

    acts: list[Callable[[], object]] = [one.sweep.run for one in coordinators for _ in range(5)]
    acts += [one.read for one in coordinators]
    acts.append(lambda: coordinator.client.command(job, given) if given is not None else None)
    threads = [threading.Thread(target=at_once(act)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def settled() -> bool:
        for one in coordinators:
            one.read()
            one.sweep.run()
        if given in WANTED:
            return coordinator.status(job) is WANTED[given]
        return bool(coordinator.sent)

    wait_until(settled, 10, "the job to go on, or to be where the user wanted it")
    offers = coordinator.sent
    record = coordinator.show(job).groups[0].members[0]
    if given in WANTED:
        assert not offers, "what nobody may take does not stand"
        assert coordinator.status(job) is WANTED[given]
    else:
        assert [offer.epoch for offer in offers] == [2], "one attempt"
        assert coordinator.events(job, "a").count("QUEUED") == 2
    assert record.failures == 1, "one failure is charged once"


def test_a_lost_worker_never_hides_the_traceback_of_the_user(coordinator: Coordinator) -> None:
    job = coordinator.submit(group("a", retry={"max": 3, "backoff": 0}, worker_losses=2))
    coordinator.read()
    own = Failure(
        "STEP_FAILED", "no such table: flights", True, 'File "steps.py", line 7, in clean'
    )
    (offer,) = coordinator.offers()
    coordinator.work(offer, Outcome(OutcomeKind.FAILED, failure=own))
    lost = Outcome(OutcomeKind.LOST, failure=Failure("WORKER_LOST", "killed by signal 9"))
    for _ in range(2):
        coordinator.redis.zadd(coordinator.keys.due, {job: 0}, xx=True)
        coordinator.read()
        coordinator.sweep.run()

        def offered() -> bool:
            coordinator.redis.zadd(coordinator.keys.due, {job: 0}, xx=True)
            coordinator.sweep.run()
            return bool(coordinator.sent)

        wait_until(offered, 10, "the next attempt")
        coordinator.work(coordinator.offers()[-1], lost)
        coordinator.read()
    assert coordinator.status(job) is Status.FAILED
    record = coordinator.show(job).groups[0].members[0]
    assert record.reason is not None
    assert record.reason.code == "POISON"
    assert record.first_error == own, "with its traceback"
    assert record.last_error is not None
    assert record.last_error.code == "WORKER_LOST"
    reason = coordinator.show(job).reason
    assert reason is not None
    assert "no such table: flights" in reason.text, "and the job says it too"
