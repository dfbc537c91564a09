"""A tick of a schedule is one run: not two, whoever dies in between, and none is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.guarantees.nothing_is_forgotten.test_rolled_back_store import snapshot
from tests.guarantees.shown_is_true.test_states import staged
from tests.support.coordinator import Coordinator, failed, group
from tests.support.failpoints import Death, Died, Once, armed
from tests.support.network.lost_replies import LosesReplies, losing_reply
from tests.support.servers import wait_until
from unstuck import Refused, Status
from unstuck.coordinator.model.records import JOB_SCHEMA
from unstuck.coordinator.model.schedule_record import Run
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.model.tick import tick_text
from unstuck.coordinator.publishing.streams.job_backlog import BacklogLooks
from unstuck.coordinator.reconcile import stream_looks
from unstuck.coordinator.reconcile.wiring import mint
from unstuck.coordinator.store.schedule_store import ScheduleChange, ScheduleStore
from unstuck.coordinator.store.submissions import Submissions
from unstuck.read_model.schedule import ScheduleInfo
from unstuck.tasks.failpoints import Point
from unstuck.tasks.warehouse.log import Warehouse


def spec(**schedule: Any) -> dict[str, Any]:
    return {"name": "ticking", "schedule": schedule, "groups": [group("a", retry={"max": 0})]}


def runs(coordinator: Coordinator) -> list[str]:
    return [job.id for job in coordinator.client.schedules.runs("ticking")]


def view(coordinator: Coordinator) -> ScheduleInfo:
    return coordinator.client.schedules.show("ticking")


def next_run(coordinator: Coordinator, known: int) -> str:
    """Sweep until there is a run more than ``known``."""

    def found() -> bool:
        coordinator.sweep.run()
        return len(runs(coordinator)) > known

    wait_until(found, 20, "a run of the next tick")
    return runs(coordinator)[0]


def publishes(coordinator: Coordinator, job: str) -> None:
    """The job does its work, and publishes ``out``."""
    coordinator.read()
    (offer,) = coordinator.offers(job)
    coordinator.claim(offer)
    coordinator.finish(offer.held_by("runner1"), staged(coordinator, offer, "out"))
    coordinator.read()


@pytest.mark.claim(
    "Each tick of a schedule or a backfill is exactly one job, also if coordinators die."
)
def test_each_tick_is_one_job_whose_end_makes_the_schedule_due(coordinator: Coordinator) -> None:
    coordinator.client.schedules.set(spec(every="1s"))
    first = next_run(coordinator, 0)
    assert coordinator.drive(first) is Status.FINISHED
    due = coordinator.redis.zscore(coordinator.keys.schedules_due, "ticking")
    ended = coordinator.show(first).ended_at
    assert due is not None
    assert due <= ended + 1, "its end is the next thing that a coordinator looks at"
    second = next_run(coordinator, 1)
    keys = [coordinator.show(job).key for job in (first, second)]
    assert keys[0] < keys[1]
    assert keys[0].startswith("ticking@20")
    assert view(coordinator).last_success is not None


@pytest.mark.claim(
    "Each tick of a schedule or a backfill is exactly one job, also if coordinators die."
)
@pytest.mark.parametrize("point", [Point.BEFORE_SUBMIT, Point.AFTER_SUBMIT])
def test_a_coordinator_that_dies_while_submitting_a_run_leaves_one_job_for_the_tick(
    make_coordinator: Callable[..., Coordinator], point: Point
) -> None:
    first = make_coordinator(lock_ttl=0.5)
    first.client.schedules.set(spec())
    first.client.schedules.run("ticking")
    death = Death([point])
    with armed(death), suppress(Died):
        first.schedules.run()
    assert death.at is point
    second = make_coordinator(lock_ttl=0.5)
    job = next_run(second, 0)
    assert [one.id for one in second.client.jobs()] == [job]
    assert second.drive(job) is Status.FINISHED
    second.sweep.run()
    assert view(second).last_success is not None
    assert len(second.client.jobs()) == 1


@pytest.mark.claim(
    "Each tick of a schedule or a backfill is exactly one job, also if coordinators die."
)
def test_two_coordinators_that_decide_one_tick_create_one_job(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """Both have read the record before either writes."""
    one, other = make_coordinator(), make_coordinator()
    one.client.schedules.set(spec())
    one.client.schedules.run("ticking")
    read = one.schedule_store.load

    def read_and_let_the_other_decide(name: str) -> Any:
        record = read(name)
        one.schedule_store.load = read  # type: ignore[method-assign]
        other.schedules.decide("ticking")
        return record

    one.schedule_store.load = read_and_let_the_other_decide  # type: ignore[method-assign]
    one.schedules.decide("ticking")
    assert len(one.client.jobs()) == 1
    assert len(view(one).runs) == 1


def test_a_lost_reply_to_a_command_or_decision_changes_nothing(
    make_coordinator: Callable[..., Coordinator],
    lossy: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """redis-py asks again, and the script finds its own id."""
    coordinator = make_coordinator(client=lossy)
    coordinator.client.schedules.set(spec())
    monkeypatch.setattr(ScheduleStore, "commit", losing_reply(ScheduleStore.commit))
    coordinator.client.schedules.run("ticking")
    assert LosesReplies.lost == 1
    coordinator.schedules.run()
    assert LosesReplies.lost > 1
    assert len(coordinator.client.jobs()) == 1
    kinds = [event["kind"] for event in coordinator.client.schedules.events("ticking")]
    assert kinds == ["SET", "USER_RUN", "RUN_SUBMITTED"]


def test_a_failed_run_is_retried_under_the_key_of_its_tick(
    coordinator: Coordinator,
) -> None:
    two = {
        **spec(every="2s", retry={"backoff": "1ms"}),
        "groups": [group("a"), group("b", "a", retry={"max": 0})],
    }
    coordinator.client.schedules.set(two)
    first = next_run(coordinator, 0)
    coordinator.read()
    coordinator.work(coordinator.offers(first)[0])
    coordinator.read()
    coordinator.work(coordinator.offers(first)[0], failed())
    coordinator.read()
    assert coordinator.status(first) is Status.FAILED
    second = next_run(coordinator, 1)
    job = coordinator.show(second)
    assert (job.retry_of, coordinator.record(second).key) == (
        first,
        f"{coordinator.show(first).key}/2",
    )
    standing = view(coordinator)
    assert (standing.status, standing.failures) == ("RETRYING", 1)
    assert standing.last_error is not None
    assert standing.last_error.job == first
    assert coordinator.drive(second) is Status.FINISHED
    coordinator.sweep.run()
    assert view(coordinator).failures == 0


def test_a_code_failure_halts_the_schedule_immediately(coordinator: Coordinator) -> None:
    coordinator.client.schedules.set(spec(every="2s"))
    job = next_run(coordinator, 0)
    coordinator.read()
    coordinator.work(
        coordinator.offers(job)[0], failed("TOO_MANY_REJECTED_ROWS", recoverable=False)
    )
    coordinator.read()
    coordinator.sweep.run()
    standing = view(coordinator)
    assert (standing.status, standing.halted and standing.halted.code) == (
        "HALTED",
        "TOO_MANY_REJECTED_ROWS",
    )


def test_a_command_returns_the_new_state_of_the_schedule(coordinator: Coordinator) -> None:
    schedules = coordinator.client.schedules
    asked = (schedules.pause, schedules.pause, schedules.resume, schedules.stop)
    answers = [schedules.set(spec()), *(one("ticking") for one in asked)]
    assert [one.status for one in answers] == [
        "WAITING",
        "PAUSED",
        "PAUSED",
        "WAITING",
        "STOPPED",
    ]


def test_a_schedule_with_an_active_run_cannot_be_removed(
    coordinator: Coordinator, client: redis.Redis
) -> None:
    """Set again, it would run beside that one, which belonged to no schedule any more."""
    schedules = coordinator.client.schedules
    schedules.set(spec())
    schedules.run("ticking")
    job = next_run(coordinator, 0)
    for _ in range(2):
        with pytest.raises(Refused, match=f"job {job} goes on.*unstuck cancel {job}"):
            schedules.remove("ticking")
        schedules.stop("ticking")
    assert coordinator.drive(job) is Status.FINISHED
    coordinator.sweep.run()
    told = schedules.remove("ticking").text
    assert told == "schedule ticking is removed; the jobs of its runs stay"
    assert client.keys("*schedule*") == [coordinator.keys.of_schedule("ticking").schedule_events], (
        "for a while"
    )


@pytest.mark.parametrize("point", [Point.BEFORE_SUBMIT, Point.AFTER_SUBMIT])
def test_a_schedule_cannot_be_removed_while_a_run_is_being_submitted(
    make_coordinator: Callable[..., Coordinator], point: Point
) -> None:
    first = make_coordinator(lock_ttl=0.5)
    schedules = first.client.schedules
    schedules.set(spec())
    schedules.run("ticking")
    with armed(Death([point])), suppress(Died):
        first.schedules.run()
    with pytest.raises(Refused, match=r"being submitted.*unstuck schedule stop ticking"):
        schedules.remove("ticking")
    job = next_run(make_coordinator(lock_ttl=0.5), 0)
    assert (
        [one.id for one in schedules.runs("ticking")]
        == [one.id for one in first.client.jobs()]
        == [job]
    )


@pytest.mark.claim("After a rollback of Redis, no tick is published twice.")
@pytest.mark.parametrize("when", ["published", "running"])
def test_a_rolled_back_store_publishes_no_tick_twice(coordinator: Coordinator, when: str) -> None:
    """The store forgets the run: after its package stood, or while a publisher still holds it."""
    append = {**spec(), "outputs": {"out": {"mode": "append"}}}
    coordinator.client.schedules.set(append)
    coordinator.client.schedules.run("ticking")
    back = snapshot(coordinator)
    first = next_run(coordinator, 0)
    coordinator.read()
    (offer,) = coordinator.offers(first)
    coordinator.claim(offer)
    coordinator.finish(offer.held_by("runner1"), staged(coordinator, offer, "out"))
    if when == "published":
        coordinator.read()
        assert coordinator.status(first) is Status.FINISHED
    state = coordinator.store.load(first)
    assert state is not None
    back()
    if when == "running":
        second = next_run(coordinator, 0)
        assert second == first, "the same job, so the same publish id"
        # A publisher of before, whose group is done, goes on.
        state.groups["a"] = replace(
            state.record("a"), state=GroupState.SUCCEEDED, staging=offer.held_by("runner1").staging
        )
        assert coordinator.warehouses.publish(state, lambda: None).version == 1
        coordinator.read()
        (offer,) = coordinator.offers(second)
        coordinator.claim(offer, "runner2")
        again = staged(coordinator, offer, "out")
        coordinator.finish(offer.held_by("runner2"), again)
        coordinator.read()
    wait_until(
        lambda: coordinator.sweep.run() >= 0 and view(coordinator).last_success,
        10,
        "the run to be noted",
    )
    standing = view(coordinator)
    assert standing.last_success is not None
    assert (standing.last_success.version, standing.last_success.rows) == (1, {"out": 3})
    warehouse = Warehouse(coordinator.settings.warehouse)
    assert warehouse.head() == 1
    assert warehouse.dataset("out").rows == 3


@pytest.mark.claim("After a rollback of Redis, no tick is published twice.")
def test_ticks_published_before_a_rollback_are_not_skipped(
    coordinator: Coordinator,
) -> None:
    coordinator.client.schedules.set({**spec(every="1s"), "outputs": {"out": {"mode": "append"}}})
    back = snapshot(coordinator)
    for known in range(2):
        publishes(coordinator, next_run(coordinator, known))
    published = [run.tick for run in coordinator.client.schedules.runs("ticking")]
    back()
    next_tick = view(coordinator).last_tick + 4
    wait_until(lambda: time.time() > next_tick, 20, "later ticks")
    last = next_run(coordinator, 0)
    events = coordinator.client.schedules.events("ticking")
    skipped = " ".join(event["text"] for event in events if event["kind"] == "SKIPPED")
    assert not [tick for tick in published if tick in skipped]
    assert {event.get("tick") for event in events if event["kind"] == "RUN_FINISHED"} == set(
        published
    )
    known = coordinator.schedule_store.ticks("ticking", 0.0).values()
    assert [str(tick.outcome) for tick in known] == ["done", "done", "running"]
    assert coordinator.drive(last) is Status.FINISHED


def backfill_is_over(coordinator: Coordinator) -> bool:
    coordinator.sweep.run()
    backfill = view(coordinator).backfill
    return backfill is not None and backfill.over


def test_after_a_rollback_the_first_run_of_a_tick_does_not_publish_beside_its_retry(
    coordinator: Coordinator,
) -> None:
    append = {
        **spec(every="1h", retry={"max": 1, "backoff": "1ms"}),
        "outputs": {"out": {"mode": "append"}},
    }
    coordinator.client.schedules.set(append)
    tick = tick_text((time.time() // 3600 - 2) * 3600)
    assert coordinator.client.schedules.backfill("ticking", tick, tick).answer == "DONE"
    first = next_run(coordinator, 0)
    coordinator.read()
    (offer,) = coordinator.offers(first)
    coordinator.claim(offer)
    coordinator.read()
    back = snapshot(coordinator)
    coordinator.finish(offer.held_by("runner1"), failed())
    coordinator.read()
    publishes(coordinator, next_run(coordinator, 1))
    warehouse = Warehouse(coordinator.settings.warehouse)
    assert warehouse.head() == 1
    back()
    coordinator.finish(offer.held_by("runner1"), staged(coordinator, offer, "out"))
    coordinator.read()
    assert coordinator.status(first) is Status.FINISHED
    assert warehouse.head() == 1
    wait_until(lambda: backfill_is_over(coordinator), 20, "the end of the backfill")
    # A tick that a person runs again on purpose makes another package.
    assert coordinator.client.schedules.backfill("ticking", tick, tick, redo="all").answer == "DONE"
    publishes(coordinator, next_run(coordinator, 1))
    assert warehouse.head() == 2


def test_a_tick_run_early_by_a_fast_clock_is_not_published_again(
    coordinator: Coordinator,
) -> None:
    """The clock of Redis was a day ahead for a moment; a person lets the schedule count from now
    again.
    """
    schedules = coordinator.schedule_store
    coordinator.client.schedules.set(
        {**spec(every="24h", keep_runs=1), "outputs": {"out": {"mode": "append"}}}
    )
    ahead = view(coordinator).at + 86400

    def decides(**more: Any) -> None:
        record = schedules.load("ticking")
        assert record is not None
        ran = replace(record, runs=(Run(ahead),), **more)
        assert schedules.commit(ScheduleChange(mint(), ran.commit, ran, due=0.0)) == "APPLIED"

    decides(cursor=ahead)
    first = next_run(coordinator, 0)
    publishes(coordinator, first)
    wait_until(
        lambda: coordinator.sweep.run() >= 0 and view(coordinator).last_success,
        10,
        "its end",
    )
    assert "resume ticking" in view(coordinator).waits
    assert coordinator.client.schedules.resume("ticking").answer == "DONE"
    assert view(coordinator).last_tick < ahead - 86000
    coordinator.redis.delete(
        coordinator.keys.of(first).job, coordinator.keys.submit_key(Run(ahead).key("ticking"))
    )
    publishes(
        coordinator,
        coordinator.submit(group("a"), name="other", outputs={"out": {"mode": "append"}}),
    )
    decides(last_success=None)
    wait_until(
        lambda: coordinator.sweep.run() >= 0 and view(coordinator).last_success,
        10,
        "the run to be noted",
    )
    assert Warehouse(coordinator.settings.warehouse).head() == 2


def test_expired_runs_leave_the_store_but_their_packages_stay(
    coordinator: Coordinator,
) -> None:
    coordinator.client.schedules.set({**spec(keep_runs=2), "outputs": {"out": {"mode": "append"}}})
    made: list[str] = []
    for number in range(4):
        coordinator.client.schedules.run("ticking")
        made.append(next_run(coordinator, min(number, 2)))
        publishes(coordinator, made[-1])
        coordinator.sweep.run()
    assert sorted(runs(coordinator)) == sorted(made[-2:])
    keys = coordinator.keys
    for job in made[:2]:
        for key in (
            keys.of(job).job,
            keys.of(job).groups,
            keys.of(job).events,
            keys.submit_key(coordinator.show(job).key),
        ):
            assert 0 < coordinator.redis.ttl(key) <= 60
        assert (coordinator.redis.zscore(keys.ended, job) or 0) < coordinator.show(job).at + 61
    for job in made[2:]:
        assert coordinator.redis.ttl(keys.of(job).job) > 3600
    assert Warehouse(coordinator.settings.warehouse).dataset("out").rows == 12


def test_a_lost_due_index_is_rebuilt(coordinator: Coordinator) -> None:
    coordinator.client.schedules.set(spec())
    coordinator.client.schedules.run("ticking")
    coordinator.redis.delete(coordinator.keys.schedules_due)
    coordinator.sweep.run()
    assert len(runs(coordinator)) == 1


def test_publishing_a_dataset_runs_its_following_schedule_once(
    coordinator: Coordinator,
) -> None:
    def publish() -> None:
        job = coordinator.submit(group("a"), name="makes", publish=["out"])
        coordinator.read()
        (offer,) = coordinator.offers(job)
        coordinator.claim(offer)
        coordinator.finish(offer.held_by("runner1"), staged(coordinator, offer, "out"))
        coordinator.read()
        assert coordinator.status(job) is Status.FINISHED

    publish()
    coordinator.client.schedules.set(spec(after=["out"]))
    coordinator.sweep.run()
    assert runs(coordinator) == [], "it counts from when it was set"
    assert view(coordinator).waits == "it waits for a new version of out"
    publish()
    coordinator.sweep.run()
    (job,) = runs(coordinator)
    assert coordinator.record(job).base == 2
    coordinator.drive(job)
    coordinator.sweep.run()
    assert runs(coordinator) == [job]
    coordinator.client.schedules.remove("ticking")
    assert not coordinator.redis.exists(coordinator.keys.after("out"))


def test_restoring_a_version_runs_its_following_schedule_once(
    coordinator: Coordinator,
) -> None:
    for _ in range(2):
        publishes(
            coordinator,
            coordinator.submit(group("a"), name="makes", outputs={"out": {"mode": "append"}}),
        )
    coordinator.client.schedules.set(spec(after=["out"]))
    coordinator.sweep.run()
    assert runs(coordinator) == []
    for _ in range(2):  # its reply was lost, and the person asks again
        assert coordinator.client.restore("out", 1).version == 3
    coordinator.sweep.run()
    (job,) = runs(coordinator)
    assert coordinator.record(job).base == 3
    coordinator.drive(job)
    coordinator.client.restore("out", 1)
    coordinator.sweep.run()
    assert runs(coordinator) == [job]


@pytest.mark.parametrize("again", ["restore", "another version"])
def test_repeating_an_interrupted_restore_starts_the_following_schedules(
    coordinator: Coordinator, again: str
) -> None:
    for _ in range(3):
        publishes(
            coordinator,
            coordinator.submit(group("a"), name="makes", outputs={"out": {"mode": "append"}}),
        )
    for name in ("ticking", "other"):
        coordinator.client.schedules.set({**spec(after=["out"]), "name": name})
    with armed(Death([Point.AFTER_ENTRY])), pytest.raises(Died):
        coordinator.client.restore("out", 1)
    coordinator.sweep.run()
    assert runs(coordinator) == []
    restored = coordinator.client.restore("out", 1 if again == "restore" else 2)
    assert (restored.version, restored.new) == ((4, False) if again == "restore" else (5, True))
    coordinator.sweep.run()
    (job,) = runs(coordinator)
    assert coordinator.record(job).base == restored.version
    assert len(coordinator.client.schedules.runs("other")) == 1, (
        "each schedule that follows the dataset"
    )


def test_a_tick_without_new_arrivals_creates_no_job(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    stream = {"stream": str(folder), "format": "json", "schema": "n INT", "state": False}
    load = group(
        "a", inputs={"events": stream}, steps=[{"python": "examples.noop:noop", "output": "out"}]
    )
    outputs = {"out": {"mode": "append"}}
    coordinator.client.schedules.set(
        {**spec(every="1s", only_if="arrived"), "groups": [load], "outputs": outputs}
    )

    def quiet() -> int:
        coordinator.sweep.run()
        return 0 if view(coordinator).quiet is None else view(coordinator).quiet.count  # type: ignore[union-attr]

    wait_until(lambda: quiet() >= 2, 20, "two ticks with nothing new")
    assert coordinator.client.jobs() == []
    assert view(coordinator).waits.startswith("nothing new since ")
    assert [event["kind"] for event in coordinator.client.schedules.events("ticking")] == ["SET"]
    (folder / "one.json").write_text('{"n": 1}')
    next_run(coordinator, 0)
    event = coordinator.client.schedules.events("ticking")[-1]
    assert (event["kind"], event["code"]) == ("RUN_SUBMITTED", "NOTHING_NEW")
    assert "nothing new lay there" in event["text"]


def test_a_user_cannot_retry_a_run_beside_its_schedule(coordinator: Coordinator) -> None:
    coordinator.client.schedules.set(spec(every="2s"))
    job = next_run(coordinator, 0)
    coordinator.read()
    coordinator.work(coordinator.offers(job)[0], failed())
    coordinator.read()
    with pytest.raises(Refused, match="unstuck schedule why ticking"):
        coordinator.client.retry(job)
    coordinator.sweep.run()
    with pytest.raises(Refused, match="unstuck schedule run ticking"):
        coordinator.client.retry(job)
    coordinator.client.schedules.stop("ticking")
    assert coordinator.client.retry(job).new


def test_a_schedule_set_again_after_the_loss_of_redis_continues_after_its_last_package(
    coordinator: Coordinator, client: redis.Redis
) -> None:
    """The ticks since then were missed; without its packages the schedule would count from now."""
    append = {**spec(every="1s", missed="all"), "outputs": {"out": {"mode": "append"}}}
    coordinator.client.schedules.set(append)
    job = next_run(coordinator, 0)
    coordinator.read()
    (offer,) = coordinator.offers(job)
    coordinator.claim(offer)
    coordinator.finish(offer.held_by("runner1"), staged(coordinator, offer, "out"))
    coordinator.read()
    tick = view(coordinator).runs[0].tick
    client.flushall()
    coordinator.stream.open()
    done = coordinator.client.schedules.set(append)
    assert done.answer == "DONE"
    assert f"goes on from its last run, job {job}, which has published version 1" in done.text
    assert "no two may have one name in a warehouse" in done.text, (
        "it may be the run of another fleet"
    )
    standing = view(coordinator)
    assert standing.last_tick == tick
    assert standing.last_success is not None
    assert (standing.last_success.job, standing.last_success.rows) == (job, {"out": 3})
    again = next_run(coordinator, 0)
    assert coordinator.show(again).key == f"ticking@{tick_text(tick + 1)}"


def test_a_schedule_with_a_stuck_run_reports_it(coordinator: Coordinator) -> None:
    coordinator.client.schedules.set(spec())
    coordinator.client.schedules.run("ticking")
    job = next_run(coordinator, 0)
    coordinator.client.pause(job)
    coordinator.read()
    assert view(coordinator).waits.startswith(f"job {job} is PAUSED, the run of ")
    assert "paused" in " ".join(
        fact.text for fact in coordinator.client.schedules.why("ticking").facts
    )


def test_an_unresponsive_stream_is_reported_and_blocks_no_other_schedule(
    make_coordinator: Callable[..., Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_looks, "LOOK_WITHIN", 0.1)
    coordinator = make_coordinator()
    stream = {"stream": "/dead/mount", "format": "json", "schema": "n INT", "state": False}
    load = group(
        "a", inputs={"events": stream}, steps=[{"python": "examples.noop:noop", "output": "out"}]
    )
    hangs = {
        **spec(every="1s", only_if="arrived"),
        "groups": [load],
        "outputs": {"out": {"mode": "append"}},
    }
    mounted = threading.Event()
    monkeypatch.setattr(BacklogLooks, "look", lambda *_: mounted.wait())
    coordinator.client.schedules.set(hangs)
    coordinator.client.schedules.set({**spec(), "name": "other"})
    try:
        wait_until(
            lambda: coordinator.schedules.run() >= 0 and view(coordinator).trouble,
            20,
            "the trouble",
        )
        assert view(coordinator).status == "RETRYING"
        assert "see whether they are mounted" in view(coordinator).waits
        backlog = view(coordinator).backlog
        assert backlog is not None
        assert "see whether they are mounted" in backlog.streams["its streams"].trouble
        coordinator.client.schedules.run("other")
        coordinator.schedules.run()
        assert len(coordinator.client.schedules.runs("other")) == 1
    finally:
        mounted.set()


def test_a_submit_delayed_for_capacity_is_dropped_after_a_pause(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """It may wait for hours behind a warehouse that does not answer."""
    waiting: list[Callable[[Callable[[], None]], None]] = []
    coordinator = make_coordinator(background=lambda key, place, work: waiting.append(work))
    coordinator.client.schedules.set(spec(every="1s"))
    wait_until(lambda: coordinator.schedules.run() >= 0 and waiting, 20, "a run to be submitted")
    coordinator.client.schedules.pause("ticking")
    waiting.pop(0)(lambda: None)
    assert coordinator.client.jobs() == []
    coordinator.client.schedules.resume("ticking")
    coordinator.schedules.run()
    waiting.pop()(lambda: None)
    assert len(runs(coordinator)) == 1


def test_an_unrecorded_run_is_recorded_although_nothing_new_has_arrived(
    make_coordinator: Callable[..., Coordinator], tmp_path: Path
) -> None:
    """It has read what lay there, or the file was taken away meanwhile."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "one.json").write_text('{"n": 1}')
    stream = {"stream": str(folder), "format": "json", "schema": "n INT", "state": False}
    load = group(
        "a", inputs={"events": stream}, steps=[{"python": "examples.noop:noop", "output": "out"}]
    )
    first = make_coordinator(lock_ttl=0.5)
    policy = {
        **spec(every="1s", only_if="arrived"),
        "groups": [load],
        "outputs": {"out": {"mode": "append"}},
    }
    first.client.schedules.set(policy)

    def died() -> Point | None:
        with armed(death), suppress(Died):
            first.schedules.run()
        return death.at

    death = Death([Point.AFTER_SUBMIT])
    wait_until(died, 20, "the coordinator to die")
    (job,) = [one.id for one in first.client.jobs()]
    (folder / "one.json").unlink()
    assert next_run(make_coordinator(lock_ttl=0.5), 0) == job


