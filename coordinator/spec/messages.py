"""Pydantic's errors in words for the person who wrote the spec.

The models in ``tasks.protocol.group`` and ``coordinator.spec.model`` decide what is an error; this file only words it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from unstuck.coordinator.spec.problems import MAX_PROBLEMS, Loc, Problem, describe, listed, shorten, suggestion
from unstuck.tasks.protocol.group import DatasetName, ForkFrom, GroupName, ParamName, QueueName, Step

# Fields of the design whose behaviour is still to come: better told apart from a slip of the pen.
NOT_YET = frozenset(
    (
        "quality",
        "max_rejected_ratio",
        "kind",
        "every",
        "retry_on",
        "never_retry_on",
        "mode",
    )
)

Models = Mapping[tuple[str, ...], type[BaseModel]]


def pattern_of(name: Any) -> str:
    """The pattern of a field, or of a type such as ``GroupName``."""
    info = name if isinstance(name, FieldInfo) else get_args(name)[1]
    return next(str(rule.pattern) for rule in info.metadata if getattr(rule, "pattern", None))


_SIMPLE = "letters, digits and _, not beginning with a digit, at most 63 characters"
_DASHED = "letters, digits, _ and -, beginning with a letter or _, at most 63 characters"
_DOTTED = "letters, digits, _ . and -, beginning with a letter, digit or _, at most 63 characters"
# What stands for each pattern.
PATTERNS = {
    pattern_of(GroupName): f"a group name ({_DASHED})",
    pattern_of(DatasetName): f"a name ({_SIMPLE})",
    pattern_of(ParamName): f"a name ({_SIMPLE})",
    pattern_of(QueueName): f"a name ({_DOTTED})",
    pattern_of(Step.model_fields["python"]): "module:function, such as examples.flights:clean",
    pattern_of(ForkFrom.model_fields["source"]): "output.column, such as clean.months",
}

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "scalar_type": "text, a number or true or false",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "mapping_type": "a mapping",
    "string_unicode": "valid Unicode text",
}
# The two sides of for_each, as pydantic names them.
_VALUES = "function-before[_listed(), tuple["
_UNION_BRANCH = re.compile(rf"^(?:{re.escape(_VALUES)}|ForkFrom$)")


def problems_of(error: ValidationError, data: Any, models: Models) -> list[Problem]:
    """The problems in ``error``, one for each place in ``data``.

    Args:
        models: the model that stands at each path, list indexes left out.
    """
    found: dict[tuple[Loc, bool], list[Problem]] = {}
    for item in error.errors(include_url=False)[:MAX_PROBLEMS]:
        # Pydantic counts only good items: a list of bad ones is "too short" as well.
        is_echo = item["type"] == "too_short" and len(item["input"]) > 0
        if is_echo or _is_idle_branch(item["loc"], data):
            continue
        loc, on_key = _real_loc(item["loc"], data, item["type"] == "missing")
        problem = _problem(item, loc, on_key, models)
        found.setdefault((loc, on_key), []).append(problem)
    return [_joined(problems) for problems in found.values()]


def _is_idle_branch(loc: tuple[str | int, ...], data: Any) -> bool:
    """True for the errors of the side of ``for_each`` (values, or ``from:``) that was not written."""
    value = data
    for part in loc:
        if isinstance(part, str) and _UNION_BRANCH.match(part):
            if isinstance(value, dict):
                return part != "ForkFrom"
            return part == "ForkFrom"
        value = _child(value, part)
    return False


def _child(value: Any, part: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(part)
    if isinstance(value, list | tuple) and isinstance(part, int) and part < len(value):
        return value[part]
    return None


def _real_loc(loc: tuple[str | int, ...], data: Any, is_missing: bool) -> tuple[Loc, bool]:
    """``loc`` without pydantic's own marks: the names of union branches, and ``[key]``."""
    real: list[str | int] = []
    value = data
    for position, part in enumerate(loc):
        if part == "[key]":
            return tuple(real), True
        is_written = part in value if isinstance(value, dict) else isinstance(part, int)
        if is_written or (is_missing and position == len(loc) - 1):
            real.append(part)
            value = _child(value, part)
    return tuple(real), False


