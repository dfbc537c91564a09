"""What each operator of a condition does with values that JSON can hold, within bounds (pure).

An operator answers at once with a value no larger than its bounds, or raises `Impossible` with a sentence that names
both values. Python itself would compute ``9 ** 4000000`` for seconds, and would format with ``"%9d" % x``.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(sign: str, a: Any, b: Any) -> None:
    if not (_is_number(a) and _is_number(b)):
        raise Impossible(f"{named(a)} {sign} {named(b)}: expected two numbers")
    if any(isinstance(value, int) and value.bit_length() > MAX_BITS for value in (a, b)):
        raise Impossible(f"{sign} of a whole number of more than {MAX_BITS:,} bits")


def _arithmetic(sign: str, compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def bounded(a: Any, b: Any) -> Any:
        _numbers(sign, a, b)
        if b == 0 and sign in ("/", "//", "%"):
            raise Impossible(f"{named(a)} {sign} 0: division by zero")
        return compute(a, b)

    return bounded


def _power(a: Any, b: Any) -> Any:
    _numbers("**", a, b)
    # Python would compute 9 ** 4000000, which takes seconds.
    if isinstance(a, int) and isinstance(b, int) and a.bit_length() * abs(b) > MAX_BITS:
        raise Impossible(f"{named(a)} ** {named(b)} has more than {MAX_BITS:,} bits")
    if isinstance(a, float) and isinstance(b, int) and b.bit_length() > MAX_BITS:
        raise Impossible(f"{named(a)} ** {named(b)} is too large")
    value = a**b
    if isinstance(value, complex):
        raise Impossible(f"{named(a)} ** {named(b)} is no real number")
    return value


def _add(a: Any, b: Any) -> Any:
    for kind in (str, list):
        if isinstance(a, kind) and isinstance(b, kind):
            if len(a) + len(b) > MAX_JOINED:
                raise Impossible(f"+ of two {'texts' if kind is str else 'lists'} is longer than {MAX_JOINED:,}")
            return operator.add(a, b)
    if not (_is_number(a) and _is_number(b)):
        raise Impossible(f"{named(a)} + {named(b)}: expected two numbers, two texts or two lists")
    return _arithmetic("+", operator.add)(a, b)


def _signed(compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def bounded(value: Any) -> Any:
        if not _is_number(value):
            raise Impossible(f"a sign before {named(value)}: expected a number")
        return compute(value)

    return bounded


def _ordered(sign: str, compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def typed(a: Any, b: Any) -> bool:
        alike = any(isinstance(a, kind) and isinstance(b, kind) for kind in (str, list))
        if not alike and not (_is_number(a) and _is_number(b)):
            first = "; ask whether it is none first" if a is None or b is None else ""
            raise Impossible(f"{named(a)} {sign} {named(b)} cannot be compared{first}")
        return compare(a, b)

    return typed


def _within(a: Any, b: Any) -> bool:
    if isinstance(b, str) and isinstance(a, str):
        return a in b
    if isinstance(b, list):
        return a in b
    if isinstance(b, dict) and isinstance(a, str):
        return a in b
    raise Impossible(f"{named(a)} in {named(b)}: expected a list, or text in text")


def pick(value: Any, key: Any) -> Any:
    """``value.key`` or ``value[key]``, of what JSON can hold. Never an attribute of an object."""
    if isinstance(value, dict) and isinstance(key, str):
        if key in value:
            return value[key]
        raise Impossible(f"there is no {shorten(key)} in a mapping of {listed(value, 5) or 'nothing'}")
    if isinstance(value, list | str) and isinstance(key, int) and not isinstance(key, bool):
        if -len(value) <= key < len(value):
            return value[key]
        raise Impossible(f"{named(value)} of {len(value)} has no place {named(key)}")
    raise Impossible(f"{named(value)} has no {shorten(str(key)) if isinstance(key, str) else named(key)}")


OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Not: lambda value: not truth(value),
    ast.USub: _signed(operator.neg),
    ast.UAdd: _signed(operator.pos),
    ast.Add: _add,
    ast.Sub: _arithmetic("-", operator.sub),
    ast.Mult: _arithmetic("*", operator.mul),
    ast.Div: _arithmetic("/", operator.truediv),
    ast.FloorDiv: _arithmetic("//", operator.floordiv),
    ast.Mod: _arithmetic("%", operator.mod),
    ast.Pow: _power,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: _ordered("<", operator.lt),
    ast.LtE: _ordered("<=", operator.le),
    ast.Gt: _ordered(">", operator.gt),
    ast.GtE: _ordered(">=", operator.ge),
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: _within,
    ast.NotIn: lambda a, b: not _within(a, b),
}
