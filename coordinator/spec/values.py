"""Values that a spec and a submit may hold: what JSON can hold and give back, and what a key may be (pure)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from unstuck.coordinator.errors import BadKey
from unstuck.coordinator.spec.problems import Loc, Problem, describe, shorten
from unstuck.tasks.protocol.secrets import reference_in

MAX_PARAM_DEPTH = 20
MAX_KEY = 200  # characters of a submit key

_SURROGATE = re.compile("[\ud800-\udfff]")
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def value_problems(value: Any, loc: Loc, depth: int = 0) -> Iterator[Problem]:
    """What is wrong with the parts of a value, and with ``${env:NAME}`` in them."""
    if depth > MAX_PARAM_DEPTH:
        yield Problem(f"nested more than {MAX_PARAM_DEPTH} levels deep", loc)
    elif isinstance(value, dict):
        for key, child in value.items():
            if not isinstance(key, str):
                yield Problem(f"a key must be text, not {describe(key)}", loc)
                continue
            if wrong := scalar_problem(key):
                yield Problem(wrong, (*loc, key), True)
            if (found := reference_in(key)) is not None:
                message = f"{shorten(found)}: a reference is resolved in a value, and not in a key"
                yield Problem(message, (*loc, key), True)
            yield from value_problems(child, (*loc, key), depth + 1)
    elif isinstance(value, list | tuple):
        for i, child in enumerate(value):
            yield from value_problems(child, (*loc, i), depth + 1)
    elif wrong := scalar_problem(value):
        yield Problem(wrong, loc)
    elif isinstance(value, str) and (found := reference_in(value, wrong=True)) is not None:
        message = f"expected a reference such as ${{env:NAME}}, not {shorten(found)}"
        yield Problem(f"{message}; where the text itself is meant, write $${{ for ${{", loc)


def scalar_problem(value: Any) -> str:
    """Why JSON cannot hold a value, or cannot give it back as it was; empty if it can."""
    if isinstance(value, str):
        return f"not valid Unicode text: {shorten(value)}" if _SURROGATE.search(value) else ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{value} is no number that JSON can hold"
    if isinstance(value, int):
        return "" if -(2**63) <= value < 2**63 else "a whole number of more than 64 bits; give it as text"
    if value is None:
        return ""
    return f"expected text, a number, true, false, null, a list or a mapping, not {describe(value)}"


def check_key(key: object) -> None:
    """Check the word under which submitting the same spec again is the same job. Raises: BadKey."""
    if not isinstance(key, str):
        raise BadKey(f"the key: expected text, not {describe(key)}")
    if not 1 <= len(key) <= MAX_KEY:
        raise BadKey(f"the key {shorten(key)}: expected 1 to {MAX_KEY} characters, not {len(key):,}")
    if found := _UNSEEN.search(key):
        raise BadKey(f"the key {shorten(key)}: expected no control characters, not {found[0]!r}")
