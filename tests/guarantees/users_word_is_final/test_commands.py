"""Promise 3: no failure, retry, timeout or late report changes what the user asked for."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.guarantees.shown_is_true.test_states import staged, to_publish
from tests.support.coordinator import Coordinator, failed, group, join
from unstuck import Status
from unstuck.coordinator.model.status import GroupState
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Offer
from unstuck.tasks.warehouse.log import Warehouse

RETRY = {"max": 3, "backoff": "1h", "jitter": 0}
WANTED = {
    "pause": Status.PAUSED,
    "stop": Status.STOPPED,
    "cancel": Status.CANCELED,
    "force-stop": Status.CANCELED,
}


def act(coordinator: Coordinator, job: str) -> None:
    """Let the coordinator bring about what is on record."""
    coordinator.read()
    coordinator.redis.zadd(coordinator.keys.due, {job: 0}, xx=True)
    coordinator.sweep.run()
    coordinator.read()


def pending(coordinator: Coordinator) -> str:
    return coordinator.submit(group("a"), group("b", "a"))


def queued(coordinator: Coordinator) -> str:
    job = pending(coordinator)
    coordinator.read()
    return job


def running(coordinator: Coordinator) -> str:
    job = queued(coordinator)
    (offer,) = coordinator.offers(job)
    coordinator.claim(offer)
    coordinator.read()
    assert coordinator.status(job) is Status.RUNNING
    return job


def backoff(coordinator: Coordinator) -> str:
    job = coordinator.submit(group("a", retry=RETRY), group("b", "a"))
    coordinator.read()
    coordinator.work(coordinator.offers(job)[0], failed())
    coordinator.read()
    assert coordinator.status(job) is Status.RETRYING
    return job


def half_a_fork(coordinator: Coordinator) -> str:
    job = coordinator.submit(
        group("w", for_each={"n": list(range(700))}), join("end", "w"), max_parallel=10
    )
    coordinator.read()
    for offer in coordinator.offers(job)[:4]:
        coordinator.work(offer)
    coordinator.read()
    return job


STATES = (pending, queued, running, backoff, half_a_fork)


def let_go(coordinator: Coordinator, job: str) -> None:
    """What a live runner does when it hears of the cancel: it ends its attempt."""
    for name, text in coordinator.redis.hgetall(coordinator.keys.of(job).attempts).items():
        attempt = json.loads(text)
        if attempt.get("claimant"):
            token = _offer(job, name, attempt).held_by(attempt["claimant"])
            coordinator.finish(token, Outcome(OutcomeKind.CANCELED))


def _offer(job: str, group_id: str, attempt: dict[str, object]) -> Offer:
    return Offer(job, group_id, int(str(attempt["epoch"])), str(attempt["nonce"]))


@pytest.mark.claim(
    "Every command ends in the state that the user asked for, whatever state the job is in."
)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
@pytest.mark.parametrize("given", WANTED)
def test_every_command_in_every_state_leads_to_the_requested_state(
    coordinator: Coordinator, given: str, state: Callable[[Coordinator], str]
) -> None:
    job = state(coordinator)
    done = coordinator.client.command(job, given, reason="night")
    assert done.answer == "DONE", done.text
    act(coordinator, job)
    let_go(coordinator, job)
    act(coordinator, job)
    act(coordinator, job)

    view = coordinator.show(job)
    assert view.status is WANTED[given], view
    assert not coordinator.redis.hlen(coordinator.keys.of(job).attempts), (
        "nothing can be claimed or renewed any more"
    )
    for offer in coordinator.offers():
        assert coordinator.claim(offer, "late").answer == "REFUSED"
    if given != "pause":
        assert view.due_at is None
        assert all(GroupState(state).terminal for g in view.groups for state in g.states), (
            "every group has ended"
        )
    events = list(coordinator.client.events(job))
    assert [
        event["text"]
        for _, event in events
        if event["kind"] == f"USER_{given.upper().replace('-', '_')}"
    ] == ["night"]
    assert Warehouse(coordinator.settings.warehouse).head() == 0


@pytest.mark.claim(
    "A repeated command has no further effect, and a weaker one never replaces a stronger one."
)
@pytest.mark.parametrize("given", WANTED)
def test_a_repeated_command_changes_nothing_and_is_logged_once(
    coordinator: Coordinator, given: str
) -> None:
    job = running(coordinator)
    assert coordinator.client.command(job, given).answer == "DONE"
    commit = coordinator.record(job).commit
    assert coordinator.client.command(job, given).answer == "ALREADY"
    assert coordinator.record(job).commit == commit
    assert coordinator.events(job).count(f"USER_{given.upper().replace('-', '_')}") == 1


@pytest.mark.claim(
    "A command of a user holds against every failure, whichever of the two comes first."
)
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
def test_a_pause_during_a_failure_lasts_until_the_resume(
    coordinator: Coordinator, outcome: Outcome, first: str
) -> None:
    job = coordinator.submit(group("a", retry={"max": 3, "backoff": 0}), group("b", "a"))
    coordinator.read()
    (offer,) = coordinator.offers()
    coordinator.claim(offer)
    coordinator.read()
    if first == "pause":
        coordinator.client.pause(job)
        coordinator.finish(offer.held_by("runner1"), outcome)
    else:
        coordinator.finish(offer.held_by("runner1"), outcome)
        coordinator.client.pause(job)
    act(coordinator, job)

    assert coordinator.status(job) is Status.PAUSED
    assert not coordinator.sent, "no further attempt"
    act(coordinator, job)
    assert coordinator.status(job) is Status.PAUSED

    assert coordinator.client.resume(job).answer == "DONE"
    act(coordinator, job)
    if outcome.failure is not None and not outcome.failure.recoverable:
        assert coordinator.status(job) is Status.FAILED
    else:
        assert [offer.epoch for offer in coordinator.sent] == [2], (
            "and then it goes on, exactly once"
        )
        record = coordinator.show(job).groups[0].members[0]
        assert (record.failures, record.losses) == (0, 0), "with its full budget"


@pytest.mark.claim("No group starts in a paused job.")
def test_no_group_of_a_paused_job_starts_although_its_offer_is_ready(
    coordinator: Coordinator,
) -> None:
    job = queued(coordinator)
    (offer,) = coordinator.sent
    coordinator.client.pause(job)
    assert coordinator.claim(offer).answer == "REFUSED", "before any coordinator has looked"
    act(coordinator, job)
    assert coordinator.status(job) is Status.PAUSED
    assert coordinator.claim(offer).answer == "REFUSED"
    coordinator.client.resume(job)
    act(coordinator, job)
    (again,) = coordinator.offers()
    assert coordinator.claim(offer).answer == "REFUSED", (
        "the offer of before the pause is worth nothing"
    )
    assert coordinator.claim(again).answer == "CLAIMED"


def test_a_pause_does_not_withdraw_a_claim_between_load_and_commit(
    coordinator: Coordinator,
) -> None:
    job = queued(coordinator)
    (offer,) = coordinator.offers()
    commit = coordinator.store.commit
    coordinator.client.pause(job)
    coordinator.redis.hset(coordinator.keys.of(job).job, "intent", "run")
    claimed = []

    def claim_first(*args: object) -> object:
        if not claimed:
            claimed.append(coordinator.claim(offer).answer)
            coordinator.redis.hset(coordinator.keys.of(job).job, "intent", "pause")
        return commit(*args)  # type: ignore[arg-type]

    coordinator.redis.hset(coordinator.keys.of(job).job, "intent", "pause")
    load = coordinator.store.load

    def load_then_allow(*args: object) -> object:
        state = load(*args)  # type: ignore[arg-type]
        coordinator.redis.hset(
            coordinator.keys.of(job).job, "intent", "run" if not claimed else "pause"
        )
        return state

    coordinator.store.commit = claim_first  # type: ignore[method-assign, assignment]
    coordinator.store.load = load_then_allow  # type: ignore[method-assign, assignment]
    coordinator.reconciler.reconcile(job)
    assert claimed == ["CLAIMED"]
    assert coordinator.events(job, "a") == ["QUEUED", "RUNNING"], "the runner keeps what it has"
    assert coordinator.status(job) is Status.PAUSING


def test_an_offer_dropped_during_a_pause_returns_immediately_after_the_resume(
    coordinator: Coordinator,
) -> None:
    """No coordinator has looked in between, so the attempt is still the same one."""
    job = queued(coordinator)
    coordinator.client.pause(job)
    assert coordinator.lease.take(["light"], "early", "host", "event") is None
    assert not coordinator.sent, "it was dropped"
    coordinator.client.resume(job)
    act(coordinator, job)
    (offer,) = coordinator.sent
    assert offer.epoch == 1
    assert coordinator.drive(job) is Status.FINISHED


@pytest.mark.parametrize("given", WANTED)
def test_unclaimed_offers_withdrawn_by_a_command_leave_the_ready_set(
    coordinator: Coordinator, given: str
) -> None:
    job, other = half_a_fork(coordinator), queued(coordinator)
    assert {offer.job for offer in coordinator.sent} == {job, other}
    assert coordinator.client.command(job, given).answer == "DONE"
    act(coordinator, job)
    assert {offer.job for offer in coordinator.sent} == {other}


@pytest.mark.parametrize("given", WANTED)
def test_commands_work_although_the_records_of_attempts_are_lost(
    coordinator: Coordinator, given: str
) -> None:
    """A store restored in part. The offer is offered again and taken back, in one decision."""
    job = queued(coordinator)
    coordinator.redis.delete(coordinator.keys.of(job).attempts)
    assert coordinator.client.command(job, given).answer == "DONE"
    act(coordinator, job)
    assert coordinator.status(job) is WANTED[given]


def test_an_immediate_pause_hands_running_attempts_back_without_charging_a_retry(
    coordinator: Coordinator,
) -> None:
    job = running(coordinator)
    coordinator.client.pause(job, now=True)
    act(coordinator, job)
    attempt = json.loads(coordinator.redis.hget(coordinator.keys.of(job).attempts, "a") or "")
    token = _offer(job, "a", attempt).held_by("runner1")
    assert coordinator.lease.renew(token, "host") == "DRAIN"
    coordinator.finish(token, Outcome(OutcomeKind.RELEASED))
    act(coordinator, job)
    assert coordinator.status(job) is Status.PAUSED
    record = coordinator.show(job).groups[0].members[0]
    assert (record.failures, record.losses, record.releases) == (0, 0, 1)


def test_a_canceled_runner_is_informed_at_its_next_renewal(coordinator: Coordinator) -> None:
    job = running(coordinator)
    attempt = json.loads(coordinator.redis.hget(coordinator.keys.of(job).attempts, "a") or "")
    token = _offer(job, "a", attempt).held_by("runner1")
    coordinator.client.cancel(job)
    act(coordinator, job)
    assert coordinator.status(job) is Status.CANCELING
    assert coordinator.lease.renew(token, "host") == "CANCEL"
    coordinator.finish(token, Outcome(OutcomeKind.CANCELED))
    act(coordinator, job)
    assert coordinator.status(job) is Status.CANCELED


@pytest.mark.claim("A cancel ends at its deadline even if the worker is dead.")
def test_a_cancel_with_a_dead_worker_ends_at_its_deadline(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(cancel_deadline=0.5, sweep_every=0.1)
    job = running(coordinator)
    coordinator.client.cancel(job)
    consumer = threading.Thread(target=coordinator.consumer.run)
    consumer.start()
    try:
        coordinator.wait_for(job, Status.CANCELED)
    finally:
        coordinator.consumer.stopping.set()
        consumer.join()
    record = coordinator.show(job).groups[0].members[0]
    assert record.reason is not None
    assert record.reason.code == "UNCONFIRMED"
    assert "host:runner1" in record.reason.text


def test_a_force_stop_ends_the_job_immediately_and_late_success_changes_nothing(
    coordinator: Coordinator,
) -> None:
    job = running(coordinator)
    attempt = json.loads(coordinator.redis.hget(coordinator.keys.of(job).attempts, "a") or "")
    token = _offer(job, "a", attempt).held_by("runner1")
    coordinator.client.force_stop(job)
    coordinator.read()  # one look is enough, and no worker is asked
    view = coordinator.show(job)
    assert view.status is Status.CANCELED
    assert view.reason is not None
    assert view.reason.code == "FORCE_STOPPED"
    assert coordinator.lease.renew(token, "host") == "STALE"
    assert coordinator.finish(token) == "STALE"


@pytest.mark.claim(
    "A repeated command has no further effect, and a weaker one never replaces a stronger one."
)
def test_a_stronger_command_overrides_a_weaker_one_but_not_vice_versa(
    coordinator: Coordinator,
) -> None:
    job = running(coordinator)
    assert coordinator.client.pause(job).answer == "DONE"
    assert coordinator.client.stop(job).answer == "DONE"
    assert coordinator.client.pause(job).answer == "REFUSED"
    assert coordinator.client.cancel(job).answer == "DONE"
    refused = coordinator.client.stop(job)
    assert (refused.answer, "cancel" in refused.text) == ("REFUSED", True)
    assert coordinator.client.resume(job).answer == "REFUSED"
    assert coordinator.client.force_stop(job).answer == "DONE"


def test_resume_is_refused_for_retrying_or_ended_jobs_and_ignored_for_running_jobs(
    coordinator: Coordinator,
) -> None:
    retrying, going = backoff(coordinator), running(coordinator)
    for job, state, answer in ((retrying, "RETRYING", "REFUSED"), (going, "RUNNING", "ALREADY")):
        commit = coordinator.record(job).commit
        answered = coordinator.client.resume(job)
        assert answered.answer == answer
        assert job in answered.text
        assert state in answered.text
        assert coordinator.record(job).commit == commit
    done = coordinator.submit(group("only"))
    coordinator.drive(done)
    refused = coordinator.client.resume(done)
    assert refused.answer == "REFUSED"
    assert "FINISHED" in refused.text


@pytest.mark.parametrize("given", WANTED)
def test_a_command_whose_target_state_is_reached_is_not_a_refusal(
    coordinator: Coordinator, given: str
) -> None:
    job = running(coordinator)
    coordinator.client.command(job, given)
    act(coordinator, job)
    let_go(coordinator, job)
    act(coordinator, job)
    act(coordinator, job)
    before = coordinator.show(job)
    assert before.status is WANTED[given]
    again = coordinator.client.command(job, given)
    assert (again.answer, str(before.status) in again.text) == ("ALREADY", True)
    assert coordinator.show(job) == before


@pytest.mark.claim(
    "A job that is ended while it publishes is FINISHED only if its package is in the log."
)
@pytest.mark.parametrize("given", ["stop", "cancel", "force-stop"])
@pytest.mark.parametrize("first", ["package", "command"])
def test_the_log_entry_decides_the_end_of_a_job_ended_while_publishing(
    make_coordinator: Callable[..., Coordinator], given: str, first: str
) -> None:
    """A publisher frozen inside publishing: exactly one of package and ABORT stands, and the status
    agrees.
    """
    coordinator = make_coordinator()
    job = to_publish(coordinator)
    publish = coordinator.warehouses.publish
    frozen: list[Callable[[], object]] = []

    class Frozen(BaseException):
        pass

    def freeze(state: object, answered: Callable[[], None]) -> object:
        if first == "package":
            publish(state, answered)
        frozen.append(lambda: publish(state, answered))
        raise Frozen

    coordinator.warehouses.publish = freeze  # type: ignore[method-assign, assignment]
    with pytest.raises(Frozen):
        coordinator.read()
    other = make_coordinator()
    assert other.client.command(job, given).answer == "DONE"
    other.redis.delete(other.keys.of(job).lock)
    act(other, job)
    wanted = Status.FINISHED if first == "package" else WANTED[given]
    assert other.status(job) is wanted

    frozen[0]()  # it thaws
    log = Warehouse(coordinator.settings.warehouse)
    entries = [log.entry(n) for n in range(1, log.head() + 1)]
    assert [entry.kind for entry in entries if entry] == [
        "package" if first == "package" else "abort"
    ]
    assert other.status(job) is wanted


def test_a_pause_of_a_publishing_job_reports_that_it_is_too_late(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    """On the command line as in the API, at first and when it is repeated."""
    job, cli = coordinator.submit(group("make")), Cli(coordinator.settings.redis_url, tmp_path)
    coordinator.read()
    (offer,) = coordinator.offers()
    coordinator.claim(offer)
    assert "too late" not in coordinator.client.pause(job).text
    coordinator.client.resume(job)
    coordinator.finish(offer.held_by("runner1"), staged(coordinator, offer, "data"))
    said: list[str] = []

    def pause() -> None:
        told = coordinator.client.pause(job)
        assert told.answer == "DONE"
        assert coordinator.status(job) is not Status.PAUSED
        shown = cli("pause", job)
        assert shown.returncode == 0
        said.extend([told.text, shown.stdout, cli.json("pause", job)[0]["text"]])

    coordinator.warehouses.before_publish = pause
    coordinator.read()
    assert len(said) == 3
    for text in said:
        assert "too late" in text
        assert f"unstuck cancel {job}" in text
    assert coordinator.status(job) is Status.FINISHED


def test_attempts_claimed_before_a_pause_do_not_appear_to_start_after_it(
    coordinator: Coordinator,
) -> None:
    """The pause falls between the claim and the commit that applies the claim."""
    job = queued(coordinator)
    (offer,) = coordinator.offers(job)
    coordinator.claim(offer)
    coordinator.client.pause(job)
    act(coordinator, job)
    view = coordinator.show(job)
    (claimed_at,) = [member.claimed_at for member in view.groups[0].members if member.claimed_at]
    assert claimed_at < view.intent_at
    at = {event["kind"]: event["at"] for _, event in coordinator.client.events(job)}
    assert at["RUNNING"] == pytest.approx(claimed_at, abs=1e-5)
    assert at["QUEUED"] <= at["RUNNING"] <= at["USER_PAUSE"]
    assert view.started_at == pytest.approx(claimed_at, abs=1e-5)
    why = {found.subject: found.since for found in coordinator.client.explain(job)}
    assert why["a"] == pytest.approx(claimed_at, abs=1e-5)


@pytest.mark.variant
def test_simultaneous_cancel_and_success_give_one_consistent_status(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    for round_ in range(10):
        coordinator, other = make_coordinator(), make_coordinator()
        job = coordinator.submit(group("make"), name=f"race{round_}")
        coordinator.read()
        (offer,) = coordinator.offers(job)
        coordinator.claim(offer)
        outcome = staged(coordinator, offer, f"data{round_}")
        start = threading.Barrier(2)

        def succeed(
            coordinator: Coordinator = coordinator,
            offer: object = offer,
            outcome: Outcome = outcome,
            start: threading.Barrier = start,
        ) -> None:
            start.wait()
            coordinator.finish(offer.held_by("runner1"), outcome)  # type: ignore[attr-defined]
            coordinator.read()

        def cancel(
            other: Coordinator = other, job: str = job, start: threading.Barrier = start
        ) -> None:
            start.wait()
            other.client.cancel(job)
            other.read()

        threads = [threading.Thread(target=succeed), threading.Thread(target=cancel)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for one in (coordinator, other):
            act(one, job)
        status = coordinator.status(job)
        assert status in (Status.FINISHED, Status.CANCELED)
        assert other.status(job) is status
        slot = Warehouse(coordinator.settings.warehouse).find_publish(job, 0)
        published = (
            slot is not None
            and Warehouse(coordinator.settings.warehouse).entry(slot).kind == "package"
        )  # type: ignore[union-attr]
        assert published == (status is Status.FINISHED)


@pytest.mark.variant
def test_300_jobs_canceled_in_one_loop_are_all_canceled_in_the_list(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    jobs = [coordinator.submit(group("only"), name=f"many{number}") for number in range(300)]
    coordinator.read()
    for offer in coordinator.offers()[:40]:
        coordinator.claim(offer)
    coordinator.read()
    for job in jobs:
        assert coordinator.client.cancel(job).answer == "DONE"
    coordinator.read()
    for job in jobs:
        let_go(coordinator, job)
    coordinator.read()
    assert len(coordinator.client.jobs(status=[Status.CANCELED], limit=1000)) == 300
    assert (
        coordinator.client.jobs(status=[s for s in Status if s is not Status.CANCELED], limit=1000)
        == []
    )


def test_a_halted_job_can_be_resumed_and_canceled(coordinator: Coordinator) -> None:
    for end in ("resume", "cancel"):
        job = coordinator.submit(group("only"), name=end)
        keys = coordinator.keys.of(job)
        coordinator.redis.set(keys.groups, "not a hash any more")
        for _ in range(2):
            coordinator.redis.zadd(coordinator.keys.due, {job: 0})
            coordinator.sweep.run()
        assert coordinator.status_of_record(job) is Status.HALTED
        coordinator.redis.delete(keys.groups)  # somebody mended it
        coordinator.client.command(job, end)
        act(coordinator, job)
        if end == "cancel":
            assert coordinator.status(job) is Status.CANCELED
        else:
            assert coordinator.drive(job) is Status.FINISHED
