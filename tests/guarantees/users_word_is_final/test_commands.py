"""Promise 3: no failure, retry, timeout or late report changes what the user asked for."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guarantees.shown_is_true.test_states import staged
from tests.support.coordinator import Head, failed, group, join
from unstuck.coordinator.commands.job import Command
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind
from unstuck.tasks.warehouse.log import Warehouse

RETRY = {"max": 3, "backoff": "1h", "jitter": 0}
WANTED = {
    Command.PAUSE: Status.PAUSED,
    Command.STOP: Status.STOPPED,
    Command.CANCEL: Status.CANCELED,
    Command.FORCE_STOP: Status.CANCELED,
}


def act(head: Head, job: str) -> None:
    """Let the coordinator bring about what is on record."""
    head.read()
    head.redis.zadd(head.keys.due, {job: 0}, xx=True)
    head.sweep.run()
    head.read()


def pending(head: Head) -> str:
    return head.submit(group("a"), group("b", "a"))


def queued(head: Head) -> str:
    job = pending(head)
    head.read()
    return job


def running(head: Head) -> str:
    job = queued(head)
    (hint,) = head.hints(job)
    head.claim(hint)
    head.read()
    assert head.status(job) is Status.RUNNING
    return job


def backoff(head: Head) -> str:
    job = head.submit(group("a", retry=RETRY), group("b", "a"))
    head.read()
    head.work(head.hints(job)[0], failed())
    head.read()
    assert head.status(job) is Status.RETRYING
    return job


def half_a_fork(head: Head) -> str:
    job = head.submit(group("w", for_each={"n": list(range(700))}), join("end", "w"), max_parallel=10)
    head.read()
    for hint in head.hints(job)[:4]:
        head.work(hint)
    head.read()
    return job


STATES = (pending, queued, running, backoff, half_a_fork)


def let_go(head: Head, job: str) -> None:
    """What a live runner does when it hears of the cancel: it ends its attempt."""
    for name, text in head.redis.hgetall(head.keys.of(job).attempts).items():
        attempt = json.loads(text)
        if attempt.get("claimant"):
            token = next(h for h in [_hint(job, name, attempt)]).held_by(attempt["claimant"])
            head.finish(token, Outcome(OutcomeKind.CANCELED))


def _hint(job: str, group_id: str, attempt: dict[str, object]):  # type: ignore[no-untyped-def]
    from unstuck.tasks.protocol.token import Hint

    return Hint(job, group_id, int(str(attempt["epoch"])), str(attempt["nonce"]))


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
@pytest.mark.parametrize("given", WANTED, ids=lambda given: given.name)
def test_every_command_in_every_state_ends_where_the_user_wanted(
    head: Head, given: Command, state: Callable[[Head], str]
) -> None:
    job = state(head)
    done = head.client.command(job, given, reason="night")
    assert done.answer == "DONE", done.text
    act(head, job)
    let_go(head, job)
    act(head, job)
    act(head, job)

    view = head.show(job)
    assert view.job.status is WANTED[given], view.job
    assert not head.redis.hlen(head.keys.of(job).attempts), "nothing can be claimed or renewed any more"
    for hint in head.hints():
        assert head.claim(hint, "late").answer in ("STALE", "HELD")
    if given is not Command.PAUSE:
        assert view.due is None
        assert all(GroupState(state).terminal for g in view.groups for state in g.census), "every group has ended"
    events = head.client.queries.events(job)
    assert [event["text"] for _, event in events if event["kind"] == f"USER_{given.name}"] == ["night"]
    assert Warehouse(head.settings.warehouse).head() == 0


@pytest.mark.parametrize("given", WANTED, ids=lambda given: given.name)
def test_the_same_command_twice_is_done_then_already_and_one_event(head: Head, given: Command) -> None:
    job = running(head)
    assert head.client.command(job, given).answer == "DONE"
    commit = head.show(job).job.commit
    assert head.client.command(job, given).answer == "ALREADY"
    assert head.show(job).job.commit == commit
    assert head.events(job).count(f"USER_{given.name}") == 1


@pytest.mark.parametrize(
    "outcome",
    [
        failed(),
        failed(recoverable=False),
        Outcome(OutcomeKind.LOST, failure=Failure("WORKER_LOST", "gone")),
        Outcome(OutcomeKind.FAILED, failure=Failure("TIMEOUT", "too long")),
        Outcome(OutcomeKind.RELEASED),
    ],
    ids=["step error", "for good", "lost", "timeout", "released"],
)
@pytest.mark.parametrize("first", ["pause", "failure"])
def test_a_pause_that_meets_a_failure_stands_until_the_resume(head: Head, outcome: Outcome, first: str) -> None:
    job = head.submit(group("a", retry={"max": 3, "backoff": 0}), group("b", "a"))
    head.read()
    (hint,) = head.hints()
    head.claim(hint)
    head.read()
    if first == "pause":
        head.client.pause(job)
        head.finish(hint.held_by("runner1"), outcome)
    else:
        head.finish(hint.held_by("runner1"), outcome)
        head.client.pause(job)
    act(head, job)

    assert head.status(job) is Status.PAUSED
    assert not head.sent, "no further attempt"
    act(head, job)
    assert head.status(job) is Status.PAUSED

    assert head.client.resume(job).answer == "DONE"
    act(head, job)
    if outcome.failure is not None and not outcome.failure.recoverable:
        assert head.status(job) is Status.FAILED
    else:
        assert [hint.epoch for hint in head.sent] == [2], "and then it goes on, exactly once"
        record = head.show(job).groups[0].members[0].record
        assert (record.failures, record.losses) == (0, 0), "with its full budget"


def test_paused_means_that_no_group_starts_although_hints_lie_in_the_broker(head: Head) -> None:
    job = queued(head)
    (hint,) = head.hints()
    head.client.pause(job)
    assert head.claim(hint).answer == "HELD", "before any coordinator has looked"
    act(head, job)
    assert head.status(job) is Status.PAUSED
    assert head.claim(hint).answer == "STALE"
    head.client.resume(job)
    act(head, job)
    (again,) = head.hints()
    assert head.claim(hint).answer == "STALE", "the hint of before the pause is worth nothing"
    assert head.claim(again).answer == "CLAIMED"


def test_a_claim_between_load_and_commit_is_not_taken_back_by_a_pause(head: Head) -> None:
    job = queued(head)
    (hint,) = head.hints()
    commit = head.store.commit
    head.client.pause(job)
    head.redis.hset(head.keys.of(job).job, "intent", "run")
    claimed = []

    def claim_first(*args: object) -> object:
        if not claimed:
            claimed.append(head.claim(hint).answer)
            head.redis.hset(head.keys.of(job).job, "intent", "pause")
        return commit(*args)  # type: ignore[arg-type]

    head.redis.hset(head.keys.of(job).job, "intent", "pause")
    load = head.store.load

    def load_then_allow(*args: object) -> object:
        state = load(*args)  # type: ignore[arg-type]
        head.redis.hset(head.keys.of(job).job, "intent", "run" if not claimed else "pause")
        return state

    head.store.commit = claim_first  # type: ignore[method-assign, assignment]
    head.store.load = load_then_allow  # type: ignore[method-assign, assignment]
    head.reconciler.reconcile(job)
    assert claimed == ["CLAIMED"]
    assert head.events(job, "a") == ["QUEUED", "RUNNING"], "the runner keeps what it has"
    assert head.status(job) is Status.PAUSING


@pytest.mark.parametrize("given", WANTED, ids=lambda given: given.name)
def test_a_command_is_obeyed_although_the_records_of_attempts_are_gone(head: Head, given: Command) -> None:
    """A store restored in part. The hint is offered anew and taken back, in one decision."""
    job = queued(head)
    head.redis.delete(head.keys.of(job).attempts)
    assert head.client.command(job, given).answer == "DONE"
    act(head, job)
    assert head.status(job) is WANTED[given]


def test_pause_now_hands_running_attempts_back_and_charges_nothing(head: Head) -> None:
    job = running(head)
    head.client.pause(job, now=True)
    act(head, job)
    attempt = json.loads(head.redis.hget(head.keys.of(job).attempts, "a") or "")
    token = _hint(job, "a", attempt).held_by("runner1")
    assert head.lease.renew(token, "host") == "DRAIN"
    head.finish(token, Outcome(OutcomeKind.RELEASED))
    act(head, job)
    assert head.status(job) is Status.PAUSED
    record = head.show(job).groups[0].members[0].record
    assert (record.failures, record.losses, record.releases) == (0, 0, 1)


def test_a_canceled_runner_hears_of_it_at_its_next_renewal(head: Head) -> None:
    job = running(head)
    attempt = json.loads(head.redis.hget(head.keys.of(job).attempts, "a") or "")
    token = _hint(job, "a", attempt).held_by("runner1")
    head.client.cancel(job)
    act(head, job)
    assert head.status(job) is Status.CANCELING
    assert head.lease.renew(token, "host") == "CANCEL"
    head.finish(token, Outcome(OutcomeKind.CANCELED))
    act(head, job)
    assert head.status(job) is Status.CANCELED


def test_a_cancel_whose_worker_is_dead_ends_at_the_deadline_by_itself(make_head: Callable[..., Head]) -> None:
    head = make_head(cancel_deadline=0.5, sweep_every=0.1)
    job = running(head)
    head.client.cancel(job)
    consumer = threading.Thread(target=head.consumer.run)
    consumer.start()
    try:
        head.wait_for(job, Status.CANCELED, timeout=5)
    finally:
        head.consumer.stopping.set()
        consumer.join()
    record = head.show(job).groups[0].members[0].record
    assert record.reason is not None
    assert record.reason.code == "UNCONFIRMED"
    assert "host:runner1" in record.reason.text


def test_a_force_stop_ends_the_job_at_once_and_late_success_changes_nothing(head: Head) -> None:
    job = running(head)
    attempt = json.loads(head.redis.hget(head.keys.of(job).attempts, "a") or "")
    token = _hint(job, "a", attempt).held_by("runner1")
    head.client.force_stop(job)
    head.read()  # one look is enough, and no worker is asked
    view = head.show(job)
    assert view.job.status is Status.CANCELED
    assert view.job.reason is not None
    assert view.job.reason.code == "FORCE_STOPPED"
    assert head.lease.renew(token, "host") == "STALE"
    assert head.finish(token) == "STALE"


def test_a_stronger_command_overrides_a_weaker_one_and_never_the_other_way_round(head: Head) -> None:
    job = running(head)
    assert head.client.pause(job).answer == "DONE"
    assert head.client.stop(job).answer == "DONE"
    assert head.client.pause(job).answer == "REFUSED"
    assert head.client.cancel(job).answer == "DONE"
    refused = head.client.stop(job)
    assert (refused.answer, "cancel" in refused.text) == ("REFUSED", True)
    assert head.client.resume(job).answer == "REFUSED"
    assert head.client.force_stop(job).answer == "DONE"


def test_resume_of_what_is_not_paused_says_that_it_goes_on_and_of_what_has_ended_is_refused(head: Head) -> None:
    retrying, going = backoff(head), running(head)
    for job, state in ((retrying, "RETRYING"), (going, "RUNNING")):
        commit = head.show(job).job.commit
        answered = head.client.resume(job)
        assert answered.answer == "ALREADY"
        assert job in answered.text
        assert state in answered.text
        assert head.show(job).job.commit == commit
    done = head.submit(group("only"))
    head.drive(done)
    refused = head.client.resume(done)
    assert refused.answer == "REFUSED"
    assert "FINISHED" in refused.text


@pytest.mark.parametrize("given", WANTED, ids=lambda given: given.name)
def test_a_command_whose_state_is_reached_changes_nothing_and_is_no_refusal(head: Head, given: Command) -> None:
    job = running(head)
    head.client.command(job, given)
    act(head, job)
    let_go(head, job)
    act(head, job)
    act(head, job)
    before = head.show(job).job
    assert before.status is WANTED[given]
    again = head.client.command(job, given)
    assert (again.answer, str(before.status) in again.text) == ("ALREADY", True)
    assert head.show(job).job == before


@pytest.mark.parametrize("given", [Command.STOP, Command.CANCEL, Command.FORCE_STOP], ids=lambda given: given.name)
@pytest.mark.parametrize("first", ["package", "command"])
def test_a_job_that_is_publishing_when_it_is_ended_is_what_the_slot_says(
    make_head: Callable[..., Head], given: Command, first: str
) -> None:
    """A publisher frozen inside publishing: exactly one of package and ABORT stands, and the status agrees."""
    head = make_head()
    job = head.submit(group("make"))
    head.read()
    (hint,) = head.hints()
    head.claim(hint)
    head.finish(hint.held_by("runner1"), staged(head, hint, "data"))
    publish = head.warehouses.publish
    frozen: list[Callable[[], object]] = []

    class Frozen(BaseException):
        pass

    def freeze(state: object, answered: Callable[[], None]) -> object:
        if first == "package":
            publish(state, answered)
        frozen.append(lambda: publish(state, answered))
        raise Frozen

    head.warehouses.publish = freeze  # type: ignore[method-assign, assignment]
    with pytest.raises(Frozen):
        head.read()
    other = make_head()
    assert other.client.command(job, given).answer == "DONE"
    other.redis.delete(other.keys.of(job).lock)
    act(other, job)
    wanted = Status.FINISHED if first == "package" else WANTED[given]
    assert other.status(job) is wanted

    frozen[0]()  # it thaws
    log = Warehouse(head.settings.warehouse)
    entries = [log.entry(n) for n in range(1, log.head() + 1)]
    assert [entry.kind for entry in entries if entry] == ["package" if first == "package" else "abort"]
    assert other.status(job) is wanted


def test_cancel_and_success_at_the_same_instant_give_one_status_that_both_see(make_head: Callable[..., Head]) -> None:
    for round_ in range(10):
        head, other = make_head(), make_head()
        job = head.submit(group("make"), name=f"race{round_}")
        head.read()
        (hint,) = head.hints(job)
        head.claim(hint)
        outcome = staged(head, hint, f"data{round_}")
        start = threading.Barrier(2)

        def succeed(
            head: Head = head, hint: object = hint, outcome: Outcome = outcome, start: threading.Barrier = start
        ) -> None:
            start.wait()
            head.finish(hint.held_by("runner1"), outcome)  # type: ignore[attr-defined]
            head.read()

        def cancel(other: Head = other, job: str = job, start: threading.Barrier = start) -> None:
            start.wait()
            other.client.cancel(job)
            other.read()

        threads = [threading.Thread(target=succeed), threading.Thread(target=cancel)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for one in (head, other):
            act(one, job)
        status = head.status(job)
        assert status in (Status.FINISHED, Status.CANCELED)
        assert other.status(job) is status
        slot = Warehouse(head.settings.warehouse).find_publish(job, 0)
        published = slot is not None and Warehouse(head.settings.warehouse).entry(slot).kind == "package"  # type: ignore[union-attr]
        assert published == (status is Status.FINISHED)


def test_300_jobs_canceled_in_one_loop_are_all_canceled_and_the_list_is_right(head: Head, tmp_path: Path) -> None:
    jobs = [head.submit(group("only"), name=f"many{number}") for number in range(300)]
    head.read()
    for hint in head.hints()[:40]:
        head.claim(hint)
    head.read()
    for job in jobs:
        assert head.client.cancel(job).answer == "DONE"
    head.read()
    for job in jobs:
        let_go(head, job)
    head.read()
    assert len(head.client.jobs(status=[Status.CANCELED], limit=1000)) == 300
    assert head.client.jobs(status=[s for s in Status if s is not Status.CANCELED], limit=1000) == []


def test_a_halted_job_can_be_resumed_and_canceled(head: Head) -> None:
    for end in ("resume", "cancel"):
        job = head.submit(group("only"), name=end)
        keys = head.keys.of(job)
        head.redis.set(keys.groups, "not a hash any more")
        for _ in range(2):
            head.redis.zadd(head.keys.due, {job: 0})
            head.sweep.run()
        assert head.status_of_record(job) is Status.PAUSED
        head.redis.delete(keys.groups)  # somebody mended it
        head.client.command(job, Command(end))
        act(head, job)
        if end == "cancel":
            assert head.status(job) is Status.CANCELED
        else:
            assert head.drive(job) is Status.FINISHED
