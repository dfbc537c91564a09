"""Guards the page: who may look, which requests may act, and what a browser is told never to do.

Without a token only browsers of this host reach the page, and a site that they visit meanwhile
cannot use it: the name of the host is checked (DNS rebinding), and an action must come from the
page itself.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import time
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, quote, unquote

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.spec.text import MAX_BYTES
from unstuck.documents.json_text import json_text
from unstuck.documents.problem import MEDIA_TYPE, ProblemDetails

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "
        "'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`, under which browsers send no Origin with a form.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
COOKIE = "unstuck"
API = "/api/"
BEHIND_A_PROXY = (
    "This comes through a proxy, and the page has no token: everybody who reaches the proxy could "
    "cancel jobs. Start the page with --token-file FILE, and with --allow-host NAME if the proxy "
    "keeps the name by which it is called.\n"
)
PROGRAMS_NEED_A_TOKEN = (
    "Without a token the API only answers: each account of this host could submit a spec, and so "
    "run code as the workers. Nothing was done. Start the page with --token-file FILE.\n"
)
LOGGED_IN_FOR = 12 * 3600  # seconds
SHORTEST_TOKEN = 16  # characters
MOST_BODY = 64 * 1024  # bytes of a form
MOST_NAME = 100  # characters of the name of who is logged in
BODY_WITHIN = 10  # seconds
# By one of these a request shows that it comes from another host, through a proxy.
FORWARDED = (
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
)
# A static file under an address that changes with its content.
UNCHANGING = "public, max-age=31536000, immutable"
OPEN = ("/healthz", "/login")  # and /static/: they say nothing of any job


@dataclass(frozen=True, slots=True)
class Access:
    """The callers that may reach the page.

    Attributes:
        token: the token that callers must send; empty for none, which admits this host only.
        hosts: names by which the page is called, besides those of this host and plain addresses.
    """

    token: str = ""
    hosts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, host: str, token: str, hosts: tuple[str, ...] = ()) -> Access:
        """Return the access to a page that listens at ``host``.

        Raises: BadRequest: it would be open to other hosts.
        """
        if token and len(token) < SHORTEST_TOKEN:
            raise BadRequest(
                f"the token of the page has {len(token)} characters; it needs at least "
                f"{SHORTEST_TOKEN}"
            )
        if not token and hosts:
            raise BadRequest(
                f"--allow-host {hosts[0]} lets callers of other hosts in, through a proxy. Nothing "
                "was started. Give --token-file FILE, whose one line every caller must then know"
            )
        if not token and not is_loopback(host):
            raise BadRequest(
                f"The page would be open to everybody who reaches {host or 'this host'}, and it "
                "can cancel jobs. Nothing was started. Give --token-file FILE, whose one line "
                "every caller must then know, or listen at 127.0.0.1"
            )
        return cls(
            token, frozenset(name.lower() for name in (*hosts, host, os.uname().nodename) if name)
        )

    def knows(self, host_header: str) -> bool:
        """Return whether ``host`` is a name of the page. A plain address is: DNS rebinding needs a
        name.
        """
        name = host_header.rsplit(":", 1)[0] if not host_header.endswith("]") else host_header
        name = name.strip("[]").lower().rstrip(".")
        return is_loopback(name) or _is_address(name) or name in self.hosts

    def matches(self, token: str) -> bool:
        return hmac.compare_digest(
            token.encode(errors="replace"), self.token.encode(errors="replace")
        )

    def session(self, user: str, until: int) -> str:
        """Return the cookie of ``user``, which is valid with this token only."""
        claims = f"{quote(user, safe='')}.{until}"
        return (
            f"{claims}.{hmac.new(self.token.encode(), claims.encode(), hashlib.sha256).hexdigest()}"
        )

    def user_of(self, session: str) -> str | None:
        """Return the user of a cookie; None if the cookie is invalid or expired."""
        user, _, until = session.rpartition(".")[0].rpartition(".")
        if not re.fullmatch("[0-9]{1,12}", until) or int(until) < time.time():
            return None
        name = unquote(user, errors="replace")
        return (
            name
            if hmac.compare_digest(session.encode(), self.session(name, int(until)).encode())
            else None
        )


def is_loopback(host: str) -> bool:
    """Return whether the name is a loopback address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class AccessGuard:
    """The middleware that checks every request.

    It adds ``unstuck.user`` (the user who is logged in, or empty) and ``unstuck.form`` (the fields
    of a POST) to the scope.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        headers, is_api = Headers(scope=scope), scope["path"].startswith(API)
        answer = self._refusal(scope, headers)
        if answer is None and scope["method"] == "POST":
            answer, receive = await self._with_body(scope, receive, headers)
        if isinstance(answer, PlainTextResponse) and is_api:
            answer = _as_problem(answer)
        await (answer or self._app)(scope, receive, _with_headers(scope, send))

    async def _with_body(
        self, scope: Scope, receive: Receive, headers: Headers
    ) -> tuple[Response | None, Receive]:
        """Read the body of a POST.

        Returns the response to a body that is rejected or to a login, else None, and a ``receive``
        that sends the body again.
        """
        is_api = scope["path"].startswith(API)
        most = MAX_BYTES if is_api else MOST_BODY
        body = await _body(receive, headers, most)
        if body is None:
            what = f"{'A request' if is_api else 'A form'} has at most {most:,} bytes"
            text = f"{what}, and is sent within {BODY_WITHIN} s; nothing was changed.\n"
            return PlainTextResponse(text, 413, {"Connection": "close"}), receive
        scope["unstuck.form"] = {} if is_api else _fields(body)
        answer = self._login(scope) if scope["path"] == "/login" else None
        return answer, _replay(body, receive)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the response to a request that is rejected; None if it is accepted."""
        scope["unstuck.user"] = ""
        path, method = scope["path"], scope["method"]
        if path == "/healthz" and method in ("GET", "HEAD"):
            return None  # a probe calls a pod by whatever name
        answer = self._refusal_of_all(method, headers)
        if answer is not None:
            return answer
        if not self._access.token:
            return _refusal_without_token(method, path, headers)
        return self._refusal_with_token(scope, headers)

    def _refusal_of_all(self, method: str, headers: Headers) -> Response | None:
        """Reject a request that nobody may send, with or without a token."""
        if not self._access.knows(headers.get("host", "")):
            text = "This page is not known by that name. If it is to be, start it with "
            return PlainTextResponse(f"{text}--allow-host NAME.\n", 421)
        if method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse(
                "Only GET, HEAD and POST are answered.\n", 405, {"Allow": "GET, HEAD, POST"}
            )
        if method == "POST" and not _from_the_page(headers):
            return PlainTextResponse(
                "An action must come from the page itself; nothing was changed.\n", 403
            )
        return None

    def _refusal_with_token(self, scope: Scope, headers: Headers) -> Response | None:
        """Reject a request without the token and without a valid cookie."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._access.matches(token.strip()):
            return None
        user = self._access.user_of(_cookie(headers))
        if user is not None:
            scope["unstuck.user"] = user
            return None
        path = scope["path"]
        if path in OPEN or path.startswith("/static/"):
            return None
        return self._unknown(scope, headers)

    def _unknown(self, scope: Scope, headers: Headers) -> Response:
        """Return the response to a caller who is not logged in."""
        if "text/html" not in headers.get("accept", "") or scope["method"] == "POST":
            challenge = {"WWW-Authenticate": "Bearer", "HX-Refresh": "true"}
            return PlainTextResponse(
                "Log in, or send the token: Authorization: Bearer TOKEN\n", 401, challenge
            )
        if headers.get("sec-fetch-site") == "cross-site":
            # A link of a mail or a chat brings no SameSite=Strict cookie. The page asks again from
            # itself.
            return HTMLResponse(
                '<!doctype html><meta http-equiv="refresh" content="0"><title>Unstuck</title>'
            )
        path, query = scope["path"], scope["query_string"].decode("latin-1")
        target = quote(f"{path}?{query}" if query else path, safe="")
        return RedirectResponse(f"/login?to={target}", 303)

    def _login(self, scope: Scope) -> Response | None:
        """Return the response to a valid login, with a cookie; None to show the form again."""
        form: dict[str, str] = scope["unstuck.form"]
        user = " ".join(form.get("user", "").split())[:MOST_NAME]
        if (
            not self._access.token
            or not user
            or not self._access.matches(form.get("token", "").strip())
        ):
            return None
        to = form.get("to", "")
        answer = RedirectResponse(
            to if to.startswith("/") and not to.startswith(("//", "/\\")) else "/", 303
        )
        until = int(time.time()) + LOGGED_IN_FOR
        answer.set_cookie(
            COOKIE,
            self._access.session(user, until),
            max_age=LOGGED_IN_FOR,
            httponly=True,
            samesite="strict",
            secure=scope["scheme"] == "https",
        )
        return answer


def _refusal_without_token(method: str, path: str, headers: Headers) -> Response | None:
    """Reject a request through a proxy, and an action of a program."""
    if any(name in headers for name in FORWARDED):
        return PlainTextResponse(BEHIND_A_PROXY, 403)
    if method == "POST" and path.startswith(API):
        return PlainTextResponse(PROGRAMS_NEED_A_TOKEN, 403)
    return None


def _with_headers(scope: Scope, send: Send) -> Send:
    """Return a ``send`` that adds `HEADERS`."""
    is_versioned = scope["path"].startswith("/static/") and scope["query_string"].startswith(b"v=")

    async def send_guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if is_versioned and message["status"] == 200:
                headers["Cache-Control"] = UNCHANGING
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return send_guarded


def _from_the_page(headers: Headers) -> bool:
    """Return whether a POST comes from the page itself, or from a program.

    Browsers always send one of the two headers.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site != "same-origin":
        return False
    return origin is None or origin.partition("://")[2] == headers.get("host", "")


def _cookie(headers: Headers) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if morsel is None else morsel.value


def _as_problem(answer: PlainTextResponse) -> Response:
    """Return the response as problem details."""
    detail = bytes(answer.body).decode().strip()
    document = ProblemDetails.of_code("NOT_LET_IN", answer.status_code, detail)
    kept = {
        name: value
        for name, value in answer.headers.items()
        if name in ("allow", "www-authenticate", "connection")
    }
    return Response(json_text(document), answer.status_code, kept, MEDIA_TYPE)


async def _body(receive: Receive, headers: Headers, most: int) -> bytes | None:
    """Return the whole body; None if it is longer than ``most`` bytes, or does not come in time."""
    length = headers.get("content-length", "0")
    if len(length) > 10 or not length.isdecimal() or int(length) > most:
        return None
    body = bytearray()
    with anyio.move_on_after(BODY_WITHIN):
        while len(body) <= most:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                return bytes(body)
    return None


def _fields(body: bytes) -> dict[str, str]:
    """Return the fields of a form; of repeated fields, the last."""
    try:
        fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=100)
    except ValueError:
        return {}
    return {name: values[-1] for name, values in fields.items()}


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that sends the body that was read before."""
    left = [body]

    async def again() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return again
