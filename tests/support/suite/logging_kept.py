"""A test that leaves logging changed fails: a later one would hear less, or nothing, and fail in
its place.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

_OURS = ("step", "unstuck", "tests")


@pytest.fixture(autouse=True)
def logging_is_kept() -> Iterator[None]:
    before = state_of_logging()
    yield
    after = state_of_logging()
    changed = {
        what: f"{before[what]} -> {after.get(what)}"
        for what in before
        if before[what] != after.get(what)
    }
    assert not changed, f"this test leaves logging changed, for all tests after it: {changed}"


def state_of_logging() -> dict[str, Any]:
    """What decides whether a record is heard: of all loggers, of root with its handlers, and of our
    loggers.
    """
    root = logging.getLogger()
    found: dict[str, Any] = {
        "logging.disable": root.manager.disable,
        "level of root": root.level,
        "handlers of root": [
            (type(one).__name__, id(one), one.level, list(one.filters)) for one in root.handlers
        ],
        "the factory of records": logging.getLogRecordFactory(),
        "Logger.callHandlers": logging.Logger.callHandlers,
    }
    for name, one in list(root.manager.loggerDict.items()):
        if isinstance(one, logging.Logger) and name.partition(".")[0] in _OURS:
            found[f"logger {name}"] = (
                one.level,
                one.disabled,
                one.propagate,
                list(one.handlers),
                list(one.filters),
            )
    return found