@pytest.mark.parametrize(
    ("trouble", "status"),
    [("JOB_DAMAGED", "HALTED"), ("NEWER_JOB", "RETRYING")],
    ids=["damaged", "newer"],
)
def test_a_retry_of_an_unreadable_job_halts_the_schedule_or_waits_for_a_newer_coordinator(
    coordinator: Coordinator, trouble: str, status: str
) -> None:
    coordinator.client.schedules.set(spec(every="2s", retry={"backoff": "1h", "max_backoff": "1h"}))
    job = next_run(coordinator, 0)
    coordinator.read()
    coordinator.work(coordinator.offers(job)[0], failed())
    coordinator.read()
    coordinator.sweep.run()
    assert view(coordinator).retries
    if trouble == "JOB_DAMAGED":
        coordinator.redis.hset(coordinator.keys.of(job).groups, "a", "{")
    else:
        coordinator.redis.hset(coordinator.keys.of(job).job, "schema", 10**6)
    coordinator.client.schedules.run("ticking")

    def told() -> Any:
        coordinator.schedules.run()
        return view(coordinator).halted or view(coordinator).trouble

    reason = wait_until(told, 20, "the trouble")
    assert (view(coordinator).status, reason.code) == (status, trouble)
    assert job in reason.text
    assert [one.id for one in coordinator.client.jobs()] == [job]
    if status == "HALTED":
        assert "`unstuck schedule resume ticking` runs its tick from the start" in reason.text
        coordinator.client.schedules.resume("ticking")
        second = next_run(coordinator, 1)
        again = coordinator.show(second)
        assert (again.key.endswith("/2"), again.retry_of) == (True, "")
        assert coordinator.drive(second) is Status.FINISHED
        coordinator.sweep.run()
        assert view(coordinator).halted is None


