"""Tests for jobs: a pytest plugin with the fixture ``unstuck``.

It needs no configuration, no fleet and no Redis.

The names here are for annotations, as in ``def test_shop(unstuck: Unstuck)``; each is loaded on
first use.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("pytest") is None:
    raise ModuleNotFoundError(
        "unstuck.testing is a plugin of pytest, which is not installed here: pip install pytest"
    )

if TYPE_CHECKING:
    from unstuck.testing.fixture import Unstuck as Unstuck
    from unstuck.testing.one_step import StepRun as StepRun
    from unstuck.testing.runs import JobRun as JobRun
    from unstuck.testing.runs import TickRun as TickRun

_MODULES = {
    "JobRun": "unstuck.testing.runs",
    "StepRun": "unstuck.testing.one_step",
    "TickRun": "unstuck.testing.runs",
    "Unstuck": "unstuck.testing.fixture",
}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    # pytest imports this package in every project of the environment, also in those that never use
    # it.
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
