"""Find the inputs and outputs that the source of a step function names."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

# Code in these may never run, or may be there for the case that something is missing.
_PERHAPS = (
    *(
        ast.If,
        ast.IfExp,
        ast.BoolOp,
        ast.Try,
        ast.TryStar,
        ast.For,
        ast.While,
        ast.Match,
        ast.comprehension,
    ),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.GeneratorExp),
    *(ast.ListComp, ast.SetComp, ast.DictComp),
)


@dataclass(frozen=True, slots=True)
class Uses:
    """The names that a function reads and writes by ``ctx``, as far as its source says them.

    Attributes:
        reads: names of ``ctx.input`` that any call of it reads.
        writes: names of ``ctx.output``; None: it may write others, since a name is not written out
            or ``ctx`` is given away.
        returns: it may return a value.
    """

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] | None = None
    returns: bool = True


def uses_of(function: Any) -> Uses:
    """Read the source of ``function``; what nobody can tell without it is left open."""
    code = _source(inspect.unwrap(function))
    ctx = None if code is None else _name_of_context(code, inspect.ismethod(function))
    if code is None or ctx is None:
        return Uses()
    nodes = [node for statement in code.body for node in ast.walk(statement)]
    calls = {id(node): _named(node, ctx) for node in nodes}
    named = [call for call in calls.values() if call is not None]
    reads = _names_of("input", (calls[id(node)] for node in _surely(code.body)))
    is_open = _is_used_otherwise(nodes, ctx, len(named))
    return Uses(reads, None if is_open else _names_of("output", named), any(map(_returns, nodes)))


def _name_of_context(code: ast.FunctionDef, is_method: bool) -> str | None:
    """Return the name of the parameter after ``spark``, or None if there is no such parameter."""
    positional = [*code.args.posonlyargs, *code.args.args]
    if is_method:
        positional = positional[1:]  # the class of a classmethod
    return positional[1].arg if len(positional) > 1 else None


def _is_used_otherwise(nodes: list[ast.AST], ctx: str, named: int) -> bool:
    """Whether ``ctx`` is given away, or used for inputs or outputs beside the ``named`` calls."""
    attributes = [
        node for node in nodes if isinstance(node, ast.Attribute) and _is(node.value, ctx)
    ]
    given_away = len(attributes) != sum(_is(node, ctx) for node in nodes)
    accesses = [node for node in attributes if node.attr in ("input", "output")]
    return given_away or len(accesses) != named


def _names_of(kind: str, calls: Iterable[tuple[str, str] | None]) -> tuple[str, ...]:
    """Return the distinct names in the calls of this kind, in order."""
    return tuple(dict.fromkeys(call[1] for call in calls if call and call[0] == kind))


def _source(function: Any) -> ast.FunctionDef | None:
    try:
        (code,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, ValueError, SyntaxError):
        return None
    return code if isinstance(code, ast.FunctionDef) else None


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _named(node: ast.AST, ctx: str) -> tuple[str, str] | None:
    """``input`` or ``output``, and the name that is written out in a call of it."""
    if (
        not isinstance(node, ast.Call)
        or not isinstance(node.func, ast.Attribute)
        or not _is(node.func.value, ctx)
    ):
        return None
    match node.func.attr, node.args, node.keywords:
        case ("input" | "output" as kind, [ast.Constant(value=str(name))], []):
            return kind, name
        case (
            "input" | "output" as kind,
            [],
            [ast.keyword(arg="name", value=ast.Constant(value=str(name)))],
        ):
            return kind, name
    return None


def _returns(node: ast.AST) -> bool:
    """Whether this statement returns or yields a value."""
    match node:
        case ast.Yield() | ast.YieldFrom():
            return True
        case ast.Return(value=None | ast.Constant(value=None)):
            return False
    return isinstance(node, ast.Return)


def _surely(statements: list[ast.stmt]) -> Iterator[ast.AST]:
    """The code that runs whatever a call is given, up to the first place where it may end."""
    for statement in statements:
        if isinstance(statement, _PERHAPS):
            if any(isinstance(node, ast.Return | ast.Raise) for node in ast.walk(statement)):
                return
            continue
        left: list[ast.AST] = [statement]
        while left:
            node = left.pop()
            yield node
            left += [
                child for child in ast.iter_child_nodes(node) if not isinstance(child, _PERHAPS)
            ]
        if isinstance(statement, ast.Return | ast.Raise):
            return
