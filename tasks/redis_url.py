"""Check the address of a Redis, add the TLS settings, and show it without a password.

TLS is verified unless somebody says otherwise. `tls_options` is what every connection takes:
redis-py's, kombu's and RedBeat's, whose own defaults differ.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

UNREADABLE = "(an address that cannot be read)"

# Options of redis-py that an address may name, as Celery users know them → the variable that says
# the same.
TLS_OPTIONS = {
    "ssl_ca_certs": "UNSTUCK_REDIS_CA",
    "ssl_certfile": "UNSTUCK_REDIS_CERT",
    "ssl_keyfile": "UNSTUCK_REDIS_KEY",
    "ssl_cert_reqs": "UNSTUCK_REDIS_VERIFY",
    "ssl_check_hostname": "",
}
# A client that finds a certificate optional still verifies it (Python's ssl).
_CERT_REQS = {"required": "required", "optional": "required", "none": "none"}
_YES_NO = {
    "true": "true",
    "1": "true",
    "yes": "true",
    "false": "false",
    "0": "false",
    "no": "false",
}
_SOCKET_OPTIONS = ("db", "username", "password")


def redis_address(url: str, tls: Mapping[str, str | None] | None = None) -> str:
    """``url`` with the options ``tls`` in its query, if redis-py and Celery's broker read it alike.

    kombu takes a bare word for the host of a RabbitMQ, and passes over options that redis-py knows.

    Raises:
        ValueError: it is no address of a Redis, or says something else than ``tls``; the sentence
            holds no password.
    """
    if why := _trouble(url):
        raise ValueError(
            f"not the address of a Redis: {without_password(url)} ({why}). "
            "Expected: redis://HOST:PORT/0, rediss://… for TLS, or unix:///path"
        )
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    required = _one_spelling({name: value for name, value in (tls or {}).items() if value})
    _refuse_others(options, _SOCKET_OPTIONS if parts.scheme == "unix" else tuple(TLS_OPTIONS))
    if parts.scheme != "rediss":
        for named in [*map(TLS_OPTIONS.get, required), *(options.keys() & TLS_OPTIONS.keys())]:
            raise ValueError(
                f"{named} is for TLS, and {without_password(url)} is without: write rediss://"
            )
        return url
    options = _one_spelling(options)
    for name, value in required.items():
        if options.get(name, value) != value:
            raise ValueError(
                f"the address says {name}={options[name]}, and {TLS_OPTIONS[name]} means {value}: "
                "leave one of them out"
            )
    _try_files(merged := {**options, **required})
    return parts._replace(query=urlencode(merged, safe="/")).geturl()


def _one_spelling(options: Mapping[str, str]) -> dict[str, str]:
    """Normalize TLS options, with absolute paths.

    Raises: ValueError: a value is not known.
    """
    normalized = {}
    for name, value in options.items():
        if name in ("ssl_cert_reqs", "ssl_check_hostname"):
            spellings = _CERT_REQS if name == "ssl_cert_reqs" else _YES_NO
            word = value.lower().removeprefix("cert_")
            if word not in spellings:
                raise ValueError(f"the option {name} is one of {', '.join(spellings)}")
            normalized[name] = spellings[word]
        else:
            normalized[name] = str(Path(value).expanduser().resolve())
    return normalized


def _refuse_others(options: Mapping[str, str], allowed: tuple[str, ...]) -> None:
    if unknown := [name for name in options if name not in allowed]:
        raise ValueError(
            f"the address has the option {unknown[0]}, which Celery's broker and redis-py do not "
            f"read alike; it may have {', '.join(allowed)}. The number of a database comes after "
            "the host: redis://HOST:PORT/3"
        )


def _try_files(options: Mapping[str, str]) -> None:
    """Check the files of TLS. Raises: ValueError: one is missing or invalid."""
    authority, certificate, key = (
        options.get(name) for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        named = f"UNSTUCK_REDIS_CA (ssl_ca_certs), {authority}"
        if authority:
            context.load_verify_locations(authority)
        named = (
            f"UNSTUCK_REDIS_CERT (ssl_certfile), {certificate}, with UNSTUCK_REDIS_KEY "
            f"(ssl_keyfile), {key}"
        )
        if certificate or key:
            context.load_cert_chain(certificate or "", key, password="")
    except (OSError, ValueError) as error:
        raise ValueError(f"{named}: no PEM files that can be used: {error}") from None


def tls_options(url: str) -> dict[str, Any]:
    """Return the options for redis-py's ``SSLConnection``; empty for an address without TLS."""
    if urlsplit(url).scheme != "rediss":
        return {}
    options: dict[str, Any] = dict(parse_qsl(urlsplit(url).query))
    verify = options.get("ssl_cert_reqs") != "none"
    names = verify and options.get("ssl_check_hostname") != "false"
    return {
        **options,
        "ssl_cert_reqs": "required" if verify else "none",
        "ssl_check_hostname": names,
    }


def without_options(url: str) -> str:
    """``url`` for who is given `tls_options` beside it."""
    return urlsplit(url)._replace(query="").geturl() if url.startswith("rediss:") else url


def _trouble(url: str) -> str:
    """Why nobody can connect to ``url``; empty if somebody may."""
    try:
        parts = urlsplit(url)
        database = parts.path.strip("/")
    except ValueError:
        return "its brackets do not fit"
    if parts.scheme not in ("redis", "rediss", "unix") or "://" not in url:
        return "it does not begin with redis://, rediss:// or unix://"
    if parts.scheme == "unix":
        return "" if len(parts.path) > 1 else "it names no socket"
    try:
        _ = parts.port
    except ValueError:
        return "its port is not a number; a / or : in the password must be written %2F or %3A"
    if not parts.hostname:
        return "it names no host"
    if database and not database.isdecimal():
        return "what comes after the host must be the number of a database"
    return ""


def without_password(url: str) -> str:
    """``url`` fit to be shown: no password, and no query, which may hold one."""
    try:
        parts = urlsplit(url)
        host = _host(parts)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return UNREADABLE
    if "://" not in url:
        return UNREADABLE if "@" in url else repr(url)
    if "@" in parts.path + parts.query + parts.fragment:  # a password with a /, a ? or a # in it
        return UNREADABLE
    if parts.password is not None or parts.username:
        host = f"{parts.username or ''}:***@{host}"
    return f"{parts.scheme}://{host}{port}{parts.path}"


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    return f"[{host}]" if ":" in host else host


def has_password(url: str) -> bool:
    parts = urlsplit(url)
    return parts.password is not None or "password" in dict(parse_qsl(parts.query))
