"""Refuse values in SQL while Spark writes, and find the reason in the driver's error."""

from __future__ import annotations

import re

from unstuck.tasks.errors import OutputInvalid

_REFUSED = re.compile(r"\[unstuck: (.*?) :unstuck\]", re.DOTALL)


class ValueRefused(OutputInvalid):
    """Text of an input file that is not UTF-8, so an output column cannot store it."""


def refusal(*message: str) -> str:
    """Return SQL that ends the query with an error. ``message``: SQL expressions of type text."""
    return (
        f"raise_error(concat({literal('[unstuck: ')}, {', '.join(message)}, "
        f"{literal(' :unstuck]')}))"
    )


def refused_value(error: BaseException) -> str:
    """Return why a value was refused: by a `refusal` or a `ValueRefused`; "" for other errors."""
    if isinstance(error, ValueRefused):
        return str(error)
    match = _REFUSED.search(java_message(error)) or _REFUSED.search(str(error))
    return match[1] if match else ""


def literal(text: str) -> str:
    """Return a text literal in SQL that does not depend on conf for quotes and escapes."""
    return f"decode(unhex('{text.encode().hex()}'), 'UTF-8')"


def java_message(error: BaseException) -> str:
    """Return the message of a Spark error.

    For an error that pyspark does not know, as in 3.5, this is the message of the innermost Java
    cause.
    """
    if type(error).__module__.startswith("pyspark."):
        return str(error)
    cause = getattr(error, "java_exception", None)
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    return "" if cause is None else str(cause.getMessage())
