"""A project may have a ``tasks.py`` and a ``coordinator.py`` of its own, as most Celery projects have."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.support.servers import RedisServer

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
    view = client.wait(job, 60)
    print(view.job.status, view.groups[0].members[0].record.results, coordinator.GREETING, tasks.__file__)
"""


def test_workers_coordinators_and_apps_work_beside_a_tasks_py_and_a_coordinator_py_of_the_users(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    for name, text in (("tasks", TASKS), ("coordinator", "GREETING = 'hello'\n"), ("app", APP)):
        (tmp_path / f"{name}.py").write_text(text)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_WAREHOUSE": str(tmp_path / "w"),
        "UNSTUCK_PREFIX": "own",
    }
    celery = [sys.executable, "-m", "celery", "-A"]
    with ExitStack() as stack:
        for words in (["unstuck.tasks", "worker", "-Q", "light", "-c", "1"], ["unstuck.coordinator", "worker"]):
            log = stack.enter_context((tmp_path / f"{words[0]}.log").open("wb"))
            process = subprocess.Popen([*celery, *words], cwd=tmp_path, env=environ, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        asked = [sys.executable, "app.py"]
        done = subprocess.run(asked, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=90)
    logs = "\n".join(log.read_text() for log in tmp_path.glob("*.log"))
    said = f"FINISHED {{'greeting': 'hello'}} hello {tmp_path / 'tasks.py'}"
    assert done.stdout.strip() == said, f"{done.stdout}\n{done.stderr}\n{logs}"
