"""When the alert of a condition opens."""

from __future__ import annotations

import pytest

from unstuck.coordinator.notices.rules.alerts import Alerts, NoticeSubject
from unstuck.coordinator.notices.rules.subscriptions import subscriptions

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("since", "limit", "opens"),
    [
        (NOW - 10, 0.0, True),
        (NOW + 10, 0.0, True),  # noted before the clock was set back
        (NOW - 10, 60.0, False),
        (NOW + 10, 60.0, False),
        (NOW - 60, 60.0, True),
        (0.0, 0.0, False),
    ],
)
def test_an_alert_opens_after_its_condition_lasted_for_the_limit(
    since: float, limit: float, opens: bool
) -> None:
    subject = NoticeSubject("schedule", "nightly", "schedule:nightly")
    alerts = Alerts(subject, subscriptions("nightly", (), ()), {}, NOW)
    assert alerts.update("failed", since, limit) is opens
