"""A step that runs until it is told to end. On the path of the workers as ``gate_steps``."""

from __future__ import annotations

import os
import time
from typing import Any


def until(spark: None, ctx: Any, begun: str, gate: str) -> None:
    """Writes down in the file ``begun`` that user code runs, then runs until the file ``gate``
    appears.
    """
    with open(begun, "a") as file:
        file.write(f"{time.time()!r}\n")
    while not os.path.exists(gate):
        time.sleep(0.005)
        if ctx.cancelled:
            raise RuntimeError("told to leave")
