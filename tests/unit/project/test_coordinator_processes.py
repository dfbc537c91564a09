"""The coordinators that tests kill: one may be dead before its pid is read."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.programs.coordinator_processes import CoordinatorProcesses

_DEAD_ONES = 'while read -r line; do : & pid=$!; wait "$pid"; echo "$pid"; done'


def test_a_coordinator_that_died_before_it_was_looked_up_counts_as_dead(tmp_path: Path) -> None:
    with subprocess.Popen(
        ["bash", "-c", _DEAD_ONES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        coordinators = CoordinatorProcesses(server, tmp_path / "log")
        coordinators.tend()
        assert coordinators.awake == []
        coordinators.kill()
