"""Everybody at the same instant: still one attempt, and the user's own error stays in sight."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.support.coordinator import Head, failed, group
from tests.support.servers import wait_until
from unstuck.coordinator.commands.job import Command
from unstuck.coordinator.model.status import Status
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind

WANTED: dict[Command | None, Status] = {Command.PAUSE: Status.PAUSED, Command.CANCEL: Status.CANCELED}


@pytest.mark.parametrize("given", [None, Command.RESUME, Command.PAUSE, Command.CANCEL], ids=str)
def test_ten_sweeps_two_coordinators_and_a_command_hit_a_retrying_job_and_make_one_attempt(
    make_head: Callable[..., Head], given: Command | None
) -> None:
    heads = [make_head() for _ in range(2)]
    head = heads[0]
    job = head.submit(group("a", retry={"max": 3, "backoff": "100ms", "jitter": 0}))
    head.read()
    (first,) = head.hints()
    head.claim(first)
    head.read()
    head.finish(first.held_by("runner1"), failed())
    head.read()
    assert head.status(job) is Status.RETRYING
    assert not head.sent, "it waits out its backoff: the attempt below is made in the race, not before it"
    wait_until(lambda: head.due_in(job) < 0, 10, "the backoff to be over, and nobody to have looked")
    start = threading.Barrier(13)

    def at_once(act: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            start.wait()
            act()

        return run

    acts: list[Callable[[], object]] = [one.sweep.run for one in heads for _ in range(5)]
    acts += [one.read for one in heads]
    acts.append(lambda: head.client.command(job, given) if given is not None else None)
    threads = [threading.Thread(target=at_once(act)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def settled() -> bool:
        for one in heads:
            one.read()
            one.sweep.run()
        if given in WANTED:
            return head.status(job) is WANTED[given]
        return any(one.sent for one in heads)

    wait_until(settled, 10, "the job to go on, or to be where the user wanted it")
    hints = {hint for one in heads for hint in one.sent}
    record = head.show(job).groups[0].members[0].record
    if given in WANTED:
        assert not {hint for hint in hints if head.claim(hint).answer == "CLAIMED"}
        assert head.status(job) is WANTED[given]
    else:
        assert {hint.epoch for hint in hints} == {2}
        assert len(hints) == 1, "sent twice perhaps, and one attempt"
        assert head.events(job, "a").count("QUEUED") == 2
    assert record.failures == 1, "one failure is charged once"


def test_a_lost_worker_never_hides_the_users_own_traceback(head: Head) -> None:
    job = head.submit(group("a", retry={"max": 3, "backoff": 0}, worker_losses=2))
    head.read()
    own = Failure("STEP_FAILED", "no such table: flights", True, 'File "steps.py", line 7, in clean')
    (hint,) = head.hints()
    head.work(hint, Outcome(OutcomeKind.FAILED, failure=own))
    lost = Outcome(OutcomeKind.LOST, failure=Failure("WORKER_LOST", "killed by signal 9"))
    for _ in range(2):
        head.redis.zadd(head.keys.due, {job: 0}, xx=True)
        head.read()
        head.sweep.run()

        def offered() -> bool:
            head.redis.zadd(head.keys.due, {job: 0}, xx=True)
            head.sweep.run()
            return bool(head.sent)

        wait_until(offered, 10, "the next attempt")
        head.work(head.hints()[-1], lost)
        head.read()
    assert head.status(job) is Status.FAILED
    record = head.show(job).groups[0].members[0].record
    assert record.reason is not None
    assert record.reason.code == "POISON"
    assert record.first_error == own, "with its traceback"
    assert record.last_error is not None
    assert record.last_error.code == "WORKER_LOST"
    reason = head.show(job).job.reason
    assert reason is not None
    assert "no such table: flights" in reason.text, "and the job says it too"
