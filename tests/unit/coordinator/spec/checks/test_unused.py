"""Parameters that nothing in a job uses are told, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from unstuck import JobSpec
from unstuck.coordinator.spec.checks.unused import (
    doubts,
    quoted_markers,
    unbound_markers,
    unused_params,
)
from unstuck.coordinator.spec.plan import compile_plan

SQL = {"sql": "SELECT :day AS day, ':no' AS text, x::int FROM t", "output": "o"}
PYTHON = {"python": "shop:price"}


def job(*groups: dict[str, Any], **more: Any) -> JobSpec:
    named = [{"name": f"g{n}", **group} for n, group in enumerate(groups)]
    return JobSpec.model_validate({"name": "job", "groups": named, **more})


def told(spec: JobSpec, **takes: Any) -> list[str]:
    return sorted(problem.path for problem in unused_params(spec, takes or None))


def test_an_unused_parameter_is_reported_only_if_the_python_signatures_are_known() -> None:
    spec = job(
        {"steps": [PYTHON], "params": {"rate": 1, "base": 2}},
        {"steps": [SQL]},
        params={"day": 1, "lost": 2},
    )
    assert told(spec) == []
    assert told(spec, g0={"base", "spark", "ctx"}) == ["groups[0].params.rate", "params.lost"]
    assert told(spec, g0=None) == []


def test_parameters_named_in_sql_conditions_and_forks_are_used() -> None:
    params = {"day": 1, "on": True, "days": [1, 2], "lost": 0}
    fork = {"for_each": {"one": {"param": "days"}}, "steps": [SQL]}
    other = {"steps": [{"sql": "SELECT 1", "output": "p"}], "when": "params.on"}
    assert told(job(fork, other, params=params)) == ["params.lost"]


def test_unused_sql_parameters_are_reported() -> None:
    step = {**SQL, "params": {"day": 1, "year": 2}}
    assert told(job({"steps": [step], "params": {"x": 1}})) == [
        "groups[0].params.x",
        "groups[0].steps[0].params.year",
    ]


def test_a_runner_reports_unused_parameters_unless_its_python_accepts_them() -> None:
    params = {"day": 1, "lost": 2}
    python, sql = {"steps": [PYTHON], "params": {"rate": 1}}, {"steps": [SQL]}
    assert compile_plan(job(python, sql, params=params)).for_python == {"g0": ("lost", "rate")}
    assert compile_plan(job(python, python, params=params)).for_python == {
        "g0": ("rate",),
        "g1": ("rate",),
    }


def test_an_sql_marker_without_a_value_is_reported() -> None:
    text = (
        "SELECT :dya, :day, v:field, v :path, :results.g0.n, ':text', x::int, :`odd` FROM t "
        "WHERE a IN (:of_step)"
    )
    step = {"sql": text, "output": "o", "params": {"of_step": 1}}
    spec = job({"steps": [PYTHON]}, {"needs": ["g0"], "steps": [step]}, params={"day": 1})
    assert [(problem.path, problem.message) for problem in unbound_markers(spec)] == [
        ("groups[1].steps[0].sql", "nothing gives :dya a value; did you mean 'day'?"),
        ("groups[1].steps[0].sql", "nothing gives :odd a value"),
        ("groups[1].steps[0].sql", "nothing gives :path a value"),
    ]


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (
            "SELECT * FROM t WHERE day = ':day'",
            ["':day' in quotes is text, not a parameter; write :day without quotes"],
        ),
        (
            "SELECT \":day\", ':day'",
            ["':day' in quotes is text, not a parameter; write :day without quotes"] * 2,
        ),
        (
            "SELECT * FROM t WHERE day = '{{ day }}' AND path LIKE '/in/${day}/%' AND n = '{day}'",
            [
                "{{ day }} in '{{ day }}' is text, not a parameter; write :day outside of quotes",
                "${day} in '/in/${day}/%' is text, not a parameter; write :day outside of quotes",
                "{day} in '{day}' is text, not a parameter; write :day outside of quotes",
            ],
        ),
        (
            "SELECT '{{ ds }}'",
            ["{{ ds }} in '{{ ds }}' is text, not a parameter; write :NAME outside of quotes"],
        ),
        pytest.param(
            f"SELECT '{'{{' * 400_000}'", [], id="in time that grows with the length alone"
        ),
        ("SELECT date_format(at, 'HH:day'), ':dya', '{dya}' -- ':day'\n, `':day'` FROM t", []),
    ],
)
def test_a_parameter_in_quotes_or_as_a_template_is_reported(text: str, messages: list[str]) -> None:
    spec = job({"steps": [{"sql": text, "output": "o"}]}, params={"day": 1})
    assert [problem.message for problem in quoted_markers(spec)] == messages
    assert [problem.message for problem in doubts(spec)] == [
        *(p.message for p in unused_params(spec)),
        *messages,
    ]
