"""A job that compacts a dataset on a worker: the rows stay, and a repeat changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.support import fleet
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer
from unstuck import Client, JobSpec, Settings, Status, published_files
from unstuck.read_model.group import Member
from unstuck.read_model.job import JobInfo

STEPS = "tests.support.steps.fleet_steps"


def job(step: dict[str, Any], **more: Any) -> JobSpec:
    group = {"name": "g", "spark": False, "retry": {"max": 2, "backoff": "10ms"}, "steps": [step]}
    return JobSpec.model_validate({"name": "job", "groups": [group], **more})


LOAD = job(
    {"python": f"{STEPS}:table", "output": "flights"}, outputs={"flights": {"mode": "append"}}
)


@pytest.fixture(scope="module")
def warehouse(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The warehouse of a fleet whose workers may import only the steps of tests."""
    home = tmp_path_factory.mktemp("compact")
    environ = {
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_SPARK_MASTER": "none",
        "UNSTUCK_WAREHOUSE": str(home / "warehouse"),
        "UNSTUCK_STEP_MODULES": STEPS,
    }
    with (
        fleet.worker(redis_server.url, home, concurrency=2, environ=environ),
        coordinator_processes(home, environ) as coordinators,
    ):
        coordinators.tend(1)
        yield home / "warehouse"


@pytest.fixture
def client(redis_server: RedisServer, warehouse: Path) -> Iterator[Client]:
    with Client(Settings(redis_url=redis_server.url, warehouse=str(warehouse))) as client:
        yield client


def ended(client: Client, spec: JobSpec) -> JobInfo:
    submitted = client.submit(spec).id
    assert client.wait(submitted).terminal
    return client.show(submitted)


def group(view: JobInfo) -> Member:
    (one,) = view.claimed
    return one


def test_a_compact_step_merges_small_files_of_many_jobs_and_keeps_the_rows(
    client: Client, warehouse: Path
) -> None:
    for _ in range(4):
        assert ended(client, LOAD).status is Status.FINISHED
    place = str(warehouse)
    before = pl.read_parquet(published_files(place, "flights")).rows()
    assert len(published_files(place, "flights")) == 4

    done = ended(client, job({"compact": "flights"}))
    assert done.status is Status.FINISHED
    results = group(done).results
    assert {name: results[name] for name in ("version", "before", "after", "kept")} == {
        "version": 5,
        "before": 4,
        "after": 1,
        "kept": 0,
    }
    assert len(published_files(place, "flights")) == 1
    assert pl.read_parquet(published_files(place, "flights")).rows() == before

    again = ended(client, job({"compact": "flights", "params": {"target": 64}}))
    assert again.status is Status.FINISHED
    assert group(again).results["version"] == 0, "nothing is left to do"


def test_compacting_an_unpublished_dataset_fails_without_retries(client: Client) -> None:
    failed = ended(client, job({"compact": "fligths"}))
    assert failed.status is Status.FAILED
    assert group(failed).attempt == 1
    assert "fligths" in group(failed).reason.text


def test_a_retry_compacts_data_published_since(client: Client, warehouse: Path) -> None:
    place = str(warehouse)
    upkeep = {"name": "upkeep", "spark": False, "steps": [{"compact": "flights"}]}
    fails = {"name": "fails", "needs": ["upkeep"], "spark": False, "retry": {"max": 0}}
    spec = JobSpec.model_validate(
        {"name": "job", "groups": [upkeep, {**fails, "steps": [{"python": f"{STEPS}:never"}]}]}
    )
    assert ended(client, LOAD).status is Status.FINISHED
    failed = ended(client, spec)
    assert failed.status is Status.FAILED
    for _ in range(2):
        assert ended(client, LOAD).status is Status.FINISHED
    files = len(published_files(place, "flights"))

    again = client.wait(client.retry(failed.id).id)
    assert again.terminal
    assert len(published_files(place, "flights")) < files
    reason = next(one.reason for one in again.claimed if one.id == "upkeep")
    assert (reason.code, reason.text) == (
        "RAN_AGAIN",
        "it compacts what is published by now, so it ran again",
    )
