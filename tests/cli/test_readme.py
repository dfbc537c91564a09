"""The quickstart of the README, as somebody types it who has nothing but the README."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, Cli
from tests.cli.fleet.test_fleet_commands import running, says
from unstuck.tasks.host import java_version


@pytest.mark.variant
@pytest.mark.timeout(400)
def test_the_quickstart_publishes_the_documented_result(tmp_path: Path) -> None:
    if java_version() < 17:
        pytest.skip("no Java 17 here")
    readme = (ROOT / "README.md").read_text()
    cli = Cli(None, tmp_path)
    steps, app = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    (spec,) = re.findall(r"^```yaml\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    for name, text in (("steps.py", steps), ("sales.yaml", spec), ("app.py", app)):
        (tmp_path / name).write_text(text)
    alone = cli("run", "sales.yaml")
    assert alone.returncode == 0, alone.stdout + alone.stderr
    with running(cli, "up") as (process, out):
        says(process, out, r"^Ready: ", 100)
        done = cli("submit", "sales.yaml", "--wait")
        assert done.returncode == 0, done.stdout + done.stderr
        environment = {
            name: value for name, value in os.environ.items() if name != "UNSTUCK_REDIS_URL"
        }
        command = [sys.executable, "app.py"]
        by_hand = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
    total = sum(number % 97 for number in range(100_000))
    assert by_hand.stdout == f"FINISHED\n[{{'amount': {total}}}]\n", by_hand.stderr
    # What the README shows as published is what is published.
    shown = re.findall(r"^  published (.*)$", readme, re.MULTILINE)
    assert len(shown) == 2
    for answer in (alone, done):
        assert re.findall(r"^  published (.*)$", answer.stdout, re.MULTILINE) == shown
