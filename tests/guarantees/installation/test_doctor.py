"""The doctor and real servers that are set wrongly, hang or are not there: each is named, within
seconds.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from tests.cli.conftest import Cli
from tests.guarantees.shown_is_true.test_states import staged
from tests.support.coordinator import Coordinator, group
from tests.support.machine import Limit
from tests.support.paths import PYTHONPATH
from tests.support.servers import RedisServer, free_port, wait_until
from tests.support.steps import small_steps
from unstuck import Settings, Status
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.reconcile.heartbeat import Heartbeat
from unstuck.coordinator.store.schedule_store import ScheduleChange, ScheduleStore
from unstuck.doctor import redis_facts
from unstuck.doctor.examine import Doctor
from unstuck.doctor.finding import Level
from unstuck.in_process.run_job import InProcess
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.probe import WarehouseProbe

IN_TIME = 5.0 + 1.0  # seconds; the one is for starting Python
GOOD = 'name: good\ngroups: [{name: a, spark: false, steps: [{python: "some.where:step"}]}]\n'


@contextmanager
def server(folder: Path, *options: str, aof: bool = True) -> Iterator[RedisServer]:
    folder.mkdir(exist_ok=True)
    made = RedisServer(folder, aof=aof, options=options)
    made.start()
    try:
        yield made
    finally:
        made.stop()


def examine(url: str, folder: Path, **env: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit code, and findings by code."""
    done = Cli(url, folder)("doctor", "--json", **env)
    answer = json.loads(done.stdout)
    assert answer["problems"] == sum(one["level"] == "problem" for one in answer["findings"])
    return done.returncode, {one["code"]: one for one in answer["findings"]}


def problems(findings: dict[str, dict[str, str]]) -> set[str]:
    return {code for code, one in findings.items() if one["level"] == "problem"}


def refused_submit(url: str, folder: Path, said: str) -> None:
    """A command at the same Redis exits with 5, and says why, in time."""
    (folder / "good.yaml").write_text(GOOD)
    limit = Limit(IN_TIME)
    done = Cli(url, folder)("submit", folder / "good.yaml")
    assert done.returncode == 5, done.stderr
    assert said in done.stderr
    assert limit.kept, limit


NOBODY = {"COORDINATORS"}  # no fleet runs in these tests


def test_a_well_configured_redis_has_no_problem_except_the_missing_fleet(tmp_path: Path) -> None:
    with server(tmp_path / "v") as good:
        code, findings = examine(good.url, tmp_path)
        assert problems(findings) == NOBODY
        assert code == 1
        with redis.Redis.from_url(good.url) as client:
            assert client.dbsize() == 0, "nothing was changed"
    assert not (tmp_path / "warehouse").exists()


