"""An S3 that refuses: no access, no credentials, no bucket.

Everybody is told which place and what it takes.
"""

# The server checks signatures and policies. The worker, the publisher and the client of a test have
# users of their own.

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support import fleet
from tests.support.network.s3_server import S3Server
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.programs.instance_metadata import instance_metadata
from tests.support.servers import RedisServer, free_port, wait_until
from unstuck import Client, Settings, Status, published_files
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse

ALL = {"Effect": "Allow", "Action": "*", "Resource": "*"}
READS = {"Effect": "Allow", "Action": "s3:[GL]*", "Resource": "*"}
RETRY = {"max": 1, "backoff": "100ms"}
STEPS = """
import pyarrow as pa

def rows(spark, ctx):
    return pa.table({"n": [1, 2]})
"""


@dataclass
class FleetWithKeys:
    """A fleet on an S3 that checks who asks. No environment here has another one's keys."""

    server: S3Server
    redis_url: str
    store: redis.Redis
    keyless: dict[str, str]

    def environ(self, user: tuple[str, str] | None) -> dict[str, str]:
        keys = (
            {}
            if user is None
            else dict(zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), user, strict=True))
        )
        return {**self.keyless, **keys}

    def submit(self, uri: str, queue: str = "light", **of_group: Any) -> str:
        step = {"python": "lake:rows", "output": "numbers"}
        group = {
            "name": "load",
            "spark": False,
            "queue": queue,
            "retry": RETRY,
            "steps": [step],
            **of_group,
        }
        with Client(
            Settings(redis_url=self.redis_url, warehouse=uri), redis_client=self.store
        ) as client:
            return client.submit({"name": "lake", "groups": [group]}).id

    def wait(self, job: str) -> Any:
        with Client(Settings(redis_url=self.redis_url), redis_client=self.store) as client:
            return client.wait(job)

    def why(self, job: str) -> str:
        with Client(Settings(redis_url=self.redis_url), redis_client=self.store) as client:
            return "\n".join(str(one) for one in client.explain(job))

    def command(
        self, uri: str, user: tuple[str, str] | None, *arguments: str, **more: str
    ) -> tuple[int, str]:
        """A command of a person, in a process of its own: its exit code and all that it says."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        environ |= {
            **self.environ(user),
            "UNSTUCK_REDIS_URL": self.redis_url,
            "UNSTUCK_WAREHOUSE": uri,
            **more,
        }
        run = [sys.executable, "-m", "unstuck.cli", *arguments]
        done = subprocess.run(run, env=environ, capture_output=True, text=True, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.fixture(scope="module")
def place(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FleetWithKeys]:
    server, folder = S3Server(), tmp_path_factory.mktemp("fleet")
    (folder / "lake.py").write_text(STEPS)
    server.start()
    old = dict(os.environ)
    try:
        server.check_access()
        worker, publisher = server.make_user("worker", ALL), server.make_user("publisher", ALL)
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]
        keyless = {name: value for name, value in server.environ.items() if "KEY" not in name}
        # Nobody answers there, as on a machine that is not of AWS.
        keyless |= {
            "AWS_METADATA_ENDPOINT": f"http://127.0.0.1:{free_port()}",
            "NO_PROXY": "127.0.0.1",
        }
        with connect(redis_server.url) as store:
            store.flushall()
            made = FleetWithKeys(server, redis_server.url, store, keyless)
            common = {
                "PYTHONPATH": str(folder),
                "UNSTUCK_SPARK_MASTER": "none",
                "UNSTUCK_SWEEP_EVERY": "300ms",
            }
            reader = {**common, **made.environ(worker)}
            without = {**common, **made.environ(None)}
            publishing = {
                **common,
                **made.environ(publisher),
                "UNSTUCK_REDIS_URL": redis_server.url,
            }
            with (
                fleet.worker(redis_server.url, folder, environ=reader),
                fleet.worker(redis_server.url, folder, queues="keyless", environ=without),
                coordinator_processes(folder, publishing) as coordinators,
            ):
                coordinators.tend(1)
                os.environ.update(server.environ)
                yield made
    finally:
        os.environ.clear()
        os.environ.update(old)
        server.stop()


@pytest.fixture
def uri(place: FleetWithKeys) -> Iterator[str]:
    """The address of a warehouse in a bucket of its own; all users may do everything, again."""
    place.server.allow("worker", ALL)
    place.server.allow("publisher", ALL)
    return f"{place.server.make_bucket()}/w"


def denies(place: FleetWithKeys, uri: str) -> str:
    place.server.allow("worker")
    return place.submit(uri)


def denies_writing(place: FleetWithKeys, uri: str) -> str:
    place.server.allow("worker", READS)
    return place.submit(uri)


def has_no_keys(place: FleetWithKeys, uri: str) -> str:
    return place.submit(uri, "keyless")


def removed_bucket(place: FleetWithKeys, uri: str) -> str:
    with Client(Settings(redis_url=place.redis_url), redis_client=place.store) as client:
        client.pools.set("shut", 0)  # no attempt begins before the bucket is gone
        job = place.submit(uri, pool="shut")
        bucket = uri.removeprefix("s3://").partition("/")[0]
        with closing(place.server.client("s3")) as s3:
            s3.delete_object(Bucket=bucket, Key="w/_warehouse_id")
            s3.delete_bucket(Bucket=bucket)
        client.pools.set("shut", 1)
    return job


@pytest.mark.variant
@pytest.mark.parametrize(
    ("begin", "code", "says"),
    [
        (
            denies,
            "WAREHOUSE_TROUBLE",
            "access denied (AccessDenied: Access Denied). The credentials of this process",
        ),
        (denies_writing, "STEP_FAILED", "to read, write and remove objects below"),
        (
            has_no_keys,
            "WAREHOUSE_TROUBLE",
            "no credentials: none in the environment, and this machine has no role",
        ),
        (removed_bucket, "WAREHOUSE_TROUBLE", "does not exist. Make it, or correct the address"),
    ],
    ids=["no access", "no writing", "no credentials", "no bucket"],
)
def test_a_job_fails_with_a_reason_after_the_store_refuses_its_worker(
    place: FleetWithKeys, uri: str, begin: Callable[[FleetWithKeys, str], str], code: str, says: str
) -> None:
    view = place.wait(begin(place, uri))
    assert view.status is Status.FAILED
    record = view.groups[0].members[0]
    assert record.reason is not None
    assert record.reason.code == code
    assert says in record.reason.text
    assert uri in record.reason.text
    assert "all 1 retries are used up" in record.reason.text
    assert (record.attempt, record.losses) == (2, 0), "no worker is to blame"


def test_a_refused_publisher_waits_and_publishes_once_permitted(
    place: FleetWithKeys, uri: str
) -> None:
    place.server.allow("publisher", READS)
    job = place.submit(uri)
    wait_until(lambda: "access denied" in place.why(job), 30, "the publisher to be refused")
    told = place.why(job)
    assert f"{uri}/_log/000000000001.json" in told
    assert "write and remove objects below" in told
    place.server.allow("publisher", ALL)
    assert place.wait(job).status is Status.FINISHED
    assert len(published_files(uri, "numbers")) == Warehouse(uri).head() == 1


@pytest.mark.variant
def test_submit_and_doctor_name_missing_client_permissions(
    place: FleetWithKeys, uri: str, tmp_path: Path
) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text(
        "{name: j, groups: [{name: g, spark: false, steps: [{python: 'lake:rows', output: o}]}]}"
    )
    Warehouse(uri).ensure_id()
    everybody = place.server.make_user("everybody", ALL)
    stranger, reader = place.server.make_user("stranger"), place.server.make_user("reader", READS)
    jobs = place.store.zcard(fleet.KEYS.due)
    cases = [
        (
            uri,
            stranger,
            (
                "access denied (AccessDenied: Access Denied). The credentials of this process must "
                "allow it"
            ),
        ),
        (
            uri,
            ("unknown", "hidden"),
            "(InvalidAccessKeyId: The AWS Access Key Id you provided does not exist",
        ),
        (uri, (everybody[0], "hidden"), "access denied (SignatureDoesNotMatch: "),
        (
            uri,
            None,
            (
                "no credentials: none in the environment, and this machine has no role that gives "
                "any. "
                "Set AWS_A"
            ),
        ),
        (
            "s3://no-such-bucket/w",
            everybody,
            "the bucket of s3://no-such-bucket/w does not exist. Make it",
        ),
    ]
    for where, user, says in cases:
        code, said = place.command(where, user, "submit", str(spec))
        assert (code, says in said) == (2, True), said
        assert where in said
        assert "hidden" not in said
        code, said = place.command(where, user, "doctor")
        assert (code, says in said) == (1, True), said
        assert f"problem WAREHOUSE: the warehouse {where} cannot be used from here" in said
    assert place.store.zcard(fleet.KEYS.due) == jobs, "nothing was stored"
    code, said = place.command(uri, reader, "doctor")
    assert f"{uri}/_doctor-" in said
    assert (
        "access denied (AccessDenied: Access Denied). The credentials of this process must allow"
        in said
    )
    assert "Delete" not in said, "what went wrong first is told"


@pytest.mark.variant
def test_access_keys_are_required_if_no_instance_role_is_available(
    place: FleetWithKeys, uri: str
) -> None:
    """As on most machines that are not of AWS: the address of the role is a black hole."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        role = f"http://127.0.0.1:{silent.getsockname()[1]}"
        code, said = place.command(uri, None, "doctor", AWS_METADATA_ENDPOINT=role)
    assert code == 1
    assert f"the warehouse {uri} has not answered within" in said
    assert (
        "no credentials in its environment, and its machine may have no role. Set AWS_ACCESS_KEY_ID"
        in said
    )
    assert "its server up" in said, "the machine may have a role, and the store be away"


