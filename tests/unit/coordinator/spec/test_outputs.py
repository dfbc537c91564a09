"""What a spec says of its outputs: each mistake has its place, and what is not said is not
stored.
"""

from __future__ import annotations

from typing import Any

import pytest

from unstuck import JobSpec, SpecError
from unstuck.coordinator.spec.plan import compile_plan
from unstuck.tasks.spec.fields import STORED
from unstuck.tasks.spec.work_order import FrozenInputs, GroupPlan, WorkOrder

GROUPS = """
groups:
  - {name: load, spark: false, steps: [{python: "m:f", output: flights}]}
  - {name: each, for_each: {n: [1, 2]}, steps: [{python: "m:f", output: parts}]}
"""


def problems(outputs: str, more: str = "") -> list[str]:
    try:
        JobSpec.from_text(f"name: x\n{more}outputs: {outputs}{GROUPS}")
    except SpecError as error:
        return [problem.partition(": ")[2] for problem in str(error).splitlines()]
    return []


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("{rules: {}}", "quality.rules: expected at least one value"),
        ("{max_rejected_ratio: 0.1}", "quality: 'rules' is missing"),
        (
            "{rules: {a b: 'x > 0'}}",
            'quality.rules["a b"]: expected a name (letters, digits and _, not beginning',
        ),
        ("{rules: {a: 1}}", "quality.rules.a: expected text, not the number 1; put it in quotes"),
        (
            "{rules: {a: ' '}}",
            "quality: the rule a is empty; write a condition, such as distance > 0",
        ),
        (
            "{rules: {a: x}, max_rejected_ratio: 2}",
            "quality.max_rejected_ratio: expected 1 or less, not the number 2",
        ),
        (
            "{rules: {a: x}, over: 20}",
            "quality.over: expected text, not the number 20; put it in quotes",
        ),
        (
            "{rules: {a: x}, over: 0 runs}",
            "quality.over: expected 1 to 1,000 runs, or a time, such as 20 runs or 1d",
        ),
        (
            "{rules: {a: x}, max_rejected: 1}",
            "quality.max_rejected: unknown field 'max_rejected'; did you mean 'max_",
        ),
    ],
)
def test_invalid_rules_are_reported_with_their_place(written: str, told: str) -> None:
    (problem,) = problems(f"{{flights: {{quality: {written}}}}}")
    assert problem.startswith(f"outputs.flights.{told}")


@pytest.mark.parametrize(
    ("theirs", "ours"), [("overwrite", "replace"), ("upsert", "merge"), ("apend", "append")]
)
def test_a_mode_name_of_another_tool_is_reported_with_ours(theirs: str, ours: str) -> None:
    (problem,) = problems(f"{{flights: {{mode: {theirs}}}}}")
    assert problem.startswith("outputs.flights.mode: expected replace, append, ")
    assert problem.endswith(f"not '{theirs}'; did you mean '{ours}'?")


def test_rejected_rows_of_several_runs_are_counted_only_in_append_mode() -> None:
    rules = "quality: {rules: {a: x > 0}, over: 20 runs}"
    (problem,) = problems(f"{{flights: {{{rules}}}}}")
    assert problem.startswith("outputs.flights: quality: over: wants mode: append")
    assert problems(f"{{flights: {{{rules}, mode: append}}}}") == []


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("{}", "expect: expect wants rows:, unique: or fresh:"),
        ("{rows: {}}", "expect.rows: rows wants min:, max: or both"),
        ("{rows: {min: 5, max: 4}}", "expect.rows: min: 5 is more than max: 4"),
        ("{rows: {min: -1}}", "expect.rows.min: expected 0 or more, not the number -1"),
        ("{rows: {minimum: 1}}", "expect.rows.minimum: unknown field 'minimum'"),
        ("{unique: id}", "expect.unique: expected a list, not 'id'"),
        ("{unique: [id, id]}", "expect: unique names a column twice"),
        ("{fresh: {column: day}}", "expect.fresh: 'within' is missing"),
        (
            "{fresh: {column: day, within: soon}}",
            "expect.fresh.within: expected a duration such as",
        ),
    ],
)
def test_invalid_expectations_are_reported_with_their_place(written: str, told: str) -> None:
    (problem,) = problems(f"{{flights: {{expect: {written}}}}}")
    assert problem.startswith(f"outputs.flights.{told}")


