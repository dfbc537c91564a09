"""What a spec says of data: published inputs, results in SQL, and forks over parameters and
combinations.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.jobs.specs import told
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.plan import Plan, compile_plan
from unstuck.tasks.spec.work_order import FrozenInputs, GroupPlan, WorkOrder

HEAD = (
    "name: x\nparams: {days: [2, 1, 2], d: {type: list}, n: 3, bad: ['${env:X}', [1]]}\ngroups:\n"
)
A = "  - {name: a, steps: [{python: 'm:f', output: o}]}\n"
Z = "  - {name: z, steps: [{sql: SELECT 1 AS n, output: p}]}\n"
J = "  - {name: j, needs: [a, z]}\n"
F = "  - {name: f, for_each: {m: [1]}, steps: [{python: 'm:f'}]}\n"


def plan_of(text: str) -> Plan:
    return compile_plan(JobSpec.model_validate_json(JobSpec.from_text(text).to_json()))


def reads(needs: str, **more: str) -> str:
    fields = "".join(f", {key}: {value}" for key, value in more.items() if key != "sql")
    sql = json.dumps(more.get("sql", "SELECT 1 AS n"))
    return (
        f"{HEAD}{A}{Z}{J}{F}  - {{name: r, needs: [{needs}]{fields}, steps: [{{sql: {sql}, "
        "output: q}]}\n"
    )


def test_an_input_has_a_short_and_a_long_form() -> None:
    text = reads(
        "a",
        inputs="{u: flights, v: flights@latest, w: flights@7, x: {dataset: flights, version: 7}}",
    )
    inputs = plan_of(text).groups["r"].spec.inputs
    assert {name: (one.dataset, one.version) for name, one in inputs.items()} == {
        **dict.fromkeys("uv", ("flights", None)),
        **dict.fromkeys("wx", ("flights", 7)),
    }


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            "{u: flights@}",
            (
                "u: expected a dataset and perhaps its version, as flights, flights@latest or "
                "flights@7"
            ),
        ),
        (
            "{u: flights@0}",
            (
                "u: expected a dataset and perhaps its version, as flights, flights@latest or "
                "flights@7"
            ),
        ),
        ("{u: a b}", "u: expected a name"),
        (
            "{u: {dataset: a, versio: 1}}",
            "u.versio: unknown field 'versio'; did you mean 'version'?",
        ),
        ("{u: {dataset: a, version: -1}}", "u.version: expected 0 or more, not the number -1"),
        ("{o: flights}", "o: an output of 'a' has the name 'o', too; give the input another name"),
        (
            "{q: flights}",
            "q: an output of this group has the name 'q', too; give the input another name",
        ),
        (
            "{u: flights, U: flights}",
            "U: another input (case does not count) has the name 'U', too",
        ),
    ],
)
def test_an_invalid_input_is_reported_with_the_expected_form(inputs: str, message: str) -> None:
    (line,) = told(reads("j", inputs=inputs))
    assert f"groups[4].inputs.{message}" in line


def test_a_join_has_no_inputs() -> None:
    (line,) = told(f"{HEAD}{A}  - {{name: j, needs: [a], inputs: {{u: flights}}}}\n")
    assert "inputs: has no effect in a group without steps" in line


@pytest.mark.parametrize(
    ("needs", "sql", "message"),
    [
        (
            "z",
            "SELECT :results.a.n",
            ":results.a.n: this group does not need group 'a'; add it to needs:",
        ),
        ("z", "SELECT :results.aa.n", ":results.aa.n: unknown group 'aa'"),
        (
            "z",
            "SELECT :results.z.n",
            ":results.z.n: group 'z' has no Python step and no stream, so it has no results",
        ),
        (
            "f",
            "SELECT :results.f.n",
            ":results.f.n: group 'f' is a fork, and each of its members has its own results",
        ),
        (
            "a",
            "SELECT :results.a, 1",
            ":results.a: expected :results.GROUP.KEY with names of letters, digits and _",
        ),
    ],
)
def test_a_result_with_an_invalid_sql_name_is_refused(
    needs: str, sql: str, message: str, tmp_path: Path
) -> None:
    (line,) = told(reads(needs, sql=sql))
    assert f"groups[4].steps[0].sql: {message}" in line
    (tmp_path / "q.sql").write_text(sql)
    (line,) = told(
        reads(needs, sql=sql).replace(f"sql: {json.dumps(sql)}", "sql_file: q.sql"), folder=tmp_path
    )
    assert f"groups[4].steps[0].sql_file: {message}" in line


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT :results.a.n",
        "SELECT ':results.b.n'",
        "SELECT 1 -- :results.b.n",
        "SELECT x::results.b.n",
    ],
)
def test_a_result_of_a_needed_group_is_accepted_also_through_a_join(sql: str) -> None:
    assert plan_of(reads("j", sql=sql)).groups["r"].reads == ("a", "z")


def test_a_parameter_named_results_keeps_working() -> None:
    text = reads("a", params="{results: {b: {n: 1}}}", sql="SELECT :results.b.n")
    assert plan_of(text).groups["r"].spec.params["results"]


# -- forks -----------------------------------------------------------------------------------------


def forked(values: str) -> str:
    return f"{HEAD}  - {{name: g, for_each: {values}, steps: [{{python: 'm:f'}}]}}\n"


@pytest.mark.parametrize(
    ("values", "members"),
    [
        ("{month: [1, 2], carrier: [UA, AA]}", (("UA", 1), ("UA", 2), ("AA", 1), ("AA", 2))),
        ("{day: {param: days, distinct: true}}", (2, 1)),
        ("{day: {param: days, distinct: true}, k: [x]}", ((2, "x"), (1, "x"))),
        ("{day: {param: d}}", ()),
        ("{one: [1, 2], none: []}", ()),
    ],
)
def test_fork_members_are_all_combinations_of_the_parameter_values(
    values: str, members: tuple[object, ...]
) -> None:
    plan = plan_of(forked(values))
    assert plan.groups["g"].values == members
    assert plan.member_count("g", {}) == len(members)


def test_a_submit_can_set_the_values_of_a_fork() -> None:
    spec = JobSpec.from_text(forked("{day: {param: d}}")).with_params({"d": [3, 4]})
    assert compile_plan(spec).groups["g"].values == (3, 4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("{}", ": for_each wants at least one parameter"),
        (
            "{day: {param: days}}",
            ".day.param: 'days' has the same value twice; distinct: true takes each value once",
        ),
        (
            "{day: {param: n}}",
            ".day.param: the parameter 'n' is not a list; give it a list, or type: list",
        ),
        ("{day: {param: dayz}}", ".day.param: unknown parameter 'dayz'; did you mean 'days'?"),
        (
            "{day: {}}",
            ".day: expected from: output.column, or param: the name of a parameter that is a list",
        ),
        (
            "{day: {param: d, from: a.b}}",
            ".day: expected from: output.column, or param: the name of a parameter",
        ),
        (
            "{a: [1], b: {from: a.b}}",
            ": for_each takes values from a column for one parameter alone, not for several",
        ),
        (
            f"{{a: {list(range(101))}, b: {list(range(100))}}}",
            ": for_each holds 10100 combinations; at most 10000",
        ),
        (
            f"{{a: {{param: days, distinct: true}}, b: {list(range(5000))}}}",
            ": a fork has at most 10,000 members, not 15,000",
        ),
    ],
)
def test_an_invalid_fork_is_reported_with_the_expected_form(values: str, message: str) -> None:
    (line,) = told(forked(values))
    assert f"groups[0].for_each{message}" in line


def test_invalid_fork_values_are_refused_also_in_a_parameter() -> None:
    lines = told(forked("{day: {param: bad}}"))
    assert (
        "the values of a fork are stored and shown, so references are not resolved there"
        in lines[0]
    )
    assert "(text, a number, true, false, or a mapping of names to these), not a list" in lines[1]


def test_a_runner_gets_only_the_values_of_its_member() -> None:
    stored = plan_of(forked("{month: [1, 2], carrier: [UA, AA]}")).group_plans("/w", None)["g"]
    plan = GroupPlan.model_validate_json(stored)
    assert plan.group.for_each == {"month": (), "carrier": ()}
    frozen = FrozenInputs.model_validate_json(FrozenInputs(value=("UA", 2)).model_dump_json())
    assert WorkOrder(plan=plan, frozen=frozen).params == {"carrier": "UA", "month": 2}


def over_an_input(**fields: str) -> str:
    fields = {"name": "f", "inputs": "{prices: p@7, u: v}", **fields}
    written = ", ".join(f"{key}: {value}" for key, value in fields.items())
    fork = "for_each: {day: {from: prices.day, distinct: true}}, steps: [{python: 'm:f'}]"
    return f"{HEAD}{A}  - {{{written}, {fork}}}\n"


def test_a_fork_over_a_group_uses_the_output_rather_than_an_input_of_the_same_name() -> None:
    sales = (
        "  - {name: sales, inputs: {sales: sales}, steps: [{python: 'm:f', output: sales_new}]}\n"
    )
    fork = (
        "  - {name: f, needs: [sales], for_each: {day: {from: sales.day}}, steps: [{python: "
        "'m:f'}]}\n"
    )
    plan = plan_of(HEAD + sales + fork)
    assert list(plan.groups) == ["sales", "f"]
    assert plan.groups["sales"].feeds == (("f", "sales.day"),)


def test_a_fork_over_an_input_gets_a_preceding_group_that_reads_the_values() -> None:
    plan = plan_of(
        over_an_input(
            needs="[a]", when="results.a.n > 1", queue="heavy", retry="{max: 7}", pool="jdbc"
        )
    )
    assert list(plan.groups) == ["a", "f-values", "f"]
    reader, fork = plan.groups["f-values"], plan.groups["f"]
    assert fork.spec.needs == ("f-values", "a")
    assert (reader.spec.needs, reader.spec.when) == (("a",), "results.a.n > 1")
    assert (reader.spec.spark, reader.spec.for_each, reader.spec.pool) == (False, None, None)
    assert (reader.spec.queue_name, reader.retry.max) == ("heavy", 7)
    assert {name: (one.dataset, one.version) for name, one in reader.spec.inputs.items()} == {
        "prices": ("p", 7)
    }
    assert [(one.key, one.distinct) for one in reader.collect] == [("prices.day", True)]
    assert reader.feeds == (("f", "prices.day"),)
    assert plan.default_publish == {"f"}
    # A needed group that reads the same dataset does not feed the fork.
    other = plan_of(
        over_an_input(needs="[a]").replace("{name: a,", "{name: a, inputs: {prices: p},")
    )
    assert (other.groups["a"].feeds, other.groups["f-values"].feeds) == ((), (("f", "prices.day"),))
    assert (
        GroupPlan.model_validate_json(plan.group_plans("", None)["f-values"]).group == reader.spec
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"name": "f" * 57},
            f"the group that reads these values is named '{'f' * 57}-values', and a name has at most 63",
        ),
        (
            {"needs": "[a]", "join": "any_succeeded"},
            "waits for the group that reads its values, so its join: cannot be any_",
        ),
        (
            {"inputs": "{price: p}"},
            "a fork of 'prices' needs the group that makes it; add needs:, or inputs: with",
        ),
    ],
)
def test_an_impossible_fork_over_an_input_is_refused(fields: dict[str, str], message: str) -> None:
    (line,) = told(over_an_input(**fields))
    assert "groups[1].for_each.day.from: " in line
    assert message in line


def test_the_name_of_the_value_reading_group_is_reserved() -> None:
    (line,) = told(over_an_input() + "  - {name: f-values, steps: [{python: 'm:f'}]}\n")
    assert ("the group that reads these values is named 'f-values'") in line
