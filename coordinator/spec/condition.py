"""Parses and evaluates the condition (``when:``) of a group. Pure.

A condition is an expression over the job's parameters and the results that earlier groups
recorded. Its grammar is a small part of Python's: no calls, no functions, no attributes of
Python objects. Functions raise only `ConditionError`, and `evaluate` raises nothing.
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
    "params": "params is not a value; name a parameter, as in params.full",
    "results": "results is not a value; name a group and its result, as in results.clean.rows or "
    'results["by-carrier"].rows',
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
    """Return the tree of a condition, and each value that it names, by its text (``params.full``).

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
    except (ValueError, MemoryError, RecursionError):  # a NUL, or deep nesting
        raise ConditionError(f"this cannot be read; expected a condition, {EXAMPLE}") from None
    references: dict[str, Reference] = {}
    _check(tree, text, references)
    return tree, references


def _check(node: ast.expr, text: str, references: dict[str, Reference], depth: int = 1) -> None:
    """Refuse what a condition may not contain, and collect its references.

    Raises: ConditionError.
    """
    # Python counts bytes here.
    before = text.split("\n")[node.lineno - 1].encode()[: node.col_offset]
    place = _place(text, node.lineno, len(before.decode(errors="replace")))
    if depth > MAX_DEPTH:
        raise ConditionError(f"{place}: nested more than {MAX_DEPTH} levels deep")
    if path := _path(node):
        group = path[1] if len(path) == 3 else None
        references.setdefault(_label(path), Reference(path[-1], group, place))
        return
    if wrong := _refusal(node, text):
        raise ConditionError(f"{place}: {wrong}")
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            _check(child, text, references, depth + 1)


def _path(node: ast.expr) -> list[str]:
    """Return the words of ``params.x`` or ``results.group.x``; empty for another expression."""
    keys: list[str] = []
    while True:
        match node:
            case (
                ast.Attribute(value=node, attr=str(key))
                | ast.Subscript(value=node, slice=ast.Constant(value=str(key)))
            ):
                keys.insert(0, key)
            case ast.Name(id="params" as root) if len(keys) == 1:
                return [root, *keys]
            case ast.Name(id="results" as root) if len(keys) == 2:
                return [root, *keys]
            case _:
                return []


def _label(path: list[str]) -> str:
    return "".join(f".{key}" if key.isidentifier() else f"[{json.dumps(key)}]" for key in path)[1:]


def _refusal(node: ast.expr, text: str) -> str:
    """Return why a condition may not contain a node; empty if it may."""
    match node:
        case ast.Name(id=word):
            return _wrong_name(word)
        case ast.Attribute(attr=word) if word.startswith("__"):
            return (
                f"{shorten(word)} is not allowed: a condition reads values, not attributes of "
                "Python objects"
            )
        case ast.Compare(ops=ops, comparators=others):
            return _wrong_is(ops, others)
        case ast.BinOp(op=op) | ast.UnaryOp(op=op) if type(op) in OPERATORS:
            return ""
        case ast.Constant(value=str() | int() | float() | None):
            return ""
        case ast.Attribute() | ast.Subscript() | ast.BoolOp() | ast.List() | ast.Tuple():
            return ""
    return f"{quoted(ast.get_source_segment(text, node) or text)} is not allowed; {ALLOWED}"


def _wrong_name(word: str) -> str:
    if word in _CONSTANTS:
        return ""
    if word in _ROOTS:
        return _ROOTS[word]
    near = suggestion(word, _ROOTS)
    return f"unknown name {shorten(word)}{near}; expected params or results; put text in quotes"


def _wrong_is(operators: list[ast.cmpop], others: list[ast.expr]) -> str:
    for operator_node, other in zip(operators, others, strict=True):
        if isinstance(operator_node, ast.Is | ast.IsNot) and not _is_constant(other):
            return "is compares only with none, true or false; use == here"
    return ""


def _is_constant(node: ast.expr) -> bool:
    match node:
        case ast.Name() | ast.Constant(value=None | True | False):
            return True
    return False


def _place(text: str, line: int, column: int) -> str:
    if "\n" not in text:
        return f"at character {column + 1}"
    return f"at line {line}, character {column + 1} of the text"


