"""The parameters of a job: their types, declared or taken from their defaults, and what values and
a key may be.

A value given at submit stands in the place of the default from then on, so a stored spec says all
its values.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from pydantic import Field, StrictBool, StrictStr, ValidationError

from unstuck.coordinator.errors import BadKey
from unstuck.coordinator.spec.messages import problems_of
from unstuck.coordinator.spec.problems import (
    Loc,
    Problem,
    SpecError,
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
    """A value as a command line or a query string has it: its type follows from the parameter that
    it is for.
    """

    text: str

    def value(self, *, stays_text: bool) -> Any:
        """Return the text as it is if it ``stays_text``, else the value that a spec with this text
        would have.

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
    """The declaration of a parameter: its type, its default, and what else holds for its value."""

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
    """True for a declaration, false for a plain default.

    A mapping with the key ``type`` is one if its type is one of ours, or if it has no other keys
    than a declaration.
    """
    if not isinstance(written, dict) or "type" not in written:
        return False
    return written["type"] in get_args(ParamType) or set(written) <= set(Param.model_fields)


def tick_of(written: Any) -> str:
    """``tick`` or ``previous_tick`` for a parameter that a schedule binds and that has no value
    yet; else empty.
    """
    if not is_declared(written) or written["type"] not in _OF_TICKS:
        return ""
    default = written.get("default")
    # A text may be the word itself.
    return (
        default if default in TICKS and (written["type"] != "text" or "format" in written) else ""
    )


def values_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """The value of each parameter, as runners and conditions get it."""
    return {name: _value(written) for name, written in params.items()}


def fill(
    params: Mapping[str, Any], values: Mapping[str, Any], *, scheduled: bool = False
) -> tuple[dict[str, Any], list[Problem]]:
    """``params`` of a spec with the values that a submit gives, and what is wrong with these.

    An `UnparsedText` is read as a spec would read it (``2014`` is a number), except for a parameter
    that is text; a ``str`` is text. ``scheduled``: a tick gives the values of those that are bound
    to one.
    """
    filled, problems = dict(params), []
    for name, value in values.items():
        loc: Loc = ("params", name)
        if name not in params:
            message = (
                f"no such parameter{suggestion(name, params)}; the spec has: "
                f"{listed(params) or 'none'}"
            )
            problems.append(Problem(message, loc))
            continue
        try:
            filled[name] = with_value(params[name], value)
        except ValueError as error:
            problems.append(Problem(str(error), loc))
    for name, written in params.items():
        if name in values or not is_declared(written) or _value(written) is not None:
            continue
        kind = _EXPECTED.get(str(written["type"]), "a value")
        if tick := tick_of(written):
            if scheduled:
                continue
            reason = f"has the {tick} of its schedule, and this is no run of it".replace("_", " ")
            problems.append(
                Problem(f"{reason}; give one as --param {name}=VALUE: {kind}", ("params", name))
            )
        elif written.get("required"):
            how = "write default:" if scheduled else f"give one as --param {name}=VALUE"
            message = f"a value is required, and none is given; {how}, expected {kind}"
            problems.append(Problem(message, ("params", name)))
    return filled, problems


def with_value(written: Any, value: Any) -> Any:
    """The entry of a parameter in the spec after it is given ``value``. Raises: ValueError: the
    value is wrong.
    """
    declared, current = is_declared(written), _value(written)
    kind = str(written["type"]) if declared else _type_of(current)
    if isinstance(value, UnparsedText):
        value = value.value(stays_text=kind == "text")
    elif (kind == "date" and type(value) is datetime.date) or (
        kind == "datetime" and type(value) is datetime.datetime
    ):
        value = value.isoformat()
    if not declared:
        if kind and (wrong := _wrong(kind, value, ", as in the spec")):
            is_share = kind == "integer" and isinstance(value, float)
            raise ValueError(
                wrong + ("; for any number, declare it with type: number" if is_share else "")
            )
        return value
    if value is None and current is None and not written.get("required"):
        return written
    if wrong := _wrong(kind, value) or _no_choice(written.get("choices"), value):
        raise ValueError(wrong)
    return {**{key: part for key, part in written.items() if key != "format"}, "default": value}


def without_value(written: Any) -> Any:
    """A declaration without its default; None for a plain default."""
    return (
        {key: part for key, part in written.items() if key != "default"}
        if is_declared(written)
        else None
    )


