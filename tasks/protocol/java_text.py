"""Format an error of the JVM in one line: its message and its causes (pure)."""

from __future__ import annotations

import re

_FRAME = re.compile(r"\s+(at |\.\.\. \d+ more)|Driver stacktrace:")
_BEGIN = re.compile(r"(?:: |Caused by: )(?=[\w.$]+(?:: |$))")
_SPARKS = re.compile(r"\borg\.apache\.spark\.[\w.$]+: ")
_PACKAGE = re.compile(r"\b(?:[a-z][\w$]*\.)+(?=[A-Z][\w$]*(?:Exception|Error): )")
_STATE = re.compile(r"\s*\bSQLSTATE: \w+")


def java_error_text(text: str) -> str:
    """Format a ``Py4JJavaError`` in one line: its error, and each cause that adds to it."""
    errors: list[list[str]] = [[]]
    for line in text.splitlines():
        if _FRAME.match(line) or not line.strip():
            continue
        if begin := _BEGIN.match(line):
            errors.append([])
            line = line[begin.end() :]
        errors[-1].append(line.strip())
    summary = ""
    for lines in errors[1:] or errors:  # the call stands in the traceback
        part = (
            _STATE.sub("", _PACKAGE.sub("", _SPARKS.sub("", " ".join(lines)))).strip().rstrip(".:")
        )
        if part and part not in summary:
            summary += f". {part}" if summary else part
    return summary
