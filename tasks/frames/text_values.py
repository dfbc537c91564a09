"""Parse text of CSV fields and JSON strings as numbers, dates and instants."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from unstuck.tasks.frames.casts import Parse
from unstuck.tasks.time_zone import zone_here

_BOOLEAN = r"^(?i:true|false)$"
_INTEGER = r"^-?[0-9]+$"  # Arrow also takes 0x1F
_INFINITE = r"^[+-]?(?i:inf|infinity)$"
_ZONED = r"[Tt ].*(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
_INTEGERS = ("byte", "short", "integer", "long")


_NOT_FINITE = "(?i:nan|inf|infinity)"


@dataclass(frozen=True, slots=True)
class NumberForm:
    """The form of numbers in text: the decimal mark, and the mark between groups of digits."""

    decimal: str = "."
    thousands: str = ""

    def plain(self, text: Any) -> Any:
        """Convert numbers to the form of programs.

        Raises: pa.ArrowInvalid: a text is no number of this form.
        """
        import pyarrow.compute as pc

        if self == NumberForm():
            return text
        digits = "[0-9]+"
        if self.thousands:
            digits = rf"[0-9]{{1,3}}(?:{re.escape(self.thousands)}[0-9]{{3}})+|{digits}"
        mark = re.escape(self.decimal)
        value = rf"(?:{digits})(?:{mark}[0-9]*)?|{mark}[0-9]+"
        _check(text, rf"^[+-]?(?:(?:{value})(?:[eE][+-]?[0-9]+)?|{_NOT_FINITE})$")
        if self.thousands:
            text = pc.replace_substring(text, self.thousands, "")
        return pc.replace_substring(text, self.decimal, ".")


def parser(zone: str = "", numbers: NumberForm = NumberForm()) -> Parse:
    """Return the function that parses text.

    Args:
        numbers: the form of numbers.
        zone: time zone of local times that become instants; empty for that of this process. A local
            time that a clock change repeats is the first of the two, as in Spark. A skipped local
            time is an error.
    """
    zone = zone or zone_here()

    def parse(array: Any, kind: str, target: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        if kind in ("string", "binary"):
            return array.cast(target)
        text = pc.utf8_trim_whitespace(array)
        if kind in (*_INTEGERS, "float", "double") or kind.startswith("decimal"):
            text = numbers.plain(text)
        if kind == "boolean":
            _check(text, _BOOLEAN)
        elif kind in _INTEGERS:
            _check(text, _INTEGER)
        elif kind in ("float", "double"):
            values = pc.cast(text, target)
            wrong = pc.and_(pc.is_inf(values), pc.invert(pc.match_substring_regex(text, _INFINITE)))
            if pc.any(wrong).as_py():
                raise pa.ArrowInvalid("the number is too large")
            return values
        elif kind == "timestamp":
            zoned = pc.match_substring_regex(text, _ZONED)
            nothing = pa.scalar(None, text.type)
            plain = pc.cast(pc.if_else(zoned, nothing, text), pa.timestamp("us"))
            local = pc.assume_timezone(plain, zone, ambiguous="earliest", nonexistent="raise").cast(
                target
            )
            return pc.coalesce(pc.cast(pc.if_else(zoned, text, nothing), target), local)
        return pc.cast(text, target)

    return parse


def _check(text: Any, pattern: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pc.all(pc.match_substring_regex(text, pattern)).as_py():
        raise pa.ArrowInvalid(f"a text does not match {pattern}")
