"""Posts to an incoming webhook of Slack or a compatible service (Mattermost, Rocket.Chat)."""

from __future__ import annotations

import json
from typing import Annotated, ClassVar

from pydantic import AfterValidator, SecretStr

from unstuck.coordinator.notices.addresses import Allowed
from unstuck.coordinator.notices.channels.channel import Message, NoticeChannel, shortened
from unstuck.coordinator.notices.channels.http import checked_url, host_of, post

MOST = 2900  # characters of a section; Slack takes 3,000
WELL, BAD = "#2eb67d", "#e01e5a"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def slack_message(message: Message) -> dict[str, object]:
    """The body of a post to an incoming webhook."""
    body = message.body if len(message.body) <= MOST else f"{message.body[:MOST]}…"
    link = f"\n<{message.link}|Open the page>" if message.link else ""
    attachment = {
        "color": WELL if message.informs else BAD,
        "text": f"{_escaped(body)}{link}",
        "fallback": _escaped(message.title),
        "footer": f"unstuck · {message.notice.id}",
        "ts": int(message.notice.at),
    }
    return {"text": _escaped(shortened(message.title)), "attachments": [attachment]}


class Slack(NoticeChannel):
    """``slack: URL`` of an incoming webhook."""

    kind: ClassVar[str] = "slack"
    for_people: ClassVar[bool] = True
    slack: Annotated[SecretStr, AfterValidator(checked_url)]

    @property
    def hosts(self) -> tuple[str, ...]:
        return (host_of(self.slack),)

    def send(self, message: Message, allowed: Allowed) -> str:
        body = json.dumps(slack_message(message)).encode()
        return post(self.slack, body, {}, self.timeout, allowed)
