"""A program in a terminal of its own: the screen that a person sees, and the keys that are
typed.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Sequence
from pathlib import Path

ROWS, COLUMNS = 40, 120
HANG_UP = "\0"  # in the place of keys: the terminal goes away
_IN_FRONT = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C reaches it
os.execvp(sys.argv[1], sys.argv[1:])
"""


def in_terminal(
    command: Sequence[str], folder: Path, typed: Sequence[tuple[str, str]] = ()
) -> tuple[int, str]:
    """Run ``command``. Returns its exit code and all that the terminal was sent.

    ``typed``: pairs of what is awaited on the screen, and the keys that are typed then.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    program = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "os.execvp(sys.argv[1], sys.argv[1:])"
    )
    started = subprocess.Popen(
        [command[0], "-c", program, *command] if "python" in command[0] else list(command),
        cwd=folder,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    shown, looked_at, waiting = "", 0, list(typed)
    while select.select([master], [], []):
        try:
            read = os.read(master, 65536)
        except OSError:  # nobody has the terminal any more
            break
        shown += read.decode(errors="replace")
        if waiting and waiting[0][0] in shown[looked_at:]:
            looked_at = len(shown)
            if (keys := waiting.pop(0)[1]) == HANG_UP:
                break
            os.write(master, keys.encode())
    os.close(master)
    return started.wait(), shown
