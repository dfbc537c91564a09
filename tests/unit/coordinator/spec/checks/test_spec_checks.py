"""What only the whole spec can show to be wrong: graph, joins, forks, outputs, parameters,
bounds.
"""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs.specs import HEAD, A, minimal, told
from unstuck.coordinator.spec.model import JobSpec, SpecError
from unstuck.coordinator.spec.plan import compile_plan
from unstuck.tasks.spec.group import GroupSpec
from unstuck.tasks.spec.sql_tokens import several_statements


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            A + A,
            "s.yaml:4:12: groups[1].name: groups[0] has the name 'a', too; give each group its own name",
        ),
        (
            A + "  - {name: b, needs: [aa]}\n",
            "s.yaml:4:23: groups[1].needs[0]: unknown group 'aa'; did you mean 'a'?",
        ),
        (
            A + "  - {name: b, needs: [zebra]}\n",
            "s.yaml:4:23: groups[1].needs[0]: unknown group 'zebra'; groups: a, b",
        ),
        (
            A + "  - {name: b, needs: [a, b]}\n",
            "s.yaml:4:26: groups[1].needs[1]: group 'b' needs itself; remove it",
        ),
        (
            A + "  - {name: b, needs: [a, a]}\n",
            "s.yaml:4:26: groups[1].needs[1]: 'a' is listed twice; remove one of them",
        ),
        (
            A + "  - name: b\n",
            ("s.yaml:4:5: groups[1]: group 'b' has nothing to do; give it steps: or needs:"),
        ),
        (
            "  - {name: a, needs: [c]}\n  - {name: b, needs: [a]}\n  - {name: c, needs: [b]}\n",
            "s.yaml:3:23: groups[0].needs[0]: a cycle, in which each group needs the next: a → c → b → a",
        ),
        (
            "  - {name: a, needs: [b]}\n  - {name: b, needs: [a]}\n",
            "s.yaml:3:23: groups[0].needs[0]: a cycle, in which each group needs the next: a → b → a",
        ),
        (
            A + "  - {name: b, needs: [a], join: {at_least: 2}}\n",
            "s.yaml:4:33: groups[1].join: at_least: 2 can never be met by 1 needs",
        ),
        (
            A + "  - {name: b, needs: [a], join: at_least}\n",
            "s.yaml:4:33: groups[1].join: at_least needs a number, as in join: {at_least: 2}",
        ),
        (
            A + "  - {name: b, needs: [a], join: {rule: all_done, count: 2}}\n",
            ("s.yaml:4:33: groups[1].join: count: belongs to at_least, not to all_done; remove it"),
        ),
        (
            "  - {name: a, join: any_succeeded, steps: [{python: 'm:f'}]}\n",
            ("s.yaml:3:21: groups[0].join: join: any_succeeded needs groups to join; add needs:"),
        ),
        (
            (
                "  - {name: a, steps: [{sql: x, output: o}]}\n  - {name: b, steps: [{sql: x, "
                "output: o}]}\n"
            ),
            "s.yaml:4:40: groups[1].steps[0].output: groups[0].steps[0] makes the output 'o', too; give one of them another name",
        ),
        (
            "  - {name: a, steps: [{sql: x, output: o}, {sql: x, output: O}]}\n",
            "s.yaml:3:61: groups[0].steps[1].output: groups[0].steps[0] makes the output 'O' (or 'o': case does not count), too; give one of them another name",
        ),
        (
            "  - {name: a, for_each: {m: [1]}, params: {m: 2}, steps: [{python: 'm:f'}]}\n",
            "s.yaml:3:44: groups[0].params.m: 'm' is a parameter of the fork; remove it here",
        ),
        (
            "  - {name: a, for_each: {m: [1]}, steps: [{python: 'm:f', params: {m: 2}}]}\n",
            (
                "s.yaml:3:68: groups[0].steps[0].params.m: 'm' is a parameter of the fork; remove it here"
            ),
        ),
    ],
)
def test_an_impossible_graph_is_refused(groups: str, message: str) -> None:
    assert told(HEAD + groups) == [message]


