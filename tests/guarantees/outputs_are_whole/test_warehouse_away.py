"""A warehouse that goes away in the middle of things, as a mount does: nothing counts that was done
anywhere else.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support import fleet
from tests.support.servers import RedisServer
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Offer


@pytest.fixture(scope="module")
def worker(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[fleet.FleetWorker]:
    with fleet.worker(
        redis_server.url, tmp_path_factory.mktemp("worker"), queues="away"
    ) as running:
        yield running


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """Not flushed: the worker lives through the module."""
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


@dataclass
class Gated:
    """An attempt whose step waits for a word, in a warehouse that the test takes away and brings
    back.
    """

    store: redis.Redis
    folder: Path
    offer: Offer

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    def take_away(self) -> None:
        fleet.begun(self.store, self.offer, self.folder / "started")
        self.warehouse.rename(self.folder / "gone")

    def bring_back(self) -> None:
        shutil.rmtree(self.warehouse, ignore_errors=True)
        (self.folder / "gone").rename(self.warehouse)

    def go_on(self) -> None:
        (self.folder / "gate").touch()

    def outcome(self) -> Outcome:
        return fleet.outcome(self.store, self.offer)


@pytest.fixture
def gated(worker: fleet.FleetWorker, store: redis.Redis, tmp_path: Path) -> Callable[..., Gated]:
    def make(step: str, output: str | None = None, **more: Any) -> Gated:
        given = {"started": str(tmp_path / "started"), "gate": str(tmp_path / "gate")}
        one = {"python": f"fleet_steps:{step}", "params": given, "output": output}
        spec = {"name": "g", "spark": False, "queue": "away", "steps": [one], **more}
        return Gated(
            store,
            tmp_path,
            fleet.make_offer(store, tmp_path / "warehouse", f"job-{os.urandom(4).hex()}", spec),
        )

    return make


@pytest.mark.claim("An attempt never succeeds in a folder that is not its warehouse.")
@pytest.mark.parametrize(
    "mount_point", [False, True], ids=["nothing there", "an empty mount point"]
)
def test_an_attempt_in_a_folder_that_is_not_its_warehouse_never_succeeds(
    gated: Callable[..., Gated], mount_point: bool
) -> None:
    attempt = gated("gated_table", "numbers")
    attempt.take_away()
    if mount_point:
        attempt.warehouse.mkdir()
    attempt.go_on()

    outcome = attempt.outcome()
    assert outcome.kind is OutcomeKind.FAILED
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.recoverable) == ("WAREHOUSE_MISMATCH", True)
    assert not list(attempt.folder.glob("warehouse/*")), (
        "nothing is made where the warehouse is not"
    )


@pytest.mark.claim("An attempt never succeeds in a folder that is not its warehouse.")
def test_files_of_a_step_do_not_turn_a_wrong_folder_into_a_warehouse(
    gated: Callable[..., Gated],
) -> None:
    """As Spark does, which writes by itself and makes every folder that is missing."""
    attempt = gated("false_folder")
    attempt.take_away()
    attempt.go_on()

    outcome = attempt.outcome()
    assert outcome.failure is not None, outcome
    assert (outcome.failure.code, outcome.failure.recoverable) == ("WAREHOUSE_MISMATCH", True)
    assert not list(attempt.warehouse.rglob("_marker.json"))


@pytest.mark.claim("An attempt never succeeds in a folder that is not its warehouse.")
@pytest.mark.parametrize(
    ("step", "retry"),
    [("gated_never", {}), ("gated_error", {"never_retry_on": ["RuntimeError"]})],
    ids=["ours", "named"],
)
def test_an_unrecoverable_failure_is_retried_if_the_warehouse_was_missing(
    gated: Callable[..., Gated], step: str, retry: dict[str, Any]
) -> None:
    attempt = gated(step, retry=retry)
    attempt.take_away()
    attempt.go_on()

    outcome = attempt.outcome()
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.recoverable) == ("WAREHOUSE_MISMATCH", True)
    assert "no use trying again" in outcome.failure.text


def test_a_warehouse_that_returns_in_time_costs_no_attempt(gated: Callable[..., Gated]) -> None:
    attempt = gated("gated_table", "numbers")
    attempt.take_away()
    attempt.bring_back()
    attempt.go_on()

    outcome = attempt.outcome()
    assert outcome.kind is OutcomeKind.SUCCEEDED, outcome.failure
    assert (attempt.warehouse / str(outcome.staging) / "_marker.json").exists()
