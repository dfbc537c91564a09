"""Sends mail by SMTP, over TLS by default."""

from __future__ import annotations

import hashlib
import smtplib
import socket
import ssl
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from unstuck.coordinator.notices.addresses import Allowed, Connecting
from unstuck.coordinator.notices.channels.channel import (
    Message,
    NoticeChannel,
    SendFailed,
    shortened,
)
from unstuck.coordinator.spec.notify_spec import OneOrMore

PORTS = {"starttls": 587, "implicit": 465, "none": 25}
_OWN = "unstuck.invalid"  # the right half of ids; no mail goes there


class _Client(smtplib.SMTP):
    """An SMTP client with a deadline that connects only to allowed addresses.

    It uses TLS from the start if it has a ``context``.
    """

    def __init__(
        self, connecting: Connecting, allowed: Allowed, context: ssl.SSLContext | None
    ) -> None:
        super().__init__(timeout=1)  # no client without; the socket has its own
        self._connecting, self._allowed, self._context = connecting, allowed, context

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        self._host = host  # the name that STARTTLS verifies
        sock = self._connecting.connect(host, port, self._allowed)
        return (
            sock if self._context is None else self._connecting.with_tls(sock, self._context, host)
        )

    def watch(self) -> None:
        """Watch the socket that STARTTLS has put in place of the first."""
        if self.sock is not None:
            self._connecting.watch(self.sock)


class Mail(NoticeChannel):
    """``mail: ADDRESS``, or a list, by the ``server`` HOST or HOST:PORT."""

    kind: ClassVar[str] = "mail"
    for_people: ClassVar[bool] = True
    mail: Annotated[OneOrMore[str], Field(min_length=1, max_length=50)]
    server: str
    sender: str = Field(alias="from")
    tls: Literal["starttls", "implicit", "none"] = "starttls"
    user: str | None = None
    password: SecretStr | None = None

    @field_validator("mail", "sender")
    @classmethod
    def _are_addresses(cls, value: Any) -> Any:
        for address in [value] if isinstance(value, str) else value:
            name, at, host = address.rpartition("@")
            if (
                not (name and at and host)
                or not address.isprintable()
                or any(c in address for c in " ,<>")
            ):
                raise ValueError(
                    "expected an address such as ops@example.com, without a name before it"
                )
        return value

    @field_validator("server")
    @classmethod
    def _is_a_host(cls, value: str) -> str:
        host, _, port = value.partition(":")
        if (
            not host
            or "/" in value
            or " " in value
            or (port and not (port.isdecimal() and 0 < int(port) < 65536))
        ):
            raise ValueError(
                "expected the host of an SMTP server, such as smtp.example.com or "
                "smtp.example.com:2525"
            )
        return value

    @model_validator(mode="after")
    def _keeps_its_password(self) -> Mail:
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password go together; set both, or neither")
        if self.tls == "none" and self.password is not None:
            raise ValueError(
                "a password over a connection without TLS can be read by others; take tls: starttls"
            )
        return self

    @property
    def hosts(self) -> tuple[str, ...]:
        return (self.server.partition(":")[0],)

    def send(self, message: Message, allowed: Allowed) -> str:
        host, _, port = self.server.partition(":")
        context = None if self.tls == "none" else ssl.create_default_context()
        try:
            with Connecting(self.timeout) as connecting:
                try:
                    client = _Client(
                        connecting, allowed, context if self.tls == "implicit" else None
                    )
                    return self._deliver(
                        client, host, int(port or PORTS[self.tls]), context, message
                    )
                except (OSError, smtplib.SMTPException) as error:
                    if connecting.over:
                        raise TimeoutError(f"no whole answer within {self.timeout:g}s") from error
                    raise
        except (OSError, smtplib.SMTPException) as error:
            raise SendFailed(f"{self.server}: {shortened(_said(error))}") from None

    def _deliver(
        self,
        client: _Client,
        host: str,
        port: int,
        context: ssl.SSLContext | None,
        message: Message,
    ) -> str:
        try:
            code, greeting = client.connect(host, port)
            if code != 220:
                raise smtplib.SMTPConnectError(code, greeting)
            if self.tls == "starttls":
                client.starttls(context=context)
                client.watch()
            if self.user is not None and self.password is not None:
                client.login(self.user, self.password.get_secret_value())
            refused = client.send_message(
                mail_of(message, self.sender, self.mail), self.sender, list(self.mail)
            )
            # The server has accepted it. Later errors change nothing.
        finally:
            client.close()
        for recipient, (code, why) in refused.items():
            return shortened(
                f"accepted, but not for {recipient}: {code} {why.decode(errors='replace')}"
            )
        return "accepted"


def _said(error: Exception) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        text = error.smtp_error
        return (
            f"{error.smtp_code} "
            f"{text.decode(errors='replace') if isinstance(text, bytes) else text}"
        )
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return "; ".join(
            f"{recipient}: {code} {why.decode(errors='replace')}"
            for recipient, (code, why) in error.recipients.items()
        )
    return str(error) or type(error).__name__


def mail_of(message: Message, sender: str, to: tuple[str, ...]) -> EmailMessage:
    """Return the mail. A repeat has the same Message-ID; all mails of a problem form one thread."""
    mail = EmailMessage()
    mail["Subject"] = shortened(message.title, 200)
    mail["From"], mail["To"] = sender, ", ".join(to)
    mail["Date"] = format_datetime(datetime.fromtimestamp(message.notice.at, UTC))
    mail["Message-ID"] = f"<{message.notice.id}@{_OWN}>"
    mail["References"] = (
        f"<{hashlib.sha256(message.notice.problem.encode()).hexdigest()[:32]}@{_OWN}>"
    )
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(f"{message.body}\n" + (f"\n{message.link}\n" if message.link else ""))
    return mail
