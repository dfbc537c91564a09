"""The benchmark runs: cases at their smallest size, without peers, which would have to be
installed.

Not here are cases f and i, whose JVMs take too long: ``python -m bench --tiny --cases f,i``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.case import Case, Pair
from bench.measure import Sample, Spread, percentile
from bench.report import markdown
from tests.support.paths import ROOT

pytestmark = pytest.mark.variant

FIGURES = {  # what must be found of each case, as a part of a name
    "c": ("p50", "p99", "first join", "lock held"),
    "d": ("one job", "3 jobs"),
    "e": (
        "without open jobs",
        "with all jobs",
        "with the paused jobs",
        "list",
        "show",
        "paused job",
        "running job",
        "group that succeeded",
    ),
    "g": ("killed worker", "killed coordinator"),
    "m": ("nothing new", "one new file", "plain script", "stored job", "idle schedules"),
    "n": ("an empty store", "20 jobs and 10 schedules"),
    "o": ("2 chains of 2 groups, no rules", "1 fork of 4 groups, seven conditions: more"),
    "j": ("four fsyncs", "without fsync", "log file", "a script", "PING"),
}


def run(tmp_path: Path, cases: str) -> list[dict[str, Any]]:
    """The cases as JSON; the tables were printed, and the Markdown can be."""
    file = tmp_path / "bench.json"
    program = [sys.executable, "-m", "bench", "--json", str(file)]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    chosen = ("--tiny", "--peers", "none", "--cases", cases)
    subprocess.run([*program, *chosen], cwd=ROOT, env=env, check=True)
    found: list[dict[str, Any]] = json.loads(file.read_text())["cases"]
    assert ",".join(case["letter"] for case in found) == cases
    shown = subprocess.run(
        [*program, "--markdown"], cwd=ROOT, env=env, check=True, capture_output=True, text=True
    )
    for case in found:
        assert f"### {case['letter']}. {case['name']}" in shown.stdout
        names = [figure["what"] for figure in case["figures"]]
        assert [
            part
            for part in FIGURES.get(case["letter"], ())
            if not any(part in name for name in names)
        ] == []
    return found


def test_jobs_on_a_shared_fleet_are_measured_with_their_costs(tmp_path: Path) -> None:
    wide, chain, join, outputs, _ = run(tmp_path, "a,b,c,h,j")
    for case in (wide, chain, outputs):
        (pair,) = case["pairs"]
        (sample,) = pair["ours"]
        assert pair["theirs"] == []
        assert sample["seconds"] > 0
        assert sample["extra"]["scripts"] > 1
        assert set(sample["cpu"]) >= {
            "worker 1",
            "runners",
            "coordinator 1",
            "beat",
            "redis",
            "client",
        }
    assert all(0 < value < 60_000 for figure in join["figures"] for value in figure["values"])


@pytest.mark.long
@pytest.mark.parametrize("case", ["d", "e", "g", "m", "n", "o"])
def test_a_benchmark_may_have_its_own_fleet(tmp_path: Path, case: str) -> None:
    (found,) = run(tmp_path, case)
    assert found["pairs"] == []


def test_ratios_are_per_unit_and_include_the_spread() -> None:
    pair = Pair(
        "2 groups", "peer", [Sample(1.0, 2), Sample(2.0, 2)], [Sample(1.0, 1), Sample(1.0, 1)]
    )
    assert pair.ratio == Spread(1.5, 1.0, 2.0)
    case = Case("x", "name", "ms each", [pair], notes=["a note"])
    case.add("figure", "ms", 1.0)
    case.add("figure", "ms", 3.0)
    assert markdown({"cores": 2}, [case]).splitlines() == [
        "cores 2.",
        "",
        "### x. name (ms each)",
        "",
        "|  | unstuck | peer |  | times as fast | CPU ms each | peer's | scripts each |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |",
        "| 2 groups | 750 (500 to 1,000) | 1,000 | peer | 1.50 (1.00 to 2.00) | 0.00 | 0.00 |  |",
        "",
        "|  | unstuck |  |",
        "| --- | ---: | --- |",
        "| figure | 2.00 (1.00 to 3.00) | ms |",
        "",
        "CPU ms of each, 2 groups: .",
        "",
        "a note",
    ]


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([float(n) for n in range(100)], 99) == 98.0
    assert percentile([1.0], 99) == 1.0
