"""A whole local fleet, real processes and real signals: jobs run end to end and survive the loss of
any process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from tests.support.jobs.stored import record_of
from tests.support.machine import Limit
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.programs.processes import below, command_line
from tests.support.servers import free_port, wait_until
from unstuck import Client, Settings, Status
from unstuck.coordinator.model.status import GroupState
from unstuck.local.local_fleet import LocalFleet
from unstuck.local.programs import Size
from unstuck.tasks.protocol.process_info import RunnerInfo

EXAMPLES = ROOT / "examples"
FLOWER = str(Path(sys.prefix, "flower"))  # scripts/setup.sh installs it there


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    home = tmp_path_factory.mktemp("fleet")
    patch = pytest.MonkeyPatch()
    patch.delenv("UNSTUCK_REDIS_URL", raising=False)
    patch.setenv("UNSTUCK_WAREHOUSE", str(home / "warehouse"))
    patch.setenv("UNSTUCK_LEASE_TTL", "6s")
    patch.setenv("UNSTUCK_LEASE_RENEW", "1s")
    patch.setenv("UNSTUCK_DISPATCH_TIMEOUT", "5s")
    patch.setenv("UNSTUCK_CANCEL_DEADLINE", "8s")
    patch.setenv("PYTHONPATH", PYTHONPATH)
    try:
        with LocalFleet(Size(coordinators=2), home) as fleet:
            fleet.wait_ready(150)
            yield fleet
    finally:
        patch.undo()


@pytest.fixture
def client(fleet: LocalFleet) -> Iterator[Client]:
    # The settings of this process may have been read before the fleet was there.
    warehouse = str(fleet.home.path / "warehouse")
    with Client(Settings(redis_url=fleet.redis_url, warehouse=warehouse)) as client:
        yield client


def kinds(client: Client, job: str) -> dict[str, list[str]]:
    """Kinds of events, in order, per group."""
    found: dict[str, list[str]] = {}
    for _, event in client.events(job):
        if "group" in event:
            found.setdefault(event["group"], []).append(event["kind"])
    return found


def runner_of(client: Client, job: str, group: str) -> RunnerInfo:
    def find() -> RunnerInfo | None:
        for runner in client.fleet().runners:
            if runner.job == job and runner.group == group:
                return runner
        return None

    return wait_until(find, 60, f"{group} to run")


def celery_processes(*words: str) -> list[psutil.Process]:
    """Celery processes of the fleet with these arguments."""
    return [
        one
        for one in below(psutil.Process())
        if {"celery", *words} <= set(command_line(one).split())
    ]


def until_step(tmp_path: Path, name: str = "hold", **more: Any) -> tuple[dict[str, Any], Path]:
    """A ``spark: false`` group that runs until a file appears, and that file."""
    gate = tmp_path / "gate"
    step = {"python": "fleet_steps:until", "params": {"path": str(gate)}}
    return {"name": name, "spark": False, "steps": [step], **more}, gate


def test_a_fork_of_200_groups_runs_each_group_exactly_once(
    client: Client,
) -> None:
    job = client.submit(EXAMPLES / "wide.yaml").id
    assert client.wait(job).status is Status.FINISHED
    events = kinds(client, job)
    assert len(events) == 202
    assert events.pop("end") == ["SUCCEEDED"], "a join visits no worker"
    assert {tuple(group) for group in events.values()} == {("QUEUED", "RUNNING", "SUCCEEDED")}


def test_a_worker_killed_with_its_children_is_replaced_and_its_group_reruns(
    client: Client, fleet: LocalFleet, tmp_path: Path
) -> None:
    """Nobody is left who could report it: the lease tells."""
    group, gate = until_step(tmp_path)
    job = client.submit({"name": "kill-worker", "groups": [group]}).id
    killed = psutil.Process(runner_of(client, job, "hold").worker_pid)
    killed.suspend()  # it starts no other child
    children = killed.children(recursive=True)
    for process in children:
        process.suspend()  # or the watchdog of a runner that dies first would report it
    for process in (killed, *children):
        process.kill()

    def again() -> bool:
        record = client.show(job).groups[0].members[0]
        return (record.state, record.attempt) == (GroupState.RUNNING, 2)

    def runs_now() -> set[int]:
        (light,) = [one.pid for one in fleet.processes if one.name == "light-1"]
        return {one.worker_pid for one in client.fleet().runners if one.job == job} & {light}

    wait_until(again, 60, "the group to run again")
    wait_until(runs_now, 10, "the fleet list to show it on the worker that was started instead")
    psutil.wait_procs(children)  # nothing of the killed worker is left
    gate.touch()
    view = client.wait(job)
    assert view.status is Status.FINISHED, view.reason
    assert kinds(client, job)["hold"] == [
        "QUEUED",
        "RUNNING",
        "BACKOFF",
        "QUEUED",
        "RUNNING",
        "SUCCEEDED",
    ]
    record = view.groups[0].members[0]
    assert record.first_error is not None
    assert record.first_error.code == "LEASE_LAPSED"


def test_a_frozen_runner_is_replaced_and_changes_nothing_when_it_thaws(
    client: Client, tmp_path: Path
) -> None:
    group, gate = until_step(tmp_path)
    job = client.submit({"name": "freeze", "groups": [group]}).id
    frozen = runner_of(client, job, "hold")
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        wait_until(
            lambda: "BACKOFF" in kinds(client, job)["hold"],
            40,
            "the frozen runner's lease to lapse",
        )
        gate.touch()
        view = client.wait(job)
    finally:
        if psutil.pid_exists(frozen.pid):
            os.kill(frozen.pid, signal.SIGCONT)
    assert view.status is Status.FINISHED
    record = view.groups[0].members[0]
    assert (record.attempt, record.losses, record.failures) == (2, 0, 0)
    assert record.first_error is not None
    assert record.first_error.code == "LEASE_LAPSED"
    commit = record_of(client, job).commit
    wait_until(
        lambda: _idle_or_gone(client, frozen.id), 30, "the thawed runner to let go or end itself"
    )
    assert record_of(client, job).commit == commit


def _idle_or_gone(client: Client, runner: str) -> bool:
    return all(found.job is None for found in client.fleet().runners if found.id == runner)


def test_another_coordinator_continues_a_wide_job_when_one_is_killed(
    client: Client, fleet: LocalFleet
) -> None:
    spec = {
        "name": "kill-coordinator",
        "groups": [
            {
                "name": "w",
                "spark": False,
                "for_each": {"n": list(range(300))},
                "steps": [{"python": "examples.noop:noop"}],
            },
            {"name": "end", "needs": ["w"]},
        ],
    }
    job = client.submit(spec).id
    wait_until(lambda: client.show(job).done > 40, 60, "some groups to be done")
    celery_processes("unstuck.coordinator", "worker")[0].kill()
    assert client.wait(job).status is Status.FINISHED
    events = kinds(client, job)
    assert len(events) == 301
    doubled = {name: found for name, found in events.items() if max(Counter(found).values()) > 1}
    assert not doubled, "no event twice, no group run twice"


@pytest.mark.variant
@pytest.mark.parametrize(
    "offers", [False, True], ids=["the broker", "the broker and all ready sets"]
)
def test_a_running_fleet_recovers_when_every_broker_key_is_deleted(
    client: Client, fleet: LocalFleet, offers: bool
) -> None:
    """Wake-ups are sent again, and offers are put back."""
    spec = {
        "name": f"broker-keys-{offers}",
        "groups": [
            {
                "name": "w",
                "spark": False,
                "for_each": {"n": list(range(120))},
                "steps": [{"python": "examples.noop:noop"}],
            }
        ],
    }
    job = client.submit(spec).id
    wait_until(lambda: client.show(job).done > 5, 60, "some groups to be done")
    with redis.Redis.from_url(fleet.redis_url, decode_responses=True) as store:
        mine = list(store.scan_iter("unstuck:celery:*", count=1000))
        if (
            not offers
        ):  # the other case comes after this one, and the broker may hold nothing again yet
            assert {"light", "unacked", "_kombu.binding.celery.pidbox"} & {
                key.split(":")[-1] for key in mine
            }
        ready = list(store.scan_iter("unstuck:ready*", count=1000))
        assert "unstuck:ready:light" in ready
        store.delete(*mine, *(ready if offers else ()))
    assert client.wait(job).status is Status.FINISHED
    assert {tuple(found) for found in kinds(client, job).values()} == {
        ("QUEUED", "RUNNING", "SUCCEEDED")
    }


@pytest.mark.variant
def test_an_app_without_unstuck_submits_through_celery(client: Client, fleet: LocalFleet) -> None:
    code = (
        "import sys; from celery import Celery; app = Celery(broker=sys.argv[1], "
        "broker_transport_options={'global_keyprefix': 'unstuck:celery:'}); "
        "app.send_task('unstuck.submit', kwargs={'spec': {'name': 'foreign', 'groups': [{'name': "
        "'g', 'spark': False, 'steps': [{'python': 'examples.noop:start'}]}]}, 'key': "
        "'foreign-1'}, queue='control')"
    )
    subprocess.run([sys.executable, "-c", code, fleet.redis_url], check=True, cwd="/")
    found = wait_until(lambda: client.jobs(name="foreign"), 20, "the job to be submitted")
    assert client.wait(found[0].id).status is Status.FINISHED


@pytest.mark.variant
def test_celery_inspect_and_flower_work_with_a_fleet(fleet: LocalFleet) -> None:
    env = {**os.environ, "UNSTUCK_REDIS_URL": fleet.redis_url}
    ping = subprocess.run(
        [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "unstuck.tasks",
            "inspect",
            "ping",
            "--timeout",
            "5",
            "--json",
        ],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    nodes = json.loads(ping.stdout.splitlines()[-1])
    assert {name.split("@")[0].rstrip("0123456789-") for name in nodes} >= {
        "spark",
        "light",
        "coordinator",
    }, nodes

    port = free_port()
    flower = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "unstuck.tasks",
            "flower",
            f"--port={port}",
            "--address=127.0.0.1",
        ],
        env={
            **env,
            "FLOWER_UNAUTHENTICATED_API": "1",
            "PYTHONPATH": os.pathsep.join((FLOWER, PYTHONPATH)),
        },
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:

        def seen() -> set[str]:
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{port}/api/workers?refresh=1"
                ) as answer:
                    return set(json.loads(answer.read()))
            except OSError:
                return set()

        wait_until(lambda: seen() >= set(nodes), 60, "Flower to see the fleet", every=0.5)
    finally:
        flower.terminate()
        flower.wait()


def spark_stage(tmp_path: Path) -> dict[str, Any]:
    """A Spark group in a stage that takes minutes, and a file that says that it has begun."""
    step = {"python": "fleet_steps:slow_stage", "params": {"started": str(tmp_path / "started")}}
    return {"name": "stage", "steps": [step]}


@pytest.mark.variant
def test_a_running_spark_stage_is_canceled_within_five_seconds(
    client: Client, tmp_path: Path
) -> None:
    """One of three tries at least: a machine that is busy with other things may make one of them
    late, not all.
    """
    for _ in range(3):
        (tmp_path / "started").unlink(missing_ok=True)
        job = client.submit({"name": "cancel-spark", "groups": [spark_stage(tmp_path)]}).id
        wait_until((tmp_path / "started").exists, 90, "the Spark stage to begin")
        limit = Limit(5.0)
        assert client.cancel(job, reason="wrong table").answer == "DONE"
        view = client.wait(job, every=0.05)
        in_time = limit.kept
        assert view.status is Status.CANCELED
        reason = view.groups[0].members[0].reason
        assert reason is not None
        assert reason.code == "CANCELED", "its runner has confirmed it"
        if in_time:
            break
    assert in_time, limit


@pytest.mark.variant
@pytest.mark.parametrize(
    ("force", "within", "code"), [(False, 20.0, "UNCONFIRMED"), (True, 6.0, "FORCE_STOPPED")]
)
def test_a_job_with_a_frozen_runner_is_canceled_at_the_deadline_or_immediately_by_force(
    client: Client, tmp_path: Path, force: bool, within: float, code: str
) -> None:
    group, gate = until_step(tmp_path)
    job = client.submit({"name": "frozen", "groups": [group]}).id
    frozen = runner_of(client, job, "hold")
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        limit = Limit(within)
        (client.force_stop if force else client.cancel)(job)
        view = client.wait(job, every=0.05)
        in_time, commit = limit.kept, record_of(client, job).commit
    finally:
        gate.touch()
        if psutil.pid_exists(frozen.pid):
            os.kill(frozen.pid, signal.SIGCONT)
    assert view.status is Status.CANCELED
    assert in_time, limit
    reason = view.groups[0].members[0].reason
    assert reason is not None
    assert reason.code == code
    wait_until(lambda: _idle_or_gone(client, frozen.id), 40, "the thawed runner to let go")
    assert record_of(client, job).commit == commit, "and it has changed nothing"


@pytest.mark.variant
def test_a_fleet_works_without_celery_beat(client: Client, fleet: LocalFleet) -> None:
    """The fixture's beat is frozen while the job runs."""
    (beat,) = celery_processes("beat")
    beat.suspend()
    try:
        job = client.submit(EXAMPLES / "dynamic.yaml").id
        assert client.wait(job).status is Status.FINISHED
    finally:
        beat.resume()
    assert len(kinds(client, job)) > 16
