"""``unstuck run`` as a user has it: a process of its own, in a folder with a spec and the steps."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.programs.in_terminal import HANG_UP, in_terminal
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.published import read_arrow

RUN = (sys.executable, "-m", "unstuck.cli", "run")
STEPS = """
import glob, logging, threading, time
import pyarrow as pa

def rows(spark, ctx, day="monday"):
    print("loading", day)
    ctx.log.info("for %s", day)
    return pa.table({"day": [day]})

def passes(spark, ctx):
    return ctx.input("events")

def fails(spark, ctx):
    raise ValueError("no such day")

def stops(spark, ctx):
    answer = 41
    breakpoint()
    ctx.result("answer", answer)

def leaves(spark, ctx, key):
    def speak():  # when the job has ended, and its log is closed
        while glob.glob("warehouse/_staging/*"):
            time.sleep(0.01)
        print("printed", key)
        logging.getLogger("theirs").warning("logged %s", key)

    threading.Thread(target=speak, name=key).start()

def hangs(spark, ctx):
    print("hanging")
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "steps.py").write_text(STEPS)
    return tmp_path


def spec(folder: Path, *groups: dict[str, Any], **more: Any) -> str:
    full = [{"spark": False, **group} for group in groups]
    (folder / "job.yaml").write_text(yaml.safe_dump({"name": "days", "groups": full, **more}))
    return "job.yaml"


def group(name: str, *needs: str, output: str = "", **more: Any) -> dict[str, Any]:
    step = {"python": f"steps:{name}", **({"output": output} if output else {})}
    return {"name": name, "needs": list(needs), "steps": [step], **more}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *arguments], cwd=folder, text=True, capture_output=True, check=False
    )


def test_one_command_runs_a_spec_and_publishes(folder: Path) -> None:
    job = spec(folder, group("rows", output="days"), params={"day": "monday"})
    done = run(folder, job, "--param", "day=friday")
    assert done.returncode == 0, done.stderr
    assert "loading friday" in done.stdout
    assert "published days: 1 row" in done.stdout
    assert "for friday" in done.stderr
    assert read_arrow(Warehouse(str(folder / "warehouse")), "days").to_pylist() == [
        {"day": "friday"}
    ]


def test_a_failed_job_exits_with_1_and_the_traceback_of_its_step(folder: Path) -> None:
    done = run(
        folder, spec(folder, group("rows", output="days"), group("fails", "rows", retry={"max": 0}))
    )
    assert done.returncode == 1
    assert 'steps.py", line' in done.stderr
    assert "ValueError: no such day" in done.stdout
    assert Warehouse(str(folder / "warehouse")).head() == 0


