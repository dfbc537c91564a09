"""One worker, one runner, one watchdog, in real processes: who keeps the lease, and who ends
whom.
"""

from __future__ import annotations

import json
import os
import platform
import signal
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest
import redis

from tests.support import fleet
from tests.support.servers import RedisServer, wait_until
from unstuck.tasks.identity import RunsOn
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.report import OutcomeKind
from unstuck.tasks.protocol.token import Offer
from unstuck.tasks.warehouse.probe import ANSWERS_WITHIN

LEASE_TTL = 3.0


@pytest.fixture(scope="module")
def worker(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[fleet.FleetWorker]:
    with fleet.worker(
        redis_server.url,
        (home := tmp_path_factory.mktemp("worker")),
        environ={"FLEET_PASSWORD": "hunter2-hunter2", "UNSTUCK_WAREHOUSE": str(home / "mount")},
    ) as running:
        yield running


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """Not flushed: the worker lives through the module. Every test uses a job of its own."""
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


MakeOffer = Callable[..., Offer]


@pytest.fixture
def make_offer(store: redis.Redis, tmp_path: Path) -> MakeOffer:
    job = f"job-{os.urandom(4).hex()}"

    def make(
        step: str,
        *,
        timeout: str | None = None,
        group: str = "g",
        step_params: dict[str, object] | None = None,
        output: str | None = None,
        **rest: object,
    ) -> Offer:
        one = {"python": f"fleet_steps:{step}", "params": step_params or {}, "output": output}
        spec = {"name": group, "spark": False, "steps": [one], "timeout": timeout}
        return fleet.make_offer(store, tmp_path / "warehouse", rest.pop("job", job), spec, **rest)  # type: ignore[arg-type]

    return make


def ready_again(worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer) -> None:
    """The worker takes new work."""
    offer = make_offer("my_pid", job=f"after-{os.urandom(3).hex()}")
    assert fleet.outcome(store, offer).kind is OutcomeKind.SUCCEEDED


def test_a_group_runs_and_its_outcome_and_reports_are_recorded(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer, tmp_path: Path
) -> None:
    offer = make_offer("table", output="numbers", step_params={"rows": 5})
    outcome = fleet.outcome(store, offer)
    assert outcome.kind is OutcomeKind.SUCCEEDED, outcome
    assert (outcome.rows, outcome.results) == ({"numbers": 5}, {"rows": 5})
    assert (tmp_path / "warehouse" / outcome.staging / "_marker.json").exists()
    (log,) = (tmp_path / "warehouse" / "_staging" / offer.job / "job.logs").glob("g.*.log")
    assert "making 5 rows" in log.read_text()
    assert "printed by the step" in log.read_text()
    kinds = [r["kind"] for r in fleet.reports(store) if r["token"].startswith(str(offer))]
    assert kinds == ["claimed", "succeeded"]


def test_an_existing_marker_is_adopted_and_nothing_reruns(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer
) -> None:
    first = fleet.outcome(store, make_offer("table", output="numbers"))
    again = fleet.outcome(store, make_offer("table", output="numbers", epoch=2, nonce="n2"))
    assert (again.kind, again.adopted, again.staging) == (
        OutcomeKind.SUCCEEDED,
        True,
        first.staging,
    )
    assert (again.rows, again.results) == (first.rows, first.results)


@pytest.mark.claim("A retry with another parameter reuses no work that read the old value.")
def test_a_changed_parameter_reruns_the_group(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer
) -> None:
    fleet.outcome(store, make_offer("table", output="numbers", params={"rows": 1}))
    again = fleet.outcome(
        store, make_offer("table", output="numbers", params={"rows": 2}, epoch=2, nonce="n2")
    )
    assert (again.adopted, again.rows) == (False, {"numbers": 2})


def test_the_next_group_reads_the_staged_output_of_the_first(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer
) -> None:
    made = fleet.outcome(store, make_offer("table", output="numbers", step_params={"rows": 4}))
    offer = make_offer("total", group="sum", output="total", inputs={"g": [made.staging]})
    assert fleet.outcome(store, offer).rows == {"total": 1}


@pytest.mark.parametrize(
    ("step", "code", "recoverable", "says"),
    [
        ("boom", "STEP_FAILED", True, "RuntimeError: boom"),
        ("leave", "STEP_FAILED", True, "sys.exit(3)"),
        ("no_memory", "OUT_OF_MEMORY", True, "MemoryError"),
        ("unspeakable", "STEP_FAILED", True, "Unspeakable: (it has no text"),
        ("never", "UNRECOVERABLE", False, "no use trying again"),
        ("not_there", "STEP_NOT_FOUND", False, "fleet_steps:not_there cannot be imported"),
    ],
)
def test_any_exception_of_a_step_ends_its_attempt_but_not_the_runner(
    worker: fleet.FleetWorker,
    store: redis.Redis,
    make_offer: MakeOffer,
    step: str,
    code: str,
    recoverable: bool,
    says: str,
) -> None:
    before = [r.pid for r in worker.runners]
    outcome = fleet.outcome(store, make_offer(step))
    assert outcome.kind is OutcomeKind.FAILED
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.recoverable) == (code, recoverable)
    assert says in outcome.failure.text
    ready_again(worker, store, make_offer)
    assert [r.pid for r in worker.runners] == before


