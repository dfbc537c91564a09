"""A job replaces no dataset of another job without a word: submits, retries and schedules look at
its owner.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.guarantees.nothing_is_forgotten.test_rolled_back_store import snapshot
from tests.guarantees.schedules.test_runs_per_tick import next_run
from tests.guarantees.shown_is_true.test_states import staged
from tests.support.coordinator import Coordinator, group
from tests.support.servers import wait_until
from unstuck import DatasetOwned, Status
from unstuck.cli.app import app

DATASET = "flights"


def job_spec(name: str, *, shared_with: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    load = group("load", retry={"max": 0}, steps=[{"python": "m:f", "output": DATASET}])
    outputs = {"outputs": {DATASET: {"shared_with": shared_with}}} if shared_with else {}
    return {"name": name, "groups": [load], **outputs, **more}


def publish(coordinator: Coordinator, job: str, rows: int) -> Status:
    """Do the work of a job."""
    coordinator.read()
    (offer,) = coordinator.offers(job)
    coordinator.claim(offer)
    coordinator.finish(offer.held_by("runner1"), staged(coordinator, offer, DATASET, rows))
    coordinator.read()
    return coordinator.status(job)


def published(coordinator: Coordinator, name: str, rows: int = 1, **more: Any) -> None:
    """Publish the dataset from a new job of this name."""
    job = coordinator.client.submit(job_spec(name, **more)).id
    assert publish(coordinator, job, rows) is Status.FINISHED


def dataset(coordinator: Coordinator) -> dict[str, Any]:
    """What ``unstuck datasets`` answers for the dataset."""
    asked = ["datasets", DATASET, "--warehouse", coordinator.settings.warehouse, "--json"]
    answer = CliRunner().invoke(app, asked, catch_exceptions=False)
    (document,) = json.loads(answer.stdout)
    return {name: document[name] for name in ("rows", "owner", "shared_with", "job_name")}


@pytest.mark.claim("A job cannot replace a dataset that belongs to another job by mistake.")
def test_an_output_to_a_dataset_of_another_owner_is_refused_at_submit(
    coordinator: Coordinator,
) -> None:
    """33 rows of another team were replaced by one."""
    published(coordinator, "daily", rows=33)
    jobs = len(coordinator.client.jobs())

    with pytest.raises(DatasetOwned) as refused:
        coordinator.client.submit(job_spec("hourly"), key="hourly-1")

    text = str(refused.value)
    assert text.startswith(
        "job hourly is not stored: job hourly may not publish flights, which job daily owns. "
    )
    assert "list hourly in shared_with: of the output flights of job daily" in text
    assert "submit hourly with --take-over" in text
    assert len(coordinator.client.jobs()) == jobs
    assert dataset(coordinator) == {
        "rows": 33,
        "owner": "daily",
        "shared_with": [],
        "job_name": "daily",
    }


def test_jobs_listed_by_the_owner_may_also_write_its_dataset(coordinator: Coordinator) -> None:
    published(coordinator, "daily", shared_with=("hour*",))
    published(coordinator, "hourly", rows=5)
    shared = {"rows": 5, "owner": "daily", "shared_with": ["hour*"], "job_name": "hourly"}
    assert dataset(coordinator) == shared


def test_a_takeover_changes_the_owner_and_its_events_name_the_previous_one(
    coordinator: Coordinator,
) -> None:
    published(coordinator, "daily")
    spec = job_spec("hourly")
    job = coordinator.client.submit(spec, key="k", take_over=True).id
    assert coordinator.client.submit(spec, key="k").id == job, (
        "a message that comes twice is answered with the job"
    )
    assert publish(coordinator, job, 2) is Status.FINISHED

    told = [event.get("text", "") for _, event in coordinator.client.events(job)]
    assert told[0] == "takes over what it publishes"
    assert (
        told[-1]
        == "all groups are done and published as version 2. It took flights over from job daily"
    )
    assert dataset(coordinator)["owner"] == "hourly"
    with pytest.raises(DatasetOwned, match="which job hourly owns"):
        coordinator.client.submit(job_spec("daily"))


@pytest.mark.claim("A job cannot replace a dataset that belongs to another job by mistake.")
def test_the_second_of_two_simultaneous_submits_fails_and_its_retry_may_take_over(
    coordinator: Coordinator,
) -> None:
    winner, loser = (coordinator.client.submit(job_spec(name)).id for name in ("winner", "loser"))
    assert publish(coordinator, winner, 33) is Status.FINISHED
    assert publish(coordinator, loser, 1) is Status.FAILED
    reason = coordinator.record(loser).reason
    assert reason is not None
    assert reason.code == "DATASET_OWNED"
    assert dataset(coordinator)["rows"] == 33

    with pytest.raises(
        DatasetOwned, match=f"job {loser} is not retried: job loser may not publish flights"
    ):
        coordinator.client.retry(loser)
    retried = coordinator.client.retry(loser, take_over=True).id
    assert publish(coordinator, retried, 2) is Status.FINISHED
    assert dataset(coordinator)["owner"] == "loser"


def test_a_retry_of_a_takeover_also_takes_over(coordinator: Coordinator) -> None:
    published(coordinator, "daily")
    job = coordinator.client.submit(job_spec("hourly"), take_over=True).id
    coordinator.client.cancel(job)
    coordinator.read()
    assert coordinator.status(job) is Status.CANCELED
    assert publish(coordinator, coordinator.client.retry(job).id, 2) is Status.FINISHED
    assert dataset(coordinator)["owner"] == "hourly"


def test_a_redis_rollback_changes_no_owner(coordinator: Coordinator) -> None:
    published(coordinator, "daily")
    job = coordinator.client.submit(job_spec("hourly"), take_over=True).id
    back = snapshot(coordinator)
    assert publish(coordinator, job, 2) is Status.FINISHED
    back()
    assert publish(coordinator, job, 2) is Status.FINISHED
    assert coordinator.record(job).version == 2, "its package stands"
    assert dataset(coordinator)["owner"] == "hourly"


@pytest.mark.claim("A job cannot replace a dataset that belongs to another job by mistake.")
def test_a_schedule_without_ownership_is_refused_and_halts_if_it_loses_its_dataset(
    coordinator: Coordinator,
) -> None:
    schedules = coordinator.client.schedules
    spec = job_spec("ticking", schedule={"every": "1s"})
    assert schedules.set(spec).answer == "DONE"
    published(coordinator, "daily", rows=33)
    with pytest.raises(
        DatasetOwned, match="schedule ticking is not set: job ticking may not publish flights"
    ):
        schedules.set(spec)

    def halted() -> bool:
        coordinator.sweep.run()
        return schedules.show("ticking").status == "HALTED"

    wait_until(halted, 20, "the schedule to halt")
    halt = schedules.show("ticking").halted
    assert halt is not None
    assert halt.code == "DATASET_OWNED"
    assert not schedules.runs("ticking")
    assert dataset(coordinator)["rows"] == 33

    assert schedules.set(spec, take_over=True).answer == "DONE"
    assert schedules.set(spec).answer == "ALREADY", "until a run has published"
    run = next_run(coordinator, 0)
    assert publish(coordinator, run, 2) is Status.FINISHED
    assert dataset(coordinator)["owner"] == "ticking"
    schedules.pause("ticking")  # else a tick may come before the other job, and its run goes on
    coordinator.sweep.run()

    other = coordinator.client.submit(job_spec("daily"), take_over=True).id
    assert publish(coordinator, other, 33) is Status.FINISHED
    schedules.resume("ticking")
    wait_until(halted, 20, "the schedule to halt: it took over once, not for good")
