"""Take the pictures of the page in docs/images, from a local fleet with jobs that run, wait, fail
and are done.

Needs Chromium, and Playwright of the extra ``test``. FOLDER is made, used and removed; the pictures
show its name.

    python -m scripts.web_pictures FOLDER
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from scripts.record_watch import until
from tests.support.page.browser import browser
from unstuck import Client, Settings

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WIDTH, HEIGHT = 1100, 640
UNSTUCK = (sys.executable, "-m", "unstuck.cli")
STEPS = """\
import time
from pathlib import Path
import pyarrow as pa

def orders(spark, ctx, rows):
    ctx.log.info("read %d orders", rows)
    return pa.table({"id": list(range(rows)), "amount": [n % 97 - 3 for n in range(rows)]})

def region(spark, ctx, region):
    for part in range(60):
        ctx.progress(part, 60)
        ctx.log.info("region %d: part %d of 60", region, part)
        time.sleep(1 if Path("slow").exists() else 0)
    return pa.table({"region": [region], "orders": [250]})

def check(spark, ctx):
    ctx.log.info("every order has a region")

def report(spark, ctx):
    return pa.table({"orders": [1000]})

def invoices(spark, ctx):
    raise ConnectionError("billing.example.com:5432: connection refused")

def events(spark, ctx):
    return pa.table({"id": [1, 2, 3]})

def prices(spark, ctx):
    if Path("closed").exists():
        raise ConnectionError("rates.example.com answers with 503")
    return pa.table({"currency": ["EUR", "USD"], "rate": [1.0, 1.16]})

def clicks(spark, ctx):
    return ctx.input("arrived")
"""
SALES = """\
name: sales
params: {rows: 1000}
publish: [orders, by_region, report]
outputs: {orders: {quality: {rules: {positive: "amount > 0"}, max_rejected_ratio: 0.1}}}
groups:
  - {name: orders, spark: false, steps: [{python: "steps:orders", output: orders}]}
  - name: by_region
    spark: false
    needs: [orders]
    for_each: {region: [0, 1, 2, 3]}
    steps: [{python: "steps:region", output: by_region}]
  - {name: check, spark: false, needs: [orders], steps: [{python: "steps:check"}]}
  - {name: report, spark: false, needs: [by_region, check], steps: [{python: "steps:report", output: report}]}
"""
INVOICES = """\
name: invoices
groups:
  - name: load
    spark: false
    retry: {max: 30, backoff: 40s, max_backoff: 60s}
    steps: [{python: "steps:invoices", output: invoices}]
"""
FORECAST = """\
name: forecast
groups:
  - {name: train, queue: gpu, spark: false, steps: [{python: "steps:report", output: forecast}]}
"""
EVENTS = """\
name: events
schedule: {every: 4s}
groups:
  - {name: load, spark: false, steps: [{python: "steps:events", output: events}]}
"""
PRICES = """\
name: prices
schedule: {every: 4s}
groups:
  - {name: load, spark: false, retry: {max: 0}, steps: [{python: "steps:prices", output: prices}]}
"""
CLICKS = """\
name: clicks
schedule: {every: 1h}
outputs: {clicks: {mode: append}}
groups:
  - name: load
    spark: false
    inputs: {arrived: {stream: FOLDER/landing, format: json, schema: "id BIGINT, page STRING"}}
    steps: [{python: "steps:clicks", output: clicks}]
"""
NIGHTLY = """\
name: nightly
schedule: {cron: "30 2 * * *", zone: Europe/Berlin}
groups:
  - {name: load, spark: false, steps: [{python: "steps:report", output: nightly}]}
