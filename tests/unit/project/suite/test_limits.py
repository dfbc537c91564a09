"""Limits of tests on a slow machine."""

from __future__ import annotations

import pytest

from tests.support import machine
from tests.support.machine import Limit


def test_a_limit_grows_with_the_slowness_of_the_machine_up_to_a_maximum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr(machine, "slowness", lambda: 3.0)
    limit = Limit(10.0, lambda: clock[0])
    for elapsed, kept in ((10.0, True), (29.0, True), (30.5, False)):
        clock[0] = 100.0 + elapsed
        assert limit.kept is kept, limit


def test_slowness_is_measured_and_at_least_one() -> None:
    assert 1.0 <= machine.slowness() < 1000.0
