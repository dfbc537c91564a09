"""Promise 4 again: what was given a time is given up when it is over, and never what came in
between.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.guarantees.nothing_is_forgotten.test_faulty_environment import set_clock_back
from tests.guarantees.shown_is_true.test_states import staged
from tests.support import fleet
from tests.support.coordinator import Coordinator, failed, group
from tests.support.servers import RedisServer, wait_until
from unstuck import Status
from unstuck.coordinator.model.decision import Decision
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.store.answers import CommitAnswer
from unstuck.tasks.protocol.report import OutcomeKind
from unstuck.tasks.warehouse.log import Warehouse

QUICK = {"sweep_every": 0.1, "lease_ttl": 0.2, "dispatch_timeout": 0.2}
SOON = "400ms"


@pytest.fixture
def quick(make_coordinator: Callable[..., Coordinator]) -> Coordinator:
    """A coordinator whose sweep is alive, with no grace left."""
    coordinator = make_coordinator(**QUICK)
    sweep_until(coordinator, lambda: grace_is_over(coordinator), "the first grace to end")
    return coordinator


def grace_is_over(coordinator: Coordinator) -> bool:
    seconds, micros = coordinator.redis.time()
    return (
        float(str(coordinator.redis.hget(coordinator.keys.alive, "grace_until")))
        < seconds + micros / 1e6
    )


def sweep_until(coordinator: Coordinator, seen: Callable[[], Any], what: str) -> None:
    """Nobody says anything; only the sweep looks."""

    def swept() -> Any:
        coordinator.sweep.run()
        return seen()

    wait_until(swept, 10, what, every=0.02)


def interfere(coordinator: Coordinator, with_what: Callable[[], object]) -> list[CommitAnswer]:
    """Do ``with_what`` between the load and the commit of the first decision that gives something
    up.
    """
    commit, answers = coordinator.store.commit, []

    def later(decision: Decision, *args: Any) -> CommitAnswer:
        if not answers and any(event["kind"] == "FAILED" for event in decision.events):
            with_what()
            answers.append(commit(decision, *args))
            return answers[-1]
        return commit(decision, *args)

    coordinator.store.commit = later  # type: ignore[method-assign]
    return answers


# ---- waiting in a queue
# ----------------------------------------------------------------------------------------


@pytest.mark.claim("Timeouts of steps, queues and jobs hold, also after an outage.")
def test_a_group_on_an_unserved_queue_fails_with_a_remedy(
    quick: Coordinator,
) -> None:
    job = quick.submit(group("a", queue="heavy", queue_timeout="1s"), group("b", "a"))
    quick.read()
    (offer,) = quick.offers()
    sweep_until(
        quick, quick.offers, "the lost offer to be made again, which does not begin its time again"
    )
    sweep_until(quick, lambda: quick.status(job).terminal, "the job to be given up")
    view = quick.show(job)
    assert (view.status, view.due_at) == (Status.FAILED, None)
    assert view.reason is not None
    assert "celery -A unstuck.tasks worker -Q heavy" in view.reason.text
    record = view.groups[0].members[0]
    assert record.reason is not None
    assert (record.reason.code, record.attempt, record.failures) == ("QUEUE_TIMEOUT", 1, 0)
    assert record.since - view.submitted_at >= 1.0
    assert not quick.sent
    assert quick.claim(offer).answer == "REFUSED", (
        "a worker that comes now runs nothing of a job that has ended"
    )
    assert quick.events(job, "a") == ["QUEUED", "FAILED"]


@pytest.mark.claim("Timeouts of steps, queues and jobs hold, also after an outage.")
def test_a_claim_between_load_and_commit_wins_over_the_queue_timeout(quick: Coordinator) -> None:
    """What was concluded from absence is checked again inside the commit."""
    job = quick.submit(group("a", queue_timeout=SOON))
    quick.read()
    (offer,) = quick.offers()
    answers = interfere(quick, lambda: quick.claim(offer))
    sweep_until(quick, lambda: answers, "the group to be given up")
    assert answers == [CommitAnswer.GUARDED]
    assert quick.status(job) is Status.RUNNING
    assert quick.finish(offer.held_by("runner1")) == "APPLIED"
    quick.read()
    assert quick.status(job) is Status.FINISHED
    assert quick.events(job, "a") == ["QUEUED", "RUNNING", "SUCCEEDED"], (
        "no trace of what was refused"
    )


def test_a_claim_after_the_queue_timeout_is_refused_while_the_job_continues(
    quick: Coordinator,
) -> None:
    job = quick.submit(group("a", queue_timeout=SOON), group("b"), on_failure="finish_others")
    quick.read()
    offers = {offer.group: offer for offer in quick.offers()}
    quick.claim(offers["b"])
    sweep_until(quick, lambda: "FAILED" in quick.events(job, "a"), "the group to be given up")
    assert quick.claim(offers["a"], "late").answer == "REFUSED"
    assert quick.events(job, "a") == ["QUEUED", "FAILED"]


def test_a_queue_timeout_is_applied_once_although_the_commit_reply_was_lost(
    quick: Coordinator,
) -> None:
    job = quick.submit(group("a", queue_timeout=SOON), group("b"), on_failure="finish_others")
    quick.read()
    commit, answers = quick.store.commit, []

    def repeated(*args: Any) -> CommitAnswer:
        """As redis-py repeats a script whose reply was lost."""
        answers.append(commit(*args))
        return commit(*args)

    quick.store.commit = repeated  # type: ignore[method-assign]
    sweep_until(quick, lambda: "FAILED" in quick.events(job, "a"), "the group to be given up")
    assert answers[-1] is CommitAnswer.APPLIED
    assert quick.events(job, "a") == ["QUEUED", "FAILED"]
    assert quick.events(job, "b") == ["QUEUED"]


@pytest.mark.claim(
    "A command of a user holds against every failure, whichever of the two comes first."
)
@pytest.mark.parametrize("first", ["pause", "failure"])
def test_a_pause_that_coincides_with_a_queue_timeout_lasts_until_resume(
    make_coordinator: Callable[..., Coordinator], first: str
) -> None:
    """The failure of dispatch; those of an attempt are in ``test_the_users_word``.

    Nobody decides unasked.
    """
    coordinator = make_coordinator(sweep_every=60.0, lease_ttl=0.2)
    coordinator.sweep.run()
    wait_until(lambda: grace_is_over(coordinator), 10, "the first grace to end")
    job, other = (
        coordinator.submit(group("a", queue_timeout="1s"), group("b", "a"), name=name)
        for name in "12"
    )
    coordinator.read()
    (old,) = coordinator.offers(job)
    if first == "pause":
        coordinator.client.pause(job)
    begun = coordinator.show(job).at
    wait_until(
        lambda: coordinator.show(job).at > begun + 1.0, 10, "its time in the queue to be over"
    )
    if first == "failure":
        coordinator.client.pause(job)
    coordinator.redis.zadd(coordinator.keys.due, {job: 0, other: 0}, xx=True)
    coordinator.sweep.run()
    coordinator.read()

    assert coordinator.status(other) is Status.FAILED, (
        "nobody paused this one; if it goes on, the test proves nothing"
    )
    assert coordinator.status(job) is Status.PAUSED
    assert not coordinator.offers(job), "no further attempt"
    reason = coordinator.show(job).groups[0].members[0].reason
    assert reason is not None
    assert reason.code == "USER_PAUSED"

    assert coordinator.client.resume(job).answer == "DONE"
    coordinator.read()
    (again,) = coordinator.offers(job)
    assert (again.epoch, coordinator.claim(old).answer) == (2, "REFUSED")
    assert coordinator.claim(again).answer == "CLAIMED", "its time in the queue is counted again"
    assert "FAILED" not in coordinator.events(job, "a")


def test_a_clock_that_was_set_back_causes_no_early_queue_timeout(quick: Coordinator) -> None:
    job = quick.submit(group("a", queue_timeout="1s"))
    quick.read()
    set_clock_back(quick, job, 3600.0)
    began = quick.show(job).at
    sweep_until(quick, lambda: quick.status(job).terminal, "the job to be given up")
    assert 1.0 <= quick.show(job).ended_at - began < 3600.0, "an hour, if the clock of then counted"


# ---- the job
# ---------------------------------------------------------------------------------------------------


@pytest.mark.claim("Timeouts of steps, queues and jobs hold, also after an outage.")
def test_an_attempt_that_finishes_after_the_job_timeout_is_refused_and_not_published(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(sweep_every=0.1)
    job = coordinator.submit(group("a"), group("b", "a"), timeout="500ms")
    coordinator.read()
    (offer,) = coordinator.offers()
    coordinator.claim(offer)
    coordinator.read()
    token = offer.held_by("runner1")
    sweep_until(coordinator, lambda: coordinator.status(job).terminal, "the job to be given up")
    view = coordinator.show(job)
    assert view.reason is not None
    assert (view.status, view.reason.code, view.due_at) == (Status.FAILED, "JOB_TIMEOUT", None)
    assert view.ended_at - view.started_at >= 0.5
    assert coordinator.lease.renew(token, "host") == "STALE", (
        "its watchdog ends it at the next renewal"
    )
    assert coordinator.finish(token, staged(coordinator, offer, "data")) == "STALE"
    coordinator.read()
    after = coordinator.show(job)
    assert after == view
    assert [g.members[0].state for g in after.groups] == ["CANCELED", "CANCELED"]
    assert Warehouse(coordinator.settings.warehouse).head() == 0
    assert coordinator.events(job)[-5:] == [
        "JOB_TIMEOUT",
        "CANCELED",
        "CANCELED",
        "FAILED",
        "REPORT_REFUSED",
    ]


def test_a_retry_does_not_restart_the_job_timeout(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(sweep_every=0.1)
    job = coordinator.submit(group("a", retry={"max": 1000, "backoff": 0}), timeout="500ms")
    coordinator.read()

    def tried() -> bool:
        for offer in coordinator.offers():
            if coordinator.claim(offer).answer == "CLAIMED":
                coordinator.finish(offer.held_by("runner1"), failed())
        coordinator.read()
        return coordinator.status(job).terminal

    sweep_until(coordinator, tried, "the job to be given up")
    reason = coordinator.show(job).reason
    assert reason is not None
    assert reason.code == "JOB_TIMEOUT"


@pytest.mark.claim("Timeouts of steps, queues and jobs hold, also after an outage.")
@pytest.mark.parametrize("how", ["pause", "halt"])
def test_paused_time_does_not_count_toward_the_timeout(
    make_coordinator: Callable[..., Coordinator], how: str
) -> None:
    """A HALTED job waits for a person, just the same."""
    coordinator = make_coordinator(sweep_every=0.1)
    job = coordinator.submit(group("a"), group("b", "a"), timeout="3s")
    coordinator.read()
    coordinator.work(coordinator.offers()[0])
    coordinator.read()
    if how == "pause":
        coordinator.client.pause(job)
        coordinator.read()
        coordinator.offers()  # what the pause took back
    else:
        coordinator.store.halt(job, Reason("UNDECIDABLE", "no"), "halted", coordinator.show(job).at)
    held = Status.PAUSED if how == "pause" else Status.HALTED
    assert coordinator.status(job) is held
    paused_at = coordinator.show(job).at
    sweep_until(
        coordinator,
        lambda: coordinator.show(job).at > paused_at + 3.1,
        "more than its timeout to go by",
    )
    assert coordinator.status(job) is held
    coordinator.client.resume(job)
    coordinator.read()
    assert coordinator.status(job) is Status.RUNNING
    assert coordinator.drive(job) is Status.FINISHED


def test_a_stop_with_a_hanging_attempt_ends_as_stopped_at_the_job_timeout(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(sweep_every=0.1)
    job = coordinator.submit(group("a"), group("b", "a"), timeout="2s")
    coordinator.read()
    (offer,) = coordinator.offers()
    coordinator.claim(offer)
    coordinator.read()
    coordinator.client.stop(job)
    coordinator.read()
    assert coordinator.status(job) is Status.STOPPING
    sweep_until(coordinator, lambda: coordinator.status(job).terminal, "the job to be stopped")
    assert coordinator.status(job) is Status.STOPPED
    assert coordinator.finish(offer.held_by("runner1")) == "STALE"


# ---- a step
# ----------------------------------------------------------------------------------------------------


@pytest.mark.claim("Timeouts of steps, queues and jobs hold, also after an outage.")
@pytest.mark.variant
@pytest.mark.parametrize("trouble", ["cut", "away"])
def test_a_hanging_step_times_out_although_the_broker_was_unreachable(
    tmp_path: Path, trouble: str
) -> None:
    """The watchdog holds the clock itself.

    A broker that is away takes only its last word until it is back.
    """
    server = RedisServer(tmp_path)
    server.start()
    started = tmp_path / "started"
    steps = [
        {"python": "fleet_steps:my_pid", "timeout": "1h"},
        {"python": "fleet_steps:sleep_on", "params": {"started": str(started)}, "timeout": "2s"},
    ]
    spec = {"name": "g", "spark": False, "steps": steps, "timeout": "1h"}
    try:
        with (
            redis.Redis.from_url(server.url, decode_responses=True) as store,
            fleet.worker(server.url, tmp_path) as worker,
        ):
            offer = fleet.make_offer(store, tmp_path / "w", "hangs", spec)
            runner = fleet.runner_of(store, offer)
            wait_until(lambda: started.exists() and started.read_text(), 20, "the step to run")
            assert server.process is not None
            if trouble == "cut":
                assert store.client_kill_filter(_type="normal", skipme=True) > 2
            else:
                server.process.send_signal(signal.SIGSTOP)
            wait_until(lambda: fleet.gone(runner.pid), 30, "the runner to be ended")
            wait_until(
                lambda: fleet.gone(int(started.read_text())), 20, "the step's own child to be gone"
            )
            server.process.send_signal(signal.SIGCONT)
            outcome = fleet.outcome(store, offer, 30)
            assert outcome.kind is OutcomeKind.FAILED, outcome
            assert outcome.failure is not None
            assert (outcome.failure.code, outcome.failure.recoverable) == ("STEP_TIMEOUT", True)
            assert outcome.failure.text.startswith(
                "step 2 of 2 (sleep_on) ran longer than its timeout of 2s"
            )
            after = fleet.make_offer(store, tmp_path / "w", "after", {**spec, "steps": steps[:1]})
            assert fleet.outcome(store, after, 30).kind is OutcomeKind.SUCCEEDED, worker.text()[
                -2000:
            ]
    finally:
        server.stop()


def test_a_polite_step_ends_at_its_own_timeout_which_excludes_earlier_steps(
    redis_server: RedisServer, client: redis.Redis, tmp_path: Path
) -> None:
    path = tmp_path / "go"
    steps = [
        {"python": "fleet_steps:until", "params": {"path": str(path)}},
        {"python": "fleet_steps:my_pid", "timeout": "30s"},
        {"python": "fleet_steps:wait_for_cancel", "timeout": "500ms"},
    ]
    with fleet.worker(redis_server.url, tmp_path) as worker:
        offer = fleet.make_offer(
            client, tmp_path / "w", "polite", {"name": "g", "spark": False, "steps": steps}
        )
        runner = fleet.runner_of(client, offer)
        path.touch()
        failure = fleet.outcome(client, offer, 30).failure
        assert failure is not None
        assert failure.code == "STEP_TIMEOUT", failure
        assert failure.text.startswith(
            "step 3 of 3 (wait_for_cancel) ran longer than its timeout of 0.5s"
        )
        assert runner.is_running(), worker.text()[-2000:]
