"""``tasks`` and ``coordinator`` are free names: a project may have both, and no program of ours
imports one of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.servers import RedisServer

pytestmark = pytest.mark.variant

TASKS = """
def greet(spark, ctx):
    import coordinator
    ctx.result("greeting", coordinator.GREETING)
"""
APP = """
import coordinator, tasks
from unstuck import Client

spec = {"name": "own", "groups": [{"name": "g", "spark": False, "steps": [{"python": "tasks:greet"}]}]}
with Client() as client:
    job = client.submit(spec).id
    view = client.wait(job)
    print(view.status, view.groups[0].members[0].results, coordinator.GREETING, tasks.__file__)
"""
APP_WITHOUT_BOTH = """
from unstuck import Client

spec = {"name": "root", "groups": [{"name": "g", "spark": False, "steps": [{"python": "examples.noop:start"}]}]}
with Client() as client:
    print(client.wait(client.submit(spec).id).status)
"""
PROGRAMS = {
    "worker": ["-m", "celery", "-A", "unstuck.tasks", "worker", "-Q", "light", "-c", "1"],
    "coordinator": ["-m", "celery", "-A", "unstuck.coordinator", "worker", "-P", "threads"],
    "beat": ["-m", "celery", "-A", "unstuck.coordinator", "beat"],
}


def answer(
    app: Path, folder: Path, redis_url: str, out: Path, more: Mapping[str, str]
) -> tuple[str, str]:
    """What the app prints that runs beside a worker and a coordinator, all in ``folder``; and what
    all of them log.
    """
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {
        "UNSTUCK_REDIS_URL": redis_url,
        "UNSTUCK_WAREHOUSE": str(out / "w"),
        "UNSTUCK_PREFIX": out.name,
        **more,
    }
    with ExitStack() as stack:
        for name, arguments in PROGRAMS.items():
            log = stack.enter_context((out / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                [sys.executable, *arguments], cwd=folder, env=environ, stdout=log, stderr=log
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        done = subprocess.run(
            [sys.executable, app], cwd=folder, env=environ, capture_output=True, text=True
        )
    return done.stdout.strip(), done.stderr + "\n".join(
        log.read_text() for log in out.glob("*.log")
    )


def test_users_may_have_their_own_modules_tasks_and_coordinator(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    for name, text in (("tasks", TASKS), ("coordinator", "GREETING = 'hello'\n"), ("app", APP)):
        (tmp_path / f"{name}.py").write_text(text)
    said, logs = answer(tmp_path / "app.py", tmp_path, redis_server.url, tmp_path, {})
    assert said == f"FINISHED {{'greeting': 'hello'}} hello {tmp_path / 'tasks.py'}", logs


def test_no_program_imports_the_top_folders_by_their_own_names(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """From there ``import tasks`` would work, and load everything a second time."""
    app = tmp_path / "app.py"
    app.write_text(APP_WITHOUT_BOTH)
    said, logs = answer(app, ROOT, redis_server.url, tmp_path, {"PYTHONPROFILEIMPORTTIME": "1"})
    assert said == "FINISHED", logs
    imported = {
        line.rpartition("|")[2].strip()
        for line in logs.splitlines()
        if line.startswith("import time:")
    }
    of_each_process = {"runner.attempt", "watchdog.policy", "worker.shutdown"}
    assert {f"unstuck.tasks.{name}" for name in of_each_process} <= imported
    assert {
        "unstuck.coordinator.reconcile.reconciler",
        "unstuck.client.job_handle",
        "unstuck",
    } <= imported
    assert not [name for name in imported if name.partition(".")[0] in ("tasks", "coordinator")]
