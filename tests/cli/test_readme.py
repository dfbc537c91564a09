"""The quickstart of the README, as somebody types it who has nothing but the README."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.cli.conftest import ROOT, Cli
from tests.cli.fleet.test_fleet_commands import running, says
from unstuck import published_files
from unstuck.tasks.host import java_version


@pytest.mark.timeout(400)
def test_the_quickstart_publishes_what_it_says(tmp_path: Path) -> None:
    if java_version() < 17:
        pytest.skip("no Java 17 here")
    readme = (ROOT / "README.md").read_text()
    cli = Cli(None, tmp_path)
    for language, name in (("python", "steps.py"), ("yaml", "sales.yaml")):
        (block,) = re.findall(rf"^```{language}\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
        (tmp_path / name).write_text(block)
    with running(cli, "up") as (process, out):
        says(process, out, r"^Ready: ", 100)
        done = cli("submit", "sales.yaml", "--wait")
        assert done.returncode == 0, done.stdout + done.stderr
    # What the README shows as published is what is published.
    shown = re.findall(r"^  published (.*)$", readme, re.MULTILINE)
    assert len(shown) == 2
    assert re.findall(r"^  published (.*)$", done.stdout, re.MULTILINE) == shown
    warehouse = str(tmp_path / "warehouse")
    (total,) = pyarrow.parquet.read_table(published_files(warehouse, "total")[0]).to_pylist()
    assert total == {"amount": sum(number % 97 for number in range(100_000))}