def test_an_error_in_one_field_hides_no_cycle_unknown_need_or_duplicate_name() -> None:
    assert told(
        HEAD
        + "  - {name: a, needs: [c], tiemout: 3s}\n"
        + "  - {name: b, needs: [a, zebra], steps: []}\n"
        + "  - {name: c, needs: [b], steps: [{python: 'm'}]}\n"
        + "  - {name: b, steps: [{python: 'm:f'}]}\n"
    ) == [
        "s.yaml:3:23: groups[0].needs[0]: a cycle, in which each group needs the next: a → c → b → a",
        "s.yaml:3:27: groups[0].tiemout: unknown field 'tiemout'; did you mean 'timeout'?",
        "s.yaml:4:26: groups[1].needs[1]: unknown group 'zebra'; groups: a, b, c",
        (
            "s.yaml:5:44: groups[2].steps[0].python: expected module:function, such as "
            "examples.flights:clean, not 'm'"
        ),
        "s.yaml:6:12: groups[3].name: groups[1] has the name 'b', too; give each group its own name",
    ]


@pytest.mark.parametrize(
    ("groups", "lines"),
    [
        # The group that is needed may be the one without a name.
        ("  - {nmae: a, steps: [{python: 'm:f'}]}\n  - {name: b, needs: [a]}\n", 2),
        # A group that misspelt what it runs is not told that it runs nothing.
        ("  - {name: a, setps: [{python: 'm:f'}]}\n", 1),
        ("  - {name: a, needs: [1, a], steps: [{python: 'm:f'}]}\n  - 7\n", 2),
        (A + "  - {name: b, needs: ['a b']}\n", 1),
    ],
)
def test_follow_up_errors_of_a_typo_are_not_reported(groups: str, lines: int) -> None:
    assert len(told(HEAD + groups)) == lines, told(HEAD + groups)


def test_the_size_of_a_fork_counts_its_members() -> None:
    fork = "  - {name: f, for_each: {m: [1, 2, 3]}, steps: [{python: 'm:f'}]}\n"
    assert (
        JobSpec.from_text(HEAD + fork + "  - {name: b, needs: [f], join: {at_least: 2}}\n")
        .groups[1]
        .join.count
        == 2
    )


@pytest.mark.parametrize("needs", ["f, p", "p, f", "p, d"])
def test_the_size_of_a_fork_counts_its_members_beside_a_plain_group(needs: str) -> None:
    written = HEAD + (
        "  - {name: p, steps: [{python: 'm:p'}]}\n"
        "  - {name: f, for_each: {m: [1, 2, 3]}, steps: [{python: 'm:f'}]}\n"
        "  - {name: d, for_each: {m: {from: p.m}}, needs: [p], steps: [{python: 'm:f'}]}\n"
        f"  - {{name: b, needs: [{needs}], join: {{at_least: 4}}}}\n"
    )
    assert JobSpec.from_text(written).groups[3].join.count == 4


def test_long_cycles_and_chains_are_checked_without_recursion_errors() -> None:
    def ring(first: int) -> str:
        chain = "".join(f"  - {{name: g{i}, needs: [g{i - 1}]}}\n" for i in range(1, 3000))
        return (
            HEAD
            + (
                "  - {name: g0, steps: [{python: 'm:f'}], needs: "
                f"[{f'g{first}' if first else ''}]}}\n"
            )
            + chain
        )

    assert len(JobSpec.from_text(ring(0)).groups) == 3000
    (line,) = told(ring(2999))
    assert "g0 → g2999 → g2998" in line
    assert "… 2988 more …" in line


MAKER = "  - {name: a, steps: [{sql: x, output: o}]}\n"
PYTHON_MAKER = "  - {name: a, steps: [{python: 'm:f', output: o}]}\n"


