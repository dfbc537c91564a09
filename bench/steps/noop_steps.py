"""Steps that do nothing: what is left is the cost of Unstuck itself.

On the path of the workers as ``noop_steps``.
"""

from __future__ import annotations

import time
from typing import Any


def member(spark: None, ctx: Any, n: int) -> None:
    """One member of a fork."""


def hop(spark: None, ctx: Any) -> None:
    """One group of a chain."""


def stamp(spark: None, ctx: Any) -> None:
    """As `hop`, and its result is the time at which it began."""
    ctx.result("began", time.time())
