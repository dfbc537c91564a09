"""Read, check and evaluate the condition (``when:``) of a group (pure).

A condition is an expression over the job's parameters and the small values that earlier groups recorded, in a small
part of Python's grammar: no calls, no functions, and no attributes of Python objects. Nothing here raises anything but
`ConditionError`, and `evaluate` raises nothing.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unstuck.coordinator.errors import ConditionError
from unstuck.coordinator.spec.operators import OPERATORS, Impossible, pick, truth
from unstuck.coordinator.spec.problems import describe, listed, shorten, suggestion
from unstuck.tasks.protocol.group import MAX_WHEN, GroupSpec

MAX_DEPTH = 50  # levels of nesting; far below what Python's own stack allows
SHOWN_TEXT = 200  # characters of the expression in a sentence
SHOWN_VALUES = 8
EXAMPLE = "such as results.clean.rows > 0 and params.full"
ALLOWED = "a condition has and, or, not, comparisons, in, arithmetic, numbers, text and lists"

# YAML writes these in lower case, Python does not; both are read.
_WORDS = {"true": True, "false": False, "none": None}
_ROOTS = ("params", "results")
_KINDS = (
    *(ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Constant, ast.List, ast.Tuple),
    *(ast.Name, ast.Attribute, ast.Subscript),
)
_REFUSED: dict[type[ast.AST], str] = {
    ast.Call: "a call",
    ast.Lambda: "a lambda",
    ast.IfExp: "if … else",
    ast.Dict: "a mapping",
    ast.Set: "a set",
    ast.JoinedStr: "an f-string",
    ast.Slice: "a slice",
    ast.Starred: "a *",
    ast.NamedExpr: "an assignment",
    **dict.fromkeys((ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), "a comprehension"),
}
_BITWISE: dict[type[ast.AST], str] = {
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.Invert: "~",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.MatMult: "@",
}


@dataclass(frozen=True, slots=True)
class Reference:
    """A value that a condition names: a parameter, or a result of a group.

    Attributes:
        group: the group that records it; None for a parameter.
        place: where it stands in the expression, in words.
    """

    name: str
    group: str | None = None
    place: str = ""

    def __str__(self) -> str:
        parts = ("params", self.name) if self.group is None else ("results", self.group, self.name)
        return "".join(f"[{json.dumps(p)}]" if not p.isidentifier() else f".{p}" for p in parts)[1:]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that was read: its tree, and every value that it names, each once."""

    text: str
    tree: ast.expr
    references: tuple[Reference, ...]


@dataclass(frozen=True, slots=True)
class ConditionResult:
    """What a condition came to.

    Attributes:
        holds: None where it cannot be evaluated.
        text: a sentence with the expression and the values it saw; empty where it holds.
    """

    holds: bool | None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Scope:
    """What the condition of one group may name.

    Attributes:
        group: the group that has the condition.
        params: the job's parameters and the group's own.
        groups: every group of the job.
        before: is a group sure to be done when this one may go, as far as ``needs:`` says?
        suggest: look for the nearest name; slow among thousands.
    """

    group: GroupSpec
    params: Collection[str]
    groups: Mapping[str, GroupSpec]
    before: Callable[[str], bool]
    suggest: bool = True


# ---- reading ---------------------------------------------------------------------------------------------------------


def parse(text: str) -> Condition:
    """Read a condition.

    Raises:
        ConditionError: with the place in the expression, and what was expected.
    """
    if len(text) > MAX_WHEN:
        raise ConditionError(f"{len(text):,} characters; a condition has at most {MAX_WHEN:,}")
    if "\\" in text:
        raise ConditionError(f"at character {text.index(chr(92)) + 1}: a backslash has no meaning in a condition")
    lines = text.strip().split("\n")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        # Python gives no place to an expression that breaks off.
        place = _place(lines, error.lineno or 1, (error.offset or len(text.strip()) + 1) - 1)
        raise ConditionError(f"{place}: {error.msg}; expected a condition, {EXAMPLE}") from None
    except (ValueError, MemoryError, RecursionError):  # what Python's parser has for a NUL, and for deep nesting
        raise ConditionError(f"this cannot be read; expected a condition, {EXAMPLE}") from None
    found: dict[str, Reference] = {}
    todo: list[tuple[ast.expr, int]] = [(tree, 1)]
    while todo:
        node, depth = todo.pop()
        place = _place_of(lines, node)
        if depth > MAX_DEPTH:
            raise ConditionError(f"{place}: nested more than {MAX_DEPTH} levels deep")
        reference = _reference(node)
        if reference is not None:
            found.setdefault(str(reference), Reference(reference.name, reference.group, place))
            continue
        wrong = _refusal(node)
        if wrong:
            raise ConditionError(f"{place}: {wrong}")
        children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        todo.extend((child, depth + 1) for child in reversed(children))
    return Condition(text, tree, tuple(found.values()))


