"""A backfill is on record: any coordinator goes on with it, and each of its ticks is one job."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.guarantees.shown_is_true.test_states import staged
from tests.support.coordinator import Coordinator, failed, group
from tests.support.failpoints import Death, Died, armed
from tests.support.servers import wait_until
from unstuck import BadKey, Refused, SpecError, Status
from unstuck.cli.app import app
from unstuck.coordinator.model.schedule_record import Backfill, Redo
from unstuck.coordinator.model.tick import tick_text
from unstuck.coordinator.spec.job_params import UnparsedText
from unstuck.coordinator.store.schedule_store import FORGET_AFTER, ScheduleStore
from unstuck.tasks.failpoints import Point
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.views.jobs.job_views import folded

HOUR = 3600
BEGIN = (time.time() // HOUR - 5) * HOUR
PUBLISHES = {
    "name": "hourly",
    "schedule": {"every": "1h"},
    "groups": [group("a", retry={"max": 0})],
    "outputs": {"out": {"mode": "append"}},
}


def begun(coordinator: Coordinator, hours: int, **more: Any) -> None:
    spec = {"name": "hourly", "schedule": {"every": "1h"}, "groups": [group("a")]}
    coordinator.client.schedules.set(spec)
    given = coordinator.client.schedules.backfill(
        "hourly", tick_text(BEGIN), tick_text(BEGIN + (hours - 1) * HOUR), **more
    )
    assert given.answer == "DONE"


def backfill(coordinator: Coordinator) -> Backfill:
    found = coordinator.client.schedules.show("hourly").backfill
    assert found is not None
    return found


def sweep(coordinator: Coordinator) -> list[str]:
    coordinator.sweep.run()
    return [run.job for run in backfill(coordinator).active]


@pytest.mark.claim(
    "Each tick of a schedule or a backfill is exactly one job, also if coordinators die."
)
def test_each_tick_of_a_backfill_is_one_low_priority_job_with_its_key(
    coordinator: Coordinator,
) -> None:
    begun(coordinator, 3, parallel=2)
    jobs = []
    while not backfill(coordinator).over:
        for job in sweep(coordinator):
            jobs.append(job)
            assert coordinator.drive(job) is Status.FINISHED
    shown = [coordinator.show(job) for job in dict.fromkeys(jobs)]
    assert [job.key for job in shown] == [f"hourly@{tick_text(BEGIN + n * HOUR)}" for n in range(3)]
    assert {job.priority for job in shown} == {"low"}
    assert backfill(coordinator).progress == "3 of 3 ticks are done"
    coordinator.client.schedules.backfill("hourly", tick_text(BEGIN), tick_text(BEGIN + 3 * HOUR))
    while not backfill(coordinator).over:
        for job in sweep(coordinator):
            coordinator.drive(job)
    assert backfill(coordinator).progress == "4 of 4 ticks are done"
    ticks = {job.tick for job in coordinator.client.schedules.runs("hourly")}
    assert ticks == {tick_text(BEGIN + n * HOUR) for n in range(4)}, (
        "each of its runs names its tick"
    )
    events = coordinator.client.schedules.events("hourly")
    told = [event["job"] for event in events if event["kind"] == "RUN_SUBMITTED"]
    assert sorted(told) == sorted(job.id for job in coordinator.client.jobs()), (
        "each job once, though given again"
    )
    assert not [event for event in events if event["kind"] == "RUN_STANDS"], (
        "a tick that is done gets no run"
    )
    listed = coordinator.client.schedules.backfill_ticks(
        "hourly", tick_text(BEGIN - HOUR), tick_text(BEGIN)
    )
    assert [tick.job for tick in listed] == ["", shown[0].id]


def backfill_and_forget(coordinator: Coordinator, redo: Redo) -> list[str]:
    """Backfill two ticks, and let retention remove their jobs.

    Returns the keys of the jobs, all of which published.
    """
    published: list[str] = []
    given = coordinator.client.schedules.backfill(
        "hourly", tick_text(BEGIN), tick_text(BEGIN + HOUR), redo=redo
    )
    assert given.answer == "DONE"
    while not backfill(coordinator).over:
        for job in sweep(coordinator):
            published.append(coordinator.show(job).key)
            coordinator.read()
            (offer,) = coordinator.offers(job)
            coordinator.claim(offer)
            coordinator.finish(offer.held_by("runner1"), staged(coordinator, offer, "out"))
            coordinator.read()
    store, client = ScheduleStore(coordinator.redis, coordinator.keys), coordinator.redis
    assert store.forget_runs("hourly", 0) == len(published)
    for key in [key for key in client.scan_iter() if 0 < client.ttl(key) <= FORGET_AFTER]:
        client.delete(key)
    return published


@pytest.mark.parametrize(("redo", "tries"), [("none", []), ("failed", []), ("all", ["/2", "/2"])])
def test_a_tick_with_expired_jobs_reruns_only_if_all_ticks_rerun(
    coordinator: Coordinator, redo: Redo, tries: list[str]
) -> None:
    coordinator.client.schedules.set(PUBLISHES)
    first = backfill_and_forget(coordinator, "none")
    again = backfill_and_forget(coordinator, redo)
    assert again == [f"{key}{number}" for key, number in zip(first, tries, strict=False)]
    assert backfill(coordinator).progress == "2 of 2 ticks are done"
    assert Warehouse(coordinator.settings.warehouse).head() == 2 + len(tries)


def test_a_backfill_of_all_ticks_reruns_them_after_retention_removed_their_jobs(
    coordinator: Coordinator,
) -> None:
    coordinator.client.schedules.set(PUBLISHES)
    first, second, third = (backfill_and_forget(coordinator, "all") for _ in range(3))
    assert [*second, *third] == [f"{key}/{number}" for number in (2, 3) for key in first]
    assert backfill(coordinator).progress == "2 of 2 ticks are done"
    assert Warehouse(coordinator.settings.warehouse).head() == 6


@pytest.mark.parametrize("point", [Point.BEFORE_SUBMIT, Point.AFTER_SUBMIT])
def test_a_coordinator_that_dies_around_a_submit_leaves_one_job_for_the_tick(
    coordinator: Coordinator, point: Point
) -> None:
    begun(coordinator, 2)
    with armed(Death([point])), pytest.raises(Died):
        coordinator.sweep.run()
    assert [run.job for run in backfill(coordinator).runs] == [""]
    coordinator.schedules.decide("hourly")
    (job,) = sweep(coordinator)
    assert coordinator.show(job).key == f"hourly@{tick_text(BEGIN)}"
    assert len(coordinator.client.jobs()) == 1
    assert coordinator.drive(job) is Status.FINISHED
    (second,) = sweep(coordinator)
    assert second != job


def test_a_canceled_backfill_lets_its_run_end_and_starts_no_other(
    coordinator: Coordinator,
) -> None:
    begun(coordinator, 3)
    (job,) = sweep(coordinator)
    assert coordinator.client.schedules.cancel_backfill("hourly").answer == "DONE"
    assert sweep(coordinator) == [job]
    coordinator.drive(job)
    assert sweep(coordinator) == []
    assert (backfill(coordinator).status, len(coordinator.client.jobs())) == ("CANCELED", 1)


def test_the_list_shows_the_runs_of_a_backfill_in_one_line(coordinator: Coordinator) -> None:
    begun(coordinator, 3, parallel=3)
    sweep(coordinator)
    jobs = coordinator.client.jobs()
    assert {(job.schedule, job.backfill) for job in jobs} == {
        ("hourly", tick_text(backfill(coordinator).at))
    }
    assert [len(line) for line in folded(jobs)] == [3]


BALANCE: dict[str, Any] = {
    "name": "hourly",
    "schedule": {"every": "1h", "retry": {"max": 1, "backoff": "1ms"}},
    "groups": [
        {
            "name": "a",
            "spark": False,
            "retry": {"max": 0},
            "inputs": {"before": {"dataset": "balance", "if_absent": "total BIGINT"}},
            "steps": [{"python": "examples.noop:noop", "output": "balance"}],
        }
    ],
}


def keys_of_runs(coordinator: Coordinator) -> list[str]:
    """The keys of the runs of the backfill that are submitted, after another sweep."""
    return [coordinator.record(job).key for job in sweep(coordinator) if job]


def fail(coordinator: Coordinator, job: str) -> None:
    """The job of a run fails."""
    (offer,) = coordinator.offers(job) or coordinator.offers()
    coordinator.work(offer, failed())
    coordinator.read()


def test_a_cumulative_job_stops_at_a_failed_tick_and_the_printed_remedies_work(
    coordinator: Coordinator,
) -> None:
    schedules = coordinator.client.schedules
    schedules.set(BALANCE)
    bounds = (tick_text(BEGIN), tick_text(BEGIN + 2 * HOUR))
    refused = schedules.backfill("hourly", *bounds, parallel=4)
    assert refused.answer == "REFUSED"
    assert "(balance), so its ticks run one at a time" in refused.text
    assert schedules.backfill("hourly", *bounds).answer == "DONE"
    for number in ("", "/2"):
        key = f"hourly@{tick_text(BEGIN)}{number}"
        wait_until(lambda key=key: key in keys_of_runs(coordinator), 10, "the run to be submitted")
        (job,) = sweep(coordinator)
        coordinator.read()
        fail(coordinator, job)
        sweep(coordinator)
    assert (backfill(coordinator).status, len(coordinator.client.jobs())) == ("FAILED", 2)
    assert [
        (problem.kind, problem.code)
        for problem in coordinator.client.problems()
        if problem.kind == "schedule"
    ] == [("schedule", "BACKFILL_FAILED")]
    help_given = schedules.why("hourly").help
    skip = next(command for command in help_given if " skip " in command)
    assert "unstuck schedule resume-backfill hourly" in help_given
    name, tick = skip.split()[-2:]
    assert schedules.skip(name, tick, reason="no source").answer == "DONE"
    (second,) = sweep(coordinator)
    assert coordinator.show(second).key == f"hourly@{tick_text(BEGIN + HOUR)}"
    outcomes = [tick.outcome for tick in schedules.backfill_ticks("hourly", *bounds)]
    assert outcomes == ["skipped", "running", "missing"]


# What precedes the failed tick of a schedule, and the command that runs the tick again.
ADVICE = {
    "the clock": "schedule run hourly",
    "a backfill": "schedule resume-backfill hourly",
    "a canceled backfill": "schedule backfill hourly --from {tick} --to {tick} --redo failed",
    "a canceled backfill, and later ticks": "schedule backfill hourly --from {tick} --from-here",
    "a stopped schedule": "retry {job}",
}


def failed_tick(coordinator: Coordinator, case: str) -> str:
    """Let a tick of a cumulative schedule fail for good. Returns the job of its run."""
    schedules, last = coordinator.client.schedules, tick_text(BEGIN + HOUR)
    in_seconds = {"every": "1s" if case == "the clock" else "1h", "retry": {"max": 0}}
    schedules.set({**BALANCE, "schedule": in_seconds})
    if case != "the clock":
        schedules.backfill("hourly", tick_text(BEGIN), last)
    runs = coordinator.client.schedules.runs
    wait_until(lambda: bool(coordinator.sweep.run() or runs("hourly")), 10, "a run")
    job = runs("hourly")[0].id
    coordinator.read()
    fail(coordinator, job)
    coordinator.sweep.run()
    if "canceled" in case:
        schedules.cancel_backfill("hourly")
        wait_until(lambda: not sweep(coordinator) and backfill(coordinator).over, 10, "its end")
    if "later" in case:
        schedules.set({**BALANCE, "groups": [group("a")], "schedule": in_seconds})
        schedules.backfill("hourly", last, last)
        (later,) = sweep(coordinator)
        assert coordinator.drive(later) is Status.FINISHED
        coordinator.sweep.run()
        schedules.set({**BALANCE, "schedule": in_seconds})
    if "stopped" in case:
        schedules.stop("hourly")
    return job


@pytest.mark.claim("A command that `why` or a refusal names is accepted as the schedule is.")
@pytest.mark.parametrize("case", ADVICE)
def test_the_printed_command_for_a_failed_tick_is_accepted(
    coordinator: Coordinator, case: str
) -> None:
    job = failed_tick(coordinator, case)
    key = coordinator.show(job).key
    command = ADVICE[case].format(tick=key.removeprefix("hourly@"), job=job)
    advice = coordinator.client.explain(job)[0].help
    assert advice[0] == f"unstuck {command}"
    if not command.startswith("retry"):
        with pytest.raises(Refused, match=re.escape(f"`unstuck {command}`")):
            coordinator.client.retry(job)
    for text in advice:
        if "FILE" not in text:
            assert answer_of(coordinator, text).exit_code == 0


@pytest.mark.parametrize("case", ADVICE)
def test_each_printed_command_for_a_schedule_is_accepted(
    make_coordinator: Callable[..., Coordinator], case: str
) -> None:
    first = make_coordinator()
    failed_tick(first, case)
    for n, text in enumerate(first.client.schedules.why("hourly").help):
        coordinator = make_coordinator(prefix=f"again-{n}")
        failed_tick(coordinator, case)
        command = coordinator.client.schedules.why("hourly").help[n].partition(" #")[0]
        if "SPEC" not in command:
            answer = answer_of(coordinator, command)
            assert answer.exit_code == 0, f"{text}: {answer.output}"


def answer_of(coordinator: Coordinator, command: str) -> Result:
    """The answer of the command line to ``unstuck …``."""
    settings = coordinator.settings
    environ = {
        "UNSTUCK_REDIS_URL": settings.redis_url,
        "UNSTUCK_WAREHOUSE": settings.warehouse,
        "UNSTUCK_PREFIX": settings.prefix,
    }
    return CliRunner().invoke(app, command.removeprefix("unstuck ").split(), env=environ)


def test_no_command_is_printed_for_a_tick_done_by_another_run(coordinator: Coordinator) -> None:
    job = failed_tick(coordinator, "a backfill")
    coordinator.client.schedules.resume_backfill("hourly")
    (second,) = sweep(coordinator)
    assert coordinator.drive(second) is Status.FINISHED
    coordinator.sweep.run()
    assert not [text for text in coordinator.client.explain(job)[0].help if "retry" in text]
    with pytest.raises(Refused, match="this tick needs no other run"):
        coordinator.client.retry(job)


def test_a_manual_run_uses_the_given_parameter_values(
    coordinator: Coordinator,
) -> None:
    params = {
        "day": {"type": "date", "default": "tick"},
        "count": 1,
        "word": "a",
        "on": False,
        "list": [1],
    }
    hourly = {"name": "hourly", "schedule": {"every": "1h"}, "params": params}
    coordinator.client.schedules.set({**hourly, "groups": [group("a")]})
    given = {
        "day": "2026-01-02",
        "count": UnparsedText("7"),
        "word": "007",
        "on": True,
        "list": [2, 3],
    }
    assert coordinator.client.schedules.run("hourly", params=given).answer == "DONE"
    coordinator.sweep.run()
    (job,) = [job.id for job in coordinator.client.jobs()]
    values = {**given, "count": 7, "day": {"type": "date", "default": "2026-01-02"}}
    assert coordinator.client.written(job)["params"] == values
    with pytest.raises(SpecError, match="cuont"):
        coordinator.client.schedules.run("hourly", params={"cuont": 1})


def test_a_failed_manual_run_does_not_affect_the_clock_and_can_be_retried(
    coordinator: Coordinator,
) -> None:
    schedules = coordinator.client.schedules
    schedules.set(
        {"name": "hourly", "schedule": {"every": "1h"}, "groups": [group("a", retry={"max": 0})]}
    )
    assert schedules.run("hourly").answer == "DONE"
    coordinator.sweep.run()
    (job,) = [job.id for job in coordinator.client.jobs()]
    assert coordinator.show(job).key.endswith("/by-hand")
    coordinator.read()
    fail(coordinator, job)
    coordinator.sweep.run()
    shown = schedules.show("hourly")
    assert (shown.status, shown.failures, shown.retries, shown.runs) == ("WAITING", 0, (), ())
    assert [problem.job for problem in coordinator.client.problems() if problem.job] == [job]
    assert coordinator.client.retry(job).id != job


def test_a_user_key_in_the_form_of_a_tick_key_is_refused(coordinator: Coordinator) -> None:
    spec = {"name": "hourly", "groups": [group("a")]}
    for key in (f"hourly@{tick_text(BEGIN)}", f"hourly@{tick_text(BEGIN)}/2"):
        with pytest.raises(
            BadKey, match="has the form of the run of a tick, which only schedule hourly submits"
        ):
            coordinator.client.submit(spec, key=key)
    assert coordinator.client.submit(spec, key="hourly@2026-01-01").new
