"""The step of a job that loads a stream. On the path of the workers as ``stream_steps``."""

from __future__ import annotations

from typing import Any


def load(spark: None, ctx: Any) -> Any:
    """All that has arrived."""
    return ctx.input("events")
