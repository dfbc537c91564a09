"""The plugin that pytest loads: fixtures, which import only when a test uses them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from unstuck.testing.fixture import Unstuck
    from unstuck.testing.shared_spark import SharedSpark


@pytest.fixture(scope="session")
def _unstuck_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSpark]:
    """The Spark session of this test run, which starts when a group first needs it."""
    from unstuck.testing.shared_spark import SharedSpark

    shared = SharedSpark(tmp_path_factory.mktemp("unstuck-spark"))
    yield shared
    shared.stop()


@pytest.fixture
def unstuck(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    _unstuck_spark: SharedSpark,
) -> Unstuck:
    """Runs jobs and steps of this test, with an empty warehouse that is removed after the test."""
    from unstuck.testing.fixture import Unstuck

    # As a worker does with its working folder, for the modules that a spec names.
    for folder in (str(request.config.rootpath), str(Path.cwd())):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    # The warehouse of a test need not survive a crash of the machine.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    return Unstuck(
        tmp_path,
        _unstuck_spark,
        root=request.config.rootpath,
        tell=lambda text: request.node.add_report_section("call", "unstuck", text),
    )
