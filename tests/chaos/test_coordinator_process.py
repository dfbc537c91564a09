"""A coordinator process whose report consumer has died must end as a failure, whatever its other
threads hang in.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from tests.support.paths import ROOT
from tests.support.servers import RedisServer, app_of_strangers, wait_until
from unstuck.coordinator.reconcile.bootsteps import EXIT_CODE

MAIN = """
import sys, threading, time
import unstuck.coordinator.celery as c
from unstuck.coordinator.reconcile.consumer import Consumer
from unstuck.coordinator.reconcile.sweep import Sweep
entered = threading.Event()
def hang(self):
    entered.set()
    print("SWEEP HANGS", flush=True)
    threading.Event().wait()
def die(self):
    if {wait}:
        entered.wait()
    print("CONSUMER DIES", flush=True)
    raise RuntimeError("a bug in the consumer")
Sweep.run = hang
Consumer.run = die
sys.argv = ["celery", "-A", "unstuck.coordinator", "worker", "--loglevel=WARNING", "-P", "threads", "-c", "4"]
from celery.__main__ import main  # as the command does it: what it ends with is the exit code
main()
"""


def start(redis_server: RedisServer, tmp_path: Path, wait: bool) -> subprocess.Popen[bytes]:
    env = {
        **os.environ,
        "UNSTUCK_REDIS_URL": redis_server.url,
        "UNSTUCK_WAREHOUSE": str(tmp_path / "w"),
        "PYTHONPATH": str(ROOT),
    }
    with open(tmp_path / "log", "wb") as out:
        command = [sys.executable, "-c", MAIN.format(wait=wait)]
        return subprocess.Popen(command, env=env, stdout=out, stderr=out, cwd=tmp_path)


def ended_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.variant
def test_the_process_ends_with_its_consumer(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    """The control: nothing hangs."""
    process = start(redis_server, tmp_path, wait=False)
    assert ended_within(process, 30), (tmp_path / "log").read_text()[-2000:]
    assert process.returncode == EXIT_CODE, (
        "a supervisor that restarts only failures must restart it"
    )


@pytest.mark.variant
def test_the_process_ends_with_its_consumer_even_if_a_sweep_hangs(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    process = start(redis_server, tmp_path, wait=True)
    app = app_of_strangers(redis_server.url)
    app.conf.task_default_exchange = ""
    app.send_task("unstuck.sweep", queue="control")
    app.close()
    wait_until(lambda: "CONSUMER DIES" in (tmp_path / "log").read_text(), 30, "the consumer to die")
    assert ended_within(process, 30), (
        "30 s after its consumer died:\n" + (tmp_path / "log").read_text()[-1500:]
    )
    assert process.returncode == EXIT_CODE