def forked(source: str, needs: str = "a") -> str:
    return (
        f"  - {{name: b, needs: [{needs}], for_each: {{m: {{from: {source}}}}}, steps: "
        "[{python: 'm:f'}]}\n"
    )


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (MAKER + forked("zebra.c"), "no needed group makes 'zebra'; known: a, o"),
        (
            MAKER + forked("o.c", ""),
            "a fork of 'o' needs the group that makes it; add needs:, or inputs:",
        ),
        (
            A + MAKER.replace("a,", "c,") + forked("o.c"),
            "'o' is an output of group 'c'; add that group to needs:",
        ),
        (
            A + MAKER.replace("a,", "c,") + forked("c.c"),
            "'c' is an output of group 'c'; add that group to needs:",
        ),
        (A + forked("b.c"), "'b' is an output of this group"),
        (
            "  - {name: a, for_each: {m: [1]}, steps: [{python: 'm:f', output: o}]}\n"
            + forked("o.c"),
            "group 'a' is a fork, and each of its members has its own values",
        ),
        (
            A + "  - {name: j, needs: [a]}\n" + forked("j.c", "j"),
            "group 'j' has no steps, so it makes no output",
        ),
        (
            "  - {name: a, steps: [{sql: x, output: o}, {sql: x, output: p}]}\n" + forked("a.c"),
            "group 'a' has several outputs; name the one to take: o, p",
        ),
        (
            "  - {name: a, steps: [{sql: x}]}\n" + forked("a.c"),
            "group 'a' declares no output:; give its SQL step one",
        ),
    ],
)
def test_a_dynamic_fork_without_a_source_is_refused(groups: str, message: str) -> None:
    (line,) = told(HEAD + groups)
    assert ".for_each.m.from: " in line
    assert message in line


@pytest.mark.parametrize(
    "groups",
    [
        MAKER + forked("o.c"),
        MAKER + forked("a.c"),
        A + forked("a.c"),
        A + forked("anything.c"),  # a Python step may write it
        PYTHON_MAKER + forked("anything.c"),
    ],
)
def test_an_undecidable_dynamic_fork_is_accepted(groups: str) -> None:
    assert JobSpec.from_text(HEAD + groups).groups[1].fork_from is not None


def test_publish_is_checked_if_no_python_step_can_make_the_output() -> None:
    assert told(HEAD + MAKER + "publish: [o, qq, o]\n") == [
        "s.yaml:4:14: publish[1]: no group makes an output 'qq'; outputs: o",
        "s.yaml:4:18: publish[2]: 'o' is listed twice; remove one of them",
    ]
    assert JobSpec.from_text(HEAD + A + "publish: [anything]\n").publish == ("anything",)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            date(2013, 1, 1),
            (
                "params.p: expected text, a number, true, false, null, a list or a mapping, not a "
                "Python date"
            ),
        ),
        ({"a": [1, {2}]}, "params.p.a[1]: expected text"),
        (float("nan"), "params.p: JSON has no number nan"),
        (2**63, "params.p: a whole number of more than 64 bits; give it as text"),
        (-(2**63) - 1, "params.p: a whole number of more than 64 bits; give it as text"),
        ({1: 2}, "params.p: a key must be text, not the number 1"),
        ("\ud800", "params.p: not valid Unicode text"),
        ({"\ud800": 1}, 'params.p["\\ud800"]: not valid Unicode text'),
        ("x" * 70_000, "params: more than 64 KB of parameters"),
    ],
)
def test_a_parameter_that_is_not_json_is_refused_everywhere(value: Any, message: str) -> None:
    step = {"python": "m:f"}
    for spec, place in [
        (minimal(params={"p": value}), ""),
        (minimal(groups=[{"name": "a", "params": {"p": value}, "steps": [step]}]), "groups[0]."),
        (
            minimal(groups=[{"name": "a", "steps": [{**step, "params": {"p": value}}]}]),
            "groups[0].steps[0].",
        ),
    ]:
        with pytest.raises(SpecError) as caught:
            JobSpec.model_validate(spec)
        assert str(caught.value).startswith(place + message)


def test_a_self_referencing_parameter_is_refused() -> None:
    endless: list[Any] = []
    endless += [endless, endless]
    with pytest.raises(SpecError, match="nested more than 20 levels deep"):
        JobSpec.model_validate(minimal(params={"p": endless}))