def _step(node: ast.AST) -> tuple[ast.expr, str] | None:
    """``x.key`` or ``x["key"]`` as x and the key."""
    if isinstance(node, ast.Attribute):
        return node.value, node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return node.value, node.slice.value
    return None


def _reference(node: ast.AST) -> Reference | None:
    """The value that ``node`` names, if it is just ``params.x`` or ``results.group.x``."""
    outer = _step(node)
    if outer is None:
        return None
    if isinstance(outer[0], ast.Name):
        return Reference(outer[1]) if outer[0].id == "params" else None
    inner = _step(outer[0])
    if inner is not None and isinstance(inner[0], ast.Name) and inner[0].id == "results":
        return Reference(outer[1], inner[1])
    return None


def _refusal(node: ast.AST) -> str:
    """Why a node may not stand in a condition; empty if it may."""
    if not isinstance(node, _KINDS):
        return f"{_REFUSED.get(type(node), 'this')} is not allowed; {ALLOWED}"
    if isinstance(node, ast.BinOp | ast.UnaryOp) and type(node.op) in _BITWISE:
        return f"the operator {_BITWISE[type(node.op)]} is not allowed; {ALLOWED}"
    if isinstance(node, ast.Constant) and not isinstance(node.value, str | int | float | None):
        return f"{shorten(repr(node.value), quote='')} is not allowed; {ALLOWED}"
    if isinstance(node, ast.Name) and node.id not in _WORDS:
        if node.id == "params":
            return "params alone is no value; name a parameter, as in params.full"
        if node.id == "results":
            return (
                "results alone is no value; name a group and its result, as in results.clean.rows, or "
                'results["by-carrier"].rows where a name is no plain word'
            )
        return f"unknown name {shorten(node.id)}{suggestion(node.id, _ROOTS)}; expected params or results; quote text"
    if isinstance(node, ast.Attribute) and node.attr.startswith("__"):
        return f"{shorten(node.attr)} is not allowed: a condition sees values, not what Python keeps beside them"
    if isinstance(node, ast.Compare):
        for op, right in zip(node.ops, node.comparators, strict=True):
            word = isinstance(right, ast.Constant) and (right.value is None or isinstance(right.value, bool))
            if isinstance(op, ast.Is | ast.IsNot) and not word and not isinstance(right, ast.Name):
                return "is wants none, true or false on its right; use == here"
    return ""


def _place_of(lines: list[str], node: ast.expr) -> str:
    before = lines[node.lineno - 1].encode()[: node.col_offset]  # Python counts bytes here
    return _place(lines, node.lineno, len(before.decode(errors="replace")))


def _place(lines: list[str], line: int, column: int) -> str:
    return f"at character {column + 1}" if len(lines) == 1 else f"at line {line}, character {column + 1} of the text"


# ---- checking --------------------------------------------------------------------------------------------------------


def check(text: str, scope: Scope) -> Iterator[str]:
    """What is wrong with a condition in its place, as sentences; nothing if it can be evaluated."""
    try:
        condition = parse(text)
    except ConditionError as error:
        yield str(error)
        return
    for reference in condition.references:
        wrong = _wrong_param(reference, scope) if reference.group is None else _wrong_group(reference.group, scope)
        if wrong:
            yield f"{reference.place}: {wrong}"


def _wrong_param(reference: Reference, scope: Scope) -> str:
    if reference.name == scope.group.fork_param:
        return f"{reference.name!r} is the fork's parameter; a condition is on the group, before it has members"
    if reference.name in scope.params:
        return ""
    near = suggestion(reference.name, scope.params) if scope.suggest else ""
    hint = near or f"; there are: {listed(scope.params) or 'none'}"
    return f"unknown parameter {shorten(reference.name)}{hint}"


