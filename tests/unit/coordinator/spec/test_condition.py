"""Conditions: what they come to, what is refused, and that no text gets further than the values it
names.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.jobs.specs import HEAD, A, minimal, told
from tests.support.machine import Limit
from unstuck.coordinator.errors import ConditionError
from unstuck.coordinator.spec.condition import ConditionResult, evaluate, parse
from unstuck.coordinator.spec.model import JobSpec, SpecError

PARAMS: dict[str, Any] = {
    "full": True,
    "n": 3,
    "share": 0.5,
    "text": "a%s",
    "days": [1, 2],
    "limits": {"low": {"x": 1}},
    "gone": None,
    "secret": "${env:KEY}",
}
RESULTS: dict[str, dict[str, Any] | None] = {
    "clean": {
        "rows": 0,
        "ok": True,
        "items": 5,
        "many": list(range(8000)),
        "text": "x" * 9000,
        "none": None,
    },
    "by-carrier": {"a key": 7},
    "failed": None,
}


def judged(text: str) -> ConditionResult:
    return evaluate(text, PARAMS, RESULTS.get)


# ---- what they come to
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("results.clean.rows > 0 and params.full", False),
        ("results.clean.rows == 0 and params.full", True),
        ("not params.full or params.n in [1, 2, 3]", True),
        ("params.n not in (1, 2)", True),
        ("0 < params.n <= 3 != params.share", True),
        (
            (
                "params.n * 2 - 1 == 5 and params.n // 2 == 1 and params.n % 2 == 1 and params.n / "
                "2 == 1.5"
            ),
            True,
        ),
        ("2 ** params.n + 1 == 9 and -params.n < +1", True),
        ("'a' in params.text and params.text + 'b' == 'a%sb'", True),
        ("params.days + [3] == [1, 2, 3] and params.days[-1] == 2", True),
        ("params.limits.low['x'] == 1 and 'low' in params.limits", True),
        ("(params.n, 1) == [3, 1]", True),
        ('results["by-carrier"]["a key"] == 7', True),
        ("results.clean.items == 5", True),  # a name that Python's mappings have a method for
        ("results.clean.ok is true and results.clean.ok == True", True),
        ("results.clean.other is none and results.clean.none is None", True),
        ("results.failed.rows is not none", False),
        ("results.failed.rows == 0", False),
        ("results.failed.ok", False),
        ("params.full or results.failed.ok", True),
        ("results.failed.ok or not params.full", False),
        ("params.full or params.n > 'no'", True),  # what is not needed is not looked at
        ("(params.full\n  and params.n == 3)", True),
        ("  params.full  ", True),
        ("params.secret == '${env:KEY}'", True),
    ],
)
def test_a_condition_is_true_or_false(text: str, holds: bool) -> None:
    assert judged(text).holds is holds, judged(text).text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("results.clean.nope > 0", "none > 0 cannot be compared; ask whether it is none first"),
        ("params.text < 3", "'a%s' < 3 cannot be compared"),
        ("params.full > 0", "true > 0 cannot be compared"),
        ("params.n", "expected true or false, not 3; compare it"),
        ("not params.text", "expected true or false, not 'a%s'"),
        ("params.days and params.full", "expected true or false, not a list"),
        ("params.n in params.text", "3 in 'a%s': expected a list, or text in text"),
        ("1 in results.failed.rows", "1 in none: expected a list"),
        ("params.text % params.n == 1", "'a%s' % 3: expected two numbers"),
        ("params.text * 1000 == 1", "'a%s' * 1000: expected two numbers"),
        ("params.full + 1 == 2", "true + 1: expected two numbers, two texts or two lists"),
        ("-params.text == 1", "a sign before 'a%s': expected a number"),
        ("1 / (params.n - 3) > 1", "1 / 0: division by zero"),
        ("9 ** 4000000 > 1", "9 ** 4000000 has more than 1,024 bits"),
        ("(-8) ** 0.5 > 1", "-8 ** 0.5 is not a real number"),
        ("results.clean.text + results.clean.text == 'x'", "+ of two texts is longer than 10,000"),
        ("results.clean.many + results.clean.many == 'x'", "+ of two lists is longer than 10,000"),
        ("params.days[2] == 1", "a list of 2 has no place 2"),
        ("params.limits.high == 1", "there is no 'high' in a mapping of low"),
        ("params.n.real == 3", "3 has no 'real'"),
        ("results.failed.rows.x == 1", "none has no 'x'"),
        ("1.5 ** 99999 > 1", "1.5 ** 99999: Numerical result out of range"),
        ("params.n +", "at character 11: invalid syntax"),  # stored by a release that took it
    ],
)
def test_a_condition_that_cannot_be_evaluated_gives_a_reason(text: str, why: str) -> None:
    result = judged(text)
    assert result.holds is None
    assert result.text.startswith("its condition cannot be evaluated, and is not tried again: ")
    assert why in result.text
    assert f"`{text}`" in result.text


def test_a_false_condition_shows_its_values_shortened() -> None:
    text = "results.clean.rows > 0 or results.clean.text == params.text "
    text += "or results.failed.x != results.clean.other"
    assert judged(text) == ConditionResult(
        False,
        f"its condition is false: `{text}`, with results.clean.rows = 0, results.clean.text = "
        f'"{"x" * 59}…, '
        'params.text = "a%s", results.failed.x = none (group failed did not succeed), '
        "results.clean.other = none (group clean did not record it)",
    )
    long = " and ".join(f"params.p{n} == {n}" for n in range(30))
    told = evaluate(long, {f"p{n}": n + 1 for n in range(30)}, RESULTS.get).text
    assert "…`, with params.p0 = 1, " in told
    assert told.endswith("params.p7 = 8 and 22 more")
    assert "${env:KEY}" in judged("params.secret == 'x'").text


# ---- what is refused
# -------------------------------------------------------------------------------------------------

ESCAPES = [
    "().__class__.__bases__[0].__subclasses__()",
    "params.__class__.__mro__",
    "params.n.__class__ == 1",
    "params.text['__class__'] == 1",
    "results['clean'].__init__.__globals__",
    "params.text.format(params)",
    "'{0.__class__}'.format(params)",
    "f'{params.n.__class__}'",
    "(lambda: 1)()",
    "[c for c in ().__class__.__base__.__subclasses__()]",
    "__import__('os').system('true')",
    "__builtins__",
    "open('/etc/passwd')",
    "results.clean.items()",
    "params.limits.get('low')",
    "params.days.append(1)",
    "params.n if params.full else 0",
    "(x := params.n) == 3",
    "{params.n: 1}",
    "{*params.days}",
    "[*params.days] == 1",
    "params.days[0:1] == 1",
    "params.n << 100000 == 1",
    "params.n | 1",
    "~params.n == 1",
    "params @ results",
    "b'x' == params.text",
    "1j == params.n",
    "... == params.n",
    "yield params.n",
    "await params.n",
    "import os",
    "params.n = 3",
    "del params.n",
    "1; 2",
    "params.text == '\\x41'",
    "params.n is 3",
    "-" * 999 + "1",
    "not " * 240 + "true",
    "(" * 150 + "1" + ")" * 150,
    "1" + "+1" * 400 + " == 1",
    "[" * 100 + "]" * 100,
    "params" + ".a" * 400,
    "\0",
    "params.text == '\ud800'",
    "a" * 1001,
]


@pytest.mark.parametrize("text", ESCAPES)
def test_known_sandbox_escapes_do_not_work(text: str) -> None:
    result = judged(text)
    assert result.holds is None, result
    assert "<class" not in result.text
    assert "<built-in" not in result.text
    assert len(result.text) < 1500


def test_values_are_accessed_by_key_and_never_by_attribute() -> None:
    for name in dir(str) + dir(list) + dir(dict) + dir(int):
        for value in ("params.text", "params.days", "params.limits", "params.n", "params.gone"):
            assert judged(f'{value}["{name}"] is none').holds is None, name
            assert judged(f"{value}.{name} is none").holds is None, name


WORDS = st.sampled_from(
    [
        *(
            "params.n",
            "params.text",
            "params.days",
            "params.limits",
            "results.clean.many",
            "results.failed.rows",
        ),
        *(
            "results.clean.text",
            "results.clean.rows",
            "params",
            "results",
            "x",
            "true",
            "none",
            "1",
            "0",
            "9",
            "1e308",
        ),
        *(
            "'a'",
            "()",
            "[",
            "]",
            "(",
            ")",
            ",",
            ".",
            ".x",
            "['low']",
            "[0]",
            "{",
            "}",
            ":",
            "lambda",
            "for",
            "if",
        ),
        *(
            "+",
            "-",
            "*",
            "**",
            "/",
            "//",
            "%",
            "<",
            "<=",
            "==",
            "!=",
            "in",
            "not in",
            "is",
            "is not",
            "and",
            "or",
        ),
        *(
            "not",
            "|",
            "~",
            "@",
            ":=",
            "\n",
            "#",
            "f'{",
            "}'",
            "else",
            "__class__",
            "99999999999999999999",
        ),
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.lists(WORDS, max_size=40).map(" ".join), st.text(max_size=200)))
@example("params.n **" * 50 + "2 > 1")
@example("results.clean.many in [" + "results.clean.many, " * 40 + "]")
@example("[" * 40 + "results.clean.many" + "]" * 40 + " == 1")
@example("results.clean.text in results.clean.text + 'x' or " * 15 + "false")
@example("99999999 ** 30 * 99999999 ** 30 // 7 % 5 == 1")
def test_any_text_raises_only_a_condition_error(text: str) -> None:
    limit = Limit(2.0, time.process_time)
    try:
        parse(text)
        read = True
    except ConditionError:
        read = False
    result = judged(text)
    assert read or result.holds is None
    assert result == judged(text), "the same values, the same result"
    assert limit.kept, limit


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(), part, max_size=3),
    max_leaves=10,
)
OPERATORS = st.sampled_from(
    ["not in", *"+-*/%<>", "//", "**", "<=", ">=", "==", "!=", "in", "is", "and", "or"]
)


@given(JSON, JSON, OPERATORS)
def test_operators_raise_for_no_pair_of_values(a: Any, b: Any, op: str) -> None:
    right = "none" if op == "is" else "params.b"
    result = evaluate(
        f"(params.a {op} {right}) == params.a[params.b]", {"a": a, "b": b}, RESULTS.get
    )
    assert result.holds in (True, False, None)
    assert result.holds or result.text


# ---- checked at submit
# -----------------------------------------------------------------------------------------------


def spec(when: str, more: str = "", name: str = "b") -> str:
    quoted = when.replace("'", "''")
    return (
        f"params: {{full: true}}\n{HEAD}{A}{more}  - name: {name}\n    needs: [a]\n    when: "
        f"'{quoted}'\n"
    )


B = "  - {name: b, needs: [a], steps: [{python: 'm:f'}]}\n"
FORK = "  - {name: b, needs: [a], for_each: {m: [1]}, steps: [{python: 'm:f'}]}\n"
SQL = "  - {name: b, steps: [{sql: x, output: o}]}\n"


@pytest.mark.parametrize(
    ("when", "message"),
    [
        (
            "results.a.rows >",
            "at character 17: invalid syntax; expected a condition, such as results.clean.rows > 0",
        ),
        ("params.full ==\u00a7 1", "at character 15: invalid character"),
        ("results.b.rows > 0", "at character 1: unknown group 'b'; groups: a, g"),
        ("results.aa.rows > 0", "at character 1: unknown group 'aa'; did you mean 'a'?"),
        (
            "params.full and params.ful",
            "at character 17: unknown parameter 'ful'; did you mean 'full'?",
        ),
        ("params.zzz", "at character 1: unknown parameter 'zzz'; there are: full"),
        (
            "results.g.x > 1",
            "at character 1: 'g' is this group, which has no results before it has run",
        ),
        (
            "rows > 0",
            "at character 1: unknown name 'rows'; expected params or results; put text in quotes",
        ),
        ("result.a.rows > 0", "at character 1: unknown name 'result'; did you mean 'results'?"),
        (
            "params.full and len(results.a.rows)",
            "at character 17: `len(results.a.rows)` is not allowed; a condition has and",
        ),
        ("results.a", "at character 1: results is not a value; name a group and its result"),
        ("results[params.full].rows", "at character 1: results is not a value"),
        ("params", "at character 1: params is not a value; name a parameter, as in params.full"),
        ("'é' == params.full.__class__", "at character 8: '__class__' is not allowed"),
        ("params.full & true", "at character 1: `params.full & true` is not allowed"),
        (
            "params.full is 1",
            "at character 1: is compares only with none, true or false; use == here",
        ),
        ("params.full  == '" + "x" * 1000 + "'", "expected at most 1,000 characters, not 1,018"),
    ],
)
def test_an_impossible_condition_is_refused_with_line_and_place(when: str, message: str) -> None:
    (line,) = told(spec(when, name="g"))
    assert line.startswith("s.yaml:7:11: groups[1].when: ")
    assert message in line


@pytest.mark.parametrize(
    ("more", "needs", "message"),
    [
        (SQL, "a", "group 'b' does not come before this one; add it to needs:"),
        (FORK, "a", "group 'b' does not come before this one; add it to needs:"),
        (
            FORK,
            "b",
            "group 'b' is a fork, and each of its members has its own results",
        ),
        (SQL, "b", "group 'b' has no Python step and no stream, so it has no results"),
        (
            "  - {name: b, needs: [a]}\n",
            "b",
            "group 'b' has no Python step and no stream, so it has no results",
        ),
        (B, "a", "group 'b' does not come before this one; add it to needs:"),
        (B, "b", ""),
        (B + "  - {name: c, needs: [b]}\n", "c", ""),
    ],
)
def test_conditions_use_results_only_of_earlier_groups_that_record_some(
    more: str, needs: str, message: str
) -> None:
    last = f"  - {{name: g, needs: [{needs}], when: results.b.n > 1, steps: [{{python: 'm:f'}}]}}\n"
    if message:
        assert told(HEAD + A + more + last) == [
            f"s.yaml:5:33: groups[2].when: at character 1: {message}"
        ]
    else:
        assert JobSpec.from_text(HEAD + A + more + last).groups[-1].when == "results.b.n > 1"


def test_stream_counts_are_results_even_without_python() -> None:
    load = (
        "  - name: load\n    inputs: {e: {stream: /in, format: json, schema: id INT}}\n"
        "    steps: [{sql: x, output: o}]\n"
    )
    last = (
        "  - {name: g, needs: [load], when: results.load.e.files > 0, steps: [{sql: "
        "':results.load.e', output: p}]}\n"
    )
    text = (
        HEAD.replace("groups:", "outputs: {o: {mode: append}}\npublish: [o]\ngroups:") + load + last
    )
    assert JobSpec.from_text(text).groups[-1].when == "results.load.e.files > 0"


def test_a_condition_of_a_fork_cannot_use_its_members() -> None:
    fork = "  - {name: f, for_each: {m: [1]}, when: 'params.m == 1', steps: [{python: 'm:f'}]}\n"
    (line,) = told(HEAD + fork)
    assert line.endswith(
        "when: at character 1: 'm' is a parameter of the fork; a condition decides about the whole group, before it has members"
    )


def test_a_condition_must_be_text() -> None:
    for wrong in (True, 1, ["params.full"]):
        with pytest.raises(SpecError, match=r"groups\[0\]\.when: expected text, not "):
            JobSpec.model_validate(
                minimal(groups=[{"name": "a", "when": wrong, "steps": [{"python": "m:f"}]}])
            )
    with pytest.raises(SpecError, match="expected text, not empty text"):
        JobSpec.model_validate(
            minimal(groups=[{"name": "a", "when": "", "steps": [{"python": "m:f"}]}])
        )


def test_a_condition_uses_the_parameters_of_its_group_and_a_cycle_is_reported_once() -> None:
    own = "  - {name: a, params: {mine: 1}, when: params.mine == 1, steps: [{python: 'm:f'}]}\n"
    assert JobSpec.from_text(HEAD + own).groups[0].when == "params.mine == 1"
    ring = "  - {name: a, needs: [b], when: results.b.n > 1, steps: [{python: 'm:f'}]}\n" + B
    (line,) = told(HEAD + ring)
    assert "a cycle" in line


@pytest.mark.variant
def test_ten_thousand_chained_conditions_are_checked_in_seconds() -> None:
    step = [{"python": "m:f"}]
    chain = [{"name": "g0", "steps": step}] + [
        {"name": f"g{i}", "needs": [f"g{i - 1}"], "when": "results.g0.n > 1", "steps": step}
        for i in range(1, 10_000)
    ]
    limit = Limit(30.0, time.process_time)
    JobSpec.model_validate({"name": "x", "groups": chain})
    assert limit.kept, limit
    for group in chain[1:]:
        group["when"] = "results.h0.n > params.none"
    limit = Limit(30.0, time.process_time)
    with pytest.raises(SpecError):
        JobSpec.model_validate({"name": "x", "groups": chain})
    assert limit.kept, limit