def test_a_job_has_size_limits() -> None:
    group = GroupSpec.model_validate(
        {"name": "a", "for_each": {"m": list(range(10_000))}, "steps": [{"python": "m:f"}]}
    )
    forks = tuple(group.model_copy(update={"name": f"f{i}"}) for i in range(11))
    with pytest.raises(
        SpecError, match="all forks together have at most 100,000 values, not 110,000"
    ):
        JobSpec(name="x", groups=forks)
    plain = GroupSpec.model_validate({"name": "a", "steps": [{"python": "m:f"}]})
    many = tuple(plain.model_copy(update={"name": f"g{i}"}) for i in range(10_001))
    with pytest.raises(SpecError, match="at most 10,000 groups are allowed, not 10,001"):
        JobSpec(name="x", groups=many)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "name: j\nparams: {home: '${env:HOME'}\ngroups:\n" + A,
            "s.yaml:2:16: params.home: expected a reference such as ${env:NAME} or ${secret:NAME},"
            " not '${env:HOME'; to write the text itself, use $${ for ${",
        ),
        (
            "name: j\nparams: {deep: [1, {key: 'x ${env:} y'}]}\ngroups:\n" + A,
            "s.yaml:2:26: params.deep[1].key: expected a reference such as ${env:NAME} or "
            "${secret:NAME}, not '${env:}'; to write the text itself, use $${ for ${",
        ),
        (
            HEAD + "  - {name: a, steps: [{python: 'm:f', params: {key: '${vault:x}'}}]}\n",
            "s.yaml:3:53: groups[0].steps[0].params.key: expected a reference such as ${env:NAME} "
            "or ${secret:NAME}, not '${vault:x}'; to write the text itself, use $${ for ${",
        ),
        (
            HEAD + "  - {name: a, conf: {spark.x: '${env:}'}, steps: [{python: 'm:f'}]}\n",
            's.yaml:3:31: groups[0].conf["spark.x"]: expected a reference such as ${env:NAME} or '
            "${secret:NAME}, not"
            " '${env:}'; to write the text itself, use $${ for ${",
        ),
        (
            "name: j\nparams: {maps: {'${env:A}': 1}}\ngroups:\n" + A,
            (
                "s.yaml:2:17: params.maps[\"${env:A}\"]: '${env:A}': references are resolved in values, not in keys"
            ),
        ),
        (
            HEAD + "  - {name: a, for_each: {m: [x, '${env:A}']}, steps: [{python: 'm:f'}]}\n",
            "s.yaml:3:33: groups[0].for_each.m[1]: '${env:A}': the values of a fork are stored and "
            "shown, so references are not resolved there; put it under params:",
        ),
        (
            HEAD + "  - {name: a, steps: [{sql: 'SELECT 1 AS x$${env:A}', output: o}]}\n",
            "s.yaml:3:29: groups[0].steps[0].sql: '${env:A}': references are not resolved here; put "
            "it under params:, and write :name for the parameter",
        ),
        (
            HEAD + "  - {name: a, steps: [{sql: 'SELECT 1 -- ${secret:A}', output: o}]}\n",
            "s.yaml:3:29: groups[0].steps[0].sql: '${secret:A}': references are not resolved here; "
            "put it under params:, and write :name for the parameter",
        ),
        (
            "name: j\noutputs: {o: {format: delta, path: 's3://${env:B}/t'}}\ngroups:\n" + A,
            "s.yaml:2:36: outputs.o.path: '${env:B}': references are not resolved here",
        ),
        (
            "name: j\noutputs: {o: {quality: {rules: {r: \"a <> '${env:B}'\"}}}}\ngroups:\n" + A,
            "s.yaml:2:36: outputs.o.quality.rules.r: '${env:B}': references are not resolved here",
        ),
        (
            "name: j\nparams: {stage: '${env:B}'}\ngroups:\n"
            "  - {name: a, when: 'params.stage == \"prod\"', steps: [{python: 'm:f'}]}\n",
            "s.yaml:4:21: groups[0].when: at character 1: 'stage' has '${env:B}', which only a worker can resolve; record the value with ctx.result in an earlier group, and use that result",
        ),
    ],
)
def test_an_invalid_or_misplaced_secret_reference_is_refused(spec: str, message: str) -> None:
    assert told(spec) == [message]


def test_valid_references_and_similar_texts_are_accepted() -> None:
    params = {
        "a": "${env:A}${env:B_2}",
        "b": "$${env:A} and $${vault:x",
        "c": ["${name}", "$5 {x: y}", {"d": "${env_a}", "e": "${env}/${ENV}"}],
    }
    spec = minimal(params=params)
    assert JobSpec.model_validate(spec).params == params
    fork = {
        "name": "f",
        "for_each": {"v": ["${x:-1}", "s3://b/${env}/x"]},
        "steps": [{"python": "m:f"}],
    }
    assert JobSpec.model_validate(minimal(groups=[fork])).groups[0].fork_values == (
        "${x:-1}",
        "s3://b/${env}/x",
    )
    with pytest.raises(SpecError, match="expected a reference"):
        JobSpec.model_validate(spec).with_params({"a": "${env:A"})