@pytest.mark.variant
def test_a_bad_file_is_reported_in_one_sentence_with_only_the_frame_of_the_step(
    folder: Path,
) -> None:
    (folder / "arriving").mkdir()
    (folder / "arriving" / "1.json").write_text('{"n": 1}\n{"n": "many"}\n')
    stream = {"stream": str(folder / "arriving"), "format": "json", "schema": "n BIGINT"}
    load = group("passes", output="kept", inputs={"events": stream})
    done = run(folder, spec(folder, load, outputs={"kept": {"mode": "append"}}))
    assert done.returncode == 1
    frames = [line.split('"')[1] for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert frames == [str(folder / "steps.py")]
    sentence = done.stderr.splitlines()[-1]
    assert "1.json, line 2: the column n (bigint) cannot hold 'many'" in sentence
    assert "unstuck stream skip" in sentence


@pytest.mark.variant
def test_a_missing_step_is_reported_in_one_sentence(folder: Path) -> None:
    done = run(folder, spec(folder, group("nowhere")))
    (line,) = done.stderr.splitlines()
    assert line.startswith("STEP_NOT_FOUND: steps:nowhere cannot be imported")


@pytest.mark.variant
def test_with_json_standard_output_has_only_the_json_answer(folder: Path) -> None:
    done = run(folder, spec(folder, group("rows", output="days")), "--json")
    assert json.loads(done.stdout)["status"] == "FINISHED"
    assert "loading monday" in done.stderr


@pytest.mark.variant
def test_a_thread_left_behind_by_a_step_shows_no_secret(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "hunter-2000")
    done = run(folder, spec(folder, group("leaves", params={"key": "${secret:KEY}"})))
    assert done.returncode == 0, done.stderr
    assert "printed ${secret:KEY}" in done.stdout
    assert "logged ${secret:KEY}" in done.stderr
    assert "hunter" not in done.stdout + done.stderr


@pytest.mark.variant
def test_an_invalid_spec_exits_with_2_and_creates_nothing(folder: Path) -> None:
    done = run(folder, spec(folder, group("rows", "nowhere")))
    assert done.returncode == 2
    assert "nowhere" in done.stderr
    assert not (folder / "warehouse").exists()


@pytest.mark.variant
def test_a_missing_parameter_is_reported_with_its_option(folder: Path) -> None:
    needs = {"params": {"year": {"type": "integer", "required": True}}}
    done = run(folder, spec(folder, group("rows"), **needs))
    assert done.returncode == 2
    assert "params.year: a value is required; give it as --param year=VALUE" in done.stderr


@pytest.mark.variant
def test_a_file_in_place_of_the_warehouse_exits_with_2_and_a_remedy(folder: Path) -> None:
    (folder / "report.csv").write_text("a report")
    for place in ("report.csv", "report.csv/below"):
        done = run(folder, spec(folder, group("rows")), "--warehouse", place)
        assert (done.returncode, done.stdout) == (2, "")
        assert (
            f"there can be no warehouse at {place}: {folder}/report.csv is a file, not a folder"
            in done.stderr
        )
        assert "Name a folder with --warehouse" in done.stderr


@pytest.mark.variant
def test_a_breakpoint_in_a_step_gets_the_terminal_and_stops_the_timeout(folder: Path) -> None:
    job = spec(folder, group("stops", timeout="1s"), group("rows", "stops", output="days"))
    slow = "import time; time.sleep(1.5); print(answer + 1)\n"  # longer than the group may take
    code, shown = in_terminal([*RUN, job], folder, [("(Pdb)", slow), ("42", "c\n")])
    assert code == 0, shown
    assert "published days: 1 row" in shown


@pytest.mark.variant
def test_leaving_the_debugger_cancels_the_job(folder: Path) -> None:
    code, shown = in_terminal([*RUN, spec(folder, group("stops"))], folder, [("(Pdb)", "q\n")])
    assert code == 130
    assert "nothing was published" in shown


def test_ctrl_c_cancels_the_job_and_exits_with_130(folder: Path) -> None:
    code, shown = in_terminal([*RUN, spec(folder, group("hangs"))], folder, [("hanging", "\x03")])
    assert code == 130
    assert "CANCELED" in shown


@pytest.mark.variant
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_run_like_ctrl_c_with_its_own_exit_code(
    folder: Path, number: signal.Signals
) -> None:
    job = spec(folder, group("rows", output="days"), group("hangs", "rows", output="never"))
    with subprocess.Popen([*RUN, job], cwd=folder, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert any("hanging" in line for line in started.stdout)
        started.send_signal(number)
        shown = started.stdout.read()
    assert started.returncode == 128 + number
    assert "CANCELED" in shown
    assert not list((folder / "warehouse").glob("_staging/*"))


@pytest.mark.variant
def test_closing_the_terminal_ends_the_run_and_leaves_no_staging(folder: Path) -> None:
    code, _ = in_terminal([*RUN, spec(folder, group("hangs"))], folder, [("hanging", HANG_UP)])
    assert code == 128 + signal.SIGHUP
    assert not list((folder / "warehouse").glob("_staging/*"))


@pytest.mark.variant
def test_a_signal_ignored_by_the_parent_process_stays_ignored(folder: Path) -> None:
    job = spec(folder, group("hangs", timeout="3s", retry={"max": 0}))
    with subprocess.Popen(
        ["nohup", *RUN, job], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        assert any("hanging" in line for line in started.stdout)
        started.send_signal(signal.SIGHUP)
        shown = started.stdout.read()
    assert started.returncode == 1
    assert "TIMEOUT" in shown


@pytest.mark.variant
def test_the_traceback_of_a_retried_step_is_shown_once(folder: Path) -> None:
    done = run(folder, spec(folder, group("fails", retry={"max": 2, "backoff": "1h"})))
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.count("fails, attempt ") == 2
    assert "fails, attempt 3: the same error again" in done.stderr


@pytest.mark.variant
def test_a_killed_run_publishes_nothing_and_the_next_run_publishes_everything(folder: Path) -> None:
    killed = spec(folder, group("rows", output="days"), group("hangs", "rows", output="never"))
    started = subprocess.Popen(
        [*RUN, killed], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with started as process:
        assert process.stdout is not None
        assert any("hanging" in line for line in process.stdout)
        process.kill()
    warehouse = Warehouse(str(folder / "warehouse"))
    assert warehouse.head() == 0
    (left,) = (folder / "warehouse" / "_staging").iterdir()
    assert run(folder, spec(folder, group("rows", output="days"))).returncode == 0
    assert read_arrow(warehouse, "days").num_rows == 1
    assert not left.exists()
