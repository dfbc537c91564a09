"""Text of a program or a secret, without what editors, `echo` and Git add to a file and nobody
means.
"""

from __future__ import annotations


def plain_text(text: str) -> str:
    """Return ``text`` without a byte order mark and without line ends at its end, and with LF for
    CRLF.
    """
    return text.removeprefix("\ufeff").replace("\r\n", "\n").rstrip("\r\n")