def test_ending_a_damaged_run_by_force_lets_its_schedule_continue(
    coordinator: Coordinator,
) -> None:
    coordinator.client.schedules.set(spec())
    coordinator.client.schedules.run("ticking")
    job = next_run(coordinator, 0)
    coordinator.redis.hset(coordinator.keys.of(job).groups, "a", "{")
    coordinator.sweep.run()
    facts = coordinator.client.schedules.why("ticking").facts
    assert any(f"unstuck force-stop {job}" in fact.text for fact in facts)
    coordinator.client.force_stop(job)
    wait_until(lambda: coordinator.sweep.run() >= 0 and not view(coordinator).runs, 20, "its end")
    coordinator.client.schedules.run("ticking")
    assert coordinator.drive(next_run(coordinator, 1)) is Status.FINISHED


def test_a_schedule_with_a_run_of_a_newer_release_is_left_to_a_newer_coordinator(
    coordinator: Coordinator,
) -> None:
    coordinator.client.schedules.set(spec())
    coordinator.client.schedules.run("ticking")
    job = next_run(coordinator, 0)
    coordinator.redis.hset(coordinator.keys.of(job).job, "schema", 10**6)
    assert coordinator.client.schedules.stop("ticking").answer == "DONE"
    coordinator.schedules.decide("ticking")
    assert [run.job for run in view(coordinator).runs] == [job], (
        "it goes on, and a newer coordinator sees its end"
    )
    coordinator.redis.hset(coordinator.keys.of(job).job, "schema", JOB_SCHEMA)
    assert coordinator.drive(job) is Status.FINISHED
    coordinator.sweep.run()
    assert view(coordinator).runs == ()


