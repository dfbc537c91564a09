"""Steps that do nothing (``wide.yaml``): what is left is the cost of Unstuck itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unstuck import StepContext


def start(spark: None, ctx: StepContext) -> None:
    """The group that the fork waits for."""


def noop(spark: None, ctx: StepContext, n: int) -> None:
    """One member of the fork."""
