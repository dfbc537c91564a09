"""Settings that fit each other, also when somebody sets one of them alone."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.doctor import of_settings
from coordinator.finding import Level
from tasks.settings import Settings


def test_a_long_lease_changes_nothing_else() -> None:
    long = Settings(lease_ttl=600.0)
    assert (long.lease_renew, long.sweep_every, long.lock_ttl, long.report_idle) == (3.0, 1.0, 5.0, 5.0)


@pytest.mark.parametrize("ttl", [0.5, 3.0, 10.0, 15.0, 60.0])
def test_a_lease_of_any_length_alone_leaves_settings_that_fit(ttl: float) -> None:
    assert [finding for finding in of_settings(Settings(lease_ttl=ttl)) if finding.level is not Level.OK] == []


@pytest.mark.parametrize("said", [{"lease_renew": 2.0}, {"lock_ttl": 4.0}, {"report_idle": 7.0}, {"sweep_every": 2.0}])
def test_what_was_said_stays_as_it_was_said(said: dict[str, Any]) -> None:
    settings = Settings(lease_ttl=3.0, **said)
    assert {name: getattr(settings, name) for name in said} == said


def test_the_environment_says_as_much_as_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSTUCK_LEASE_TTL", "3s")
    monkeypatch.setenv("UNSTUCK_LOCK_TTL", "2s")
    settings = Settings()
    assert (settings.lease_renew, settings.lock_ttl, settings.report_idle) == (0.6, 2.0, 1.0)
