"""A module of steps that sets what holds for its whole process when it is imported."""

from __future__ import annotations

import decimal
from typing import Any

decimal.getcontext().prec = 7


def found(spark: Any, ctx: Any) -> None:
    ctx.result("digits", decimal.getcontext().prec)