def test_the_traceback_starts_with_user_code_in_failure_and_log(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer, tmp_path: Path
) -> None:
    offer = make_offer("boom")
    failure = fleet.outcome(store, offer).failure
    assert failure is not None
    assert "fleet_steps.py" in failure.traceback
    assert "tasks/runner/attempt.py" not in failure.traceback
    (log,) = (tmp_path / "warehouse" / "_staging" / offer.job / "job.logs").glob("g.*.log")
    assert 'fleet_steps.py", line' in log.read_text()
    assert "tasks/runner/attempt.py" not in log.read_text()


@pytest.mark.claim("A secret reaches its step, and no log, result or error.")
def test_a_secret_reaches_only_the_step(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer, tmp_path: Path
) -> None:
    offer = make_offer("with_secret", step_params={"password": "${secret:FLEET_PASSWORD}"})
    failure = fleet.outcome(store, offer).failure
    assert failure is not None
    assert failure.text == "RuntimeError: login with ${secret:FLEET_PASSWORD} failed"
    for file in (tmp_path / "warehouse").rglob("*"):
        assert file.is_dir() or b"hunter2" not in file.read_bytes(), file
    assert "hunter2" not in worker.text()
    assert "hunter2" not in str(fleet.attempt(store, offer))


def test_a_missing_secret_is_named_and_not_retried(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer
) -> None:
    failure = fleet.outcome(
        store, make_offer("with_secret", step_params={"password": "${secret:NOT_SET}"})
    ).failure
    assert failure is not None
    assert not failure.recoverable
    assert "NOT_SET" in failure.text


