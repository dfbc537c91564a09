"""What is wrong with a spec is told all at once, by place, and in words that a person can act
on.
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tests.support.jobs.specs import HEAD, A, minimal, told
from unstuck.coordinator.spec import json_schema as schema
from unstuck.coordinator.spec.messages import NOT_YET, PATTERNS
from unstuck.coordinator.spec.model import JobSpec, SpecError
from unstuck.coordinator.spec.problems import SpecProblem, path_text


def test_all_wrong_values_are_reported_with_place_and_expected_form() -> None:
    text = """\
name: a/b
max_parallel: true
on_failure: cancel
publish: x
extra: 1
groups:
  - name: ../x
    needs: x
    timeout: soon
    conf: {spark.sql.x: 8}
    for_each: {m: [1, [22], null]}
    retry: {max: a, jitter: 2, maxx: 1}
    join: all_good
    steps:
      - sql: 1
      - {}
      - {python: foo, output: a b}
  - needs: []
  - name: b
    for_each: {m: {from: x}}
    join: {at_least: no one}
  - name: c
    for_each: {m: 3}
    params: {a b: 2}
  - 17
"""
    assert told(text) == [
        "s.yaml:1:7: name: expected a name (letters, digits, _ . and -, beginning with a letter, "
        "digit or _, at most 63 characters), not 'a/b'",
        "s.yaml:2:15: max_parallel: expected a whole number, not true",
        (
            "s.yaml:3:13: on_failure: expected cancel_others or finish_others, not 'cancel'; did "
            "you mean 'cancel_others'?"
        ),
        "s.yaml:4:10: publish: expected a list, not 'x'",
        "s.yaml:5:1: extra: unknown field 'extra'; known: name, description, schedule, zone, "
        "params, defaults, max_parallel, priority, mixed, timeout, on_failure, publish, outputs, "
        "notify, groups",
        "s.yaml:7:11: groups[0].name: expected a group name (letters, digits, _ and -, beginning "
        "with a letter or _, at most 63 characters), not '../x'",
        "s.yaml:8:12: groups[0].needs: expected a list, not 'x'",
        (
            "s.yaml:9:14: groups[0].timeout: expected a duration such as 15s, 10m, 1h30m or 7d, "
            "not 'soon'"
        ),
        (
            's.yaml:10:25: groups[0].conf["spark.sql.x"]: expected text, not the number 8; put it '
            "in "
            "quotes"
        ),
        (
            "s.yaml:11:23: groups[0].for_each.m[1]: expected text, a number or true or false, not "
            "a list"
        ),
        (
            "s.yaml:11:29: groups[0].for_each.m[2]: expected text, a number or true or false, not "
            "nothing (null)"
        ),
        "s.yaml:12:18: groups[0].retry.max: expected a whole number, not 'a'",
        "s.yaml:12:29: groups[0].retry.jitter: expected 1 or less, not the number 2",
        "s.yaml:12:32: groups[0].retry.maxx: unknown field 'maxx'; did you mean 'max'?",
        "s.yaml:13:11: groups[0].join: expected all_succeeded, all_done, any_succeeded, at_least, "
        "none_failed, any_failed or all_failed, not 'all_good'; did you mean 'all_done'?",
        "s.yaml:15:14: groups[0].steps[0].sql: expected text, not the number 1; put it in quotes",
        (
            "s.yaml:16:9: groups[0].steps[1]: a step is exactly one of python:, sql:, sql_file: or "
            "compact:"
        ),
        (
            "s.yaml:17:18: groups[0].steps[2].python: expected module:function, such as "
            "examples.flights:clean, not 'foo'"
        ),
        "s.yaml:17:31: groups[0].steps[2].output: expected a name (letters, digits and _, not "
        "beginning with a digit, at most 63 characters), not 'a b'",
        "s.yaml:18:5: groups[1]: 'name' is missing",
        (
            "s.yaml:20:26: groups[2].for_each.m.from: expected output.column, such as "
            "clean.months, not 'x'"
        ),
        "s.yaml:21:11: groups[2].join: at_least wants a whole number from 1 to 1,000,000,000",
        (
            "s.yaml:23:19: groups[3].for_each.m: expected a list of values, or from: "
            "output.column, not the number 3"
        ),
        's.yaml:24:14: groups[3].params["a b"]: expected a name (letters, digits and _, not '
        "beginning with a digit, at"
        " most 63 characters), not 'a b'",
        "s.yaml:25:5: groups[4]: expected a mapping, not the number 17",
    ]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("TimeoutError", "retry_on: expected a list, not 'TimeoutError'"),
        ("[]", "retry_on: expected at least one value"),
        ("[1]", "retry_on[0]: expected text, not the number 1; put it in quotes"),
        (
            "[requests.*]",
            "retry_on[0]: expected a name such as TimeoutError, requests.exceptions.Timeout or "
            "DIVIDE_BY_ZERO, not 'requests.*'",
        ),
    ],
)
def test_an_invalid_error_name_is_reported_with_its_place(written: str, message: str) -> None:
    (line,) = told(f"name: x\ndefaults: {{retry: {{retry_on: {written}}}}}\n{HEAD[8:]}{A}")
    assert line.partition(": ")[2] == f"defaults.retry.{message}"
    (line,) = told(
        f"{HEAD}  - {{name: a, retry: {{retry_on: {written}}}, steps: [{{python: 'm:f'}}]}}\n"
    )
    assert line.partition(": ")[2] == f"groups[0].retry.{message}"


@pytest.mark.parametrize("at", ["defaults", "groups[0]"])
def test_hooks_are_refused_with_the_alternative(at: str) -> None:
    hooks = "hooks: {on_failure: 'm:f'}"
    text = f"name: x\ndefaults: {{{hooks}}}\n{HEAD[8:]}{A}"
    if at != "defaults":
        text = f"{HEAD}  - {{name: a, {hooks}, steps: [{{python: 'm:f'}}]}}\n"
    (line,) = told(text)
    assert line.partition(": ")[2] == (
        f"{at}.hooks: there are no hooks; to be notified of a failure, write notify: [{{on: [failed], "
        "to: NAME}]; to run code after a failure, add a group with join: any_failed; to run code after a success, add a last step to the group"
    )


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            "compact: flights, output: few",
            "compact: makes a version of its own, and has no output:",
        ),
        (
            "compact: flights, params: {target: 0}",
            "compact: takes no params: but target, a whole number of MB",
        ),
        (
            "compact: flights, params: {target: true}",
            "compact: takes no params: but target, a whole number of MB",
        ),
        (
            "compact: flights, params: {size: 1}",
            "compact: takes no params: but target, a whole number of MB",
        ),
    ],
)
def test_a_compaction_of_unknown_things_is_refused(step: str, message: str) -> None:
    (line,) = told(f"{HEAD}  - {{name: a, spark: false, steps: [{{{step}}}]}}\n")
    assert line.partition(": ")[2] == f"groups[0].steps[0]: {message}"


@pytest.mark.parametrize("field", sorted(NOT_YET))
def test_a_planned_field_says_that_it_is_not_available_yet(field: str) -> None:
    assert told(f"{field}: 1\n" + HEAD + A) == [
        f"s.yaml:1:1: {field}: {field!r} is not supported yet; remove it"
    ]
    group = HEAD + f"  - {{name: a, {field}: 1, steps: [{{python: 'm:f', {field}: 1}}]}}\n"
    assert [line.rpartition(": ")[2] for line in told(group)] == [
        f"{field!r} is not supported yet; remove it"
    ] * 2


def test_every_pattern_has_a_description() -> None:
    def patterns(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["pattern"]} if isinstance(value.get("pattern"), str) else set()
            own |= set(value.get("patternProperties", ()))
            return own.union(*(patterns(child) for child in value.values()))
        return (
            set().union(*(patterns(child) for child in value)) if isinstance(value, list) else set()
        )

    of_models = {
        p for p in patterns(schema.json_schema()) if r"\s*" not in p
    }  # the duration's words are its own
    assert of_models == set(PATTERNS)


@pytest.mark.parametrize("text", ["- 1", "17", "just text", "[]"])
def test_a_text_instead_of_a_mapping_reports_the_expected_form(text: str) -> None:
    assert told(text)[0].startswith("s.yaml:1:1: expected a mapping with name: and groups:, not ")


def test_an_empty_job_is_refused() -> None:
    assert told("name: x\ngroups: []\n") == ["s.yaml:2:9: groups: expected at least one value"]
    assert told("name: x\n") == ["s.yaml:1:1: 'groups' is missing"]
    assert told("name:\ngroups:\n") == [
        "s.yaml:1:6: name: expected text, not nothing (null)",
        "s.yaml:2:8: groups: expected a list, not nothing (null)",
    ]


def test_syntactic_and_semantic_problems_are_reported_together() -> None:
    lines = told("name: x\nname: y\nparams: {c: NO}\nfoo: 1\n" + HEAD.partition("\n")[2] + A)
    assert [line.split(": ")[1] for line in lines] == ["name", "params.c", "foo"]


def test_problems_of_a_python_value_have_paths_without_lines() -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec.model_validate(minimal(max_paralel=3))
    (problem,) = caught.value.problems
    assert (problem.path, problem.line, problem.source) == ("max_paralel", None, "")
    assert (
        str(caught.value)
        == "max_paralel: unknown field 'max_paralel'; did you mean 'max_parallel'?"
    )


def test_a_thousand_problems_are_reported_in_fifty_lines() -> None:
    lines = told(HEAD + "".join(f"  - {{name: g{i}, needs: [h{i}]}}\n" for i in range(2000)))
    assert len(lines) == 51
    assert lines[-1] == "… and 950 more problems"


def test_a_spec_error_can_be_pickled() -> None:
    error = SpecError([SpecProblem("wrong", ("a", 1), False, "s.yaml", 2, 3)])
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.problems) == ("s.yaml:2:3: a[1]: wrong", error.problems)


def test_paths_of_problems_are_printed_in_yaml_notation() -> None:
    assert path_text(("groups", 2, "steps", 0, "sql")) == "groups[2].steps[0].sql"
    assert path_text(("conf", "spark.sql.x")) == 'conf["spark.sql.x"]'
    assert path_text(("params", "a\nb")) == 'params["a\\nb"]'
    assert path_text(()) == ""
