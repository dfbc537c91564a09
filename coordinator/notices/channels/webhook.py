"""Posts the notice as JSON, signed by Standard Webhooks (https://www.standardwebhooks.com)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from dataclasses import asdict
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, SecretStr, field_validator

from unstuck.coordinator.notices.addresses import Allowed
from unstuck.coordinator.notices.channels.channel import Message, NoticeChannel
from unstuck.coordinator.notices.channels.http import checked_url, host_of, post

Url = Annotated[SecretStr, AfterValidator(checked_url)]
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_ENCODED = "whsec_"  # before a key that is written in base64


def payload(message: Message) -> dict[str, object]:
    """Return the notice for receivers: its fields, the title, and the link if there is one."""
    link = {"link": message.link} if message.link else {}
    return {"title": message.title, **asdict(message.notice), **link}


def signature(secret: str, id_: str, at: int, body: bytes) -> str:
    """Return the HMAC-SHA256 of the id, the time and the body."""
    key = (
        base64.b64decode(secret.removeprefix(_ENCODED))
        if secret.startswith(_ENCODED)
        else secret.encode()
    )
    digest = hmac.new(key, f"{id_}.{at}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


class Webhook(NoticeChannel):
    """``webhook: URL``, with the signing secret, and headers such as Authorization."""

    kind: ClassVar[str] = "webhook"
    webhook: Url
    secret: Annotated[SecretStr, Field(min_length=8)] | None = None
    headers: dict[str, SecretStr] = Field(default_factory=dict)

    @field_validator("secret")
    @classmethod
    def _is_a_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and (text := value.get_secret_value()).startswith(_ENCODED):
            try:
                base64.b64decode(text.removeprefix(_ENCODED), validate=True)
            except binascii.Error:
                raise ValueError(f"what comes after {_ENCODED} must be base64") from None
        return value

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, text in value.items():
            if not _HEADER.fullmatch(name) or not text.get_secret_value().isprintable():
                raise ValueError(
                    "a header has a name of letters, digits and -, and a value of one line"
                )
            if not text.get_secret_value().isascii():
                raise ValueError("the value of a header must be ASCII")
        return value

    @property
    def hosts(self) -> tuple[str, ...]:
        return (host_of(self.webhook),)

    def send(self, message: Message, allowed: Allowed) -> str:
        body = json.dumps(payload(message)).encode()
        id_, at = message.notice.id, int(message.at)
        headers = {name: value.get_secret_value() for name, value in self.headers.items()}
        headers |= {"webhook-id": id_, "webhook-timestamp": str(at)}
        if self.secret is not None:
            headers["webhook-signature"] = signature(self.secret.get_secret_value(), id_, at, body)
        return post(self.webhook, body, headers, self.timeout, allowed)