# --- nothing is taken for what it is not


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("retry: {max: true}", "8:18: groups[1].retry.max: expected a whole number, not true"),
        ("retry: {max: '3'}", "8:18: groups[1].retry.max: expected a whole number, not '3'"),
        ("retry: {jitter: false}", "8:21: groups[1].retry.jitter: expected a number, not false"),
        ("worker_losses: true", "8:20: groups[1].worker_losses: expected a whole number, not true"),
        ("spark: 1", "8:12: groups[1].spark: expected true or false, not the number 1"),
        ("optional: 0", "8:15: groups[1].optional: expected true or false, not the number 0"),
        ("optional: 'yes'", "8:15: groups[1].optional: expected true or false, not 'yes'"),
        (
            "join: {rule: at_least, count: true}",
            "8:35: groups[1].join.count: expected a whole number, not true",
        ),
        (
            "for_each: {m: {from: a.c, distinct: 1}}",
            "8:41: groups[1].for_each.m.distinct: expected true or false, not the number 1",
        ),
    ],
)
def test_booleans_and_numbers_are_not_interchangeable(more: str, message: str) -> None:
    text = (
        HEAD + A + "  - name: b\n    needs: [a]\n    steps:\n    - python: m:f\n    " + more + "\n"
    )
    assert told(text) == [f"s.yaml:{message}"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([b"a"], r"for_each\.m\[0\]: expected text, a number or true or false, not a Python bytes"),
        (
            [Decimal("1.5")],
            r"for_each\.m\[0\]: expected text, a number or true or false, not a Python Decimal",
        ),
        ([date(2013, 1, 1)], r"for_each\.m\[0\]: .* not a Python date"),
        ([{1}], r"for_each\.m\[0\]: .* not a Python set"),
        ({1, 2}, r"for_each\.m: expected a list of values, .*, not a Python set"),
        (iter([1, 2]), r"for_each\.m: expected a list of values, .*, not a Python list_iterator"),
    ],
)
def test_a_fork_value_that_is_not_json_is_refused(values: Any, message: str) -> None:
    group = {"name": "a", "steps": [{"python": "m:f"}], "for_each": {"m": values}}
    with pytest.raises(SpecError, match=message):
        JobSpec.model_validate({"name": "x", "groups": [group]})


MAPPINGS = [{"depth": 3, "eta": 0.1}, {"eta": 0.3, "depth": 5}]


def forked(for_each: Any, **more: Any) -> JobSpec:
    group = {"name": "train", "steps": [{"python": "m:f"}], "for_each": for_each}
    return JobSpec.model_validate({"name": "x", "groups": [group], **more})


def test_fork_values_may_be_mappings_of_names_to_scalars() -> None:
    spec = forked({"model": MAPPINGS, "seed": [1, 2]})
    stored = JobSpec.model_validate_json(spec.to_json()).groups[0]
    assert stored.fork_values == tuple((model, seed) for model in MAPPINGS for seed in (1, 2))
    planned = compile_plan(
        forked({"model": {"param": "models"}}, params={"models": MAPPINGS})
    ).groups["train"]
    assert planned.values == tuple(MAPPINGS)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], r"for_each: for_each holds the same value twice"),
        (
            [{"a": [1]}],
            r"for_each\.model\[0\]\.a: expected text, a number or true or false, not a list",
        ),
        ([{}], r"for_each\.model\[0\]: expected at least one value"),
        ([{"a b": 1}], r"for_each\.model\[0\].*: expected a name"),
        (
            [{"a": "${env:HOME}"}],
            r"for_each\.model\[0\]: '\${env:HOME}': the values of a fork are stored and shown",
        ),
    ],
)
def test_an_invalid_mapping_of_a_fork_is_refused_with_its_place(values: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        forked({"model": values})
    assert len(caught.value.problems) == 1
    if values != [{"a": 1, "b": 2}, {"b": 2, "a": 1}] and "env" not in str(values):
        with pytest.raises(
            SpecError,
            match=r"for_each\.model\.param: expected a value of a fork \(text, a number, true",
        ):
            forked({"model": {"param": "models"}}, params={"models": values})


def test_fork_values_keep_their_types() -> None:
    group = {"name": "a", "steps": [{"python": "m:f"}], "for_each": {"m": [1, True, 1.0, "1"]}}
    spec = JobSpec.model_validate({"name": "x", "groups": [group]})
    for values in (
        spec.groups[0].fork_values,
        JobSpec.model_validate_json(spec.to_json()).groups[0].fork_values,
    ):
        assert [(type(value), value) for value in values or ()] == [
            (int, 1),
            (bool, True),
            (float, 1.0),
            (str, "1"),
        ]


# --- one step, one statement


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1; SELECT 2",
        "SELECT 1;\nSELECT 2;",
        "-- begin with one\nSELECT ';'; /* and */ DROP VIEW v",
        "CREATE VIEW v AS SELECT 'a''b'; SELECT `;` FROM v",
        "SELECT 'it\\'s'; SELECT 2",
        "SELECT '/*'; SELECT '*/'",
        "SELECT $$;$$; SELECT 2",
    ],
)
def test_several_statements_in_one_step_are_refused(sql: str, tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"groups\[0\]\.steps\[0\]\.sql: several statements in one step"
    ):
        JobSpec.model_validate(
            minimal(groups=[{"name": "a", "steps": [{"sql": sql, "output": "o"}]}])
        )
    (tmp_path / "q.sql").write_text(sql)
    spec = JobSpec.model_validate(
        minimal(groups=[{"name": "a", "steps": [{"sql_file": "q.sql", "output": "o"}]}])
    )
    with pytest.raises(
        SpecError, match=r"groups\[0\]\.steps\[0\]\.sql_file: .*q\.sql': several statements"
    ):
        spec.with_sql_files(tmp_path)


