"""Posts a text by HTTP within a deadline, follows no redirect, and uses the proxy settings."""

from __future__ import annotations

import base64
import ssl
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from pydantic import SecretStr

from unstuck.coordinator.notices.addresses import Allowed, Connecting
from unstuck.coordinator.notices.channels.channel import SendFailed, shortened

PORTS = {"http": 80, "https": 443}
MAX_RETRY_AFTER_S = 900.0  # of the hour for which a notice is tried
MOST = 4096  # bytes of an answer that are read


def checked_url(url: SecretStr) -> SecretStr:
    """Return the URL. Raises: ValueError: it is no HTTP address.

    The error contains no part of the URL, whose path is a secret for many receivers.
    """
    try:
        parts = urlsplit(url.get_secret_value())
        _ = parts.port
    except ValueError:
        raise ValueError("not an address that can be read") from None
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError("expected an address such as https://host/path")
    if "@" in parts.netloc:
        raise ValueError("the address names a user; write headers: {Authorization: …} instead")
    if (
        not url.get_secret_value().isascii()
        or not url.get_secret_value().isprintable()
        or " " in url.get_secret_value()
    ):
        raise ValueError("the address has characters that must be written as %XX")
    return url


def host_of(url: SecretStr) -> str:
    return urlsplit(url.get_secret_value()).hostname or ""


def post(
    url: SecretStr, body: bytes, headers: Mapping[str, str], timeout: float, allowed: Allowed
) -> str:
    """Post ``body``, a JSON text, and return the response.

    Raises: SendFailed: the status is not from 200 to 299.
    """
    try:
        with Connecting(timeout) as connecting:
            try:
                return _judged(*_ask(connecting, url.get_secret_value(), body, headers, allowed))
            except (OSError, HTTPException) as error:
                if connecting.over:
                    raise TimeoutError(f"no whole answer within {timeout:g}s") from error
                raise
    except (OSError, HTTPException) as error:
        raise SendFailed(
            f"{host_of(url)}: {shortened(str(error) or type(error).__name__)}"
        ) from None


def _ask(
    connecting: Connecting, url: str, body: bytes, headers: Mapping[str, str], allowed: Allowed
) -> tuple[HTTPResponse, str]:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
    target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    everything = {
        "Host": parts.netloc,
        "Content-Type": "application/json",
        "User-Agent": "unstuck",
        **headers,
    }
    connection = HTTPConnection(host, port)
    try:
        proxy = urlsplit("" if proxy_bypass(host) else getproxies().get(parts.scheme, ""))
        if proxy.hostname:
            allowed.check_host(host)  # the proxy resolves its name
            connection = HTTPConnection(proxy.hostname, proxy.port or PORTS["http"])
            login = _login(proxy)
            if parts.scheme == "https":
                connection.set_tunnel(host, port, login)
            else:
                target, everything = url, {**everything, **login}
            connection.sock = connecting.connect(proxy.hostname, connection.port, None)
            if parts.scheme == "https":
                # `connect` would open another socket.
                connection._tunnel()  # type: ignore[attr-defined]  # noqa: SLF001
        else:
            connection.sock = connecting.connect(host, port, allowed)
        if parts.scheme == "https":
            connection.sock = connecting.with_tls(
                connection.sock, ssl.create_default_context(), host
            )
        connection.request("POST", target, body, everything)
        answer = connection.getresponse()
        return answer, answer.read(MOST).decode(errors="replace")
    finally:
        connection.close()


def _login(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


def _judged(answer: HTTPResponse, text: str) -> str:
    summary = shortened(f"{answer.status} {answer.reason}{': ' if text.strip() else ''}{text}")
    if 200 <= answer.status < 300:
        return summary
    if 300 <= answer.status < 400:
        location = shortened(answer.getheader("Location", "an address that it does not name"))
        raise SendFailed(
            f"it answered {answer.status}, a redirect to {location}, which is never followed; name "
            "that address as the target if it is right",
            permanent=True,
        )
    wait = seconds_of(answer.getheader("Retry-After", ""), time.time())
    permanent = answer.status == HTTPStatus.GONE
    raise SendFailed(f"it answered {summary}", min(wait, MAX_RETRY_AFTER_S), permanent=permanent)


def seconds_of(retry_after: str, now: float) -> float:
    """Return the seconds from ``now`` that a Retry-After header requests; 0 if it is malformed."""
    if retry_after.isascii() and retry_after.isdecimal():
        return float(retry_after[:9])
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - now)
    except ValueError:
        return 0.0
