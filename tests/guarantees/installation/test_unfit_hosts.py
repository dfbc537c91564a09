"""Hosts that cannot work: a worker that lacks what its groups need says so and takes nothing; no
group is charged.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import redis

from tests.cli.conftest import Cli
from tests.support import fleet
from tests.support.paths import PYTHONPATH, ROOT
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer, wait_until
from unstuck import Client, Settings, Status
from unstuck.coordinator.model.fleet import FleetInfo
from unstuck.coordinator.problems.queues import nobody_takes
from unstuck.tasks.host import java_version, lacking, unfit_for_spark
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.report import OutcomeKind
from unstuck.tasks.protocol.token import Offer

SPARK = {"name": "g", "queue": "heavy", "steps": [{"sql": "SELECT 1 AS one", "output": "numbers"}]}
PLAIN = {"name": "g", "spark": False, "steps": [{"python": "fleet_steps:my_pid"}]}
NO_JAVA = {"JAVA_HOME": "/nowhere"}


def java(folder: Path, told: str, then: str = "exit 1") -> dict[str, str]:
    """A Java that does ``told`` when it is asked for its version, and ``then`` else; the variable
    that names it.
    """
    program = folder / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncase $1 in -version) {told} ;; *) {then} ;; esac\n")
    program.chmod(0o755)
    return {"JAVA_HOME": str(folder / "java")}


def version(number: str) -> str:
    return f"echo 'openjdk version \"{number}\"' >&2"


def real_java_home() -> Path:
    found = shutil.which("java")
    assert found is not None
    return Path(found).resolve().parent.parent


def blind(folder: Path, *packages: str) -> dict[str, str]:
    """The variables of a Python that has none of ``packages``, as after ``pip install unstuck``
    without an extra.
    """
    (folder / "sitecustomize.py").write_text(
        f"""
import sys

class Blind:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name in {packages!r} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Blind(finder) for finder in sys.meta_path]
"""
    )
    paths = (str(folder), PYTHONPATH)
    return {"PYTHONPATH": os.pathsep.join(paths)}


def refused(
    url: str, folder: Path, environ: dict[str, str], *arguments: str, app: str = "unstuck.tasks"
) -> str:
    """What a worker says that does not start."""
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", app, "worker", *arguments],
        cwd=folder,
        env={**os.environ, "UNSTUCK_REDIS_URL": url, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.claim("A host that cannot run Spark takes no Spark work, and says why.")
@pytest.mark.variant
@pytest.mark.parametrize("queues", ["", "spark", "heavy", "light,heavy"])
def test_a_worker_without_java_takes_work_only_if_it_runs_light_groups_alone(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path, queues: str
) -> None:
    waits = {
        name: fleet.make_offer(client, tmp_path / "w", name, {**PLAIN, "queue": name})
        for name in ("heavy", "spark")
    }
    said = refused(redis_server.url, tmp_path, NO_JAVA, *(["-Q", queues] if queues else []))
    assert "Java is not installed in JAVA_HOME, /nowhere: Spark needs Java 17 or newer" in said
    assert "-Q light" in said
    for queue, offer in waits.items():
        assert client.llen(fleet.KEYS.queue(queue)) == 1
        assert client.zscore(fleet.KEYS.ready(queue), str(offer)) is not None
        assert "claimant" not in fleet.attempt(client, offer)


@pytest.mark.claim("A host that cannot run Spark takes no Spark work, and says why.")
@pytest.mark.variant
def test_an_outdated_java_counts_as_missing(redis_server: RedisServer, tmp_path: Path) -> None:
    said = refused(redis_server.url, tmp_path, java(tmp_path, version("11.0.2")), "-Q", "spark")
    assert f"Java 11 in JAVA_HOME, {tmp_path}/java is too old" in said


def test_the_java_version_is_read_from_its_release_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No JVM is started for it."""
    asked = tmp_path / "asked"
    home = Path(java(tmp_path, f"touch {asked}; {version('17.0.1')}")["JAVA_HOME"])
    monkeypatch.setenv("JAVA_HOME", str(home))
    for told, found in (('"1.8.0_412"', 8), ('"11.0.2"', 11), ('"21"', 21)):
        (home / "release").write_text(
            f'IMPLEMENTOR="x"\nJAVA_VERSION={told}\nJAVA_VERSION_DATE="2025-04-15"\n'
        )
        assert java_version() == found
    assert not asked.exists()
    (home / "release").write_text("no version\n")
    assert java_version() == 17
    assert asked.exists()


