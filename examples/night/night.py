"""One night of a small fleet: what goes wrong, who is told of it, and what the metrics say before
and after.

Runs a fleet of its own without Spark, and a receiver of notices that prints what it gets.
"""

# From the root of the repository: make demo-night, or python -m examples.night.night

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

UNSTUCK = (sys.executable, "-m", "unstuck.cli")
WITHIN = 150.0  # seconds in which a notice must have come
SHOWN = (
    "unstuck_jobs_ended_total",
    "unstuck_attempts_ended_total",
    "unstuck_notices",
    "unstuck_schedule_failures",
)

NIGHTLY = """\
name: nightly
schedule: {{cron: "{minute} {hour} * * *", zone: UTC}}
params: {{day: {{type: date, default: tick}}}}
notify:
  - {{on: [late: "{deadline}", recovered], to: oncall}}
groups:
  - {{name: load, spark: false, steps: [{{python: "examples.night.steps:nightly", output: nightly}}]}}
"""
ORDERS = """\
name: orders
params: {{source: "{folder}/export.txt"}}
notify:
  - {{on: [retrying_for: 4s, recovered], to: oncall}}
groups:
  - name: orders
    spark: false
    retry: {{max: 100, backoff: 1s, max_backoff: 2s}}
    steps: [{{python: "examples.night.steps:orders", output: orders}}]
"""
ARRIVALS = """\
name: arrivals
schedule: {{every: 1s, only_if: arrived}}
outputs: {{arrivals: {{mode: append}}}}
groups:
  - name: load
    spark: false
    inputs: {{rows: {{stream: "{folder}/arrivals", format: json, schema: "id BIGINT, amount DOUBLE"}}}}
    steps: [{{python: "examples.night.steps:arrivals", output: arrivals}}]
"""
FORECAST = """\
name: forecast
notify:
  - {{on: [waiting_for_worker: 5s, recovered], to: oncall}}
groups:
  - {{name: forecast, queue: gpu, spark: false, steps: [{{python: "examples.night.steps:forecast", output: forecast}}]}}
"""
TOTALS = """\
name: totals
params: {{seconds: 5, pid_file: "{folder}/totals.pid"}}
groups:
  - {{name: totals, spark: false, steps: [{{python: "examples.night.steps:totals", output: totals}}]}}
"""
# The fleet tells of every failure and every halt, whatever the specs say.
NOTIFY = """\
targets:
  oncall: {{webhook: "http://127.0.0.1:{port}/", secret: "one-night"}}
rules:
  - {{on: [failed, halted, recovered], to: oncall}}
"""