def _wrong_group(name: str, scope: Scope) -> str:
    spec = scope.groups.get(name)
    if spec is None:
        near = suggestion(name, scope.groups) if scope.suggest else ""
        hint = near or f"; groups: {listed(scope.groups)}"
        return f"unknown group {shorten(name)}{hint}"
    if name == scope.group.name:
        return f"{name!r} is this group itself, which has no results before it has run"
    if not scope.before(name):
        return f"group {name!r} does not come before this one; add it to needs:"
    if spec.for_each is not None:
        return f"group {name!r} is a fork; its members have results of their own, and none speaks for all"
    if not any(step.python for step in spec.steps):
        return f"group {name!r} has no Python step, so it records no results"
    return ""


# ---- evaluating ------------------------------------------------------------------------------------------------------


def evaluate(
    text: str, params: Mapping[str, Any], results: Callable[[str], Mapping[str, Any] | None]
) -> ConditionResult:
    """What a condition comes to.

    Args:
        params: the job's parameters, overlaid by the group's own.
        results: what a group recorded; None for one that did not succeed. What is absent reads as none.
    """
    seen: dict[str, str] = {}
    try:
        condition = parse(text)
        values = {}
        for reference in condition.references:
            label = str(reference)
            values[label], seen[label] = _value(reference, params, results)
        if truth(_walk(condition.tree, values)):
            return ConditionResult(True)
        return ConditionResult(False, f"its condition is false: {_told(text, seen)}")
    except (ConditionError, Impossible) as error:
        why = str(error)
    except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError, MemoryError) as error:
        why = f"{type(error).__name__}: {shorten(str(error), 100, quote='')}"
    return ConditionResult(
        None, f"its condition cannot be evaluated, and is not tried again: {why}; {_told(text, seen)}"
    )


def _value(
    reference: Reference, params: Mapping[str, Any], results: Callable[[str], Mapping[str, Any] | None]
) -> tuple[Any, str]:
    """What a reference stands for, and that in words."""
    if reference.group is None:
        value = params.get(reference.name)
        return value, _words(value)
    recorded = results(reference.group)
    if recorded is None:
        return None, f"none (group {reference.group} did not succeed)"
    if reference.name not in recorded:
        return None, f"none (group {reference.group} did not record it)"
    value = recorded[reference.name]
    return value, _words(value)


def quoted(text: str) -> str:
    """A condition on one line, in backquotes, shortened."""
    return shorten(" ".join(text.split()), SHOWN_TEXT, quote="`")


def _told(text: str, seen: Mapping[str, str]) -> str:
    """The expression and what it saw, both shortened."""
    if not seen:
        return quoted(text)
    values = [f"{label} = {words}" for label, words in list(seen.items())[:SHOWN_VALUES]]
    more = f" and {len(seen) - SHOWN_VALUES} more" if len(seen) > SHOWN_VALUES else ""
    return f"{quoted(text)}, with {', '.join(values)}{more}"


def _words(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    try:
        return shorten(json.dumps(value, ensure_ascii=False), quote="")
    except (TypeError, ValueError, RecursionError):
        return describe(value)


def _walk(node: ast.AST, values: Mapping[str, Any]) -> Any:
    """The value of a node that `parse` has allowed; ``values`` holds what each reference stands for."""
    reference = _reference(node)
    if reference is not None:
        return values[str(reference)]
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=word):
            return _WORDS[word]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_walk(item, values) for item in items]
        case ast.Attribute(value=inner, attr=key):
            return pick(_walk(inner, values), key)
        case ast.Subscript(value=inner, slice=place):
            return pick(_walk(inner, values), _walk(place, values))
        case ast.UnaryOp(op=op, operand=operand):
            return OPERATORS[type(op)](_walk(operand, values))
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATORS[type(op)](_walk(left, values), _walk(right, values))
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(truth(_walk(part, values)) for part in parts)
        case ast.BoolOp(op=ast.Or(), values=parts):
            return any(truth(_walk(part, values)) for part in parts)
        case ast.Compare(left=first, ops=ops, comparators=others):
            left = _walk(first, values)
            for compare, other in zip(ops, others, strict=True):
                right = _walk(other, values)
                if not OPERATORS[type(compare)](left, right):
                    return False
                left = right
            return True
    raise ConditionError(f"{type(node).__name__} is not allowed")