def wrong_declarations(params: Any) -> Iterator[Problem]:
    """Find mistakes in the declarations among the parameters of a spec, whatever else is wrong with
    it.
    """
    for name, written in params.items() if isinstance(params, dict) else ():
        if is_declared(written):
            yield from _wrong_declaration(written, ("params", name))


def wrong_overlay(
    params: Mapping[str, Any], overlay: Mapping[str, Any], loc: Loc
) -> Iterator[Problem]:
    """Values of a group or a step (``overlay``) that the job's declarations do not allow."""
    for name, value in overlay.items():
        declared = params.get(name, {})
        if not is_declared(declared):
            continue
        wrong = _wrong(str(declared["type"]), value, ", as the job declares it")
        if wrong or (wrong := _no_choice(declared.get("choices"), value)):
            yield Problem(wrong, (*loc, name))


def _wrong_declaration(written: dict[str, Any], loc: Loc) -> Iterator[Problem]:
    try:
        param = Param.model_validate(written)
    except ValidationError as error:
        for problem in problems_of(error, written, {(): Param}):
            hint = _A_MAP if problem.loc == ("type",) else ""
            yield replace(problem, loc=(*loc, *problem.loc), message=problem.message + hint)
        return
    if param.choices is not None and not param.choices:
        yield Problem("expected at least one, not none", (*loc, "choices"))
    bad = [
        (wrong, i)
        for i, choice in enumerate(param.choices or ())
        if (wrong := _wrong(param.type, choice))
    ]
    for wrong, i in bad:
        yield Problem(wrong, (*loc, "choices", i))
    yield from _wrong_format(param, loc)
    if param.default is None:
        return
    if tick_of(written):
        if param.choices is not None:
            yield Problem("a parameter whose value is a tick has no choices", (*loc, "choices"))
        return
    if wrong := _wrong(param.type, param.default) or (
        "" if bad else _no_choice(param.choices, param.default)
    ):
        yield Problem(wrong, (*loc, "default"))


def _wrong_format(param: Param, loc: Loc) -> Iterator[Problem]:
    if param.format is None:
        return
    if param.type != "text" or param.default not in TICKS:
        yield Problem(
            "only a text has one whose default is tick or previous_tick", (*loc, "format")
        )
    elif not _FORMAT.fullmatch(param.format) or not re.sub("%%|[^%]", "", param.format):
        expected = (
            "expected text with some of %Y %m %d %H %M %S %j %y %G %V %u %z, such as %Y/%m/%d"
        )
        yield Problem(f"{expected}, not {describe(param.format)}", (*loc, "format"))


def unbound_ticks(schedule: ScheduleSpec | None, params: Mapping[str, Any]) -> Iterator[Problem]:
    """Parameters that are bound to a tick before another one, where no clock makes ticks."""
    if schedule is not None and (schedule.cron or schedule.every):
        return
    for name, written in params.items():
        if tick_of(written) == "previous_tick":
            message = (
                "previous_tick is the one before in time; it needs a schedule: with cron: or every:"
            )
            yield Problem(message, ("params", name, "default"))


def _value(written: Any) -> Any:
    if tick_of(written):
        return None
    return written.get("default") if is_declared(written) else written


def _type_of(value: Any) -> str:
    """The type that a plain default stands for; empty for null, which stands for any."""
    kinds: tuple[ParamType, ...] = ("boolean", "integer", "number", "text", "list", "map")
    return next((kind for kind in kinds if not _wrong(kind, value)), "")


def _wrong(kind: str, value: Any, why: str = "") -> str:
    """Say why a value is not of this type; empty if it is."""
    return "" if _fits(kind, value) else f"expected {_EXPECTED[kind]}{why}, not {describe(value)}"


def _fits(kind: str, value: Any) -> bool:
    match kind:
        case "integer" | "number":
            return isinstance(value, int if kind == "integer" else int | float) and not isinstance(
                value, bool
            )
        case "boolean":
            return isinstance(value, bool)
        case "text":
            return isinstance(value, str)
        case "list":
            return isinstance(value, list | tuple)
        case "map":
            return isinstance(value, dict)
        case "date" | "datetime":
            return isinstance(value, str) and _is_time(kind, value)
    return True  # no type of ours: the declaration is what is wrong


def _is_time(kind: str, text: str) -> bool:
    form, read = _TIMES[kind]
    try:
        return bool(form.fullmatch(text) and read(text))
    except ValueError:  # the 31st of February
        return False


