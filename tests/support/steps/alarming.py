"""A module of steps with an alarm of its own, whose handler it sets when it is imported."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class TooLong(Exception):
    """The alarm went off."""


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLong


signal.signal(signal.SIGALRM, _too_long)


def alarmed(spark: Any, ctx: Any) -> None:
    """Wait for what never comes, until the alarm goes off."""
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        threading.Event().wait()
    except TooLong:
        return
