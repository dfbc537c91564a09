"""The types of parameters: declared or taken from defaults, and held at submit with place and
expectation.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs.specs import HEAD, A, minimal, told
from unstuck.coordinator.model.size import compile_to_store
from unstuck.coordinator.spec.job_params import UnparsedText
from unstuck.coordinator.spec.model import JobSpec, SpecError

DECLARED: dict[str, Any] = {
    "day": {"type": "date", "required": True},
    "at": {"type": "datetime"},
    "limit": {"type": "integer", "default": 10},
    "share": {"type": "number", "default": 1},
    "mode": {"type": "text", "default": "fast", "choices": ["fast", "slow"]},
    "full": {"type": "boolean", "default": False},
    "ids": {"type": "list", "default": [1]},
    "source": {
        "type": "map",
        "default": {"type": "jdbc"},
        "description": "Where the rows come from.",
    },
}
GIVEN: dict[str, Any] = {
    "day": UnparsedText("2013-12-31"),
    "at": UnparsedText("2013-12-31T12:00+01:00"),
    "limit": UnparsedText("20"),
    "share": UnparsedText("0.5"),
    "mode": UnparsedText("slow"),
    "full": UnparsedText("true"),
    "ids": UnparsedText("[2, 3]"),
    "source": UnparsedText("{type: file}"),
}


def unparsed(value: Any) -> Any:
    """A text as the command line has it; any other value as it is."""
    return UnparsedText(value) if isinstance(value, str) else value


def problem(params: dict[str, Any], **given: Any) -> str:
    """The one problem of these values for a spec with ``params``."""
    with pytest.raises(SpecError) as caught:
        JobSpec.from_values(minimal(params=params), given)
    (line,) = str(caught.value).splitlines()
    return line


def test_values_given_as_text_are_converted_to_their_declared_types() -> None:
    spec = JobSpec.from_values(minimal(params=DECLARED), GIVEN)
    values = {
        "day": "2013-12-31",
        "at": "2013-12-31T12:00+01:00",
        "limit": 20,
        "share": 0.5,
        "mode": "slow",
        "full": True,
        "ids": [2, 3],
        "source": {"type": "file"},
    }
    assert spec.values == values
    assert compile_to_store(spec).plan.params == values


def test_written_and_given_values_result_in_the_same_spec() -> None:
    given = JobSpec.from_values(minimal(params=DECLARED), {"day": "2013-12-31"})
    written = {**DECLARED, "day": {**DECLARED["day"], "default": "2013-12-31"}}
    assert given.fingerprint == JobSpec.from_values(minimal(params=written), {}).fingerprint
    again = JobSpec.model_validate_json(given.to_json())
    assert again == given
    assert again.with_params({"day": "2014-01-01"}).values["day"] == "2014-01-01", "as a retry does"


def test_a_declared_parameter_without_a_value_is_null() -> None:
    spec = JobSpec.from_values(minimal(params={"at": {"type": "datetime"}}), {})
    assert spec.values == {"at": None}
    assert spec.with_params({"at": None}) == spec
    assert spec.with_params({"at": UnparsedText("null")}) == spec


def test_a_python_date_is_written_in_iso_form() -> None:
    noon = datetime.datetime(2013, 12, 31, 12, tzinfo=datetime.UTC)
    spec = JobSpec.from_values(minimal(params=DECLARED), {"day": noon.date(), "at": noon})
    assert (spec.values["day"], spec.values["at"]) == ("2013-12-31", "2013-12-31T12:00:00+00:00")
    assert "expected a date such as 2013-12-31, not a Python datetime" in problem(
        DECLARED, day=noon
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(
            ("day", value, f"expected a date such as 2013-12-31, not {shown}")
            for value, shown in {
                "2013-02-31": "'2013-02-31'",
                "20131231": "the number 20131231",
                "2013-W52-1": "'2013-W52-1'",
                "2013-12-31T00:00": "'2013-12-31T00:00'",
                "٢٠١٣-12-31": "'٢٠١٣-12-31'",
                "${env:DAY}": "'${env:DAY}'",
                "": "nothing (null)",
            }.items()
        ),
        ("at", "2013-12-31", "expected a date and time such as"),
        ("at", "2013-12-31T25:00", "expected a date and time such as"),
        ("limit", "2.5", "expected a whole number, not the number 2.5"),
        ("limit", True, "expected a whole number, not true"),
        ("limit", None, "expected a whole number, not nothing (null)"),
        ("share", "much", "expected a number, not 'much'"),
        ("mode", "slwo", "expected one of 'fast', 'slow', not 'slwo'; did you mean 'slow'?"),
        ("mode", 1, "expected text, not the number 1"),
        ("full", "1", "expected true or false, not the number 1"),
        ("full", "yes", "yes without quotes is not the same to all readers"),
        ("ids", "1", "expected a list, not the number 1"),
        ("source", "[1]", "expected a mapping, not a list"),
        ("ids", "[1", "cannot be read: not readable as YAML"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused(name: str, value: Any, message: str) -> None:
    given = {"day": "2013-12-31", name: unparsed(value)}
    assert problem(DECLARED, **given).startswith(f"params.{name}: {message}")


@pytest.mark.parametrize(
    ("default", "good", "bad", "message"),
    [
        ("SE", "12", 12, "expected text, as in the spec, not the number 12"),
        (2013, "2014", "soon", "expected a whole number, as in the spec, not 'soon'"),
        (
            1,
            "2",
            "0.5",
            (
                "expected a whole number, as in the spec, not the number 0.5; to allow any number, declare it with"
            ),
        ),
        (0.5, "1", "true", "expected a number, as in the spec, not true"),
        (False, "true", "0", "expected true or false, as in the spec, not the number 0"),
        ([1], "[]", "{}", "expected a list, as in the spec, not a mapping"),
        (
            {"type": "jdbc", "url": "u"},
            "{}",
            "",
            "expected a mapping, as in the spec, not nothing (null)",
        ),
    ],
    ids=repr,
)
def test_a_plain_default_determines_the_type(
    default: Any, good: str, bad: Any, message: str
) -> None:
    JobSpec.from_values(minimal(params={"p": default}), {"p": unparsed(good)})
    assert problem({"p": default}, p=unparsed(bad)).startswith(f"params.p: {message}")


@pytest.mark.parametrize("value", ["2014", "soon", "[1]", True, None, 1.5])
def test_a_parameter_with_a_null_default_accepts_any_value(value: Any) -> None:
    JobSpec.from_values(minimal(params={"p": None}), {"p": unparsed(value)})


@pytest.mark.parametrize("one", [1, 1.0])
def test_choices_are_compared_like_json_values(one: Any) -> None:
    params = {
        "p": {"type": "number", "default": 2.5, "choices": [1, 2.5]},
        "q": {"type": "list", "choices": [[True]]},
    }
    assert JobSpec.from_values(minimal(params=params), {"p": one}).values["p"] == 1
    assert problem(params, p=2) == "params.p: expected one of 1, 2.5, not the number 2"


def test_all_errors_are_reported_together_with_their_place(tmp_path: Path) -> None:
    text = """\
