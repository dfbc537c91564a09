"""A place where the second of two creates is not refused: nothing is taken in for it, run on it or
published to it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.support import fleet
from tests.support.network.s3_server import S3Server
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.programs.s3_gateway import Gateway, s3_gateway
from tests.support.servers import RedisServer, wait_until
from unstuck import Client, Settings, Status, WarehouseUnsafe, published_files
from unstuck.coordinator.publishing.table_formats.delta_files import DeltaFiles
from unstuck.doctor.host_facts import warehouse_facts
from unstuck.doctor.installation_checks import of_warehouse
from unstuck.tasks.protocol.report import OutcomeKind
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse

STEPS = """
from pathlib import Path
import pyarrow as pa

def rows(spark, ctx, ran):
    Path(ran).touch()
    return pa.table({"n": [1, 2]})
"""
Through = Callable[[Gateway], None]


@pytest.fixture
def gateway(s3_server: S3Server) -> Iterator[Gateway]:
    """Another endpoint of the same buckets.

    It ignores If-None-Match until a test says otherwise.
    """
    with s3_gateway(s3_server, ignores_conditions=True) as gateway:
        yield gateway


@pytest.fixture
def through(monkeypatch: pytest.MonkeyPatch) -> Through:
    """Lets this process reach its buckets by another endpoint from now on."""
    return lambda gateway: monkeypatch.setenv(
        "AWS_ENDPOINT_URL", gateway.environ["AWS_ENDPOINT_URL"]
    )


def load(folder: Path, **more: str) -> dict[str, object]:
    step = {"python": "lake:rows", "output": "numbers", "params": {"ran": str(folder / "ran")}}
    return {
        "name": "load",
        "spark": False,
        "queue": "light",
        "retry": {"max": 0},
        "steps": [step],
        **more,
    }


@pytest.mark.claim("Storage that cannot create a file atomically is refused.")
@pytest.mark.variant
def test_a_submit_to_a_store_without_conditional_writes_is_refused(
    client: redis.Redis,
    redis_server: RedisServer,
    bucket: str,
    gateway: Gateway,
    through: Through,
    tmp_path: Path,
) -> None:
    uri, app = (
        f"{bucket}/w",
        Client(Settings(redis_url=redis_server.url, warehouse=f"{bucket}/w"), redis_client=client),
    )
    through(gateway)
    with pytest.raises(
        WarehouseUnsafe, match=rf"{uri} .*{gateway.environ['AWS_ENDPOINT_URL']}.*If-None-Match"
    ):
        app.submit({"name": "lake", "groups": [load(tmp_path)]})
    assert Files(uri).names("") == []
    assert client.keys() == []


@pytest.mark.claim("Storage that cannot create a file atomically is refused.")
def test_an_existing_warehouse_is_checked_again_at_a_new_endpoint(
    client: redis.Redis,
    redis_server: RedisServer,
    bucket: str,
    gateway: Gateway,
    through: Through,
    tmp_path: Path,
) -> None:
    uri, app = (
        f"{bucket}/w",
        Client(Settings(redis_url=redis_server.url, warehouse=f"{bucket}/w"), redis_client=client),
    )
    app.submit({"name": "lake", "groups": [load(tmp_path)]})
    jobs, stands = len(client.keys()), Files(uri).paths("")
    through(gateway)
    with pytest.raises(WarehouseUnsafe):
        app.submit({"name": "lake", "groups": [load(tmp_path)]})
    assert (len(client.keys()), Files(uri).paths("")) == (jobs, stands)


def test_a_worker_that_uses_an_unsafe_endpoint_runs_no_step(
    client: redis.Redis, redis_server: RedisServer, bucket: str, gateway: Gateway, tmp_path: Path
) -> None:
    (tmp_path / "lake.py").write_text(STEPS)
    environ = {**gateway.environ, "PYTHONPATH": str(tmp_path), "UNSTUCK_SPARK_MASTER": "none"}
    with fleet.worker(redis_server.url, tmp_path, environ=environ):
        outcome = fleet.outcome(
            client, fleet.make_offer(client, f"{bucket}/w", "job-1", load(tmp_path)), 60
        )
    assert outcome.kind is OutcomeKind.FAILED
    assert outcome.failure is not None
    assert outcome.failure.code == "WAREHOUSE_UNSAFE"
    assert not (tmp_path / "ran").exists()
    assert Files(f"{bucket}/w").names("") == ["_warehouse_id"]


def test_a_publisher_behind_an_unsafe_endpoint_waits_for_conditional_writes(
    client: redis.Redis,
    redis_server: RedisServer,
    s3_server: S3Server,
    bucket: str,
    gateway: Gateway,
    tmp_path: Path,
) -> None:
    (tmp_path / "lake.py").write_text(STEPS)
    uri, common = (
        f"{bucket}/w",
        {"PYTHONPATH": str(tmp_path), "UNSTUCK_REDIS_URL": redis_server.url},
    )
    app = Client(Settings(redis_url=redis_server.url, warehouse=uri), redis_client=client)
    with (
        fleet.worker(
            redis_server.url,
            tmp_path,
            environ={**common, **s3_server.environ, "UNSTUCK_SPARK_MASTER": "none"},
        ),
        coordinator_processes(tmp_path, {**common, **gateway.environ}) as coordinators,
    ):
        coordinators.tend(1)
        job = app.submit({"name": "lake", "groups": [load(tmp_path)]}).id
        wait_until(
            lambda: "WAREHOUSE_UNSAFE" in str(app.show(job, why=True)),
            60,
            "the publisher to refuse its endpoint",
        )
        assert Warehouse(uri).head() == 0
        gateway.ignores_conditions = False
        assert app.wait(job).status is Status.FINISHED
    assert len(published_files(uri, "numbers")) == Warehouse(uri).head() == 1


def test_a_checked_warehouse_costs_only_the_request_that_reads_its_id(
    bucket: str, gateway: Gateway, through: Through
) -> None:
    gateway.ignores_conditions = False
    made = Warehouse(f"{bucket}/w")
    known = made.ensure_id()
    through(gateway)
    Warehouse(f"{bucket}/w").check_id(known)
    tried = len(gateway.requests)
    Warehouse(f"{bucket}/w").check_id(known)
    assert gateway.requests[tried:] == [("GET", gateway.requests[0][1])]
    # A process that did not try it itself reads the note, once.
    program = (
        "from unstuck.tasks.warehouse.log import Warehouse; "
        f"Warehouse('{bucket}/w').check_id('{known}')"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert [method for method, _ in gateway.requests[tried + 1 :]] == ["GET", "HEAD"]


def test_doctor_names_a_store_without_conditional_writes(
    bucket: str, gateway: Gateway, through: Through
) -> None:
    Warehouse(f"{bucket}/w").ensure_id()
    through(gateway)
    found = of_warehouse(warehouse_facts(f"{bucket}/w", "word"))
    assert found.code == "WAREHOUSE"
    assert "does not create a file only if it is absent" in found.text
    assert "WAREHOUSE_UNSAFE" in found.cure
    assert Files(f"{bucket}/w").names("") == ["_warehouse_id"]


def test_no_delta_table_is_written_to_a_store_without_conditional_writes(
    bucket: str, gateway: Gateway, through: Through
) -> None:
    DeltaFiles(f"{bucket}/table").probe()
    through(gateway)
    with pytest.raises(WarehouseUnsafe):
        DeltaFiles(f"{bucket}/table").probe()


@pytest.mark.claim("Storage that cannot create a file atomically is refused.")
def test_a_folder_whose_hard_links_overwrite_files_is_refused_and_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", os.replace)
    with pytest.raises(WarehouseUnsafe, match="exclusive hard links"):
        Warehouse(str(tmp_path / "w")).ensure_id()
    assert list((tmp_path / "w").iterdir()) == []