def test_evolve_requires_a_mode_that_keeps_rows() -> None:
    (problem,) = problems("{flights: {on_schema_change: evolve}}")
    assert "on_schema_change: evolve with mode: replace: no published row stays" in problem
    assert problems("{flights: {mode: append, on_schema_change: evolve}}") == []
    assert problems("{flights: {on_schema_change: fail}}") == []


def test_the_dataset_name_of_rejected_rows_is_reserved() -> None:
    rules = "{quality: {rules: {a: 'x > 0'}}}"
    assert problems(f"{{parts: {rules}, parts__Rejected: {{mode: append}}}}") == [
        "outputs.parts__Rejected: the rejected rows of 'parts' have the name 'parts__rejected'; "
        "use another name"
    ]
    assert problems(f"{{flights: {rules}}}", "publish: [flights, flights__rejected]\n") == [
        "publish[1]: the rejected rows of 'flights' have the name 'flights__rejected'; "
        "use another name"
    ]
    long = "f" * 54
    assert problems(f"{{{long}: {rules}}}") == [
        (
            f"outputs.{long}: the name of an output with rules has at most 53 characters, since "
            "__rejected is appended to it"
        )
    ]


def test_unique_keys_are_refused_for_forks() -> None:
    (problem,) = problems("{parts: {expect: {unique: [id]}}}")
    assert problem.startswith(
        "outputs.parts.expect.unique: the members of the fork 'each' make 'parts', and each"
    )
    assert problems("{parts: {expect: {rows: {min: 1}, fresh: {column: day, within: 2d}}}}") == []


@pytest.mark.parametrize(
    "rules", ["quality: {rules: {a: 'x > 0'}}", "expect: {unique: [id], rows: {min: 1}}"]
)
def test_an_unpublished_output_may_have_checks_but_no_mode(
    rules: str,
) -> None:
    assert problems(f"{{flights: {{{rules}}}}}", "publish: [parts]\n") == []
    (problem,) = problems(f"{{flights: {{{rules}, mode: append}}}}", "publish: [parts]\n")
    assert "publish: does not name 'flights'" in problem


def plan_of(**output: Any) -> GroupPlan:
    """The plan that a runner gets, as it is stored."""
    step = {"python": "m:f", "output": "flights"}
    written = {"name": "x", "groups": [{"name": "load", "steps": [step]}]}
    spec = JobSpec.model_validate(
        {**written, "outputs": {"flights": output}} if output else written
    )
    stored = compile_plan(JobSpec.from_text(spec.to_json())).group_plans("file:///w", "id")["load"]
    return GroupPlan.model_validate_json(stored, context=STORED)


def test_checks_reach_the_runner_and_change_the_fingerprint() -> None:
    def fingerprint(plan: GroupPlan) -> str:
        return WorkOrder(plan=plan, frozen=FrozenInputs()).fingerprint

    before = plan_of()
    bounds = plan_of(expect={"rows": {"min": 1}})
    rules = plan_of(
        quality={"rules": {"a": "x > 0"}},
        expect={"unique": ["id"], "fresh": {"column": "d", "within": 1}},
    )
    assert before.checks == bounds.checks == {}
    assert fingerprint(before) == fingerprint(bounds), (
        "the publisher alone compares rows with bounds"
    )
    (checks,) = rules.checks.values()
    assert (checks.unique, checks.newest) == (("id",), "d")
    assert fingerprint(rules) != fingerprint(before)
