"""The process of a coordinator."""

from __future__ import annotations

import subprocess
import sys


def test_a_coordinator_loads_no_user_interface_modules() -> None:
    program = (
        "import sys, unstuck.coordinator.celery as room; room.app.loader.import_default_modules(); "
        "print(*(name for name in sys.modules if name.startswith('unstuck.')), sep='\\n')"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    modules = run.stdout.split()
    assert "unstuck.coordinator.celery" in modules
    sides = ("unstuck.coordinator", "unstuck.tasks")
    assert [
        name for name in modules if not f"{name}.".startswith(tuple(f"{side}." for side in sides))
    ] == []