def test_a_runner_killed_during_a_step_is_reported_lost_and_its_children_end(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    offer = make_offer("sleep_on", step_params={"started": str(started)})
    runner = fleet.runner_of(store, offer)
    wait_until(lambda: started.exists() and started.read_text(), 10, "the step to run")
    child = int(started.read_text())
    # When: the watchdog has seen the child (one renewal), the runner alone is killed.
    wait_until(lambda: fleet.attempt(store, offer).get("progress"), 10, "a renewal")
    progress = fleet.attempt(store, offer)["lease"]
    wait_until(lambda: fleet.attempt(store, offer)["lease"] > progress, 10, "another renewal")
    runner.kill()
    # Then: the record says so.
    outcome = fleet.outcome(store, offer, 15)  # nobody is here who would wait for the lease
    assert outcome.kind is OutcomeKind.LOST
    assert outcome.failure is not None
    assert outcome.failure.code == "WORKER_LOST"
    wait_until(lambda: fleet.gone(child), 15, "the step's own child to be gone")
    ready_again(worker, store, make_offer)


@pytest.mark.claim("A cancel reaches a running step at once, and a step that ignores it is killed.")
def test_a_polite_step_receives_a_cancel_immediately(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer
) -> None:
    offer = make_offer("wait_for_cancel")
    runner = fleet.runner_of(store, offer)
    fleet.instruct(store, offer, "CANCEL")
    assert fleet.outcome(store, offer, 15).kind is OutcomeKind.CANCELED
    ready_again(worker, store, make_offer)
    assert runner.is_running()


@pytest.mark.claim("A cancel reaches a running step at once, and a step that ignores it is killed.")
def test_a_cancel_does_not_wait_for_the_next_renewal_of_the_lease(
    redis_server: RedisServer, store: redis.Redis, tmp_path: Path
) -> None:
    seldom = {"UNSTUCK_LEASE_TTL": "2h", "UNSTUCK_LEASE_RENEW": "1h"}
    steps = [{"python": "fleet_steps:wait_for_cancel"}]
    spec = {"name": "g", "spark": False, "queue": "seldom", "steps": steps}
    with fleet.worker(redis_server.url, tmp_path, queues="seldom", environ=seldom):
        for job in ("first", "second"):  # of one runner
            offer = fleet.make_offer(store, tmp_path / "warehouse", job, spec)
            channel = fleet.KEYS.cancel(offer.job)
            wait_until(
                lambda channel=channel: store.pubsub_numsub(channel)[0][1],
                60,
                "the watchdog to follow the cancels of the job",
            )
            fleet.instruct(store, offer, "CANCEL")
            assert fleet.outcome(store, offer, 15).kind is OutcomeKind.CANCELED


def test_a_drained_attempt_is_handed_back(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer
) -> None:
    offer = make_offer("wait_for_cancel")
    fleet.claimed(store, offer)
    fleet.instruct(store, offer, "DRAIN")
    assert fleet.outcome(store, offer, 15).kind is OutcomeKind.RELEASED


@pytest.mark.claim("A cancel reaches a running step at once, and a step that ignores it is killed.")
def test_a_step_that_ignores_a_cancel_is_killed_after_the_grace(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer
) -> None:
    offer = make_offer("sleep_on")
    runner = fleet.runner_of(store, offer)
    fleet.instruct(store, offer, "CANCEL")
    assert fleet.outcome(store, offer, 20).kind is OutcomeKind.CANCELED
    wait_until(lambda: fleet.gone(runner.pid), 15, "the runner to be gone")
    ready_again(worker, store, make_offer)


@pytest.mark.variant
def test_a_cancel_ends_a_step_in_one_long_c_call(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    offer = make_offer("one_c_call", step_params={"started": str(started)})
    wait_until(started.exists, 30, "the call to begin")
    fleet.instruct(store, offer, "CANCEL")
    assert fleet.outcome(store, offer, 15).kind is OutcomeKind.CANCELED
    ready_again(worker, store, make_offer)


@pytest.mark.claim("A warehouse or a session that hangs ends the attempt, not the worker.")
def test_a_timeout_ends_a_hanging_step(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer, tmp_path: Path
) -> None:
    offer = make_offer("sleep_on", timeout="500ms")
    outcome = fleet.outcome(store, offer, 20)
    assert outcome.kind is OutcomeKind.FAILED
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.recoverable) == ("TIMEOUT", True)
    (log,) = (tmp_path / "warehouse" / "_staging" / offer.job / "job.logs").glob("g.*.log")
    assert "was killed" in log.read_text()
    ready_again(worker, store, make_offer)


def test_a_timeout_of_a_polite_step_keeps_its_runner(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer
) -> None:
    offer = make_offer("wait_for_cancel", timeout="500ms")
    runner = fleet.runner_of(store, offer)
    failure = fleet.outcome(store, offer, 15).failure
    assert failure is not None
    assert failure.code == "TIMEOUT"
    assert "0.5s" in failure.text
    ready_again(worker, store, make_offer)
    assert runner.is_running()


def test_an_attempt_that_was_taken_over_writes_no_outcome(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer
) -> None:
    offer = make_offer("wait_for_cancel")
    fleet.claimed(store, offer)
    # When: the coordinator mints another epoch.
    fresh = make_offer("wait_for_cancel", epoch=2, nonce="n2", send=False)
    ready_again(worker, store, make_offer)
    # Then: the old runner has left and said nothing.
    assert "outcome" not in fleet.attempt(store, fresh)
    assert [r["kind"] for r in fleet.reports(store) if r["token"].startswith(str(offer))] == [
        "claimed"
    ]


@pytest.mark.claim("A process that was frozen past its lease changes nothing when it thaws.")
@pytest.mark.variant
def test_a_stopped_runner_loses_its_lease_and_ends_itself_on_a_late_thaw(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer
) -> None:
    offer = make_offer("sleep_on")
    runner = fleet.runner_of(store, offer)
    fleet.renewed(store, offer)  # before that, the answer to its claim may still be on its way
    runner.send_signal(signal.SIGSTOP)
    wait_until(lambda: runner.status() == psutil.STATUS_STOPPED, 5, "the runner to be stopped")

    def lapsed() -> bool:
        seconds, micros = store.time()
        return fleet.attempt(store, offer)["lease"] < seconds + micros / 1e6

    wait_until(lapsed, LEASE_TTL + 20, "the lease to lapse")
    make_offer("sleep_on", epoch=2, nonce="n2", send=False)
    runner.send_signal(signal.SIGCONT)
    wait_until(lambda: fleet.gone(runner.pid), 20, "the thawed runner to be gone")
    assert [r["kind"] for r in fleet.reports(store) if r["token"].startswith(str(offer))] == [
        "claimed"
    ]
    ready_again(worker, store, make_offer)


@pytest.mark.variant
def test_a_c_call_that_holds_the_gil_keeps_the_lease(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer
) -> None:
    offer = make_offer("hold_the_gil", step_params={"seconds": round(2 * LEASE_TTL)})
    lowest = LEASE_TTL

    def ended() -> bool:
        nonlocal lowest
        raw, (seconds, micros) = (
            store.pipeline().hget(fleet.KEYS.of(offer.job).attempts, offer.group).time().execute()
        )
        record = json.loads(raw)
        if "outcome" in record:
            return True
        if "lease" in record:
            lowest = min(lowest, record["lease"] - seconds - micros / 1e6)
        return False

    wait_until(ended, 60, "the step to end", every=0.05)
    outcome = fleet.outcome(store, offer)
    assert outcome.kind is OutcomeKind.SUCCEEDED, outcome
    assert outcome.results["silent_for"] > LEASE_TTL, (
        "the runner could have renewed its lease itself: proves nothing"
    )
    assert lowest > 0, "a lease that lapsed meanwhile could have been taken over"


def test_a_dead_watchdog_is_replaced_and_the_attempt_continues(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer
) -> None:
    offer = make_offer("wait_for_cancel")
    runner = fleet.runner_of(store, offer)
    watchdog = worker.watchdog()
    watchdog.kill()
    wait_until(
        lambda: [w for w in worker.watchdogs if w.pid != watchdog.pid], 10, "another watchdog"
    )
    lease = fleet.attempt(store, offer)["lease"]
    wait_until(
        lambda: fleet.attempt(store, offer)["lease"] > lease, 10, "a renewal by the new watchdog"
    )
    fleet.instruct(store, offer, "CANCEL")
    assert fleet.outcome(store, offer, 15).kind is OutcomeKind.CANCELED
    assert runner.is_running()


@pytest.mark.variant
def test_a_frozen_watchdog_is_replaced_and_a_hanging_step_still_times_out(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer
) -> None:
    """SIGSTOP: it lives, its pipe is open, and it renews nothing, hears nothing and counts no time
    any more.
    """
    offer = make_offer("sleep_on", timeout="3s")
    runner = fleet.runner_of(store, offer)
    frozen = worker.watchdog()
    frozen.suspend()
    try:
        wait_until(
            lambda: [w for w in worker.watchdogs if w.pid != frozen.pid], 10, "another watchdog"
        )
        assert fleet.gone(frozen.pid), "it could thaw, and act beside the one that took over"
        assert not fleet.gone(runner.pid), "and the attempt goes on"
        failure = fleet.outcome(store, offer).failure
        assert failure is not None
        assert failure.code == "TIMEOUT"
    finally:
        if frozen.is_running():
            frozen.resume()
    ready_again(worker, store, make_offer)


@pytest.mark.variant
def test_a_runner_never_waits_for_its_frozen_watchdog(
    worker: fleet.FleetWorker, store: redis.Redis, tmp_path: Path
) -> None:
    """Each step begins and ends a clock, of which the watchdog is told."""
    first = {
        "python": "fleet_steps:until",
        "params": {"path": str(tmp_path / "gate")},
        "timeout": "60s",
    }
    steps = [first, *[{"python": "fleet_steps:my_pid", "timeout": "60s"}] * 600]
    offer = fleet.make_offer(
        store,
        tmp_path / "warehouse",
        f"job-{os.urandom(4).hex()}",
        {"name": "g", "spark": False, "steps": steps},
    )
    runner = fleet.runner_of(store, offer)
    frozen = worker.watchdog()
    frozen.suspend()
    try:
        (tmp_path / "gate").touch()
        outcome = fleet.outcome(store, offer)
        assert outcome.kind is OutcomeKind.SUCCEEDED, outcome
        assert outcome.results["pid"] == runner.pid
    finally:
        if frozen.is_running():
            frozen.resume()


@pytest.mark.variant
def test_a_runner_with_foreign_threads_is_replaced_without_losing_a_task(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer
) -> None:
    before = len(worker.text())
    outcome = fleet.outcome(store, make_offer("leave_a_thread"))
    assert outcome.kind is OutcomeKind.SUCCEEDED
    after = fleet.outcome(store, make_offer("my_pid", job=f"next-{os.urandom(3).hex()}"))
    assert after.results["pid"] != outcome.results["pid"]
    wait_until(lambda: fleet.gone(outcome.results["pid"]), 10, "the old runner to be gone")
    assert "WorkerLostError" not in worker.text()[before:]


@pytest.mark.variant
def test_a_step_that_exhausts_file_descriptors_fails_only_itself(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer
) -> None:
    """In its runner nothing could be begun any more: each group that came there would be lost, and
    count as POISON.
    """
    offer = make_offer("hoard")
    runner = fleet.runner_of(store, offer)
    failure = fleet.outcome(store, offer).failure
    assert failure is not None
    assert "Too many open files" in failure.text
    ready_again(worker, store, make_offer)
    wait_until(lambda: fleet.gone(runner.pid), 10, "the runner to be replaced")


@pytest.mark.parametrize("while_it", ["waits", "runs", "has ended"])
def test_a_repeated_offer_and_a_second_wake_up_cause_one_run(
    worker: fleet.FleetWorker,
    store: redis.Redis,
    make_offer: MakeOffer,
    tmp_path: Path,
    while_it: str,
) -> None:
    offer = make_offer("until", step_params={"path": str(tmp_path / "gate")})
    if while_it != "waits":
        fleet.claimed(store, offer)
    if while_it == "has ended":
        (tmp_path / "gate").touch()
        fleet.outcome(store, offer)
    fleet.send_wake_up(store, offer, "light")
    (tmp_path / "gate").touch()
    fleet.outcome(store, offer)
    ready_again(worker, store, make_offer)
    assert store.zscore(fleet.KEYS.ready("light"), str(offer)) is None, "it was dropped"
    assert [r["kind"] for r in fleet.reports(store) if r["token"].startswith(str(offer))] == [
        "claimed",
        "succeeded",
    ]


def test_the_fleet_list_shows_the_runner_and_its_attempt(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer
) -> None:
    began = store.time()[0]
    offer = make_offer("wait_for_cancel")
    runner = fleet.runner_of(store, offer)

    def shown() -> RunnerInfo | None:
        return next(
            (one for one in fleet.listed(store) if one.pid == runner.pid and one.job == offer.job),
            None,
        )

    one = wait_until(shown, 5, "the runner to be shown")
    assert (one.queues, one.group, one.attempt, one.idle_since) == (("light",), "g", 1, None)
    libraries = map(version, ("unstuck", "pyspark", "pandas", "pyarrow"))
    release, *others = libraries
    assert one.runs_on == RunsOn(release, platform.python_version(), *others)
    assert began <= (one.claimed_at or 0.0) <= store.time()[0] + 1
    assert began <= one.heard_at <= store.time()[0] + 1
    fleet.instruct(store, offer, "CANCEL")
    fleet.outcome(store, offer)


def described(store: redis.Redis, worker: fleet.FleetWorker) -> RunnerInfo | None:
    """The worker's only runner, as its watchdog last described it."""
    pids = [runner.pid for runner in worker.runners]
    return next((one for one in fleet.listed(store) if one.pid in pids), None)


def test_a_wake_up_without_work_counts_as_taken(
    worker: fleet.FleetWorker, store: redis.Redis, make_offer: MakeOffer
) -> None:
    """A worker that is offered nothing but what others have claimed has not stalled, and does not
    look so.
    """
    ready_again(worker, store, make_offer)
    wait_until(lambda: described(store, worker), 10, "the runner to be shown")
    stale = make_offer("my_pid", send=False)

    def taken() -> RunnerInfo | None:
        now = described(store, worker)
        return now if now and (now.taken_at or 0) >= sent else None

    def idle_for_long() -> bool:
        now = described(store, worker)  # may be a second or two old itself
        last = max(now.claimed_at or 0.0, now.taken_at or 0.0) if now else 0.0
        return last > 0 and store.time()[0] > last + 4

    wait_until(idle_for_long, 15, "the last claim, and the last surplus wake-up, to be long ago")
    sent = store.time()[0]
    fleet.send_wake_up(store, Offer(stale.job, stale.group, stale.epoch, "another"), "light")
    one = wait_until(taken, 10, "the wake-up to be seen")
    assert (one.taken_at or 0.0) > (one.claimed_at or 0.0) + 0.5
    assert not fleet.attempt(store, stale).get("claimant"), "and it claimed nothing"
    assert sent <= (one.taken_at or 0.0) <= store.time()[0] + 1


def test_a_runner_reports_the_warehouse_it_sees(
    worker: fleet.FleetWorker, store: redis.Redis
) -> None:
    def looked() -> RunnerInfo | None:
        one = described(store, worker)
        return one if one and one.warehouse.id is not None else None

    seen = wait_until(looked, 10, "its first look").warehouse
    assert Path(seen.uri or "") == worker.log.parent / "mount"
    assert seen.id == "", "there is none at that path, and none was made"
    assert not Path(seen.uri or "").exists()


@pytest.mark.variant
def test_a_runner_with_a_hanging_mount_ends_with_a_reason(
    store: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Only the doctor's look hangs: the attempt has another warehouse."""
    (tmp_path / "mount").mkdir()
    os.mkfifo(
        tmp_path / "mount" / "_warehouse_id"
    )  # who reads it waits, as on a mount whose server is gone
    with fleet.worker(
        redis_server.url,
        tmp_path,
        queues="hung",
        environ={"UNSTUCK_WAREHOUSE": str(tmp_path / "mount")},
    ) as hung:

        def told() -> bool:
            one = described(store, hung)
            return one is not None and "no answer for" in one.warehouse.trouble

        wait_until(told, ANSWERS_WITHIN + 20, "the look to be given up")
        step = {"python": "fleet_steps:my_pid", "params": {}}
        spec = {"name": "g", "spark": False, "queue": "hung", "steps": [step]}
        offer = fleet.make_offer(store, tmp_path / "warehouse", f"job-{os.urandom(4).hex()}", spec)
        assert fleet.outcome(store, offer).kind is OutcomeKind.SUCCEEDED
        assert told(), "it goes on telling"
        watchdogs = hung.watchdogs
        assert fleet.stop_gently(hung) == 0
        assert watchdogs
        for watchdog in watchdogs:
            wait_until(
                lambda pid=watchdog.pid: fleet.gone(pid),
                10,
                "the watchdog to end, though a thread of it hangs",
            )
