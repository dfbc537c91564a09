"""Start a program that the kernel kills when its parent process dies, even by SIGKILL.

Only Linux has this signal; on other systems the program outlives its parent. Run by its path, this
file requests the signal and then becomes the program.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def tied(argv: Sequence[str]) -> list[str]:
    """Return the command line for ``argv`` that ends with this process.

    The kernel sends the signal when the *thread* that started the program ends, so a thread that
    lives as long as the program must start it.
    """
    # In the child before exec, Python code could wait for a lock of another thread; so a fresh
    # Python asks the kernel.
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *argv]


def end_with(parent: int) -> None:
    """Let the kernel kill this process when ``parent``, which started it, dies.

    Exits if ``parent`` is dead already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (signal.SIGKILL, 0, 0, 0)))
    if os.getppid() != parent:  # it died before the kernel was asked
        sys.exit(1)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    # Python ignores these signals, and the program would inherit that.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    os.execvp(sys.argv[2], sys.argv[2:])