def test_a_java_that_does_not_report_its_version_in_time_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host may be busy, and a worker that is refused for that would be missing when it is
    needed most.
    """

    def run(command: list[str], *, timeout: float, **_: Any) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(command, timeout)

    with monkeypatch.context() as silent:
        silent.setattr(subprocess, "run", run)
        silent.setenv("JAVA_HOME", java(tmp_path, "exit 1")["JAVA_HOME"])
        assert lacking(Settings(), ["spark"]) == ""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert lacking(Settings(), ["spark"]) != ""


@pytest.mark.variant
@pytest.mark.parametrize("queues", ["spark", "light"])
def test_a_worker_without_the_worker_packages_takes_no_work(
    redis_server: RedisServer, tmp_path: Path, queues: str
) -> None:
    said = refused(redis_server.url, tmp_path, blind(tmp_path, "pyspark", "pyarrow"), "-Q", queues)
    assert f"pyspark and pyarrow cannot be imported by {sys.executable}. In a checkout" in said
    assert "pip install -e '.[worker]'" in said


@pytest.mark.variant
@pytest.mark.parametrize(
    ("queue", "environ"),
    [("light", {}), ("heavy", {"UNSTUCK_SPARK_MASTER": "none"})],
    ids=["light", "none"],
)
def test_a_light_worker_needs_no_java_and_takes_no_spark_groups(
    client: redis.Redis,
    redis_server: RedisServer,
    tmp_path: Path,
    queue: str,
    environ: dict[str, str],
) -> None:
    environ = {**NO_JAVA, **environ}
    with fleet.worker(redis_server.url, tmp_path, queues=queue, environ=environ):
        offer = fleet.make_offer(client, tmp_path / "w", "plain", {**PLAIN, "queue": queue})
        assert fleet.outcome(client, offer).kind is OutcomeKind.SUCCEEDED
        sparks = fleet.make_offer(client, tmp_path / "w", "sparks", {**SPARK, "queue": queue})
        plain = fleet.make_offer(client, tmp_path / "w", "more", {**PLAIN, "queue": queue})
        assert fleet.outcome(client, plain).kind is OutcomeKind.SUCCEEDED, (
            "which was offered after it"
        )
        assert "claimant" not in fleet.attempt(client, sparks), "it stands for workers with Spark"


def test_a_java_known_only_to_spark_settings_is_found(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "spark-env.sh").write_text(f"echo told\nJAVA_HOME={real_java_home()}\n")
    environ = {**NO_JAVA, "SPARK_CONF_DIR": str(tmp_path)}
    with fleet.worker(redis_server.url, tmp_path, queues="heavy", environ=environ) as worker:
        assert worker.ready()


@pytest.mark.variant
def test_spark_connect_needs_no_local_java(redis_server: RedisServer, tmp_path: Path) -> None:
    environ = {**NO_JAVA, "UNSTUCK_SPARK_MASTER": "sc://elsewhere"}
    with fleet.worker(redis_server.url, tmp_path, queues="heavy", environ=environ) as worker:
        assert worker.ready()


@pytest.mark.variant
def test_a_missing_java_costs_no_attempt_and_work_resumes_when_it_returns(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    link = tmp_path / "java"
    link.symlink_to(real_java_home())
    environ = {"JAVA_HOME": str(link), "UNSTUCK_SPARK_MASTER": "local[1]"}
    with fleet.worker(redis_server.url, tmp_path, queues="heavy", environ=environ) as worker:
        wait_until(lambda: worker.watchdogs, 30, "its runner to have begun")
        link.unlink()
        offer = fleet.make_offer(client, tmp_path / "w", "sparks", SPARK)
        wait_until(
            lambda: "nothing is taken: Java is gone" in worker.text(), 30, "the offer to be left"
        )
        assert client.zscore(fleet.KEYS.ready("heavy"), str(offer)) is not None, (
            "it stands for others"
        )
        fleet.send_wake_up(client, offer, "heavy")  # as a sweep does
        wait_until(
            lambda: "cannot be a runner: HostUnfit: Java is not installed" in worker.text(),
            30,
            "the next one",
        )
        assert "claimant" not in fleet.attempt(client, offer), "nobody is charged with anything"
        link.symlink_to(real_java_home())
        assert fleet.outcome(client, offer, 120).kind is OutcomeKind.SUCCEEDED, worker.text()[
            -2000:
        ]


def test_a_jvm_that_does_not_start_costs_no_attempt_and_stops_taking_work(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    environ = java(tmp_path, version("17.0.1"), "echo no room for a heap >&2; exit 1")
    with fleet.worker(redis_server.url, tmp_path, queues="heavy", environ=environ) as worker:
        (runner,) = worker.runners
        offer = fleet.make_offer(client, tmp_path / "w", "sparks", SPARK)
        outcome = fleet.outcome(client, offer, 60)
        assert outcome.failure is not None
        assert (outcome.kind, outcome.failure.code) == (OutcomeKind.RELEASED, "NOT_BEGUN")
        assert f"{os.uname().nodename}:{runner.pid} could not start Spark: " in outcome.failure.text
        wait_until(lambda: fleet.gone(runner.pid), 20, "the runner to be replaced")
        is_left(
            client,
            worker,
            fleet.make_offer(client, tmp_path / "w", "more", SPARK),
            "could not start Spark",
        )


def is_left(client: redis.Redis, worker: fleet.FleetWorker, offer: Offer, why: str) -> None:
    """The worker says why it takes no Spark work, and the offer stands for others."""
    wait_until(
        lambda: "no Spark work is taken: " in worker.text() and why in worker.text(),
        30,
        "the words",
    )
    wait_until(
        lambda: [one.unfit for one in fleet.listed(client) if why in one.unfit],
        20,
        "the fleet to tell it",
    )
    assert client.zscore(fleet.KEYS.ready("heavy"), str(offer)) is not None
    assert "claimant" not in fleet.attempt(client, offer)


def other_python(folder: Path, says: str) -> dict[str, str]:
    program = folder / "python-of-executors"
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)
    return {"PYSPARK_PYTHON": str(program)}


@pytest.mark.claim("A host that cannot run Spark takes no Spark work, and says why.")
@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("version", "python-of-executors is Python 3.8, and the driver is Python 3."),
        ("pyarrow", "python-of-executors has no pyarrow"),
        ("none", "python-of-executors does not start"),
        ("folder", "nothing can be written into the temporary folder /proc/nowhere/tmp"),
    ],
)
def test_a_host_unfit_for_spark_takes_only_light_work_and_reports_the_reason(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path, what: str, why: str
) -> None:
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    says = {
        "version": "echo 3.8; echo pyarrow",
        "pyarrow": f"echo {here}; exit 1",
        "none": "exit 1",
    }
    environ = (
        other_python(tmp_path, says[what])
        if what in says
        else {"SPARK_LOCAL_DIRS": "/proc/nowhere/tmp"}
    )
    with fleet.worker(redis_server.url, tmp_path, queues="heavy,light", environ=environ) as worker:
        offer = fleet.make_offer(client, tmp_path / "w", "sparks", SPARK)
        is_left(client, worker, offer, why)
        plain = {**PLAIN, "queue": "light"}
        first = fleet.make_offer(client, tmp_path / "w", "plain", plain, send=False)
        fleet.stand(
            client, first, "light"
        )  # the second one is taken together with the outcome of the first
        second = fleet.make_offer(client, tmp_path / "w", "more", plain)
        assert {fleet.outcome(client, light, 60).kind for light in (first, second)} == {
            OutcomeKind.SUCCEEDED
        }
        is_left(client, worker, offer, why)
        if what == "version":
            told_by_fleet_why_and_doctor(Cli(redis_server.url, tmp_path), why)


@pytest.mark.claim("A host that cannot run Spark takes no Spark work, and says why.")
@pytest.mark.variant
def test_a_fork_on_a_fit_and_an_unfit_host_runs_on_the_fit_host(
    redis_server: RedisServer, client: redis.Redis, tmp_path: Path
) -> None:
    environ = {"UNSTUCK_REDIS_URL": redis_server.url, "UNSTUCK_SPARK_MASTER": "local[1]"}
    jobs = Client(Settings(redis_url=redis_server.url, warehouse=str(tmp_path / "w")))
    group = {
        **SPARK,
        "for_each": {"n": list(range(8))},
        "steps": [{"sql": "SELECT :n AS n", "output": "numbers"}],
    }
    bad = {**environ, **other_python(tmp_path, "echo 3.8; echo pyarrow")}
    with (
        fleet.worker(
            redis_server.url, tmp_path, queues="heavy", environ=bad, concurrency=2
        ) as unfit,
        fleet.worker(redis_server.url, tmp_path, queues="heavy", environ=environ),
        coordinator_processes(tmp_path, environ) as coordinators,
    ):
        coordinators.tend(1)
        job = jobs.submit({"name": "job", "groups": [group]}).id
        view = jobs.wait(job)
        assert view.status is Status.FINISHED, unfit.text()
        assert {(one.attempt, one.losses) for one in view.groups[0].members} == {(1, 0)}


def told_by_fleet_why_and_doctor(cli: Cli, why: str) -> None:
    assert why in " ".join(cli("fleet").stderr.split())
    (found,) = [
        one
        for one in json.loads(cli("doctor", "--json").stdout)["findings"]
        if one["code"] == "HOSTS"
    ]
    assert (found["level"], why in found["text"]) == ("problem", True)


def test_why_names_workers_on_an_unfit_host() -> None:
    def runner(host: str, **more: Any) -> RunnerInfo:
        return RunnerInfo(
            id=host, host=host, pid=1, queues=("spark",), heard_at=100.0, worker_pid=2, **more
        )

    view = FleetInfo(
        100.0, None, (runner("bad", unfit="no room"), runner("good", idle_since=90.0)), (), ()
    )
    assert nobody_takes(view) == {"spark": "bad takes no Spark work: no room"}
    assert nobody_takes(replace(view, runners=view.runners[1:])) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_nameless_user_and_a_full_folder_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert unfit_for_spark(Settings()) == ""
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=50 << 20))
    assert "has no room: 50 MB are free" in unfit_for_spark(Settings())
    os.seteuid(54321)
    try:
        assert "the user id 54321 has no name" in unfit_for_spark(Settings())
    finally:
        os.seteuid(0)


def test_doctor_requires_java_where_spark_runs(redis_server: RedisServer, tmp_path: Path) -> None:
    cli = Cli(redis_server.url, tmp_path)
    for master, level in (("local[*]", "problem"), ("none", "ok")):
        done = cli("doctor", "--json", **NO_JAVA, UNSTUCK_SPARK_MASTER=master)
        assert [
            one["level"] for one in json.loads(done.stdout)["findings"] if one["code"] == "JAVA"
        ] == [level]


# -- pools -----------------------------------------------------------------------------------------


@contextmanager
def coordinator(
    url: str, folder: Path, *arguments: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    log = folder / "coordinator.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "celery",
                "-A",
                "unstuck.coordinator",
                "worker",
                "-l",
                "INFO",
                *arguments,
            ],
            cwd=folder,
            env={**os.environ, "UNSTUCK_REDIS_URL": url, "PYTHONPATH": str(ROOT)},
            stdout=out,
            stderr=out,
        )
    try:
        wait_until(
            lambda: b" ready." in log.read_bytes() or process.poll() is not None,
            60,
            "it to be ready",
        )
        yield process, log
    finally:
        process.kill()
        process.wait()


@pytest.mark.variant
@pytest.mark.parametrize("pool", ["processes", "solo"])
def test_a_coordinator_with_an_unsupported_pool_is_refused(
    redis_server: RedisServer, tmp_path: Path, pool: str
) -> None:
    said = refused(redis_server.url, tmp_path, {}, "-P", pool, app="unstuck.coordinator")
    assert "needs the threads pool: leave out -P/--pool, or give -P threads" in said


@pytest.mark.variant
@pytest.mark.parametrize("arguments", [(), ("-P", "prefork")], ids=["none", "prefork"])
def test_a_coordinator_without_a_given_pool_uses_threads(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """Celery's own default is prefork, and it cannot tell one from the other; both become what the
    app wants.
    """
    with coordinator(redis_server.url, tmp_path, *arguments) as (process, log):
        assert process.poll() is None, log.read_text()
        assert "concurrency: 4 (thread)" in log.read_text()
        assert psutil.Process(process.pid).children() == [], "nothing was forked"


@pytest.mark.variant
def test_a_worker_with_an_unsupported_pool_exits_with_2(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    assert "needs the prefork pool" in refused(
        redis_server.url, tmp_path, {}, "-P", "threads", "-Q", "light"
    )
