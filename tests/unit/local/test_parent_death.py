"""A program that is tied to its parent ends when the parent is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.servers import wait_until
from unstuck.local import parent_death
from unstuck.local.parent_death import tied

SLEEP = [sys.executable, "-c", "print(flush=True); import time; time.sleep(1000)"]
PARENT = f"""
import subprocess, time
from unstuck.local.parent_death import tied
child = subprocess.Popen(tied({SLEEP!r}), stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="Linux alone tells a child of the death of its parent"
)
def test_a_tied_program_is_killed_with_its_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()

        parent.kill()

    wait_until(
        lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE,
        10,
        "the program to end",
    )


def test_a_program_whose_parent_died_before_tying_is_not_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    command = tied(["/usr/bin/env", "touch", str(ran)])
    subprocess.run(command, check=True)
    assert ran.exists()
    ran.unlink()
    command[command.index(parent_death.__file__) + 1] = "1"

    assert subprocess.run(command, check=False).returncode == 1
    assert not ran.exists()


def test_a_program_does_not_inherit_signals_ignored_by_python() -> None:
    # A shell's own tool shows what it was given: Python would ignore two signals again.
    done = subprocess.run(
        tied(["grep", "SigIgn", "/proc/self/status"]), capture_output=True, text=True, check=True
    )
    ignored = int(done.stdout.split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1))
