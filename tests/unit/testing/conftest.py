"""The fixture as a user has it, also where this checkout was installed before it had the plugin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from unstuck.tasks.warehouse.files import for_a_test
from unstuck.testing import Unstuck
from unstuck.testing.shared_spark import SharedSpark


@pytest.fixture
def told() -> list[str]:
    """All that is shown with the test, if it fails."""
    return []


@pytest.fixture
def unstuck(tmp_path: Path, told: list[str]) -> Iterator[Unstuck]:
    with for_a_test():
        yield Unstuck(tmp_path, SharedSpark(tmp_path / "jvm"), root=ROOT, tell=told.append)
