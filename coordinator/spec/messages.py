"""Rewords Pydantic's errors for the author of a spec.

The models in ``tasks.spec.group`` and ``coordinator.spec.model`` decide what is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from unstuck.coordinator.spec.problems import (
    MAX_PROBLEMS,
    Loc,
    SpecProblem,
    describe,
    listed,
    shorten,
    suggestion,
)
from unstuck.tasks.spec.fields import (
    DatasetName,
    ErrorName,
    FunctionName,
    GroupName,
    JobPattern,
    ParamName,
    QueueName,
)
from unstuck.tasks.spec.group import ForkFrom

# Fields of a later release. Their message differs from that of a misspelled field.
NOT_YET = frozenset(("kind", "mode"))
GONE = {
    "hooks": "there are no hooks; to be notified of a failure, write notify: [{on: [failed], to: "
    "NAME}]; to run code after a failure, add a group with join: any_failed; to run code after a "
    "success, add a last step to the group",
}

Models = Mapping[tuple[str, ...], type[BaseModel]]


def pattern_of(name: Any) -> str:
    """Return the pattern of a field, or of a type such as ``GroupName``."""
    info = name if isinstance(name, FieldInfo) else get_args(name)[1]
    return next(str(rule.pattern) for rule in info.metadata if getattr(rule, "pattern", None))


_SIMPLE = "letters, digits and _, not beginning with a digit, at most 63 characters"
_DASHED = "letters, digits, _ and -, beginning with a letter or _, at most 63 characters"
_DOTTED = "letters, digits, _ . and -, beginning with a letter, digit or _, at most 63 characters"
PATTERNS = {
    pattern_of(GroupName): f"a group name ({_DASHED})",
    pattern_of(DatasetName): f"a name ({_SIMPLE})",
    pattern_of(ParamName): f"a name ({_SIMPLE})",
    pattern_of(QueueName): f"a name ({_DOTTED})",
    pattern_of(JobPattern): "the name of a job, or a pattern such as load_*",
    pattern_of(
        ErrorName
    ): "a name such as TimeoutError, requests.exceptions.Timeout or DIVIDE_BY_ZERO",
    pattern_of(FunctionName): "module:function, such as examples.flights:clean",
    pattern_of(ForkFrom.model_fields["source"]): "output.column, such as clean.months",
}

_OF_OTHERS = {"overwrite": "replace", "upsert": "merge"}  # words of Spark and of others: our own
_EXPECTED = {
    "string_type": "text",
    "string_unicode": "valid Unicode text",
    "int_type": "a whole number",
    "float_type": "a number",
    "scalar_type": "text, a number or true or false",
    "partition_type": "text, a whole number, true, false or null",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
# The two sides of for_each, as pydantic names them.
_VALUES, _FROM = "function-before[_listed(), tuple[", "function-after[_one_source(), ForkFrom]"


def problems_of(error: ValidationError, data: Any, models: Models) -> list[SpecProblem]:
    """Return the problems in ``error``, one for each place in ``data``.

    Args:
        models: the model at each path, without list indexes.
    """
    problems: dict[tuple[Loc, bool], SpecProblem] = {}
    for item in error.errors(include_url=False)[:MAX_PROBLEMS]:
        # Pydantic counts only good items: a list of bad items is "too short", too.
        is_echo = item["type"] == "too_short" and len(item["input"]) > 0
        place = _real_loc(item["loc"], data, item["type"] == "missing")
        if not is_echo and place is not None:
            problems.setdefault(place, _problem(item, *place, models))
    return list(problems.values())


def _real_loc(loc: Loc, data: Any, is_missing: bool) -> tuple[Loc, bool] | None:
    """Return ``loc`` without the marks of pydantic, and whether it means the key.

    These marks are the names of union branches, and ``[key]``. Returns None for the side of
    ``for_each`` (values, or ``from:``) that was not written.
    """
    real: list[str | int] = []
    value = data
    for position, part in enumerate(loc):
        if part == "[key]":
            return tuple(real), True
        is_mapping = isinstance(value, dict)
        if str(part).startswith(_VALUES if is_mapping else _FROM):
            return None
        if _has(value, part) or (is_missing and position == len(loc) - 1):
            real.append(part)
            value = value.get(part) if is_mapping else value[part]
    return tuple(real), False


def _has(value: Any, part: str | int) -> bool:
    if isinstance(value, dict):
        return part in value
    return isinstance(part, int) and isinstance(value, list | tuple)


def _problem(item: Any, loc: Loc, on_key: bool, models: Models) -> SpecProblem:
    kind, context, value = item["type"], item.get("ctx") or {}, item["input"]
    if kind == "extra_forbidden":
        model = _model_at(item["loc"][:-1], models) or _model_at(loc[:-1], models)
        return SpecProblem(_unknown_field(str(loc[-1]), model), loc, True)
    if kind == "missing":
        return SpecProblem(f"{str(loc[-1])!r} is missing", loc[:-1])
    if kind == "tuple_type" and str(item["loc"][-1]).startswith(_VALUES):
        return SpecProblem(
            f"expected a list of values, or from: output.column, not {describe(value)}", loc
        )
    if not loc and kind == "model_type":
        return SpecProblem(f"expected a mapping with name: and groups:, not {describe(value)}")
    return SpecProblem(_sentence(kind, context, value, item["msg"]), loc, on_key)


def _model_at(loc: Loc, models: Models) -> type[BaseModel] | None:
    path = tuple(part for part in loc if isinstance(part, str))
    fits = (
        model
        for path_of_model, model in models.items()
        if len(path_of_model) == len(path)
        and all(segment in (part, "*") for segment, part in zip(path_of_model, path, strict=True))
    )
    return next(fits, None)


def _unknown_field(field: str, model: type[BaseModel] | None) -> str:
    if field in NOT_YET:
        return f"{field!r} is not supported yet; remove it"
    if field in GONE:
        return GONE[field]
    if model is None:
        return f"unknown field {shorten(field)}"
    names = [info.alias or name for name, info in model.model_fields.items()]
    remedy = suggestion(field, names) or f"; known: {listed(names, 20)}"
    return f"unknown field {shorten(field)}{remedy}"


def _sentence(kind: str, context: dict[str, Any], value: Any, message: str) -> str:
    match kind:
        case "value_error":
            return message.removeprefix("Value error, ")
        case "too_short":
            return "expected at least one value"
        case "string_too_short":
            return "expected text, not empty text"
        case "string_too_long":
            return f"expected at most {context['max_length']:,} characters, not {len(value):,}"
        case "literal_error":
            return _no_literal(context["expected"].replace("'", ""), value)
    expected = _expected(kind, context)
    if not expected:
        return message.replace("Input should be", "expected")
    text = f"expected {expected}, not {describe(value)}"
    if kind == "string_type" and isinstance(value, bool | int | float):
        text += "; put it in quotes"
    return text


def _expected(kind: str, context: dict[str, Any]) -> str:
    """Return what a kind of error expected; empty for another kind."""
    match kind:
        case "greater_than_equal":
            return f"{context['ge']:,.10g} or more"
        case "less_than_equal":
            return f"{context['le']:,.10g} or less"
        case "string_pattern_mismatch":
            pattern = context["pattern"]
            return PATTERNS.get(pattern, f"text that fits {pattern}")
    return _EXPECTED.get(kind, "")


def _no_literal(names: str, value: Any) -> str:
    near = ""
    if isinstance(value, str):
        near = suggestion(_OF_OTHERS.get(value, value), re.findall(r"[a-z_]+", names))
    return f"expected {names}, not {describe(value)}{near}"
