"""Receivers of notices: an HTTP server that is well, refuses, hangs or is away, and an SMTP server
with TLS.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message as Mail
from email.parser import BytesParser
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult

from tests.support.network.tls import Authority
from unstuck.coordinator.model.notice import Notice
from unstuck.local.home import free_port

Answer = Callable[[BaseHTTPRequestHandler], None]
"""What a receiver does with a request whose body it has read."""


def status(code: int, text: str = "", **headers: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        request.wfile.write(text.encode())

    return answer


def hangs(request: BaseHTTPRequestHandler) -> None:
    """Answer nothing until the other side gives up."""
    request.connection.settimeout(60)
    request.rfile.read(1)
    request.close_connection = True


class Holds:
    """Answer nothing until it is ``released``; then break the connection."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def __call__(self, request: BaseHTTPRequestHandler) -> None:
        self.released.wait(120)
        request.close_connection = True


def drips(request: BaseHTTPRequestHandler) -> None:
    """Answer a byte at a time, so that no single read ever takes long."""
    try:
        for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 3000:
            request.wfile.write(bytes([byte]))
            time.sleep(0.05)  # what a slow receiver does
    except OSError:
        request.close_connection = True


def answers_twice(request: BaseHTTPRequestHandler) -> None:
    """Take the notice, and break the connection in the place of an answer: it will be sent once
    more.
    """
    request.close_connection = True


@dataclass
class Received:
    """One request. ``text``: its body as JSON."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return str(self.text["id"])


@dataclass
class Receiver:
    """An HTTP server. ``answer``: what it does; ``received``: what came, also what it refused."""

    answer: Answer = field(default_factory=lambda: status(200, "thanks"))
    received: list[Received] = field(default_factory=list)
    port: int = field(default_factory=free_port)
    _server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def ids(self) -> list[str]:
        return [one.id for one in self.received]

    def start(self, certificate: tuple[Any, Any] | None = None) -> None:
        receiver = self

        class WebhookHandler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.received.append(Received(self.path, dict(self.headers.items()), body))
                receiver.answer(self)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._listen(WebhookHandler, certificate)

    def _listen(
        self, handler: type[BaseHTTPRequestHandler], certificate: tuple[Any, Any] | None = None
    ) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self._server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="receiver", daemon=True
        ).start()

    def stop(self) -> None:
        """Be away: nothing listens any more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@contextmanager
def receiver(answer: Answer | None = None) -> Iterator[Receiver]:
    made = Receiver()
    if answer is not None:
        made.answer = answer
    made.start()
    try:
        yield made
    finally:
        made.stop()


class ConnectProxy(Receiver):
    """A proxy for HTTPS. ``asked``: the hosts to which it was asked to connect, with the login."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str]] = []

    def start(self, certificate: tuple[Any, Any] | None = None) -> None:
        proxy = self

        class TunnelHandler(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                proxy.asked.append((self.path, self.headers.get("Proxy-Authorization", "")))
                self.send_response(200)
                self.end_headers()
                host, _, port = self.path.partition(":")
                with socket.create_connection((host, int(port))) as far:
                    back = threading.Thread(target=_copy, args=(far, self.connection), daemon=True)
                    back.start()
                    _copy(self.connection, far)
                    back.join()
                self.close_connection = True

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._listen(TunnelHandler)


def _copy(source: socket.socket, into: socket.socket) -> None:
    with suppress(OSError):
        while said := source.recv(4096):
            into.sendall(said)
        into.shutdown(socket.SHUT_WR)


class MailServer:
    """An SMTP server that wants TLS, and a password where one is given. ``mails``: what it took."""

    def __init__(
        self, authority: Authority, *, implicit: bool = False, login: tuple[str, str] | None = None
    ) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.certify("localhost"))
        self.mails: list[Mail] = []
        self.recipients: list[list[str]] = []
        self.refuses: dict[str, str] = {}  # recipient → what is answered
        self.hangs = False

        def check(
            server: Any, session: Any, envelope: Any, mechanism: str, data: Any
        ) -> AuthResult:
            return AuthResult(
                success=(data.login.decode(), data.password.decode()) == login, handled=False
            )

        more: dict[str, Any] = {"authenticator": check, "auth_required": True} if login else {}
        more |= (
            {"auth_require_tls": False}
            if implicit
            else {"tls_context": context, "require_starttls": True}
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="mail-server", daemon=True
        )
        self._thread.start()

        def serve() -> SMTP:
            with warnings.catch_warnings(action="ignore"):  # it does not see that TLS is around it
                return SMTP(self, loop=self._loop, **more)

        listening = self._loop.create_server(
            serve, "127.0.0.1", 0, ssl=context if implicit else None
        )
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()

    @property
    def address(self) -> str:
        return f"localhost:{self._server.sockets[0].getsockname()[1]}"

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: Any
    ) -> str:
        if self.hangs:
            await asyncio.sleep(3600)
        if address in self.refuses:
            return self.refuses[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.recipients.append(envelope.rcpt_tos)
        self.mails.append(BytesParser(policy=default).parsebytes(envelope.content))
        return "250 taken"

    def stop(self) -> None:
        async def end() -> None:
            self._server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def notice(
    number: int = 1,
    *,
    problem: str = "",
    event: str = "failed",
    to: tuple[str, ...] = ("ops",),
    **more: Any,
) -> Notice:
    """A notice as a commit writes it."""
    fields = {
        "id": f"n{number}",
        "to": to,
        "event": event,
        "kind": "job",
        "name": "nightly",
        "job": f"20131231T235959-k3f9a2x{number}",
        "problem": problem or f"job/{number}",
        "at": 1_388_534_400.25,
        "since": 1_388_534_100.0,
        "status": "FAILED",
        "text": "FAILED, since group clean failed three times.",
        "first_error": "KeyError: 'amount'",
        "next": "nothing, until somebody retries it",
        "commands": ("unstuck why last", "unstuck retry last"),
        **more,
    }
    return Notice(**fields)