class Receiver:
    """Takes notices by HTTP, as a service would, and prints each."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                notice = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(204)
                self.end_headers()
                receiver.take(notice)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    def take(self, notice: dict[str, Any]) -> None:
        if any(notice["id"] == one["id"] for one in self.got):
            return  # sent twice, as may happen after a crash
        lines = [
            f"  {datetime.now():%H:%M:%S} to oncall: {notice['title']}",
            f"    {notice['text']}",
        ]
        lines += [f"    first error: {notice['first_error']}"] if notice["first_error"] else []
        lines += [f"    next: {notice['next']}"] if notice["next"] else []
        lines += [f"    $ {command}" for command in notice["commands"]]
        print("\n".join(lines), flush=True)
        self.got.append(notice)

    def of(self, event: str, name: str) -> bool:
        return any((one["event"], one["name"]) == (event, name) for one in self.got)


class Night:
    """The fleet of the night, its folder and its receiver."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.receiver = folder, Receiver()
        self.started: list[subprocess.Popen[bytes]] = []
        root = Path(__file__).resolve().parents[2]
        here = {"UNSTUCK_WAREHOUSE": str(folder / "warehouse"), "PYTHONPATH": str(root)}
        self.environment = {
            **os.environ,
            **here,
            "UNSTUCK_NOTIFY": NOTIFY.format(port=self.receiver.port),
        }
        self.environment.pop("UNSTUCK_REDIS_URL", None)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """A program of the fleet; what it prints goes into a file."""
        with (self.folder / "programs.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def unstuck(self, *words: str, quiet: bool = False, check: bool = True) -> str:
        """What a command prints; it is shown with what was typed, unless it is ``quiet``."""
        done = subprocess.run(
            [*UNSTUCK, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if not quiet:
            print(f"\n$ unstuck {shlex.join(words)}\n{done.stdout.rstrip()}", flush=True)
        if check and done.returncode:
            raise SystemExit(
                f"unstuck {shlex.join(words)} ended with {done.returncode}: {done.stderr}"
            )
        return done.stdout

    def spec(self, name: str, text: str, **values: str) -> str:
        path = self.folder / f"{name}.yaml"
        path.write_text(text.format(folder=self.folder, **values))
        return path.name

    def until(self, what: str, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + WITHIN
        while not holds():
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"{what} has not come in {WITHIN:g} s; see {self.folder / 'programs.log'}"
                )
            time.sleep(0.2)

    def told(self, event: str, name: str) -> None:
        self.until(f"the notice {event} of {name}", lambda: self.receiver.of(event, name))

    def published(self, dataset: str) -> bool:
        known = json.loads(self.unstuck("datasets", "--json", quiet=True))
        return any(one["dataset"] == dataset for one in known)

    def metrics(self) -> dict[str, float]:
        lines = self.unstuck("metrics", quiet=True).splitlines()
        parted = (
            line.rpartition(" ")
            for line in lines
            if line.startswith(SHOWN) and "_created" not in line
        )
        return {name: float(value) for name, _, value in parted}

    def stop(self) -> None:
        for process in reversed(self.started):
            process.send_signal(signal.SIGINT if process is self.started[0] else signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.receiver.server.shutdown()


def run(night: Night) -> None:
    """The night, from the evening to the morning."""
    print(
        (
            f"A fleet starts in {night.folder}: one worker without Spark, a coordinator, a Valkey "
            "of its own."
        ),
        flush=True,
    )
    night.start(*UNSTUCK, "up", "--workers", "0")
    night.until("the fleet", lambda: "Ready" in (night.folder / "programs.log").read_text())
    before = night.metrics()
    source, arrivals, pid_file = (
        night.folder / "export.txt",
        night.folder / "arrivals",
        night.folder / "totals.pid",
    )
    arrivals.mkdir()
    due = datetime.now(UTC) + timedelta(
        seconds=90
    )  # so at least half a minute from here to the tick
    deadline = f"{due + timedelta(minutes=1):%H:%M}"

    print(
        f"\n1. The load of {due:%H:%M} UTC was paused in the evening, and forgotten; it is late at "
        f"{deadline}."
    )
    spec = night.spec("nightly", NIGHTLY, minute=f"{due:%M}", hour=f"{due:%H}", deadline=deadline)
    night.unstuck("schedule", "set", spec)
    night.unstuck("schedule", "pause", "nightly", "--reason", "the source is being moved")

    print("\n2. The system that exports orders is away, and comes back.")
    orders = json.loads(
        night.unstuck("submit", night.spec("orders", ORDERS), "--json", quiet=True)
    )["id"]
    night.told("retrying_for", "orders")
    source.write_text("a\nb\n")
    night.told("recovered", "orders")

    print("\n3. Files arrive, and one of them holds a row that is none.")
    (arrivals / "1.json").write_text('{"id": 1, "amount": 10.0}\n')
    night.unstuck("schedule", "set", night.spec("arrivals", ARRIVALS))
    night.until("the first version of arrivals", lambda: night.published("arrivals"))
    (arrivals / "2.json").write_text('{"id": 2, "amount": 20.0}\n{"id": "three", "amount": 30.0}\n')
    night.told("halted", "arrivals")
    night.unstuck(
        "stream",
        "skip",
        "arrivals",
        str(arrivals / "2.json"),
        "--reason",
        "sent by a broken system",
    )
    night.unstuck("schedule", "resume", "arrivals", "--reason", "2.json is passed over")
    (arrivals / "3.json").write_text('{"id": 3, "amount": 30.0}\n')
    night.told("recovered", "arrivals")

    print(
        "\n4. A forecast needs a worker of the queue gpu, and there is none; then one is started."
    )
    night.unstuck("submit", night.spec("forecast", FORECAST))
    night.told("waiting_for_worker", "forecast")
    address = (night.folder / ".unstuck" / "redis.url").read_text().strip()
    night.environment["UNSTUCK_REDIS_URL"] = address
    night.start(
        sys.executable,
        "-m",
        "celery",
        "-A",
        "unstuck.tasks",
        "worker",
        "-Q",
        "gpu",
        "-c",
        "1",
        "-n",
        "gpu@%h",
    )
    night.told("recovered", "forecast")

    print("\n5. A worker is killed. The job goes on by itself, so nobody is woken.")
    totals = json.loads(
        night.unstuck("submit", night.spec("totals", TOTALS), "--json", quiet=True)
    )["id"]
    night.until("the step", lambda: pid_file.exists() and pid_file.read_text())
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    night.unstuck("watch", totals, quiet=True)
    night.unstuck("events", totals)

    print(f"\n6. It is {deadline} UTC, and the nightly load has not run.")
    night.told("late", "nightly")
    night.unstuck("schedule", "resume", "nightly", "--reason", "the source has been moved")
    night.unstuck("schedule", "run", "nightly")
    night.told("recovered", "nightly")

    print("\nThe morning: what was sent, and what the metrics say.")
    night.unstuck("notify", "list")
    after = night.metrics()
    print("\nMETRIC, BEFORE AND AFTER")
    for name in sorted(before | after):
        if before.get(name, 0.0) != after.get(name, 0.0):
            print(f"  {name}  {before.get(name, 0.0):g} → {after.get(name, 0.0):g}")
    for job in (orders, totals):
        assert json.loads(night.unstuck("show", job, "--json", quiet=True))["status"] == "FINISHED"


def main() -> None:
    parser = argparse.ArgumentParser(description="One night of a fleet, and who is told of it.")
    parser.add_argument(
        "--folder", type=Path, help="where all of it is kept; left out: a new folder"
    )
    given = parser.parse_args()
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="unstuck-night-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    night = Night(folder)
    try:
        run(night)
    finally:
        night.stop()
    told = {(one["event"], one["name"]) for one in night.receiver.got}
    wanted = {
        ("retrying_for", "orders"),
        ("recovered", "orders"),
        ("halted", "arrivals"),
        ("recovered", "arrivals"),
    }
    wanted |= {("waiting_for_worker", "forecast"), ("recovered", "forecast")}
    wanted |= {("late", "nightly"), ("recovered", "nightly")}
    if told != wanted:
        raise SystemExit(f"Other notices came than the night has: {sorted(told ^ wanted)}")
    print(f"\n{len(night.receiver.got)} notices came: four problems, and the end of each.")


if __name__ == "__main__":
    main()
