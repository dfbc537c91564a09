"""The driver leaves nothing behind, however it is ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.paths import ROOT
from tests.support.servers import wait_until

pytestmark = pytest.mark.variant


def test_ctrl_c_ends_every_process_and_removes_the_folder(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as out:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.driver", "recovery", "--seed", "1"],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
            stdout=out,
            stderr=out,
        )
    started: list[psutil.Process] = []
    try:
        # Given a driver with its fleet
        wait_until(
            lambda: "is ready" in log.read_text() or driver.poll() is not None, 120, "the fleet"
        )
        started = psutil.Process(driver.pid).children(recursive=True)
        assert len(started) > 8, log.read_text()
        # When it is interrupted
        driver.send_signal(signal.SIGINT)
        # Then it says so, and nothing is left
        assert driver.wait() == 130, log.read_text()
        assert re.search(
            r"^Interrupted; every process of the driver was ended\.$", log.read_text(), re.MULTILINE
        )
        psutil.wait_procs(started)
        assert list(tmp_path.glob("unstuck-chaos-*")) == []
    finally:
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        driver.kill()
        driver.wait()