@pytest.mark.parametrize(
    "sql", ["CREATE TABLE t AS SELECT 1 AS id", "/* a */ create or replace view v AS SELECT 1"]
)
def test_a_create_statement_in_a_step_that_returns_rows_is_refused_with_a_remedy(
    sql: str, tmp_path: Path
) -> None:
    says = (
        r": CREATE returns no rows, so output: o would be empty; write only the query "
        r"\(SELECT …\)"
    )
    with pytest.raises(SpecError, match=r"steps\[0\]\.sql" + says):
        JobSpec.model_validate(
            minimal(groups=[{"name": "a", "steps": [{"sql": sql, "output": "o"}]}])
        )
    (tmp_path / "q.sql").write_text(sql)
    spec = JobSpec.model_validate(
        minimal(groups=[{"name": "a", "steps": [{"sql_file": "q.sql", "output": "o"}]}])
    )
    with pytest.raises(SpecError, match=r"steps\[0\]\.sql_file" + says):
        spec.with_sql_files(tmp_path)
    steps = [{"sql": sql}, {"sql": "SELECT * FROM t", "output": "o"}]
    JobSpec.model_validate(minimal(groups=[{"name": "a", "steps": steps}]))


@pytest.mark.parametrize(
    "sql",
    [
        *(
            "SELECT 1",
            "SELECT 1;",
            "SELECT 1;;\n",
            "SELECT 1; -- done; really",
            "SELECT 1 /* ; */ ; /* ; */",
        ),
        *(
            "SELECT ';'",
            'SELECT "a;b"',
            "SELECT 'a''b;c'",
            "SELECT 'a\\';b'",
            "SELECT `;` FROM t",
            "-- a; b\nSELECT 1",
        ),
        *(
            "BEGIN SELECT 1; SELECT 2; END",
            "SELECT 1 /* ; /* ; */ ; */",
            r"SELECT r'a\', 'b;c'",
            "SELECT $$a; b$$",
            "SET spark.my.list=a;b",
            "ADD JAR /jars/a;b.jar",
            ";",
        ),
    ],
)
def test_one_statement_or_an_undecidable_text_is_accepted(sql: str) -> None:
    assert not several_statements(sql)