def evaluate(
    text: str, params: Mapping[str, Any], results: Callable[[str], Mapping[str, Any] | None]
) -> ConditionResult:
    """Evaluate a condition.

    Args:
        params: the job's parameters, with those of the group.
        results: returns what a group recorded; None for a group that did not succeed. A missing
            value
            is none.
    """
    shown: list[str] = []
    try:
        tree, references = parse(text)
        values = {}
        for label, reference in references.items():
            recorded = params if reference.group is None else results(reference.group)
            values[label] = None if recorded is None else recorded.get(reference.name)
            shown.append(f"{label} = {_shown(reference, recorded)}")
        if _truth(_walk(tree, values)):
            return ConditionResult(True)
        return ConditionResult(False, f"its condition is false: {_with_values(text, shown)}")
    except ConditionError as error:
        why = str(error)
    except _EVALUATION_ERRORS as error:
        why = f"{type(error).__name__}: {shorten(str(error), 100, quote='')}"
    seen_values = _with_values(text, shown)
    why = f"its condition cannot be evaluated, and is not tried again: {why}; {seen_values}"
    return ConditionResult(None, why)


_EVALUATION_ERRORS = (
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
    MemoryError,
)


def _shown(reference: Reference, recorded: Mapping[str, Any] | None) -> str:
    """Return the value of a reference as a message shows it."""
    if recorded is None:
        return f"none (group {reference.group} did not succeed)"
    if reference.group is not None and reference.name not in recorded:
        return f"none (group {reference.group} did not record it)"
    value = recorded.get(reference.name)
    return "none" if value is None else shorten(json.dumps(value, ensure_ascii=False), quote="")


def quoted(text: str) -> str:
    """Return a condition on one line, in backquotes, shortened."""
    return shorten(" ".join(text.split()), SHOWN_TEXT, quote="`")


def _with_values(text: str, shown: list[str]) -> str:
    """Return the expression and the values that it read, both shortened."""
    if not shown:
        return quoted(text)
    more = f" and {len(shown) - SHOWN_VALUES} more" if len(shown) > SHOWN_VALUES else ""
    return f"{quoted(text)}, with {', '.join(shown[:SHOWN_VALUES])}{more}"


def _walk(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """Return the value of a node that `parse` allows.

    ``values`` has the value of each reference.
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
# Each returns a value within the bounds at once, or raises `ConditionError` with a message that
# names the values. Python itself would compute `9 ** 4000000` for seconds, and would format text
# with `"%9d" % x`.


def _truth(value: Any) -> bool:
    """Return a truth value; only true, false and none have one, and none is false.

    The text "false" would count as true.
    """
    if value is None or isinstance(value, bool):
        return bool(value)
    raise ConditionError(f"expected true or false, not {_named(value)}; compare it with something")


def _named(value: Any) -> str:
    """Describe a value in a sentence: ``none``, ``3``, ``'text'``, ``a list``."""
    return "none" if value is None else describe(value).removeprefix("the number ")


def _all(kind: Any, *values: Any) -> bool:
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)


def _calculated(sign: str, compute: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    sides = f"{_named(a)} {sign} {_named(b)}"
    if sign == "+" and (_all(str, a, b) or _all(list, a, b)):
        if len(a) + len(b) > MAX_JOINED:
            kind = "texts" if isinstance(a, str) else "lists"
            raise ConditionError(f"+ of two {kind} is longer than {MAX_JOINED:,}")
        return a + b
    _check_numbers(sign, sides, a, b)
    try:
        value = compute(a, b)
    except ArithmeticError as error:
        raise ConditionError(f"{sides}: {error.args[-1]}") from None
    if isinstance(value, complex):
        raise ConditionError(f"{sides} is not a real number")
    return value


def _check_numbers(sign: str, sides: str, a: Any, b: Any) -> None:
    """Refuse what is not a number, and numbers that take long. Raises: ConditionError."""
    if not _all(int | float, a, b):
        others = ", two texts or two lists" if sign == "+" else ""
        raise ConditionError(f"{sides}: expected two numbers{others}")
    for value in (a, b):
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise ConditionError(f"{sign} of a whole number of more than {MAX_BITS:,} bits")
    if sign == "**" and _all(int, a, b) and a.bit_length() * abs(b) > MAX_BITS:
        raise ConditionError(f"{sides} has more than {MAX_BITS:,} bits")


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
    """Return ``value.key`` or ``value[key]`` of a JSON value; never an attribute of an object."""
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
    part = shorten(key) if isinstance(key, str) else _named(key)
    raise ConditionError(f"{_named(value)} has no {part}")


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