name: x
on_failure: cancel
params:
  day: {type: date, required: true}
  limit: {type: integer, default: 3.5}
  mode: {type: text, default: d, choices: [a, 1], requird: true}
  late: {type: text, default: d, choices: [a, 1]}
  none: {type: text, choices: []}
  odd: {type: text, default: c, choices: [a, b]}
  frame: {type: csv}
  source: {type: jdbc, url: u}
  year: 2013
groups:
  - {name: a, params: {day: 3}, steps: [{python: 'm:f', params: {odd: x}}]}
"""
    (tmp_path / "s.yaml").write_text(text)
    here = f"{tmp_path}/s.yaml"

    def problems(text: str) -> list[str]:
        (tmp_path / "s.yaml").write_text(text)
        with pytest.raises(SpecError) as caught:
            JobSpec.from_file(here, {"year": "soon", "yaer": "1"})
        return [line.removeprefix(f"{here}:") for line in str(caught.value).splitlines()]

    of_params = [
        "4:3: params.yaer: no such parameter; did you mean 'year'?; the spec has: day, limit, "
        "mode, late, none, odd, frame, source, year",
        "4:8: params.day: a value is required; give it as --param day=VALUE,"
        " expected a date such as 2013-12-31",
        "5:35: params.limit.default: expected a whole number, not the number 3.5",
        "6:51: params.mode.requird: unknown field 'requird'; did you mean 'required'?",
        "7:47: params.late.choices[1]: expected text, not the number 1",
        "8:31: params.none.choices: expected at least one value",
        "9:30: params.odd.default: expected one of 'a', 'b', not 'c'",
        "10:17: params.frame.type: expected text, integer, number, boolean, date, datetime, list "
        "or map, not 'csv'; a default that is a mapping with the key type is written as {type: "
        "map, default: {type: …}}",
        "12:9: params.year: expected a whole number, as in the spec, not 'soon'",
    ]
    wrong = (
        "2:13: on_failure: expected cancel_others or finish_others, not 'cancel'; did you "
        "mean "
        "'cancel_others'?"
    )
    assert problems(text) == [wrong, *of_params]
    assert problems(text.replace("on_failure: cancel", "max_parallel: 1")) == [
        *of_params,
        (
            "14:29: groups[0].params.day: expected a date such as 2013-12-31, as the job declares "
            "it, not the number 3"
        ),
        "14:71: groups[0].steps[0].params.odd: expected one of 'a', 'b', not 'x'",
    ]


def test_a_missing_required_value_is_reported_when_the_values_are_known() -> None:
    spec = JobSpec.model_validate(
        minimal(params=DECLARED)
    )  # in Python: read once, submitted with many values
    assert spec.values["day"] is None
    with pytest.raises(SpecError, match="a value is required"):
        spec.with_params({})
    assert spec.with_params({"day": "2013-12-31"}).values["limit"] == 10


def test_a_declaration_is_distinguished_from_a_mapping_with_a_type() -> None:
    params = {
        "a": {"type": "jdbc", "url": "u"},
        "b": {"kind": "date"},
        "c": {"type": "map", "default": {"type": "x"}},
    }
    spec = JobSpec.from_values(minimal(params=params), {})
    assert spec.values == {**params, "c": {"type": "x"}}
    # A slip in a declaration makes no plain default of it.
    assert told("name: x\nparams: {d: {type: date, defualt: 2013-12-31}}\n" + HEAD[8:] + A) == [
        "s.yaml:2:26: params.d.defualt: unknown field 'defualt'; did you mean 'default'?"
    ]


def test_a_condition_uses_the_value_of_a_declared_parameter() -> None:
    groups = [{"name": "a", "when": "params.limit > 5", "steps": [{"python": "m:f"}]}]
    plan = compile_to_store(
        JobSpec.from_values(minimal(params=DECLARED, groups=groups), {"day": "2013-12-31"})
    ).plan
    assert plan.params["limit"] == 10
