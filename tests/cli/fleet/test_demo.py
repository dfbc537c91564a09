"""``make demo``: a pipeline on a fleet of its own, also while processes are killed."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pandas as pd
import pyarrow.parquet
import pytest

from examples.demo.flights_demo import missing
from examples.demo.stream_demo import compared
from examples.flights_truth import disagreements, truth
from examples.nycflights import table_path
from tests.cli.conftest import Cli
from tests.cli.fleet.test_fleet_commands import below, running, says
from tests.support.programs.processes import command_line, lives
from tests.support.servers import wait_until
from unstuck import published_files
from unstuck.exits import ExitCode
from unstuck.tasks.host import java_version


@pytest.fixture
def demo(tmp_path: Path) -> Cli:
    return Cli(None, tmp_path, program=(sys.executable, "-m", "examples.demo"))


@pytest.mark.parametrize("banner", ["", 'openjdk version "11.0.2"'], ids=["none", "old"])
def test_the_demo_lists_all_missing_requirements_with_remedies(
    demo: Cli, tmp_path: Path, banner: str
) -> None:
    java = tmp_path / "java" / "bin" / "java"
    if banner:
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
        java.chmod(0o755)
    demo.env["JAVA_HOME"] = str(tmp_path / "java")
    with demo.start() as process:
        printed, errors = process.communicate()
    assert process.returncode == 2, printed
    where = f" in JAVA_HOME, {tmp_path}/java"
    assert (f"Java 11{where} is too old" if banner else f"Java is not installed{where}") in errors
    assert "17" in errors
    assert not (tmp_path / ".unstuck").exists()
    assert any("examples/flights.yaml" in what for what in missing(tmp_path))


@pytest.mark.variant
@pytest.mark.timeout(400)
def test_the_demo_publishes_correct_data_although_a_worker_is_killed(
    demo: Cli,
) -> None:
    if java_version() < 17:
        pytest.skip("no Java 17 here")
    with running(demo, "--home", "d") as (process, out):
        pid = int(says(process, out, r"Worker pids: spark-1 (\d+)", 60)[1])
        says(process, out, r"RUNNING +by_month", 180)
        jvms = [child for child in below(pid) if "java" in command_line(child).split(" ")[0]]
        assert jvms
        os.kill(pid, signal.SIGKILL)
        says(process, out, r"LEASE_LAPSED|BACKOFF", 60)
        wait_until(
            lambda: not [jvm for jvm in jvms if lives(jvm)],
            10,
            "the killed worker's JVM to be gone",
        )
        assert process.wait() == 0, out.read_text()
    text = out.read_text()
    assert "spark-1" in text
    assert re.search(r"flights scheduled +336,776", text)
    assert re.search(r"published report: 18 rows", text)
    assert f"unstuck datasets --warehouse {demo.folder}/d/warehouse" in text
    (report,) = Cli(None, demo.folder).json(
        "datasets", "report", "--warehouse", f"{demo.folder}/d/warehouse"
    )
    assert (report["rows"], report["version"]) == (18, 1)
    true = truth()
    for name in ("report", "flights_by_carrier", "flights_by_origin", "monthly", "weather_delays"):
        rows = pyarrow.parquet.read_table(
            published_files(f"{demo.folder}/d/warehouse", name)
        ).to_pylist()
        assert disagreements(name, rows, true[name]) == []


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_stream_demo_publishes_each_flight_once_despite_broken_files(
    demo: Cli,
) -> None:
    with running(demo, "--stream", "--home", "d") as (process, out):
        pid = int(says(process, out, r"Worker pids: light-1 (\d+)", 60)[1])
        says(process, out, r"departures RUNNING: [1-9]", 60)
        os.kill(pid, signal.SIGKILL)
        assert process.wait() == 0, out.read_text()
    text = out.read_text()
    assert re.search(r"departures +HALTED", text)
    assert re.search(r"BAD_FILE: \S+/2013-01-02T16.csv, line 39", text)
    (home,) = (demo.folder / "d").iterdir()
    keys = ["time_hour", "carrier", "flight", "origin"]
    true = pd.read_csv(table_path("flights")).query("month == 1 and day <= 3")[keys]
    files = published_files(f"{home}/warehouse", "departures")
    found = pd.concat(pyarrow.parquet.read_table(path, columns=keys).to_pandas() for path in files)
    found["time_hour"] = found.time_hour.dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert sorted(found.to_records(index=False).tolist()) == sorted(
        true.to_records(index=False).tolist()
    )
    assert f"Each of the {len(true):,} flights was published once." in text

    (home / "arriving" / "more.csv").write_text("time_hour\n2013-01-01 10:00:00Z\n")
    assert compared(home / "arriving", f"{home}/warehouse") is ExitCode.NOT_WELL
