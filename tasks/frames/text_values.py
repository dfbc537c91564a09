"""Text as values: what a CSV field, or a text in JSON, must look like to be a number, a date or an instant."""

from __future__ import annotations

import os
from typing import Any

from unstuck.tasks.frames.casts import Parse
from unstuck.tasks.time_zone import UTC

_BOOLEAN = r"^(?i:true|false)$"
_INTEGER = r"^-?[0-9]+$"  # Arrow also takes 0x1F
_INFINITE = r"^[+-]?(?i:inf|infinity)$"
_ZONED = r"[Tt ].*(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
_INTEGERS = ("byte", "short", "integer", "long")


def parser(zone: str = "") -> Parse:
    """How text is parsed.

    Args:
        zone: of a time without a zone that is to be an instant; empty: that of this process. A time that a change of
            clocks repeats is the first of the two, as in Spark. One that it leaves out is no time.
    """
    zone = zone or os.environ.get("TZ") or UTC

    def parse(array: Any, wanted: str, target: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        if wanted in ("string", "binary"):
            return array.cast(target)
        text = pc.utf8_trim_whitespace(array)
        if wanted == "boolean":
            _check(text, _BOOLEAN)
        elif wanted in _INTEGERS:
            _check(text, _INTEGER)
        elif wanted in ("float", "double"):
            values = pc.cast(text, target)
            wrong = pc.and_(pc.is_inf(values), pc.invert(pc.match_substring_regex(text, _INFINITE)))
            if pc.any(wrong).as_py():
                raise pa.ArrowInvalid("the number is too large")
            return values
        elif wanted == "timestamp":
            zoned = pc.match_substring_regex(text, _ZONED)
            nothing = pa.scalar(None, text.type)
            plain = pc.cast(pc.if_else(zoned, nothing, text), pa.timestamp("us"))
            local = pc.assume_timezone(plain, zone, ambiguous="earliest", nonexistent="raise").cast(target)
            return pc.coalesce(pc.cast(pc.if_else(zoned, text, nothing), target), local)
        return pc.cast(text, target)

    return parse


def _check(text: Any, pattern: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pc.all(pc.match_substring_regex(text, pattern)).as_py():
        raise pa.ArrowInvalid(f"a text does not match {pattern}")