def _no_choice(choices: Any, value: Any) -> str:
    """Say that a value is not among the choices; empty if it is, or if there are none."""
    allowed = choices if isinstance(choices, list | tuple) else ()
    # True equals 1, to Python.
    if not allowed or any(
        isinstance(choice, bool) is isinstance(value, bool) and choice == value
        for choice in allowed
    ):
        return ""
    near = (
        suggestion(value, [choice for choice in allowed if isinstance(choice, str)])
        if isinstance(value, str)
        else ""
    )
    names = listed(describe(choice).removeprefix("the number ") for choice in allowed)
    return f"expected one of {names}, not {describe(value)}{near}"


def value_problems(value: Any, loc: Loc, depth: int = 0) -> Iterator[Problem]:
    """Find mistakes in the parts of a value, and in the references in them."""
    if depth > MAX_PARAM_DEPTH:
        yield Problem(f"nested more than {MAX_PARAM_DEPTH} levels deep", loc)
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _key_problems(key, loc)
            if isinstance(key, str):
                yield from value_problems(child, (*loc, key), depth + 1)
    elif isinstance(value, list | tuple):
        for i, child in enumerate(value):
            yield from value_problems(child, (*loc, i), depth + 1)
    elif wrong := scalar_problem(value):
        yield Problem(wrong, loc)
    elif isinstance(value, str) and (reference := reference_in(value, wrong=True)) is not None:
        message = (
            "expected a reference such as ${env:NAME} or ${secret:NAME}, not "
            f"{shorten(reference)}"
        )
        yield Problem(f"{message}; where the text itself is meant, write $${{ for ${{", loc)


def _key_problems(key: Any, loc: Loc) -> Iterator[Problem]:
    if not isinstance(key, str):
        yield Problem(f"a key must be text, not {describe(key)}", loc)
        return
    if wrong := scalar_problem(key):
        yield Problem(wrong, (*loc, key), True)
    if (reference := reference_in(key)) is not None:
        message = f"{shorten(reference)}: a reference is resolved in a value, and not in a key"
        yield Problem(message, (*loc, key), True)


def reference_problems(
    every: Sequence[GroupSpec], outputs: Mapping[str, OutputSpec]
) -> Iterator[Problem]:
    """Find references in streams and outputs, where nobody resolves them."""
    texts: list[tuple[str | None, Loc]] = []
    for i, group in enumerate(every):
        for name, stream in group.streams.items():
            at: Loc = ("groups", i, "inputs", name)
            texts += [(stream.stream, (*at, "stream")), (stream.columns, (*at, "schema"))]
            if isinstance(stream, KafkaInput):  # a worker resolves those of its options
                yield from value_problems(stream.options, (*at, "options"))
            else:
                texts += [(value, (*at, "options", key)) for key, value in stream.options.items()]
    for name, output in outputs.items():
        texts.append((output.path, ("outputs", name, "path")))
        for column, values in (output.partitions or {}).items():
            texts += [(str(value), ("outputs", name, "partitions", column)) for value in values]
        rules = {} if output.quality is None else output.quality.rules
        texts += [(rule, ("outputs", name, "quality", "rules", key)) for key, rule in rules.items()]
    for text, loc in texts:
        if wrong := unresolved(text or ""):
            yield Problem(wrong, loc)


def unresolved(text: str) -> str:
    """Say that ``text`` has a reference that no worker resolves; empty if it has none."""
    # Spark would resolve some in SQL, from the environment of its JVM, and leave the others as they
    # are.
    match = _REFERENCE.search(text)
    return f"{shorten(match[0])}: no reference is resolved here" if match else ""


def scalar_problem(value: Any) -> str:
    """Why JSON cannot hold a value, or cannot give it back as it was; empty if it can."""
    if isinstance(value, str):
        return f"not valid Unicode text: {shorten(value)}" if _SURROGATE.search(value) else ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{value} is no number that JSON can hold"
    if isinstance(value, int):
        return (
            ""
            if -(2**63) <= value < 2**63
            else "a whole number of more than 64 bits; give it as text"
        )
    if value is None:
        return ""
    return f"expected text, a number, true, false, null, a list or a mapping, not {describe(value)}"


def check_key(key: object) -> None:
    """Check the word under which submitting the same spec again is the same job. Raises: BadKey."""
    if not isinstance(key, str):
        raise BadKey(f"the key: expected text, not {describe(key)}")
    if not 1 <= len(key) <= MAX_KEY:
        raise BadKey(
            f"the key {shorten(key)}: expected 1 to {MAX_KEY} characters, not {len(key):,}"
        )
    if match := _UNSEEN.search(key):
        raise BadKey(f"the key {shorten(key)}: expected no control characters, not {match[0]!r}")