def _problem(item: Any, loc: Loc, on_key: bool, models: Models) -> Problem:
    kind, context, value = item["type"], item.get("ctx") or {}, item["input"]
    if kind == "extra_forbidden":
        return Problem(_unknown_field(str(loc[-1]), _model_at(loc[:-1], models)), loc, True)
    if kind == "missing":
        return Problem(f"{str(loc[-1])!r} is missing", loc[:-1])
    if kind == "tuple_type" and str(item["loc"][-1]).startswith(_VALUES):
        return Problem(f"expected a list of values, or from: output.column, not {describe(value)}", loc)
    if not loc and kind in ("model_type", "model_attributes_type"):
        return Problem(f"expected a mapping with name: and groups:, not {describe(value)}")
    return Problem(_sentence(kind, context, value, item["msg"]), loc, on_key)


def _model_at(loc: Loc, models: Models) -> type[BaseModel] | None:
    path = tuple(part for part in loc if isinstance(part, str))
    return models.get(path) or (models.get((*path[:-1], "*")) if path else None)


def _unknown_field(field: str, model: type[BaseModel] | None) -> str:
    if field in NOT_YET:
        return f"{field!r} is not supported yet; remove it"
    if model is None:
        return f"unknown field {shorten(field)}"
    known = [info.alias or name for name, info in model.model_fields.items()]
    return f"unknown field {shorten(field)}{suggestion(field, known) or f'; known: {listed(known, 20)}'}"


def _sentence(kind: str, context: dict[str, Any], value: Any, message: str) -> str:
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        words = PATTERNS.get(context["pattern"], f"text that fits {context['pattern']}")
        return f"expected {words}, not {describe(value)}"
    if kind == "greater_than_equal":
        return f"expected {context['ge']:,.10g} or more, not {describe(value)}"
    if kind == "less_than_equal":
        return f"expected {context['le']:,.10g} or less, not {describe(value)}"
    if kind == "literal_error":
        names = context["expected"].replace("'", "")
        near = suggestion(value, re.findall(r"[a-z_]+", names)) if isinstance(value, str) else ""
        return f"expected {names}, not {describe(value)}{near}"
    if kind in ("too_short", "string_too_short"):
        return "expected at least one, not none" if kind == "too_short" else "expected text, not empty text"
    if kind == "string_too_long":
        return f"expected at most {context['max_length']:,} characters, not {len(value):,}"
    if kind == "too_long":
        return f"expected at most {context['max_length']}, not {context.get('actual_length', 'more')}"
    if kind in _EXPECTED:
        quotes = ""
        if kind == "string_type" and isinstance(value, bool | int | float):
            quotes = "; put it in quotes"
        return f"expected {_EXPECTED[kind]}, not {describe(value)}{quotes}"
    return message.replace("Input should be", "expected")


def _joined(problems: list[Problem]) -> Problem:
    """One problem for a value that fits none of several types: ``expected text, a whole number or …, not a list``."""
    first = problems[0]
    parts = [re.fullmatch(r"expected (.*), not (.*?)(?:; put it in quotes)?", problem.message) for problem in problems]
    if len(problems) == 1 or not all(parts):
        return first
    wanted = list(dict.fromkeys(part[1] for part in parts if part))
    # A whole number is a number: say it once.
    wanted = [word for word in wanted if not (word == "a whole number" and "a number" in wanted)]
    found = parts[0][2] if parts[0] else ""
    text = wanted[0] if len(wanted) == 1 else f"{', '.join(wanted[:-1])} or {wanted[-1]}"
    return Problem(f"expected {text}, not {found}", first.loc, first.on_key)
