"""Read the text of a program or a secret without what editors, `echo` and Git add."""

from __future__ import annotations


def plain_text(text: str) -> str:
    """Return ``text`` without byte order mark and trailing line ends, and with LF for CRLF."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").rstrip("\r\n")