@pytest.mark.variant
def test_a_fleet_without_keys_uses_the_role_of_its_machine(
    place: FleetWithKeys, uri: str, tmp_path: Path
) -> None:
    """Worker, publisher, submit and doctor: none has a key in its environment."""
    (tmp_path / "lake.py").write_text(STEPS)
    spec = tmp_path / "job.yaml"
    spec.write_text(
        "{name: j, groups: [{name: g, spark: false, steps: [{python: 'lake:rows', output: "
        "numbers}]}]}"
    )
    keys = place.server.assume_role("machine", ALL)
    server = RedisServer(tmp_path)
    server.start()
    try:
        with instance_metadata(keys) as machine, connect(server.url) as store:
            role = {"AWS_METADATA_ENDPOINT": machine.endpoint, "UNSTUCK_REDIS_URL": server.url}
            environ = {
                **place.environ(None),
                **role,
                "PYTHONPATH": str(tmp_path),
                "UNSTUCK_SPARK_MASTER": "none",
            }
            with pytest.MonkeyPatch.context() as patch, ExitStack() as processes:
                for name in (
                    "AWS_ACCESS_KEY_ID",
                    "AWS_SECRET_ACCESS_KEY",
                ):  # this process has them, to look with
                    patch.delenv(name)
                processes.enter_context(fleet.worker(server.url, tmp_path, environ=environ))
                processes.enter_context(coordinator_processes(tmp_path, environ)).tend(1)
                code, said = place.command(uri, None, "submit", str(spec), "--wait", **role)
                assert code == 0, said
                code, said = place.command(uri, None, "doctor", **role)
                assert f"{uri} can be written, and creates a file only if it is absent" in said
            records = repr([store.dump(key) for key in store.scan_iter()])
        assert machine.handed_out >= 4, "to the worker, the publisher, and both commands"
        assert len(published_files(uri, "numbers")) == Warehouse(uri).head() == 1
        files = Files(uri)
        stored = {path: files.read(path).decode(errors="replace") for path in files.paths("")}
        assert {Path(path).name for path in stored} >= {"_marker.json", "000000000001.json"}
        for name in ("AccessKeyId", "SecretAccessKey", "SessionToken"):
            assert keys[name] not in records, name
            assert [path for path, text in stored.items() if keys[name] in text] == [], name
    finally:
        server.stop()


@pytest.mark.variant
def test_a_force_ended_job_with_a_refused_publisher_ends_once_the_log_is_readable(
    place: FleetWithKeys, uri: str
) -> None:
    place.server.allow("publisher", READS)
    job = place.submit(uri)
    wait_until(lambda: "access denied" in place.why(job), 30, "the publisher to be refused")
    with Client(Settings(redis_url=place.redis_url), redis_client=place.store) as client:
        assert client.force_stop(job).answer == "DONE"
    asks = "the warehouse has not answered yet whether the package is published"
    wait_until(lambda: asks in place.why(job), 30, "the abort to be refused, which why says")
    place.server.allow("publisher", ALL)
    assert place.wait(job).status is Status.CANCELED
    entry = Warehouse(uri).entry(1)
    assert entry is not None
    assert (entry.kind, Warehouse(uri).head()) == ("abort", 1)
