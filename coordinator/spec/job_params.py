"""The parameters of a job: their types, their values, and the key of a submit.

A type is declared, or follows from the default. A value given at submit replaces the default, so a
stored spec has all its values.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, get_args

from pydantic import Field, StrictBool, StrictStr, ValidationError

from unstuck.coordinator.errors import BadKey
from unstuck.coordinator.spec.messages import problems_of
from unstuck.coordinator.spec.problems import (
    Loc,
    SpecError,
    SpecProblem,
    describe,
    listed,
    shorten,
    suggestion,
)
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec
from unstuck.tasks.protocol.secrets import reference_in
from unstuck.tasks.spec.fields import Listed, Strict
from unstuck.tasks.spec.group import GroupSpec
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.spec.streams.kafka_input import KafkaInput

MAX_PARAM_DEPTH = 20
MAX_KEY = 200  # characters of a submit key

ParamType = Literal["text", "integer", "number", "boolean", "date", "datetime", "list", "map"]
_EXPECTED = {
    "text": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "date": "a date such as 2013-12-31",
    "datetime": (
        "a date and time such as 2013-12-31T12:00:00, or with its offset 2013-12-31T12:00:00+01:00"
    ),
    "list": "a list",
    "map": "a mapping",
}
# Stricter than Python, which also reads 20131231 and 2013-W52: Spark and most databases do not.
_TIMES: dict[str, tuple[re.Pattern[str], Callable[[str], object]]] = {
    "date": (re.compile(r"\d{4}-\d\d-\d\d", re.ASCII), datetime.date.fromisoformat),
    "datetime": (
        re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?", re.ASCII),
        datetime.datetime.fromisoformat,
    ),
}
_TIME_TYPES: dict[str, type[datetime.date]] = {"date": datetime.date, "datetime": datetime.datetime}
# What a default may say in place of a value: the instant for which a schedule makes a run, and the
# one before.
TICKS = ("tick", "previous_tick")
_OF_TICKS = ("date", "datetime", "text")
# Of strftime, what is the same in every locale and on every system.
_FORMAT = re.compile(r"""(?![\[{"'])(?:[^%]|%[YmdHMSjyGVuz%])*""")
_REFERENCE = re.compile(r"\$\{(?:env|secret):[^}\s]*\}?")  # in text where nothing escapes it
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_A_MAP = (
    "; a default that is a mapping with the key type is written as {type: map, default: {type: …}}"
)


@dataclass(frozen=True)
class UnparsedText:
    """A value from a command line or a query string, whose type follows from its parameter."""

    text: str

    def value(self, *, stays_text: bool) -> Any:
        """Return the value that a spec would read from the text, or the text if it ``stays_text``.

        Raises: ValueError.
        """
        from unstuck.coordinator.spec.text import plain_scalar, read_text

        if stays_text:
            return self.text
        if self.text[:1] not in ("[", "{", '"', "'"):
            return plain_scalar(self.text)
        try:
            reading = read_text(self.text, "")
        except SpecError as error:
            raise ValueError(f"cannot be read: {error.problems[0].message}") from None
        if reading.problems:
            raise ValueError(reading.problems[0].message)
        return reading.root.value


class Param(Strict):
    """The declaration of a parameter: its type, its default, and bounds of its value."""

    type: ParamType = Field(description="What its value is.")
    default: Any = Field(default=None, description="Its value where a submit gives none.")
    required: StrictBool = Field(
        default=False, description="A job is refused that has no value for it."
    )
    choices: Listed[Any] | None = Field(
        default=None, description="The only values it may have; left out: any."
    )
    format: StrictStr | None = Field(
        default=None, description="Of a text whose default is a tick: its form, such as %Y/%m/%d."
    )
    description: StrictStr | None = Field(default=None, description="What it is for, for people.")


def is_declared(written: Any) -> bool:
    """Return whether an entry is a declaration, and not a plain default.

    A mapping with the key ``type`` is a declaration if its type is one of ours, or if it has only
    keys
    of a declaration.
    """
    if not isinstance(written, dict) or "type" not in written:
        return False
    return written["type"] in get_args(ParamType) or set(written) <= set(Param.model_fields)


def tick_of(written: Any) -> str:
    """Return ``tick`` or ``previous_tick`` for a parameter that a schedule sets; else empty."""
    if not is_declared(written) or written["type"] not in _OF_TICKS:
        return ""
    default = written.get("default")
    if default not in TICKS or (written["type"] == "text" and "format" not in written):
        return ""  # a text without a format may be the word itself
    return str(default)


def values_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of each parameter for runners and conditions."""
    return {name: _value(written) for name, written in params.items()}


def fill(
    params: Mapping[str, Any], values: Mapping[str, Any], *, scheduled: bool = False
) -> tuple[dict[str, Any], list[SpecProblem]]:
    """Return ``params`` of a spec with the values of a submit, and the problems of these.

    An `UnparsedText` is read as a spec would read it (``2014`` is a number), except for a parameter
    of type text; a ``str`` is text.

    Args:
        scheduled: a tick gives the values of the parameters that are bound to it.
    """
    filled, problems = dict(params), []
    for name, value in values.items():
        if name not in params:
            names = listed(params) or "none"
            message = f"no such parameter{suggestion(name, params)}; the spec has: {names}"
        else:
            try:
                filled[name] = with_value(params[name], value)
            except ValueError as error:
                message = str(error)
            else:
                continue
        problems.append(SpecProblem(message, ("params", name)))
    for name, written in params.items():
        if name in values or not is_declared(written) or _value(written) is not None:
            continue
        if missing := _missing_value(name, written, scheduled=scheduled):
            problems.append(SpecProblem(missing, ("params", name)))
    return filled, problems


def _missing_value(name: str, written: dict[str, Any], *, scheduled: bool) -> str:
    """Return a message if a declared parameter without a value needs one; else empty."""
    kind = _EXPECTED.get(str(written["type"]), "a value")
    submit = f"give it as --param {name}=VALUE"
    tick = tick_of(written)
    if tick and not scheduled:
        bound = tick.replace("_", " ")
        why = f"its value is the {bound} of a schedule, and this is not a scheduled run"
        return f"{why}; {submit}: {kind}"
    if not tick and written.get("required"):
        how = "write default:" if scheduled else submit
        return f"a value is required; {how}, expected {kind}"
    return ""


def with_value(written: Any, value: Any) -> Any:
    """Return the entry of a parameter in the spec with ``value``.

    Raises:
        ValueError: the value is wrong.
    """
    current = _value(written)
    if not is_declared(written):
        return _like_default(value, _type_of(current))
    kind = str(written["type"])
    value = _plain_value(value, kind)
    if value is None and current is None and not written.get("required"):
        return written
    if wrong := _wrong(kind, value) or _no_choice(written.get("choices"), value):
        raise ValueError(wrong)
    return {**{key: part for key, part in written.items() if key != "format"}, "default": value}


def _like_default(value: Any, kind: str) -> Any:
    """Return a value with the type of a plain default. Raises: ValueError."""
    value = _plain_value(value, kind)
    wrong = _wrong(kind, value, ", as in the spec")
    if wrong and kind == "integer" and isinstance(value, float):
        wrong += "; to allow any number, declare it with type: number"
    if wrong:
        raise ValueError(wrong)
    return value


def _plain_value(value: Any, kind: str) -> Any:
    """Return a given value as a spec has it. Raises: ValueError."""
    if isinstance(value, UnparsedText):
        return value.value(stays_text=kind == "text")
    if type(value) is _TIME_TYPES.get(kind):
        return value.isoformat()
    return value


def without_value(written: Any) -> Any:
    """Return a declaration without its default; None for a plain default."""
    if not is_declared(written):
        return None
    return {key: part for key, part in written.items() if key != "default"}


def wrong_declarations(params: Any) -> Iterator[SpecProblem]:
    """Find mistakes in the declarations of parameters, whatever else is wrong with the spec."""
    for name, written in params.items() if isinstance(params, dict) else ():
        if is_declared(written):
            yield from _wrong_declaration(written, ("params", name))


def wrong_overlay(
    params: Mapping[str, Any], overlay: Mapping[str, Any], loc: Loc
) -> Iterator[SpecProblem]:
    """Find values of a group or a step (``overlay``) that the job's declarations do not allow."""
    for name, value in overlay.items():
        declared = params.get(name, {})
        if not is_declared(declared):
            continue
        wrong = _wrong(str(declared["type"]), value, ", as the job declares it")
        if wrong or (wrong := _no_choice(declared.get("choices"), value)):
            yield SpecProblem(wrong, (*loc, name))


def _wrong_declaration(written: dict[str, Any], loc: Loc) -> Iterator[SpecProblem]:
    try:
        param = Param.model_validate(written)
    except ValidationError as error:
        for problem in problems_of(error, written, {(): Param}):
            hint = _A_MAP if problem.loc == ("type",) else ""
            yield replace(problem, loc=(*loc, *problem.loc), message=problem.message + hint)
        return
    yield from _wrong_format(param, loc)
    yield from _wrong_choices(param, loc)
    if param.default is None or tick_of(written):
        return
    wrong = _wrong(param.type, param.default)
    if not wrong and not any(_wrong(param.type, choice) for choice in param.choices or ()):
        wrong = _no_choice(param.choices, param.default)
    if wrong:
        yield SpecProblem(wrong, (*loc, "default"))


def _wrong_choices(param: Param, loc: Loc) -> Iterator[SpecProblem]:
    if param.choices is None:
        return
    at = (*loc, "choices")
    if not param.choices:
        yield SpecProblem("expected at least one value", at)
    elif tick_of(param.model_dump(exclude_unset=True)):
        yield SpecProblem("a parameter whose value is a tick cannot have choices", at)
    for i, choice in enumerate(param.choices):
        if wrong := _wrong(param.type, choice):
            yield SpecProblem(wrong, (*at, i))


def _wrong_format(param: Param, loc: Loc) -> Iterator[SpecProblem]:
    if param.format is None:
        return
    if param.type != "text" or param.default not in TICKS:
        message = "only a text with the default tick or previous_tick has a format; remove it"
        yield SpecProblem(message, (*loc, "format"))
    elif not _FORMAT.fullmatch(param.format) or not re.sub("%%|[^%]", "", param.format):
        expected = (
            "expected text with some of %Y %m %d %H %M %S %j %y %G %V %u %z, such as %Y/%m/%d"
        )
        yield SpecProblem(f"{expected}, not {describe(param.format)}", (*loc, "format"))


def unbound_ticks(
    schedule: ScheduleSpec | None, params: Mapping[str, Any]
) -> Iterator[SpecProblem]:
    """Find parameters with the default previous_tick in a job without a clock."""
    if schedule is not None and (schedule.cron or schedule.every):
        return
    for name, written in params.items():
        if tick_of(written) == "previous_tick":
            message = "previous_tick needs a schedule: with cron: or every:"
            yield SpecProblem(message, ("params", name, "default"))


def _value(written: Any) -> Any:
    if tick_of(written):
        return None
    return written.get("default") if is_declared(written) else written


def _type_of(value: Any) -> str:
    """Return the type of a plain default; empty for null, which allows any."""
    kinds: tuple[ParamType, ...] = ("boolean", "integer", "number", "text", "list", "map")
    return next((kind for kind in kinds if not _wrong(kind, value)), "")


def _wrong(kind: str, value: Any, why: str = "") -> str:
    """Return why a value does not have this type; empty if it has."""
    return "" if _fits(kind, value) else f"expected {_EXPECTED[kind]}{why}, not {describe(value)}"


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "text": (str,),
    "list": (list, tuple),
    "map": (dict,),
    "date": (str,),
    "datetime": (str,),
}


def _fits(kind: str, value: Any) -> bool:
    types = _PYTHON_TYPES.get(kind)
    if types is None:
        return True  # an unknown type: the declaration is wrong
    if isinstance(value, bool) or not isinstance(value, types):
        return isinstance(value, bool) and kind == "boolean"
    return kind not in _TIMES or _is_time(kind, str(value))


def _is_time(kind: str, text: str) -> bool:
    form, read = _TIMES[kind]
    try:
        return bool(form.fullmatch(text) and read(text))
    except ValueError:  # the 31st of February
        return False


def _no_choice(choices: Any, value: Any) -> str:
    """Return a message if a value is not among the choices; empty if it is, or without choices."""
    allowed = choices if isinstance(choices, list | tuple) else ()
    if not allowed or any(_is_choice(choice, value) for choice in allowed):
        return ""
    near = ""
    if isinstance(value, str):
        near = suggestion(value, [choice for choice in allowed if isinstance(choice, str)])
    names = listed(describe(choice).removeprefix("the number ") for choice in allowed)
    return f"expected one of {names}, not {describe(value)}{near}"


def _is_choice(choice: Any, value: Any) -> bool:
    # True equals 1 in Python.
    return isinstance(choice, bool) is isinstance(value, bool) and bool(choice == value)


def value_problems(value: Any, loc: Loc, depth: int = 0) -> Iterator[SpecProblem]:
    """Find mistakes in the parts of a value, and in the references in them."""
    if depth > MAX_PARAM_DEPTH:
        yield SpecProblem(f"nested more than {MAX_PARAM_DEPTH} levels deep", loc)
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _key_problems(key, loc)
            if isinstance(key, str):
                yield from value_problems(child, (*loc, key), depth + 1)
    elif isinstance(value, list | tuple):
        for i, child in enumerate(value):
            yield from value_problems(child, (*loc, i), depth + 1)
    elif wrong := scalar_problem(value):
        yield SpecProblem(wrong, loc)
    elif isinstance(value, str) and (reference := reference_in(value, wrong=True)) is not None:
        message = (
            "expected a reference such as ${env:NAME} or ${secret:NAME}, not "
            f"{shorten(reference)}"
        )
        yield SpecProblem(f"{message}; to write the text itself, use $${{ for ${{", loc)


def _key_problems(key: Any, loc: Loc) -> Iterator[SpecProblem]:
    if not isinstance(key, str):
        yield SpecProblem(f"a key must be text, not {describe(key)}", loc)
        return
    if wrong := scalar_problem(key):
        yield SpecProblem(wrong, (*loc, key), True)
    if (reference := reference_in(key)) is not None:
        message = f"{shorten(reference)}: references are resolved in values, not in keys"
        yield SpecProblem(message, (*loc, key), True)


def reference_problems(
    every: Sequence[GroupSpec], outputs: Mapping[str, OutputSpec]
) -> Iterator[SpecProblem]:
    """Find references in streams and outputs, where they are not resolved."""
    for i, group in enumerate(every):
        for name, stream in group.streams.items():
            if isinstance(stream, KafkaInput):  # a worker resolves those of its options
                loc: Loc = ("groups", i, "inputs", name, "options")
                yield from value_problems(stream.options, loc)
    for text, loc in chain(_stream_texts(every), _output_texts(outputs)):
        if wrong := unresolved(text or ""):
            yield SpecProblem(wrong, loc)


def _stream_texts(every: Sequence[GroupSpec]) -> Iterator[tuple[str | None, Loc]]:
    for i, group in enumerate(every):
        for name, stream in group.streams.items():
            at: Loc = ("groups", i, "inputs", name)
            yield stream.stream, (*at, "stream")
            yield stream.columns, (*at, "schema")
            if not isinstance(stream, KafkaInput):
                for key, value in stream.options.items():
                    yield value, (*at, "options", key)


def _output_texts(outputs: Mapping[str, OutputSpec]) -> Iterator[tuple[str | None, Loc]]:
    for name, output in outputs.items():
        yield output.path, ("outputs", name, "path")
        for column, values in (output.partitions or {}).items():
            for value in values:
                yield str(value), ("outputs", name, "partitions", column)
        if output.quality is not None:
            for key, rule in output.quality.rules.items():
                yield rule, ("outputs", name, "quality", "rules", key)


def unresolved(text: str) -> str:
    """Return a message if ``text`` has a reference, which no worker resolves; else empty."""
    # Spark would resolve some of them in SQL, from the environment of its JVM.
    match = _REFERENCE.search(text)
    return f"{shorten(match[0])}: references are not resolved here" if match else ""


def scalar_problem(value: Any) -> str:
    """Return why JSON cannot store a value and return it unchanged; empty if it can."""
    if isinstance(value, str):
        return f"not valid Unicode text: {shorten(value)}" if _SURROGATE.search(value) else ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"JSON has no number {value}"
    if isinstance(value, int):
        is_small = -(2**63) <= value < 2**63
        return "" if is_small else "a whole number of more than 64 bits; give it as text"
    if value is None:
        return ""
    return f"expected text, a number, true, false, null, a list or a mapping, not {describe(value)}"


def check_key(key: object) -> None:
    """Check the key under which a repeated submit is the same job. Raises: BadKey."""
    if not isinstance(key, str):
        raise BadKey(f"the key: expected text, not {describe(key)}")
    if not 1 <= len(key) <= MAX_KEY:
        raise BadKey(
            f"the key {shorten(key)}: expected 1 to {MAX_KEY} characters, not {len(key):,}"
        )
    if match := _UNSEEN.search(key):
        raise BadKey(f"the key {shorten(key)}: expected no control characters, not {match[0]!r}")
