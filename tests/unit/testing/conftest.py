"""The fixture as a user has it, also where this checkout was installed before it had the plugin."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from unstuck.testing import Unstuck
from unstuck.testing.shared_spark import SharedSpark


@pytest.fixture
def told() -> list[str]:
    """All that is shown with the test, if it fails."""
    return []


@pytest.fixture
def unstuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[str]) -> Unstuck:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    return Unstuck(tmp_path, SharedSpark(tmp_path / "jvm"), root=ROOT, tell=told.append)
