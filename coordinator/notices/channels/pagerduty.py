"""Sends to PagerDuty or a compatible service by the Events API v2.

The end of a problem resolves its incident.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, ClassVar

from pydantic import AfterValidator, SecretStr

from unstuck.coordinator.notices.addresses import Allowed
from unstuck.coordinator.notices.channels.channel import Message, NoticeChannel, shortened
from unstuck.coordinator.notices.channels.http import checked_url, host_of, post

EVENTS = "https://events.pagerduty.com/v2/enqueue"
MOST_KEY, MOST_SUMMARY = 255, 1024  # characters that PagerDuty takes
WARNINGS = ("retrying_for", "running_for", "behind", "waiting_for_worker")  # what may end by itself


def pagerduty_event(message: Message, routing_key: str) -> dict[str, object]:
    """The body of a post to the Events API."""
    notice = message.notice
    key = notice.problem
    if len(key) > MOST_KEY:
        key = hashlib.sha256(key.encode()).hexdigest()
    event: dict[str, object] = {
        "routing_key": routing_key,
        "event_action": "resolve" if message.ends else "trigger",
        "dedup_key": key,
    }
    if message.ends:
        return event
    severity = "info" if message.informs else "warning" if notice.event in WARNINGS else "error"
    event["payload"] = {
        "summary": shortened(message.title, MOST_SUMMARY),
        "source": f"{notice.kind} {notice.name}",
        "severity": severity,
        "timestamp": datetime.fromtimestamp(notice.at, UTC).isoformat(),
        "component": notice.name,
        "class": notice.event,
        "custom_details": {**asdict(notice), "details": message.body},
    }
    event["client"] = "unstuck"
    if message.link:
        event |= {
            "client_url": message.link,
            "links": [{"href": message.link, "text": "Open the page"}],
        }
    return event


class PagerDuty(NoticeChannel):
    """``pagerduty: KEY`` of an Events API v2 integration; ``url`` for the service region EU."""

    kind: ClassVar[str] = "pagerduty"
    stays_open: ClassVar[bool] = True
    pagerduty: SecretStr
    url: Annotated[SecretStr, AfterValidator(checked_url)] = SecretStr(EVENTS)

    @property
    def hosts(self) -> tuple[str, ...]:
        return (host_of(self.url),)

    def send(self, message: Message, allowed: Allowed) -> str:
        body = json.dumps(pagerduty_event(message, self.pagerduty.get_secret_value())).encode()
        return post(self.url, body, {}, self.timeout, allowed)
