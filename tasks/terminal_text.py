"""Text for a terminal, without the escape sequences and characters that a terminal would obey."""

from __future__ import annotations

import logging
import re
from unicodedata import category

# Colours and moves of the cursor (CSI), and titles and links (OSC).
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_HARMLESS = "\n\t\N{ZERO WIDTH JOINER}"
_REPLACED = "\N{REPLACEMENT CHARACTER}"
_LONGEST = 16_384  # characters of one message, or one traceback, in a log


def printable(text: str) -> str:
    """Remove escape sequences, control characters and direction changes from ``text``."""
    if text.isprintable():
        return text
    plain = _ESCAPES.sub("", text)
    return "".join(
        c if c.isprintable() or c in _HARMLESS or category(c) == "Zs" else _REPLACED for c in plain
    )


class PrintableFormatter(logging.Formatter):
    """Formats a record with another formatter after making its text printable and short.

    Celery's own formatter adds the colours of the levels afterwards.
    """

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        clean = logging.makeLogRecord(record.__dict__)  # other handlers have the record, too
        try:
            clean.msg, clean.args = _line(record.getMessage()), None
        except (TypeError, ValueError):
            return self._inner.format(record)  # the error of its own message, which logging reports
        if record.exc_info or record.exc_text:
            trace = record.exc_text or self._inner.formatException(
                record.exc_info  # type: ignore[arg-type]
            )
            clean.exc_text, clean.exc_info = _line(trace), None
        return self._inner.format(clean)


def _line(text: str) -> str:
    cut = f"{text[:_LONGEST]}… ({len(text):,} characters)" if len(text) > _LONGEST else text
    return printable(cut)
