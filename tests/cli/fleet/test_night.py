"""The script of one night: each problem is told once, and so is its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.variant


@pytest.mark.long
@pytest.mark.timeout(600)
def test_four_problems_and_their_ends_are_notified_in_one_night(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.night.night", "--folder", tmp_path / "night"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("8 notices came: four problems, and the end of each.\n")