@pytest.mark.claim(
    "A stop, pause or cancel of a schedule also covers a run that is being submitted."
)
@pytest.mark.parametrize("late", [False, True], ids=["before the look", "after the look"])
@pytest.mark.parametrize("given", ["stop", "pause", "cancel"])
def test_a_submit_overtaken_by_a_stop_pause_or_cancel_stores_no_job(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, given: str, late: bool
) -> None:
    """Or it would run for no schedule. However long the warehouse did not answer."""
    schedules = coordinator.client.schedules
    schedules.set(spec(every="1h"))
    if given == "cancel":
        schedules.backfill("ticking", "2026-01-01", "2026-01-01")
    else:
        record = coordinator.schedule_store.load("ticking")
        assert record is not None
        decided = replace(record, runs=(Run(view(coordinator).at),))
        assert coordinator.schedule_store.commit(
            ScheduleChange(mint(), record.commit, decided, due=0.0)
        )

    def overtake() -> None:
        if given == "cancel":
            schedules.cancel_backfill("ticking")
        else:
            getattr(schedules, given)("ticking")
        # Its submit hangs before the fence, for as long as it likes: the schedule is decided
        # meanwhile.
        coordinator.schedules.decide("ticking")

    once, submit = Once(overtake, [Point.BEFORE_SUBMIT]), Submissions.submit

    def submit_overtaken(*arguments: Any) -> tuple[str, bool]:
        once(Point.BEFORE_SUBMIT, "")
        return submit(*arguments)

    if late:  # it has asked whether the run is wanted
        monkeypatch.setattr(Submissions, "submit", submit_overtaken)
    with nullcontext() if late else armed(once):
        wait_until(lambda: coordinator.sweep.run() >= 0 and once.at, 20, "the submit")
    assert coordinator.client.jobs() == []
    assert len(view(coordinator).going_on) == (given == "pause"), "a resume submits it"
    schedules.resume("ticking")
    coordinator.sweep.run()
    assert len(coordinator.client.jobs()) == (given == "pause")