@pytest.mark.parametrize(
    ("sql", "place", "begin"),
    [
        ("SELECT 1 /* a /* b */", "line 1, column 10", "/* a /* b */"),
        ("SELECT 1,\n  'it''s FROM t; SELECT 2", "line 2, column 3", "'it''s FROM t; SELECT 2"),
        ("-- 'no\nSELECT\n`a", "line 3, column 1", "`a"),
        ("SELECT $q$ it's $$", "line 1, column 8", "$q$ it's $$"),
        ("SELECT r'a\\', 'b", "line 1, column 15", "'b"),
        ('SELECT "a\\"', "line 1, column 8", '"a\\"'),
        ("/* " * 40_000, "line 1, column 1", "/* /* /* /* /* /* /* /* /* /* …"),
        ("ADD JAR /data/*", "line 1, column 14", "/*"),
    ],
)
def test_unclosed_parts_of_a_statement_are_refused_with_their_place(
    sql: str, place: str, begin: str, tmp_path: Path
) -> None:
    words = (
        re.escape(f"the text that begins at {place} of the statement is not closed: {begin}") + "$"
    )
    with pytest.raises(SpecError, match=r"^groups\[0\]\.steps\[0\]\.sql: " + words):
        JobSpec.model_validate(
            minimal(groups=[{"name": "a", "steps": [{"sql": sql, "output": "o"}]}])
        )
    (tmp_path / "q.sql").write_text(sql)
    spec = JobSpec.model_validate(
        minimal(groups=[{"name": "a", "steps": [{"sql_file": "q.sql", "output": "o"}]}])
    )
    with pytest.raises(SpecError, match=r"sql_file: .*q\.sql': " + words):
        spec.with_sql_files(tmp_path)


def reading(sql: str, **more: Any) -> JobSpec:
    """A job whose group ``b`` runs ``sql`` as its last step, beside a group that makes
    ``orders``.
    """
    makes = {"name": "load", "steps": [{"sql": "SELECT 1 AS id", "output": "orders"}]}
    steps = [*more.pop("before", ()), {"sql": sql, "output": "big"}]
    return JobSpec.model_validate(minimal(groups=[makes, {"name": "b", "steps": steps, **more}]))


@pytest.mark.parametrize(
    "sql", ["SELECT * FROM orders", "SELECT 1 FROM x JOIN `Orders` o ON o.id = x.id"]
)
def test_a_statement_that_reads_an_output_it_does_not_need_is_refused(sql: str) -> None:
    """It read the rows that yesterday's job had published."""
    with pytest.raises(
        SpecError, match=r"groups\[1\]\.steps\[0\]\.sql: orders is an output of group load"
    ) as error:
        reading(sql)
    assert "add needs: [load]" in str(error.value)


@pytest.mark.parametrize(
    "more",
    [
        {"needs": ["load"]},
        {"inputs": {"orders": "orders"}},
        {"before": [{"sql": "CREATE TABLE orders AS SELECT 1 AS id"}]},
        {"before": [{"python": "steps:makes_views"}]},
    ],
    ids=["need", "input", "its own table", "maybe a view of Python"],
)
def test_a_statement_may_read_any_input_of_its_group(more: dict[str, Any]) -> None:
    assert reading("SELECT * FROM orders", **more)


STATIC = """\
name: x
defaults: {conf: {spark.sql.shuffle.partitions: "2"%s}}
groups:
  - {name: light, spark: false, conf: {spark.executor.memory: 1g}, steps: [{python: 'm:f'}]}
  - {name: own, fresh: true, conf: {spark.executor.memory: 1g, spark.my.own: x}, steps: [{python: 'm:f'}]}
  - {name: warm, conf: {%s}, steps: [{python: 'm:f'}]}
"""


@pytest.mark.parametrize(
    ("defaults", "key", "message"),
    [
        (
            "",
            "spark.executor.memory: 3g",
            "groups[2].conf[\"spark.executor.memory\"]: 'spark.executor.memory' can",
        ),
        (
            "",
            "spark.sql.extensions: x.Y",
            "groups[2].conf[\"spark.sql.extensions\"]: 'spark.sql.extensions' can",
        ),
        ("", "spark.hadoop.fs.s3a.endpoint: x", "give the group fresh: true"),
        (
            ", spark.jars: a.jar",
            "spark.my.own: x",
            "defaults.conf[\"spark.jars\"]: 'spark.jars' can only be set when a",
        ),
        (", spark.jars: a.jar", "spark.my.own: x", "give group 'warm' fresh: true"),
    ],
)
def test_conf_that_a_running_session_cannot_take_requires_a_fresh_group(
    defaults: str, key: str, message: str
) -> None:
    (said,) = told(STATIC % (defaults, key))
    assert message in said


def test_conf_of_a_running_session_and_unknown_conf_are_accepted() -> None:
    assert JobSpec.from_text(
        STATIC % ("", "spark.sql.ansi.enabled: 'true', spark.databricks.delta.x: y, other.key: z")
    )
