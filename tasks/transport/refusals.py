"""Explain refusals of a reachable Redis, with the cure: certificate, password, rights.

A process that starts ends on it with 5, because no wait would help. A Redis that is away is waited
for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

import redis
from redis.exceptions import NoPermissionError

from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.redis_url import without_password
from unstuck.tasks.settings import Settings, leave
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.transport.rights import lacking_rights

EXIT = 5  # as of the command line
LOOKS_FOR = 10.0  # seconds, at the start of a program; a busy host may shake hands late

_TLS = re.compile(
    r"\[(?:SSL|X509)(?:: (\w+))?\] *(?:certificate verify failed: )?(.*?)(?: *\(_ssl\.c:\d+\))?\.?$"
)
_CURES = (
    (
        ("mismatch", "not valid for"),
        (
            "Name it in UNSTUCK_REDIS_URL as the certificate does, or add "
            "?ssl_check_hostname=false to check the CA alone"
        ),
    ),
    (
        ("issuer", "self-signed", "self signed"),
        (
            "If it is yours, set UNSTUCK_REDIS_CA to the file with the certificate of the CA that "
            "signed it"
        ),
    ),
    (("expired", "not yet valid"), "Renew its certificate, or see that the clocks are right"),
    (
        ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "BAD_CERTIFICATE", "UNKNOWN_CA"),
        (
            "It may ask for a certificate of ours: set UNSTUCK_REDIS_CERT and UNSTUCK_REDIS_KEY to "
            "one that its CA signed"
        ),
    ),
    (
        ("WRONG_VERSION", "RECORD_LAYER"),
        "It does not speak TLS there: give its port for TLS, or write redis://",
    ),
)


def refusal(url: str, error: BaseException) -> str:
    """Return why a reachable Redis at ``url`` refuses this process; empty if it does not."""
    place, message = without_password(url), str(error).strip().rstrip(".")
    # A server answers "unauthenticated" to a long request before a login.
    needs_login = "unauthenticated" in message or "Authentication required" in message
    if isinstance(error, NoPermissionError):
        return (
            f"The Redis at {place} refuses us: {message}. `unstuck doctor` names the rights "
            "that its user lacks"
        )
    if needs_login or isinstance(error, redis.AuthenticationError):
        reason = "Authentication required" if needs_login else message
        return (
            f"The Redis at {place} refuses us: {reason}. Give the user and password it wants: "
            "UNSTUCK_REDIS_URL=redis://USER:PASSWORD@HOST:PORT/0"
        )
    match = _TLS.search(message)
    return "" if match is None else _refusal_of_tls(place, match)


def _refusal_of_tls(place: str, match: re.Match[str]) -> str:
    code, words = match[1] or "", match[2] or match[0]
    is_unproven = code == "CERTIFICATE_VERIFY_FAILED"
    cure = "See docs/operate.md, TLS"
    if is_unproven:
        cure = "UNSTUCK_REDIS_VERIFY=none would trust it blindly"
    for phrases, specific in _CURES:
        if any(word in f"{code} {words}" for word in phrases):
            cure = specific
            break
    if is_unproven:
        return (
            f"The server at {place} does not prove that it is your Redis, and was sent "
            f"nothing: {words}. {cure}."
        )
    return f"No connection with TLS to the Redis at {place}: {words}. {cure}."


def may_not(url: str, lacks: Sequence[str]) -> str:
    """The sentence for a user whose rights do not suffice, with the command that gives them."""
    user = urlsplit(url).username or "default"
    rules = " ".join(f"'{rule}'" if rule[0] in "~&" or "|" in rule else rule for rule in lacks)
    return (
        f"The user {user} of the Redis at {without_password(url)} lacks rights that a fleet needs. "
        f"Give them: redis-cli ACL SETUSER {user} {rules}   (all of them: docs/operate.md, a Redis "
        "user of its own)"
    )


def perhaps_tls(url: str, error: BaseException) -> str:
    """Return a guess for a server that is silent or hangs up: only one side speaks TLS."""
    hung_up = "closed by server" in str(error) or "reset by peer" in str(error)
    if url.startswith("rediss:") and (hung_up or isinstance(error, redis.TimeoutError)):
        return (
            "Perhaps it does not speak TLS there (write redis://), or asks for a certificate "
            "(UNSTUCK_REDIS_CERT). "
        )
    return (
        "Perhaps it speaks TLS there: write rediss://. "
        if hung_up and url.startswith("redis:")
        else ""
    )


def fit_or_leave(settings: Settings, within: float = LOOKS_FOR) -> None:
    """End this program, with a sentence, if the Redis of ``settings`` answers and refuses it.

    One that is away may.
    """
    try:
        with connect(settings.redis_url, timeout=within, repeats=0) as client:
            client.ping()
            if lacks := lacking_rights(client, Keys(settings.prefix)):
                leave(
                    f"It could take no work here, so it ends. {may_not(settings.redis_url, lacks)}",
                    EXIT,
                )
    except redis.RedisError as error:
        if why := refusal(settings.redis_url, error):
            leave(why, EXIT)
