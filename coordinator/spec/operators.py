"""Each operator of a condition, for values that JSON can hold, within bounds (pure).

An operator answers at once with a value no larger than its bounds, or raises `Impossible` with a sentence that names
both values. Python itself would compute ``9 ** 4000000`` for seconds, and would format with ``"%9d" % x``.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from unstuck.coordinator.spec.problems import describe, listed, shorten

MAX_BITS = 1024  # of a whole number that a condition computes
MAX_JOINED = 10_000  # characters, or values, of what + puts together


class Impossible(Exception):
    """These values do not allow this operation; the message says why."""


def truth(value: Any) -> bool:
    """Only true, false and none are accepted: else the text "false" would count as true. None counts as false."""
    if value is None or isinstance(value, bool):
        return bool(value)
    raise Impossible(f"{named(value)} stands where true or false is wanted; compare it with something")


def named(value: Any) -> str:
    """A value in a sentence: ``none``, ``3``, ``'text'``, ``a list``."""
    return "none" if value is None else describe(value).removeprefix("the number ")


def _all(kind: Any, *values: Any) -> bool:
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)


def _calculated(sign: str, compute: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    sides = f"{named(a)} {sign} {named(b)}"
    if sign == "+" and (_all(str, a, b) or _all(list, a, b)):
        if len(a) + len(b) > MAX_JOINED:
            raise Impossible(f"+ of two {'texts' if isinstance(a, str) else 'lists'} is longer than {MAX_JOINED:,}")
        return a + b
    if not _all(int | float, a, b):
        raise Impossible(f"{sides}: expected two numbers{', two texts or two lists' if sign == '+' else ''}")
    if any(isinstance(value, int) and value.bit_length() > MAX_BITS for value in (a, b)):
        raise Impossible(f"{sign} of a whole number of more than {MAX_BITS:,} bits")
    if sign == "**" and _all(int, a, b) and a.bit_length() * abs(b) > MAX_BITS:
        raise Impossible(f"{sides} has more than {MAX_BITS:,} bits")
    try:
        value = compute(a, b)
    except ArithmeticError as error:
        raise Impossible(f"{sides}: {error.args[-1]}") from None
    if isinstance(value, complex):
        raise Impossible(f"{sides} is no real number")
    return value


def _number(value: Any) -> Any:
    if not _all(int | float, value):
        raise Impossible(f"a sign before {named(value)}: expected a number")
    return value


def _ordered(sign: str, compare: Callable[[Any, Any], bool], a: Any, b: Any) -> bool:
    if not any(_all(kind, a, b) for kind in (int | float, str, list)):
        hint = "; ask whether it is none first" if a is None or b is None else ""
        raise Impossible(f"{named(a)} {sign} {named(b)} cannot be compared{hint}")
    return compare(a, b)


def _within(a: Any, b: Any) -> bool:
    if isinstance(b, list) or (isinstance(b, str | dict) and isinstance(a, str)):
        return a in b
    raise Impossible(f"{named(a)} in {named(b)}: expected a list, or text in text")


def pick(value: Any, key: Any) -> Any:
    """``value.key`` or ``value[key]``, of what JSON can hold. Never an attribute of an object."""
    if isinstance(value, dict) and isinstance(key, str):
        if key in value:
            return value[key]
        raise Impossible(f"there is no {shorten(key)} in a mapping of {listed(value, 5) or 'nothing'}")
    if isinstance(value, list | str) and _all(int, key):
        if -len(value) <= key < len(value):
            return value[key]
        raise Impossible(f"{named(value)} of {len(value)} has no place {named(key)}")
    raise Impossible(f"{named(value)} has no {shorten(key) if isinstance(key, str) else named(key)}")


OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Not: lambda value: not truth(value),
    ast.USub: lambda value: -_number(value),
    ast.UAdd: _number,
    ast.Add: partial(_calculated, "+", operator.add),
    ast.Sub: partial(_calculated, "-", operator.sub),
    ast.Mult: partial(_calculated, "*", operator.mul),
    ast.Div: partial(_calculated, "/", operator.truediv),
    ast.FloorDiv: partial(_calculated, "//", operator.floordiv),
    ast.Mod: partial(_calculated, "%", operator.mod),
    ast.Pow: partial(_calculated, "**", operator.pow),
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: partial(_ordered, "<", operator.lt),
    ast.LtE: partial(_ordered, "<=", operator.le),
    ast.Gt: partial(_ordered, ">", operator.gt),
    ast.GtE: partial(_ordered, ">=", operator.ge),
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: _within,
    ast.NotIn: lambda a, b: not _within(a, b),
}
