"""Children of a process that adopts orphans: which of them are ended, and counted, as strays."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.paths import PYTHONPATH

# A process of much memory takes a moment to give it back when it ends. Meanwhile it is no zombie,
# and has no command line any more. One that is met too late is made again, with twice the memory.
_MEETS_ONE_THAT_ENDS = """
import mmap, os
from pathlib import Path
from unstuck.tasks.process.tree import end_strays, is_watchdog

def ends(pid):
    "False once it has ended."
    while Path(f"/proc/{pid}/cmdline").read_bytes():
        pass
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"

size = 1 << 26
while True:
    child = os.fork()
    if child == 0:
        memory = mmap.mmap(-1, size)
        memory.write(b"x" * size)
        os._exit(0)
    if ends(child):
        break
    os.waitpid(child, 0)
    size *= 2
print(end_strays(is_watchdog))
"""


def test_a_process_that_is_exiting_is_not_a_stray() -> None:
    """Such as the watchdog of a fresh runner: its runner would be replaced for it."""
    done = subprocess.run(
        [sys.executable, "-c", _MEETS_ONE_THAT_ENDS],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "[]\n", done.stderr
