"""Checks the address of a Redis before anybody tries it, and shows it without its password. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

UNREADABLE = "(an address that cannot be read)"


def redis_address(url: str) -> str:
    """``url``, if redis-py and Celery's broker read it alike: kombu takes a bare word for the host of a RabbitMQ.

    Raises:
        ValueError: it is no address of a Redis; the sentence holds no password.
    """
    if why := _trouble(url):
        raise ValueError(
            f"not the address of a Redis: {without_password(url)} ({why}). "
            "Expected: redis://HOST:PORT/0, rediss://… for TLS, or unix:///path"
        )
    return url


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
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return UNREADABLE
    if "://" not in url:
        return UNREADABLE if "@" in url else repr(url)
    if "@" in parts.path:  # a password with a / in it
        return UNREADABLE
    if parts.password is not None or parts.username:
        host = f"{parts.username or ''}:***@{host}"
    return f"{parts.scheme}://{host}{port}{parts.path}"
