"""``UNSTUCK_LOG=json`` with a real fleet: each line of each process and of each attempt is one JSON
object.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import wait_until

pytestmark = pytest.mark.variant

STEPS = """
import logging, threading, time

def tells(spark, ctx):
    ctx.log.info("counted", extra={"rows": 3, "share": float("nan"), "deep": {"a": 1}})
    print("printed")
    thread = threading.Thread(target=lambda: logging.getLogger("a_library").warning("from a thread"))
    thread.start()
    thread.join()

def fails(spark, ctx):
    raise ValueError("boom")

def stays(spark, ctx):
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            pass
"""
SPEC = """
name: nightly
schedule: {retry: {max: 0}}
on_failure: finish_others
defaults: {retry: {max: 0}, worker_losses: 1}
groups:
  - {name: tells, spark: false, steps: [{python: "told:tells"}]}
  - {name: fails, spark: false, steps: [{python: "told:fails"}]}
  - {name: stays, spark: false, timeout: 1s, steps: [{python: "told:stays"}]}
"""
CLI = (sys.executable, "-c", "from unstuck.cli import main; main()")


class JsonFleet:
    """A local fleet in ``folder``, after a run of a schedule whose groups log, fail, and are
    killed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "UNSTUCK_LOG": "json", "UNSTUCK_CANCEL_GRACE": "1s"}
        self.job = ""

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*CLI, *arguments], cwd=self.folder, env=self.env, check=True, capture_output=True
        )
        return done.stdout.decode()

    def ended(self) -> bool:
        jobs = json.loads(self.run("list", "--json"))
        jobs = jobs["jobs"] if isinstance(jobs, dict) else jobs
        self.job = jobs[0]["id"] if jobs else ""
        return bool(jobs) and jobs[0]["status"] == "FAILED"

    def log(self, name: str) -> list[str]:
        return (self.folder / ".unstuck" / "log" / f"{name}.log").read_text().splitlines()

    def attempt(self, group: str) -> list[str]:
        (log,) = (self.folder / "warehouse" / "_staging" / self.job / "job.logs").glob(
            f"{group}.*.log"
        )
        return log.read_text().splitlines()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> JsonFleet:
    folder = tmp_path_factory.mktemp("json")
    (folder / "told.py").write_text(STEPS)
    (folder / "nightly.yaml").write_text(SPEC)
    fleet = JsonFleet(folder)
    command = [*CLI, "up", "--workers", "0"]
    with subprocess.Popen(
        command, cwd=folder, env=fleet.env, stdout=subprocess.PIPE, text=True
    ) as up:
        try:
            assert up.stdout is not None
            assert any("Ready" in line for line in up.stdout)
            fleet.run("schedule", "set", "nightly.yaml")
            fleet.run("schedule", "run", "nightly")
            wait_until(fleet.ended, 60, "the run to end", every=0.5)
            shown = fleet.run("logs", fleet.job)
        finally:
            up.send_signal(signal.SIGTERM)
            up.communicate()
    (folder / "shown.txt").write_text(shown)
    return fleet


def read(lines: list[str]) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in lines]
    for one in found:
        assert list(one)[:4] == ["time", "level", "logger", "message"]
    return found


@pytest.mark.parametrize("name", ["coordinator-1", "beat", "light-1", "up"])
def test_each_line_of_each_process_is_one_json_object(fleet: JsonFleet, name: str) -> None:
    """From the first line to the last: warnings at the start, Celery's own, and what a signal
    brings.
    """
    lines = read(fleet.log(name))
    messages = " ".join(one["message"] for one in lines)
    last = {
        "coordinator-1": "Warm shutdown",
        "beat": "Releasing lock",
        "light-1": "was told to stop",
        "up": "Stopped.",
    }
    assert last[name] in messages
    assert len(lines) > 1


def test_each_line_of_an_attempt_names_job_group_attempt_and_schedule(fleet: JsonFleet) -> None:
    work = {"job": fleet.job, "group": "tells", "attempt": 1, "schedule": "nightly"}
    lines = [
        one
        for one in read(fleet.attempt("tells"))
        if one["message"] in ("counted", "printed", "from a thread")
    ]
    assert [(one["logger"], one["level"]) for one in lines] == [
        ("step", "INFO"),
        ("step.stdout", "INFO"),
        ("a_library", "WARNING"),
    ]
    for one in (
        *lines,
        *(one for one in read(fleet.log("light-1")) if one["message"] in ("counted", "printed")),
    ):
        assert one | work == one
    assert lines[0]["rows"] == 3
    assert "share" not in lines[0]
    received = next(one for one in read(fleet.log("light-1")) if "received" in one["message"])
    assert "job" not in received, "the lines between two attempts are about none"


def test_an_error_has_its_own_field(fleet: JsonFleet) -> None:
    for lines in (fleet.attempt("fails"), fleet.log("light-1")):
        failed = next(
            one
            for one in read(lines)
            if one["message"].endswith(" failed") and one["group"] == "fails"
        )
        assert failed["level"] == "ERROR"
        assert failed["exception"].startswith("Traceback")
        assert failed["exception"].endswith("ValueError: boom")


def test_the_log_of_an_attempt_says_why_the_watchdog_killed_its_runner(fleet: JsonFleet) -> None:
    (killed,) = [one for one in read(fleet.attempt("stays")) if one["logger"] == "watchdog"]
    assert (killed["level"], killed["group"], killed["job"]) == ("ERROR", "stays", fleet.job)
    (said,) = [
        one for one in read(fleet.log("light-1")) if one["logger"] == "unstuck.tasks.watchdog"
    ]
    assert killed["message"] in said["message"]
    assert said["group"] == "stays"


def test_unstuck_logs_shows_json_logs_as_text(fleet: JsonFleet) -> None:
    shown = (fleet.folder / "shown.txt").read_text()
    assert " INFO step: counted\n" in shown
    assert " INFO step.stdout: printed\n" in shown
    assert "fails#1 | ValueError: boom\n" in shown
    assert " ERROR watchdog: " in shown
    assert '{"time"' not in shown