@pytest.mark.claim("`unstuck doctor` names a Redis that is misconfigured or unreachable.")
@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--maxmemory-policy", "allkeys-lru"), "REDIS_EVICTION", "allkeys-lru"),
        (("--appendonly", "no"), "REDIS_PERSISTENCE", "append-only"),
        (("--appendfsync", "no"), "REDIS_PERSISTENCE", "appendfsync no"),
        (("--cluster-enabled", "yes"), "REDIS_CLUSTER", "Cluster"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_misconfigured_redis_is_reported(
    tmp_path: Path, options: tuple[str, ...], code: str, said: str
) -> None:
    bus = (
        ("--cluster-port", str(free_port())) if "--cluster-enabled" in options else ()
    )  # else 10,000 above its port
    with server(tmp_path / "v", *options, *bus) as wrong:
        exit_code, findings = examine(wrong.url, tmp_path)
        assert problems(findings) == ({code} if code == "REDIS_CLUSTER" else {code, *NOBODY})
        assert said in findings[code]["text"]
        assert findings[code]["cure"]
        assert exit_code == 1


@pytest.mark.claim("`unstuck doctor` names a Redis that is misconfigured or unreachable.")
def test_a_nearly_full_redis_is_reported(tmp_path: Path) -> None:
    with server(tmp_path / "v") as full, redis.Redis.from_url(full.url) as control:
        for number in range(200):
            control.set(f"much{number}", "x" * 100_000)
        control.config_set("maxmemory", 21_000_000)
        code, findings = examine(full.url, tmp_path)
        assert (code, problems(findings)) == (1, {"REDIS_MEMORY", *NOBODY})
        assert "maxmemory" in findings["REDIS_MEMORY"]["text"]


@pytest.mark.claim("`unstuck doctor` names a Redis that is misconfigured or unreachable.")
def test_a_read_only_replica_is_reported_and_commands_exit_with_5(tmp_path: Path) -> None:
    with (
        server(tmp_path / "p", "--repl-diskless-sync-delay", "0") as primary,
        server(tmp_path / "r") as replica,
    ):
        with redis.Redis.from_url(replica.url) as control:
            control.replicaof("127.0.0.1", primary.port)
            wait_until(
                lambda: control.info()["master_link_status"] == "up", 60, "the replica to follow"
            )
        code, findings = examine(replica.url, tmp_path)
        assert problems(findings) == {"REDIS_READ_ONLY", *NOBODY}
        assert code == 1
        refused_submit(replica.url, tmp_path, "read-only")


@pytest.mark.claim("`unstuck doctor` names a Redis that is misconfigured or unreachable.")
def test_a_wrong_password_is_reported_and_commands_exit_with_5(tmp_path: Path) -> None:
    with server(tmp_path / "v") as locked:
        with redis.Redis.from_url(locked.url) as control:
            control.config_set("requirepass", "right")
        for url in (locked.url, locked.url.replace("//", "//:hunter2@")):
            code, findings = examine(url, tmp_path)
            assert (code, problems(findings)) == (5, {"REDIS_REFUSES"})
            assert "hunter2" not in json.dumps(findings)
            assert "SETTINGS" in findings, "the checks that need no Redis were made"
            refused_submit(url, tmp_path, "refuses us")
        code, findings = examine(locked.url.replace("//", "//:right@"), tmp_path)
        assert (code, problems(findings)) == (1, NOBODY)


@pytest.mark.claim("`unstuck doctor` names a Redis that is misconfigured or unreachable.")
@pytest.mark.variant
def test_an_unreachable_redis_exits_with_5_and_other_checks_are_shown(
    tmp_path: Path,
) -> None:
    with server(tmp_path / "v") as frozen:
        assert frozen.process is not None
        os.kill(frozen.process.pid, signal.SIGSTOP)
        try:
            for url in (frozen.url, f"redis://127.0.0.1:{free_port()}/0"):
                limit = Limit(IN_TIME)
                code, findings = examine(url, tmp_path)
                assert limit.kept, limit
                assert (code, problems(findings)) == (5, {"REDIS_UNREACHABLE"})
                assert {"SETTINGS", "WAREHOUSE", "JAVA"} <= set(findings)
                refused_submit(url, tmp_path, "No Redis answers")
        finally:
            os.kill(frozen.process.pid, signal.SIGCONT)


def test_a_hanging_warehouse_is_reported_in_time_and_other_checks_are_shown(tmp_path: Path) -> None:
    folder = tmp_path / "warehouse"
    folder.mkdir()
    os.mkfifo(
        folder / "_warehouse_id"
    )  # who reads it waits for ever, as on a mount whose server is gone
    with server(tmp_path / "v") as good:
        limit = Limit(IN_TIME)
        code, findings = examine(good.url, tmp_path)
        assert limit.kept, limit
    assert (code, problems(findings)) == (1, {"WAREHOUSE", *NOBODY})
    assert "has not answered" in findings["WAREHOUSE"]["text"]


@pytest.fixture
def told(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> Callable[[], dict[str, dict[str, Any]]]:
    return lambda: examine(redis_server.url, tmp_path)[1]


def test_a_message_sent_without_the_prefix_is_reported(
    coordinator: Coordinator,
    redis_server: RedisServer,
    told: Callable[[], dict[str, dict[str, Any]]],
) -> None:
    coordinator.redis.set("control", "what another program keeps there")
    assert "STRAY_MESSAGES" not in told()
    coordinator.redis.delete("control")
    with Celery(broker=redis_server.url, set_as_current=False) as app:
        app.send_task("billing.nightly", queue="control")
        assert "STRAY_MESSAGES" not in told(), "the queue of another application"
        coordinator.redis.delete("control")
        for _ in range(2):
            app.send_task("unstuck.submit", kwargs={"spec": {}}, queue="control")
    found = told()["STRAY_MESSAGES"]
    assert (found["level"], "2 messages" in found["text"]) == ("problem", True)
    assert '"global_keyprefix": "unstuck:celery:"' in found["cure"]


def test_jobs_known_to_the_warehouse_but_lost_from_the_store_are_reported(
    make_coordinator: Callable[..., Coordinator], told: Callable[[], dict[str, dict[str, Any]]]
) -> None:
    """After a FLUSHALL nobody else says that there ever were jobs."""
    coordinator = make_coordinator(retention="1h")
    ended, running = coordinator.submit(group("a")), coordinator.submit(group("a"))
    coordinator.read()
    for offer in coordinator.offers():
        coordinator.claim(offer)
        outcome = staged(coordinator, offer, f"o{offer.nonce}")
        if offer.job == ended:
            coordinator.finish(offer.held_by("runner1"), outcome)
    coordinator.read()
    forgotten = "20131231T235959-k3f9a2xw"  # longer ago than the store remembers jobs
    (Path(coordinator.settings.warehouse) / "_staging" / forgotten).mkdir()
    assert coordinator.status(ended) is Status.FINISHED
    with InProcess(coordinator.settings.warehouse) as here:
        rows = group("rows", steps=[{"python": f"{small_steps.__name__}:three", "output": "rows"}])
        in_process = here.run({"name": "tiny", "groups": [rows]}, keep=True)
    assert in_process.finished
    assert told()["LOST_JOBS"]["level"] == "ok"

    coordinator.redis.flushall()
    found = told()["LOST_JOBS"]
    assert found["level"] == "warning"
    assert all(job in found["text"] for job in (ended, running))
    assert "2 jobs" in found["text"]
    assert not any(job in found["text"] for job in (forgotten, in_process.job_id))
    assert "restored from an older copy" in found["text"]


def test_waiting_work_in_the_store_is_reported(
    coordinator: Coordinator, told: Callable[[], dict[str, dict[str, Any]]]
) -> None:
    job = coordinator.submit(group("a"))
    coordinator.sweep.run()
    coordinator.heartbeat.beat(None, 0.0)
    long_ago = f"{(coordinator.redis.time()[0] - 100) * 1000}-0"
    assert told()["WAREHOUSE_ID"]["level"] == "ok"

    coordinator.redis.xtrim(coordinator.keys.reports, maxlen=0)
    coordinator.redis.delete(coordinator.keys.reports)
    coordinator.redis.xadd(coordinator.keys.reports, {"kind": "due", "job": job}, id=long_ago)
    coordinator.redis.xadd(coordinator.keys.dead, {"reason": "UNKNOWN_JOB: it", "report": "{}"})
    coordinator.redis.zadd(coordinator.keys.due, {job: coordinator.redis.time()[0] - 100})
    coordinator.redis.lpush(coordinator.keys.queue("light"), "a message")
    (Path(coordinator.settings.warehouse) / "_warehouse_id").write_text("another")
    found = told()

    levels = {code: one["level"] for code, one in found.items()}
    assert levels["COORDINATORS"] == "ok"
    for code in ("REPORTS", "JOBS_OVERDUE", "WORKERS", "QUEUES", "WAREHOUSE_ID"):
        assert levels[code] == "problem", found[code]
    assert levels["DEAD_LETTERS"] == "warning", found["DEAD_LETTERS"]
    assert job in found["JOBS_OVERDUE"]["text"]
    assert job in found["WAREHOUSE_ID"]["text"]
    assert "queue light" in found["QUEUES"]["text"]


def test_work_that_waits_for_a_user_is_reported_with_the_command(
    coordinator: Coordinator, told: Callable[[], dict[str, dict[str, Any]]]
) -> None:
    """A schedule that is HALTED, one whose record is damaged, and a pool of no slots."""
    pools, schedules = coordinator.client.pools, coordinator.client.schedules
    pools.set("jdbc", 0)
    coordinator.submit(group("a", pool="jdbc"))
    for name in ("well", "damaged", "nightly"):
        schedules.set({"name": name, "schedule": {"every": "1h"}, "groups": [group("a")]})
    store = ScheduleStore(coordinator.redis, coordinator.keys)
    record = store.load("nightly")
    assert record is not None
    why = Reason("CANNOT_RESUME", "the position of the stream has moved")
    store.commit(
        ScheduleChange(
            "c", record.commit, replace(record, halted=why), (), due=record.made_at + 9e9
        )
    )
    coordinator.redis.hset(coordinator.keys.of_schedule("damaged").schedule, "record", "{")
    coordinator.read()
    found = told()
    assert (found["SCHEDULES_HALTED"]["level"], found["POOLS"]["level"]) == ("problem", "warning")
    assert "2 schedules" in found["SCHEDULES_HALTED"]["text"]
    assert "nightly (the position of the stream has moved)" in found["SCHEDULES_HALTED"]["text"]
    assert "damaged (the record of schedule damaged" in found["SCHEDULES_HALTED"]["text"]
    assert "pool jdbc: It has 0 slots, and groups wait for one: 1" in found["POOLS"]["text"]
    assert "unstuck pool set jdbc" in found["POOLS"]["cure"]
    pools.set("jdbc", 1)
    assert "POOLS" not in told()


def test_a_fleet_with_longer_sweep_intervals_than_the_shell_of_doctor_is_healthy(
    make_coordinator: Callable[..., Coordinator], told: Callable[[], dict[str, dict[str, Any]]]
) -> None:
    coordinator = make_coordinator(sweep_every=12.0, lease_ttl=60.0)
    coordinator.submit(group("a"))
    coordinator.sweep.run()
    coordinator.redis.hincrbyfloat(coordinator.keys.alive, "at", -11)
    found = told()["SWEEP"]
    assert (found["level"], "half as often" in found["text"]) == ("warning", True), (
        found
    )  # there is no beat
    coordinator.redis.hincrbyfloat(coordinator.keys.alive, "at", -30)
    assert told()["SWEEP"]["level"] == "problem"


def test_a_coordinator_that_sees_another_warehouse_at_the_same_path_is_reported(
    coordinator: Coordinator, told: Callable[[], dict[str, dict[str, Any]]]
) -> None:
    """Two homes under one path, as two hosts without the shared mount have: the doctor sees the
    second.
    """
    coordinator.submit(group("a"))
    probe = WarehouseProbe(coordinator.settings)
    wait_until(lambda: probe.seen(0.0).id is not None, 10, "the coordinator's look")
    heartbeat = Heartbeat(coordinator.redis, coordinator.keys, "host-1:7:word", probe)
    heartbeat.beat(None, 0.0)
    assert told()["WAREHOUSE_SHARED"]["level"] == "ok"
    folder = Path(coordinator.settings.warehouse)
    folder.rename(folder.with_name("the-home-of-host-1"))
    elsewhere = Warehouse(str(folder)).ensure_id()
    heartbeat.beat(None, 0.0)
    found = told()["WAREHOUSE_SHARED"]
    assert found["level"] == "problem"
    assert "host-1:7" in found["text"]
    assert elsewhere in found["text"]
    assert str(probe.seen(0.0).id) in found["text"]
    assert "WAREHOUSE_MISMATCH" in found["cure"]


def test_the_newest_open_jobs_are_checked_in_any_status(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_facts, "JOBS_EXAMINED", 2)
    jobs = [coordinator.submit(group("a"), name=f"job-{n}") for n in range(4)]
    coordinator.client.cancel(jobs[3])
    coordinator.read()
    for offer in coordinator.offers(jobs[2]):
        coordinator.claim(offer)
    coordinator.read()
    coordinator.client.pause(jobs[1])
    coordinator.read()
    statuses = [coordinator.status(job) for job in jobs]
    assert statuses == [Status.PENDING, Status.PAUSED, Status.RUNNING, Status.CANCELED]
    looked_at = redis_facts.record_facts(coordinator.redis, coordinator.keys).warehouses
    assert [one.job for one in looked_at] == [jobs[2], jobs[1]]


def test_a_new_installation_has_no_false_problem_after_its_first_submit(
    coordinator: Coordinator, told: Callable[[], dict[str, dict[str, Any]]]
) -> None:
    """Every process of a new fleet looks before the first submit makes the warehouse, and is asked
    right after it.
    """
    probe = WarehouseProbe(coordinator.settings)
    wait_until(lambda: probe.seen(0.0).id is not None, 10, "the coordinator's look")
    heartbeat = Heartbeat(coordinator.redis, coordinator.keys, "host-1:7:word", probe)
    heartbeat.beat(None, 0.0)
    coordinator.submit(group("a"))
    heartbeat.beat(None, 0.0)
    found = told()["WAREHOUSE_SHARED"]
    assert (found["level"], "0 of 1 runners" in found["text"]) == ("ok", True), found
    # But one that still sees none when it has looked again does not see the folder that all others
    # see.
    made = Path(coordinator.settings.warehouse) / "_warehouse_id"
    os.utime(made, (time.time() - 60, time.time() - 60))
    found = told()["WAREHOUSE_SHARED"]
    assert (found["level"], "host-1:7 (none)" in found["text"]) == ("problem", True), found


def test_submits_that_no_coordinator_receives_are_reported(
    coordinator: Coordinator, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Its thread for reports lives and notes itself; what Celery should bring it lies on the
    queue.
    """
    coordinator.redis.lpush(coordinator.keys.queue("control"), "a submit, as Celery writes it")
    coordinator.heartbeat.beat(None, 0.0)
    assert examine(redis_server.url, tmp_path)[1]["QUEUES"]["level"] == "ok", "it came just now"
    code, findings = examine(redis_server.url, tmp_path, UNSTUCK_STALLED_AFTER="100ms")
    found = findings["QUEUES"]
    assert (code, found["level"]) == (1, "problem")
    assert "Messages wait on queue control" in found["text"]
    assert "coordinators host:1" in found["text"]
    assert "restart" in found["cure"]


def test_a_coordinator_with_another_release_or_python_is_reported(
    coordinator: Coordinator, told: Callable[[], dict[str, dict[str, Any]]]
) -> None:
    coordinator.heartbeat.beat(None, 0.0)
    found = told()["VERSIONS"]
    assert (found["level"], "of 1 runners and coordinators 1 say" in found["text"]) == (
        "ok",
        True,
    ), found
    ((name, line),) = coordinator.redis.hgetall(coordinator.keys.processes).items()
    older = {"release": "0.0.9", "python": "3.11.7"}
    coordinator.redis.hset(
        coordinator.keys.processes, name, json.dumps({**json.loads(line), "runs_on": older})
    )
    found = told()["VERSIONS"]
    assert (found["level"], "Unstuck 0.0.9: host:1" in found["text"]) == ("warning", True), found


def test_reports_taken_but_never_finished_by_a_coordinator_are_reported(
    coordinator: Coordinator, told: Callable[[], dict[str, dict[str, Any]]]
) -> None:
    job = coordinator.submit(group("a"))
    coordinator.redis.delete(coordinator.keys.reports)
    coordinator.stream.open()
    long_ago = f"{(coordinator.redis.time()[0] - 300) * 1000}-0"
    coordinator.redis.xadd(coordinator.keys.reports, {"kind": "due", "job": job}, id=long_ago)
    coordinator.stream.read(10, 0.01)
    assert "1 report read and not finished, the oldest for 5m" in told()["REPORTS"]["text"]


def test_doctor_prints_a_line_per_finding_and_a_total(tmp_path: Path) -> None:
    with server(tmp_path / "v", aof=False) as wrong:
        done = Cli(wrong.url, tmp_path)("doctor")
    lines = done.stdout.splitlines()
    assert any(
        line.startswith("problem  REDIS_PERSISTENCE: ") and "→ Set `appendonly yes`" in line
        for line in lines
    )
    assert lines[-1].startswith("2 problems, ")
    assert done.returncode == 1


@pytest.mark.variant
def test_a_missing_package_is_reported_with_the_feature_that_needs_it(
    coordinator: Coordinator, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Of Delta tables and of S3: each with the extra to install, and neither where nothing needs
    it.
    """
    without = tmp_path / "without"
    without.mkdir()
    (without / "sitecustomize.py").write_text(
        "import sys\nsys.modules.update(deltalake=None, obstore=None)\n"
    )

    def examined(**env: str) -> dict[str, dict[str, str]]:
        cli = Cli(redis_server.url, tmp_path)
        cli.env |= {"PYTHONPATH": os.pathsep.join((str(without), PYTHONPATH)), **env}
        out, said = cli.start("doctor", "--json").communicate()
        return {one["code"]: one for one in json.loads(out or said)["findings"]}

    coordinator.submit(group("plain"))
    assert "TABLE_FORMAT" not in examined()

    table = {"format": "delta", "path": str(tmp_path / "table"), "mode": "append"}
    step = {"python": "some.where:step", "output": "rows"}
    job = coordinator.submit(group("load", steps=[step]), name="lake", outputs={"rows": table})
    found = examined(UNSTUCK_WAREHOUSE="s3://bucket/w")
    assert found["TABLE_FORMAT"]["level"] == "warning"
    assert "1 open job" in found["TABLE_FORMAT"]["text"]
    assert job in found["TABLE_FORMAT"]["text"]
    assert "pip install -e '.[delta]'" in found["TABLE_FORMAT"]["cure"]
    assert "needs the package obstore" in found["WAREHOUSE"]["text"]
    assert "pip install -e '.[s3]'" in found["WAREHOUSE"]["cure"]

    _, well = examine(redis_server.url, tmp_path)
    assert "TABLE_FORMAT" not in well


@pytest.mark.variant
def test_a_hanging_check_is_a_finding_and_is_not_started_twice(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    hung = tmp_path / "warehouse" / "_warehouse_id"
    hung.parent.mkdir()
    os.mkfifo(hung)  # who reads it waits, as on a mount whose server is gone
    settings = Settings(redis_url=redis_server.url, warehouse=str(hung.parent), spark_master="none")
    doctor, before = Doctor(settings, timeout=2), threading.active_count()
    findings = {one.code: one for one in doctor.examine()}
    assert "has not answered within 2s" in findings["WAREHOUSE"].text
    assert findings["REDIS"].level is Level.OK
    hang = threading.active_count()
    assert hang > before
    assert "has not answered" in {one.code: one for one in doctor.examine()}["WAREHOUSE"].text
    assert threading.active_count() == hang, "the same check is waited for"
    hung.write_text("id\n")  # the mount is back
    hung.unlink()
    hung.write_text("id\n")
    wait_until(lambda: threading.active_count() <= before, 10, "what hung to end")
    assert "has not answered" not in {one.code: one for one in doctor.examine()}["WAREHOUSE"].text
