"""Writing what is for people, where it may hang: no deed and no outcome waits for it.

The log of an attempt lies in the warehouse, and its handler is on the root logger. On a mount whose server is gone any
line of this process may so wait for good. Nothing must be done in here but writing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

WITHIN = 1.0  # seconds


def aside(write: Callable[[], object], within: float = WITHIN) -> bool:
    """Do ``write`` in a thread of its own; False if that has not ended after ``within`` seconds and was left to itself.

    Where no thread is left to be had, it is done here, and waited for.
    """
    writing = threading.Thread(target=write, name="aside", daemon=True)
    try:
        writing.start()
    except RuntimeError:
        write()
        return True
    writing.join(within)
    return not writing.is_alive()
