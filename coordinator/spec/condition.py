"""Read and evaluate the condition (``when:``) of a group (pure).

A condition is an expression over the job's parameters and the small values that earlier groups
recorded, in a small part of Python's grammar: no calls, no functions, and no attributes of Python
objects. Nothing here raises anything but `ConditionError`, and `evaluate` raises nothing.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from unstuck.coordinator.errors import ConditionError
from unstuck.coordinator.spec.problems import describe, listed, shorten, suggestion
from unstuck.tasks.spec.group import MAX_WHEN

MAX_BITS = 1024  # of a whole number that a condition computes
MAX_JOINED = 10_000  # characters, or values, of what + puts together
MAX_DEPTH = 50  # levels of nesting; far below what Python's own stack allows
SHOWN_TEXT = 200  # characters of the expression in a sentence
SHOWN_VALUES = 8
EXAMPLE = "such as results.clean.rows > 0 and params.full"
ALLOWED = "a condition has and, or, not, comparisons, in, arithmetic, numbers, text and lists"

# YAML writes these in lower case, Python does not; both are read.
_CONSTANTS = {"true": True, "false": False, "none": None}
_ROOTS = {
    "params": "params alone is no value; name a parameter, as in params.full",
    "results": "results alone is no value; name a group and its result, as in results.clean.rows, "
    "or "
    'results["by-carrier"].rows where a name is no plain word',
}


@dataclass(frozen=True, slots=True)
class Reference:
    """A value that a condition names: a parameter, or a result of a group.

    Attributes:
        group: the group that records it; None for a parameter.
        place: where it is in the expression, in words.
    """

    name: str
    group: str | None
    place: str


@dataclass(frozen=True, slots=True)
class ConditionResult:
    """The result of a condition.

    Attributes:
        holds: None where it cannot be evaluated.
        text: a sentence with the expression and the values it saw; empty where it holds.
    """

    holds: bool | None
    text: str = ""


def parse(text: str) -> tuple[ast.expr, dict[str, Reference]]:
    """The tree of a condition, and every value that it names, by its text (``params.full``).

    Raises:
        ConditionError: with the place in the expression, and what was expected.
    """
    if len(text) > MAX_WHEN:
        raise ConditionError(f"{len(text):,} characters; a condition has at most {MAX_WHEN:,}")
    if "\\" in text:
        raise ConditionError(
            f"at character {text.index(chr(92)) + 1}: a backslash has no meaning in a condition"
        )
    text = text.strip()
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        # Python gives no place to an expression that breaks off.
        place = _place(text, error.lineno or 1, (error.offset or len(text) + 1) - 1)
        raise ConditionError(f"{place}: {error.msg}; expected a condition, {EXAMPLE}") from None
    except (
        ValueError,
        MemoryError,
        RecursionError,
    ):  # what Python's parser has for a NUL, and for deep nesting
        raise ConditionError(f"this cannot be read; expected a condition, {EXAMPLE}") from None
    references: dict[str, Reference] = {}
    _check(tree, text, references)
    return tree, references


def _check(node: ast.expr, text: str, references: dict[str, Reference], depth: int = 1) -> None:
    """Refuse what a condition may not contain, and collect its references. Raises:
    ConditionError.
    """
    before = text.split("\n")[node.lineno - 1].encode()[
        : node.col_offset
    ]  # Python counts bytes here
    place = _place(text, node.lineno, len(before.decode(errors="replace")))
    if depth > MAX_DEPTH:
        raise ConditionError(f"{place}: nested more than {MAX_DEPTH} levels deep")
    if path := _path(node):
        references.setdefault(
            _label(path), Reference(path[-1], path[1] if len(path) == 3 else None, place)
        )
        return
    if wrong := _refusal(node, text):
        raise ConditionError(f"{place}: {wrong}")
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            _check(child, text, references, depth + 1)


def _path(node: ast.expr) -> list[str]:
    """``params.x`` or ``results.group.x`` as a list of words; empty for any other expression."""
    keys: list[str] = []
    while True:
        match node:
            case (
                ast.Attribute(value=node, attr=str(key))
                | ast.Subscript(value=node, slice=ast.Constant(value=str(key)))
            ):
                keys.insert(0, key)
            case ast.Name(id="params" | "results" as root) if len(keys) == (
                1 if root == "params" else 2
            ):
                return [root, *keys]
            case _:
                return []


def _label(path: list[str]) -> str:
    return "".join(f".{key}" if key.isidentifier() else f"[{json.dumps(key)}]" for key in path)[1:]


def _refusal(node: ast.expr, text: str) -> str:
    """Why a condition may not contain a node; empty if it may."""
    match node:
        case ast.Name(id=word) if word in _ROOTS:
            return _ROOTS[word]
        case ast.Name(id=word) if word not in _CONSTANTS:
            return (
                f"unknown name {shorten(word)}{suggestion(word, _ROOTS)}; expected params or "
                "results; quote text"
            )
        case ast.Attribute(attr=word) if word.startswith("__"):
            return (
                f"{shorten(word)} is not allowed: a condition sees values, not the attributes "
                "of Python objects"
            )
        case ast.Compare(ops=ops, comparators=others) if any(
            isinstance(op, ast.Is | ast.IsNot) and not _is_constant(other)
            for op, other in zip(ops, others, strict=True)
        ):
            return "is wants none, true or false on its right; use == here"
        case ast.BinOp(op=op) | ast.UnaryOp(op=op) if type(op) in OPERATORS:
            return ""
        case (
            ast.Constant(value=str() | int() | float() | None)
            | ast.Name()
            | ast.Attribute()
            | ast.Subscript()
        ):
            return ""
        case ast.BoolOp() | ast.Compare() | ast.List() | ast.Tuple():
            return ""
    return f"{quoted(ast.get_source_segment(text, node) or text)} is not allowed; {ALLOWED}"


def _is_constant(node: ast.expr) -> bool:
    match node:
        case ast.Name() | ast.Constant(value=None | True | False):
            return True
    return False


def _place(text: str, line: int, column: int) -> str:
    return (
        f"at line {line}, character {column + 1} of the text"
        if "\n" in text
        else f"at character {column + 1}"
    )


def evaluate(
    text: str, params: Mapping[str, Any], results: Callable[[str], Mapping[str, Any] | None]
) -> ConditionResult:
    """Whether a condition holds.

    Args:
        params: the job's parameters, overlaid by the group's own.
        results: what a group recorded; None for one that did not succeed. What is absent reads as
            none.
    """
    shown: list[str] = []
    try:
        tree, references = parse(text)
        values = {}
        for label, reference in references.items():
            group, name = reference.group, reference.name
            recorded = params if group is None else results(group)
            values[label] = None if recorded is None else recorded.get(name)
            if recorded is None:
                shown.append(f"{label} = none (group {group} did not succeed)")
            elif group is not None and name not in recorded:
                shown.append(f"{label} = none (group {group} did not record it)")
            else:
                value = (
                    "none"
                    if values[label] is None
                    else json.dumps(values[label], ensure_ascii=False)
                )
                shown.append(f"{label} = {shorten(value, quote='')}")
        if _truth(_walk(tree, values)):
            return ConditionResult(True)
        return ConditionResult(False, f"its condition is false: {_with_values(text, shown)}")
    except ConditionError as error:
        why = str(error)
    except (
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
        MemoryError,
    ) as error:
        why = f"{type(error).__name__}: {shorten(str(error), 100, quote='')}"
    why = (
        f"its condition cannot be evaluated, and is not tried again: {why}; "
        f"{_with_values(text, shown)}"
    )
    return ConditionResult(None, why)


def quoted(text: str) -> str:
    """A condition on one line, in backquotes, shortened."""
    return shorten(" ".join(text.split()), SHOWN_TEXT, quote="`")


def _with_values(text: str, shown: list[str]) -> str:
    """The expression and the values that it saw, both shortened."""
    if not shown:
        return quoted(text)
    more = f" and {len(shown) - SHOWN_VALUES} more" if len(shown) > SHOWN_VALUES else ""
    return f"{quoted(text)}, with {', '.join(shown[:SHOWN_VALUES])}{more}"


def _walk(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """The value of a node that `parse` has allowed; ``values`` holds the value of each
    reference.
    """
    if path := _path(node):
        return values[_label(path)]
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=word):
            return _CONSTANTS[word]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_walk(item, values) for item in items]
        case ast.Attribute() | ast.Subscript():
            return _pick(_walk(node.value, values), _key(node, values))
        case ast.UnaryOp(op=op, operand=operand):
            return OPERATORS[type(op)](_walk(operand, values))
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATORS[type(op)](_walk(left, values), _walk(right, values))
        case ast.BoolOp():
            return _combine(node, values)
        case ast.Compare():
            return _compare(node, values)
    raise ConditionError(f"{type(node).__name__} is not allowed")


def _key(node: ast.Attribute | ast.Subscript, values: Mapping[str, Any]) -> Any:
    return node.attr if isinstance(node, ast.Attribute) else _walk(node.slice, values)


def _combine(node: ast.BoolOp, values: Mapping[str, Any]) -> bool:
    combined = all if isinstance(node.op, ast.And) else any
    return combined(_truth(_walk(part, values)) for part in node.values)


def _compare(node: ast.Compare, values: Mapping[str, Any]) -> bool:
    left = _walk(node.left, values)
    for compare, other in zip(node.ops, node.comparators, strict=True):
        right = _walk(other, values)
        if not OPERATORS[type(compare)](left, right):
            return False
        left = right
    return True


# ---- operators
# --------------------------------------------------------------------------------------------------
# Each answers at once with a value within the bounds, or raises `ConditionError` with a sentence
# that names the values. Python itself would compute `9 ** 4000000` for seconds, and would format
# with `"%9d" % x`.


def _truth(value: Any) -> bool:
    """Only true, false and none are accepted, as the text "false" would count as true.

    None counts as false.
    """
    if value is None or isinstance(value, bool):
        return bool(value)
    raise ConditionError(
        f"{_named(value)} stands where true or false is wanted; compare it with something"
    )


def _named(value: Any) -> str:
    """A value in a sentence: ``none``, ``3``, ``'text'``, ``a list``."""
    return "none" if value is None else describe(value).removeprefix("the number ")


def _all(kind: Any, *values: Any) -> bool:
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)


def _calculated(sign: str, compute: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    sides = f"{_named(a)} {sign} {_named(b)}"
    if sign == "+" and (_all(str, a, b) or _all(list, a, b)):
        if len(a) + len(b) > MAX_JOINED:
            raise ConditionError(
                f"+ of two {'texts' if isinstance(a, str) else 'lists'} is longer than "
                f"{MAX_JOINED:,}"
            )
        return a + b
    if not _all(int | float, a, b):
        raise ConditionError(
            f"{sides}: expected two numbers{', two texts or two lists' if sign == '+' else ''}"
        )
    if any(isinstance(value, int) and value.bit_length() > MAX_BITS for value in (a, b)):
        raise ConditionError(f"{sign} of a whole number of more than {MAX_BITS:,} bits")
    if sign == "**" and _all(int, a, b) and a.bit_length() * abs(b) > MAX_BITS:
        raise ConditionError(f"{sides} has more than {MAX_BITS:,} bits")
    try:
        value = compute(a, b)
    except ArithmeticError as error:
        raise ConditionError(f"{sides}: {error.args[-1]}") from None
    if isinstance(value, complex):
        raise ConditionError(f"{sides} is no real number")
    return value


def _number(value: Any) -> Any:
    if not _all(int | float, value):
        raise ConditionError(f"a sign before {_named(value)}: expected a number")
    return value


def _ordered(sign: str, compare: Callable[[Any, Any], bool], a: Any, b: Any) -> bool:
    if not any(_all(kind, a, b) for kind in (int | float, str, list)):
        hint = "; ask whether it is none first" if a is None or b is None else ""
        raise ConditionError(f"{_named(a)} {sign} {_named(b)} cannot be compared{hint}")
    return compare(a, b)


def _within(a: Any, b: Any) -> bool:
    if isinstance(b, list) or (isinstance(b, str | dict) and isinstance(a, str)):
        return a in b
    raise ConditionError(f"{_named(a)} in {_named(b)}: expected a list, or text in text")


def _pick(value: Any, key: Any) -> Any:
    """``value.key`` or ``value[key]``, of what JSON can hold. Never an attribute of an object."""
    if isinstance(value, dict) and isinstance(key, str):
        if key in value:
            return value[key]
        raise ConditionError(
            f"there is no {shorten(key)} in a mapping of {listed(value, 5) or 'nothing'}"
        )
    if isinstance(value, list | str) and _all(int, key):
        if -len(value) <= key < len(value):
            return value[key]
        raise ConditionError(f"{_named(value)} of {len(value)} has no place {_named(key)}")
    raise ConditionError(
        f"{_named(value)} has no {shorten(key) if isinstance(key, str) else _named(key)}"
    )


OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Not: lambda value: not _truth(value),
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