@pytest.mark.claim(
    "A stop, pause or cancel of a schedule also covers a run that is being submitted."
)
@pytest.mark.parametrize("given", ["stop", "cancel"])
def test_a_job_stored_before_a_stop_or_cancel_counts_as_a_run(
    make_coordinator: Callable[..., Coordinator], given: str
) -> None:
    first, second = make_coordinator(lock_ttl=0.5), make_coordinator(lock_ttl=0.5)
    schedules = first.client.schedules
    schedules.set(spec(every="1h"))
    if given == "cancel":
        schedules.backfill("ticking", "2026-01-01", "2026-01-01")
    else:
        schedules.run("ticking")
    with armed(Death([Point.AFTER_SUBMIT])), suppress(Died):
        first.schedules.run()
    (job,) = [one.id for one in first.client.jobs()]
    if given == "cancel":
        schedules.cancel_backfill("ticking")
    else:
        schedules.stop("ticking")
    second.schedules.decide("ticking")
    assert [run.job for run in view(second).going_on] == runs(second) == [job]
    assert second.drive(job) is Status.FINISHED
    second.sweep.run()
    assert view(second).going_on == ()


def test_a_schedule_changed_to_another_dataset_stops_following_the_old_one(
    coordinator: Coordinator,
) -> None:
    follower = lambda name: coordinator.redis.smembers(coordinator.keys.after(name))  # noqa: E731
    coordinator.client.schedules.set(spec(after=["old", "both"]))
    coordinator.client.schedules.set(spec(after=["both", "new"]))
    assert [follower(name) for name in ("old", "both", "new")] == [set(), {"ticking"}, {"ticking"}]
    coordinator.client.schedules.set(spec())
    assert not coordinator.redis.keys(coordinator.keys.after("*"))