"""
SCREENS = {
    "now": "/",
    "job": "/jobs/sales",
    "schedules": "/schedules",
    "datasets": "/datasets",
    "fleet": "/fleet",
}


def pictures(folder: Path) -> None:
    """Run the fleet in ``folder`` until there is something to see on every screen, and take the
    pictures.
    """
    (folder / "steps.py").write_text(STEPS)
    specs = {
        "sales": SALES,
        "invoices": INVOICES,
        "forecast": FORECAST,
        "events": EVENTS,
        "nightly": NIGHTLY,
    }
    for name, text in {
        **specs,
        "prices": PRICES,
        "clicks": CLICKS.replace("FOLDER", str(folder)),
    }.items():
        (folder / f"{name}.yaml").write_text(text)
    (folder / "landing").mkdir()

    def arrive(*numbers: int) -> None:
        for number in numbers:
            (folder / "landing" / f"{number}.json").write_text(
                json.dumps({"id": number, "page": "/basket"}) + "\n"
            )

    env = {name: value for name, value in os.environ.items() if not name.startswith("UNSTUCK_")}
    env |= {"PYTHONPATH": str(folder)}

    def run(*words: str) -> None:
        subprocess.run([*UNSTUCK, *words], cwd=folder, env=env, check=True)

    started: list[subprocess.Popen[bytes]] = []

    def start(log: Path, *words: str) -> None:
        with log.open("wb") as out:
            started.append(
                subprocess.Popen([*UNSTUCK, *words], cwd=folder, env=env, stdout=out, stderr=out)
            )

    try:
        start(folder / "up.log", "up", "--workers", "0", "--light", "1")
        url = until("the address of Redis", lambda: _text(folder / ".unstuck" / "redis.url"))
        until("the fleet", lambda: "Ready" in _text(folder / "up.log"))
        start(folder / "web.log", "web", "--address", "127.0.0.1:0")
        run("submit", "sales.yaml", "--wait")
        run("schedule", "set", "events.yaml")
        run("schedule", "set", "nightly.yaml")
        run("schedule", "set", "prices.yaml")
        arrive(*range(20))
        run("schedule", "set", "clicks.yaml")
        run("schedule", "run", "clicks")
        until("the first clicks", lambda: _finished(url, "clicks"))
        arrive(*range(20, 25))
        run("submit", "invoices.yaml")
        run("submit", "forecast.yaml")
        until("three runs", lambda: _finished(url, "events") >= 3 and _finished(url, "prices") >= 3)
        (folder / "closed").touch()
        until(
            "unread files, and failures in a row",
            lambda: _unread(url, "clicks") == 5 and _failures(url, "prices"),
        )
        run("schedule", "pause", "events", "--reason", "the source is rebuilt")
        (folder / "slow").touch()
        run("submit", "sales.yaml")
        until("a member at work", lambda: _members_done(url) >= 1)
        (origin,) = until(
            "the page", lambda: re.findall(r"http://[^/\s]+", _text(folder / "web.log"))
        )
        with browser() as chromium:
            page = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT}, base_url=origin)
            for name, path in SCREENS.items():
                page.goto(path, wait_until="networkidle")
                shown = {
                    "x": 0,
                    "y": 0,
                    "width": WIDTH,
                    "height": page.evaluate("document.body.scrollHeight"),
                }
                page.screenshot(
                    path=IMAGES / f"web-{name}.png",
                    clip={**shown, "height": min(HEIGHT, shown["height"])},
                )
    finally:
        for one in reversed(started):
            one.send_signal(signal.SIGINT)
            one.wait(120)


def _finished(url: str, name: str) -> int:
    with Client(Settings(redis_url=url)) as client:
        return sum(one.status == "FINISHED" for one in client.jobs(name=name, limit=20))


def _unread(url: str, name: str) -> int:
    with Client(Settings(redis_url=url)) as client:
        backlog = client.schedules.show(name).backlog
    return sum(one.new for one in backlog.streams.values()) if backlog is not None else 0


def _failures(url: str, name: str) -> int:
    with Client(Settings(redis_url=url)) as client:
        return client.schedules.show(name).schedule.failures


def _members_done(url: str) -> int:
    with Client(Settings(redis_url=url)) as client:
        return max((one.done for one in client.jobs(name="sales", limit=1)), default=0)


def _text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


if __name__ == "__main__":
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir()
    try:
        pictures(folder)
    finally:
        shutil.rmtree(folder)
