"""Sends through Apprise, which has about a hundred services (the extra ``apprise``)."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import Annotated, ClassVar

from pydantic import Field, SecretStr, field_validator

from unstuck.coordinator.notices.addresses import Allowed
from unstuck.coordinator.notices.channels.channel import (
    Message,
    NoticeChannel,
    SendFailed,
    shortened,
)
from unstuck.coordinator.spec.notify_spec import OneOrMore
from unstuck.tasks.host import how_to_install


class AppriseTarget(NoticeChannel):
    """``apprise: URL``, or a list."""

    kind: ClassVar[str] = "apprise"
    for_people: ClassVar[bool] = True
    apprise: Annotated[OneOrMore[SecretStr], Field(min_length=1, max_length=50)]

    @field_validator("apprise")
    @classmethod
    def _can_be_sent(cls, value: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if find_spec("apprise") is None:
            raise ValueError(f"Apprise is not installed here. {how_to_install('apprise')}")
        from apprise import Apprise

        for number, address in enumerate(value, 1):
            if Apprise.instantiate(address.get_secret_value(), suppress_exceptions=True) is None:
                raise ValueError(f"address {number} is none that Apprise can read")
        return value

    def send(self, message: Message, allowed: Allowed) -> str:
        from apprise import Apprise, LogCapture, NotifyType

        logging.getLogger("apprise").propagate = False  # its lines may hold addresses
        kind = NotifyType.SUCCESS if message.informs else NotifyType.FAILURE
        body = message.body + (f"\n\n{message.link}" if message.link else "")
        sender = Apprise([address.get_secret_value() for address in self.apprise])
        with LogCapture(level=logging.WARNING) as log:  # type: ignore[no-untyped-call]
            done = sender.notify(body=body, title=message.title, notify_type=kind)
            output = shortened(log.getvalue())
        if not done:
            raise SendFailed(f"Apprise could not send it: {output or 'it did not say why'}")
        return "sent by Apprise"
