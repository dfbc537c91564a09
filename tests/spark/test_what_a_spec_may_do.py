"""The claims of docs/security.md on what whoever writes a spec may do on a worker, each tried
there.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import redis

from tests.support import fleet
from tests.support.servers import RedisServer
from unstuck.tasks.protocol.report import Outcome, OutcomeKind

pytestmark = pytest.mark.variant

Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def worker(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[fleet.FleetWorker]:
    """A worker that may import no steps but those of one module, and has a variable of its
    environment.
    """
    environ = {"UNSTUCK_STEP_MODULES": "catalog_steps", "PRECIOUS": "of the worker"}
    with fleet.worker(
        redis_server.url, tmp_path_factory.mktemp("home"), queues="spark", environ=environ
    ) as running:
        yield running


@pytest.fixture
def run(worker: fleet.FleetWorker, client: redis.Redis, tmp_path: Path) -> Run:
    def run(step: dict[str, Any]) -> Outcome:
        # A runner renews its last attempt until it has left it. That renewal would claim an offer
        # of the same name.
        job = f"job-{os.urandom(4).hex()}"
        offer = fleet.make_offer(
            client, tmp_path / "warehouse", job, {"name": "g", "steps": [step]}
        )
        fleet.claimed(client, offer, wakes="spark")
        return fleet.outcome(client, offer, 180)

    return run


def test_sql_can_read_environment_and_files_of_a_worker(run: Run, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("a file of the worker\n")
    environment = "SELECT reflect('java.lang.System', 'getenv', 'PRECIOUS') AS value"
    done = run(
        {
            "sql": f"{environment} UNION ALL SELECT value FROM text.`{tmp_path}/precious`",
            "output": "x",
        }
    )
    assert done.kind is OutcomeKind.SUCCEEDED, done
    files = list((tmp_path / "warehouse").rglob("*.parquet"))
    read = sorted(value for file in files for value in pq.read_table(file)["value"].to_pylist())
    assert read == ["a file of the worker", "of the worker"]


def test_sql_can_write_files_of_a_worker(run: Run, tmp_path: Path) -> None:
    done = run(
        {"sql": f"INSERT OVERWRITE DIRECTORY '{tmp_path}/written' USING csv SELECT 'by SQL'"}
    )
    assert done.kind is OutcomeKind.SUCCEEDED, done
    assert [part.read_text() for part in (tmp_path / "written").glob("part-*")] == ["by SQL\n"]


def test_sql_can_add_code_to_the_jvm_of_a_worker(run: Run, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "any.jar", "w") as jar:
        jar.writestr("any.txt", "any")
    done = run({"sql": f"ADD JAR '{tmp_path}/any.jar'"})
    assert done.kind is OutcomeKind.SUCCEEDED, done


def test_step_modules_can_be_restricted_but_not_what_they_access(run: Run) -> None:
    refused = run({"python": "fleet_steps:quick"})
    assert refused.kind is OutcomeKind.FAILED
    assert "UNSTUCK_STEP_MODULES" in str(refused)
    # Whatever such a module has imported can be called, as here a function of another module.
    reached = run({"python": "catalog_steps:os.link"})
    assert "UNSTUCK_STEP_MODULES" not in str(reached)
    assert "should be string" in str(reached), (
        "os.link was called, with the session and the context"
    )
