"""The job spec: what is wrong with it is told all at once, by place, and in words that a person can act on."""

from __future__ import annotations

import json
import os
import pickle
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator import schema
from coordinator.problem import Problem, path_text
from coordinator.spec import Defaults, JobSpec, SpecError
from coordinator.spec_words import NOT_YET, PATTERNS
from tasks.group import GroupSpec

FLIGHTS = """\
name: flights
params: {year: 2013}
defaults: {retry: {max: 3, backoff: 10s, max_backoff: 300s}, timeout: 1h}
max_parallel: 4
on_failure: cancel_others
publish: [flights_by_carrier, monthly, report]
groups:
  - name: clean
    steps:
      - python: examples.flights:clean
  - name: by_carrier
    needs: [clean]
    steps:
      - sql: SELECT carrier, count(*) AS flights FROM clean WHERE year = :year GROUP BY carrier
        output: flights_by_carrier
  - name: by_month
    needs: [clean]
    for_each: {month: [1, 2, 3]}
    steps: [{python: examples.flights:month}]
  - name: report
    needs: [by_carrier, by_month]
    join: all_succeeded
    queue: heavy
    steps: [{python: examples.flights:report}]
"""
HEAD = "name: x\ngroups:\n"
A = "  - {name: a, steps: [{python: 'm:f'}]}\n"


def told(text: str, source: str = "s.yaml", folder: Path | None = None) -> list[str]:
    """The problems of ``text``, one line each."""
    with pytest.raises(SpecError) as caught:
        JobSpec.from_text(text, source, folder)
    return str(caught.value).splitlines()


def minimal(**fields: Any) -> dict[str, Any]:
    return {"name": "x", "groups": [{"name": "a", "steps": [{"python": "m:f"}]}], **fields}


# --- what is read


def test_the_spec_of_the_design_is_read() -> None:
    spec = JobSpec.from_text(FLIGHTS)
    assert (spec.name, spec.params, spec.max_parallel, spec.on_failure) == (
        "flights",
        {"year": 2013},
        4,
        "cancel_others",
    )
    assert spec.defaults.timeout == 3600.0
    assert spec.defaults.retry is not None
    assert spec.defaults.retry.max_backoff == 300.0
    assert [group.name for group in spec.groups] == ["clean", "by_carrier", "by_month", "report"]
    assert spec.groups[2].fork_values == (1, 2, 3)


def test_json_and_python_values_say_the_same_as_yaml() -> None:
    spec = JobSpec.from_text(FLIGHTS)
    assert JobSpec.from_text(spec.to_json(), "s.json") == spec
    assert JobSpec.model_validate(json.loads(spec.to_json())) == spec
    assert JobSpec.model_validate_json(spec.to_json()) == spec


def test_what_is_stored_reads_back_as_it_was_and_keeps_what_was_written() -> None:
    # A group that asks for the default by name must still win over the job's defaults after a round trip.
    spec = JobSpec.model_validate(
        minimal(defaults={"worker_losses": 9}, groups=[{"name": "a", "worker_losses": 3, "steps": [{"python": "m:f"}]}])
    )
    again = JobSpec.model_validate_json(spec.to_json())
    assert again == spec
    assert "worker_losses" in again.groups[0].model_fields_set
    assert again.to_json() == spec.to_json()


def test_what_is_stored_holds_no_field_that_nobody_wrote() -> None:
    # Else a release that knows one field more would store specs that the release before it refuses.
    assert (
        JobSpec.model_validate(minimal()).to_json() == '{"groups":[{"name":"a","steps":[{"python":"m:f"}]}],"name":"x"}'
    )


def test_the_fingerprint_ignores_layout_and_sees_every_value() -> None:
    spec = JobSpec.from_text(FLIGHTS)
    assert (
        JobSpec.from_text("# a comment\n" + FLIGHTS.replace("timeout: 1h", "timeout:   60m")).fingerprint
        == spec.fingerprint
    )
    assert JobSpec.from_text(FLIGHTS.replace("2013", "2014")).fingerprint != spec.fingerprint
    assert JobSpec.from_text(FLIGHTS.replace("2013", "'2013'")).fingerprint != spec.fingerprint
    assert len(spec.fingerprint) == 64


def test_all_forms_of_a_join_and_of_a_fork_survive_storing() -> None:
    text = (
        HEAD
        + A
        + (
            "  - {name: f, needs: [a], for_each: {m: {from: a.months, distinct: true}}, steps: [{python: 'm:f'}]}\n"
            "  - {name: b, needs: [f, a], join: {at_least: 2}}\n"
            "  - {name: c, needs: [f, a], join: {rule: at_least, count: 1}}\n"
            "  - {name: d, needs: [f, a], join: none_failed}\n"
        )
    )
    spec = JobSpec.from_text(text)
    assert JobSpec.model_validate_json(spec.to_json()) == spec
    assert [str(group.join) for group in spec.groups[2:]] == ["at_least: 2", "at_least: 1", "none_failed"]


def test_a_spec_built_in_python_is_checked_like_one_that_was_read() -> None:
    group = GroupSpec.model_validate({"name": "a", "steps": [{"python": "m:f"}]})
    assert JobSpec(name="x", groups=(group,), defaults=Defaults(timeout=60)).groups == (group,)
    with pytest.raises(SpecError, match=r"groups\[1\]\.name: two groups are named 'a'"):
        JobSpec(name="x", groups=(group, group))
    with pytest.raises(SpecError, match="name: expected a name of letters"):
        JobSpec(name="../x", groups=(group,))


# --- the file


def test_a_file_is_read_with_its_sql_beside_it(tmp_path: Path) -> None:
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "q.sql").write_text("SELECT 1 AS é", encoding="utf-8")
    (tmp_path / "s.yaml").write_text(HEAD + "  - {name: a, steps: [{sql_file: sql/q.sql, output: o}]}\n")
    (step,) = JobSpec.from_file(tmp_path / "s.yaml").groups[0].steps
    assert (step.sql, step.sql_file, step.output) == ("SELECT 1 AS é", None, "o")
    inline = JobSpec.from_text(HEAD + "  - {name: a, steps: [{sql: SELECT 1 AS é, output: o}]}\n")
    assert JobSpec.from_file(str(tmp_path / "s.yaml")).fingerprint == inline.fingerprint


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.sql", "no such file: '"),
        (".", "no such file: '"),
        ("../q.sql", "is outside the folder of the spec"),
        ("a/../../q.sql", "is outside the folder of the spec"),
        ("/etc/passwd", "is outside the folder of the spec"),
        ('"a\\0b"', "is outside the folder of the spec"),
        ("empty.sql", "is empty"),
        ("latin.sql", "is not UTF-8 text"),
        ("big.sql", "is larger than 1 MB"),
    ],
)
def test_an_sql_file_that_cannot_be_taken_is_refused_with_its_place(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "q.sql").write_text("SELECT 1")
    folder = tmp_path / "specs"
    folder.mkdir()
    (folder / "empty.sql").write_text(" \n")
    (folder / "latin.sql").write_bytes(b"SELECT '\xe9'")
    (folder / "big.sql").write_text("x" * (1024 * 1024 + 1))
    (line,) = told(HEAD + f"  - name: a\n    steps: [{{sql_file: {name}}}]\n", folder=folder)
    assert line.startswith("s.yaml:4:24: groups[0].steps[0].sql_file: ")
    assert message in line


def test_an_sql_file_of_a_spec_without_a_folder_is_refused_before_anything_is_stored() -> None:
    assert "this spec was not read from a file" in told(HEAD + "  - {name: a, steps: [{sql_file: q.sql}]}\n")[0]
    spec = JobSpec.model_validate(minimal(groups=[{"name": "a", "steps": [{"sql_file": "q.sql"}]}]))
    with pytest.raises(SpecError, match=r"groups\[0\]\.steps\[0\]\.sql_file: 'q\.sql' cannot be found"):
        spec.to_json()


@pytest.mark.parametrize("name", ["none.yaml", "folder", "a\0b"])
def test_a_file_that_cannot_be_read_says_which_and_why(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(SpecError, match="cannot be read: ") as caught:
        JobSpec.from_file(os.fspath(tmp_path) + "/" + name)
    assert name in str(caught.value)


def test_a_file_above_ten_megabytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_bytes(b"#" * (10 * 1024 * 1024 + 1))
    with pytest.raises(SpecError, match="larger than 10 MB"):
        JobSpec.from_file(tmp_path / "s.yaml")


# --- parameters


def test_parameters_are_overridden_by_text_as_the_spec_would_read_it() -> None:
    spec = JobSpec.model_validate(minimal(params={"year": 2013, "on": True, "months": [1], "rest": None}))
    new = spec.with_params({"year": "2014", "on": "false", "months": "[2, 3]", "rest": "2013-01-01"})
    assert new.params == {"year": 2014, "on": False, "months": [2, 3], "rest": "2013-01-01"}
    assert spec.params["year"] == 2013
    assert spec.with_params({"year": 2015}).params["year"] == 2015


@pytest.mark.parametrize("text", ["NO", "01234", "2014", "null", "a: b # c", "[1, 2]", "*x"])
def test_a_parameter_that_is_text_stays_text(text: str) -> None:
    assert JobSpec.model_validate(minimal(params={"p": "SE"})).with_params({"p": text}).params == {"p": text}


def test_an_override_of_a_parameter_that_the_spec_lacks_lists_those_it_has() -> None:
    spec = JobSpec.from_text(FLIGHTS)
    with pytest.raises(SpecError) as caught:
        spec.with_params({"yeer": "2014", "zzz": "1"})
    assert str(caught.value).splitlines() == [
        "params.yeer: no such parameter; did you mean 'year'?; the spec has: year",
        "params.zzz: no such parameter; the spec has: year",
    ]


@pytest.mark.parametrize("text", ["no", "010", "[1", "{a: 1, a: 2}", "9" * 30])
def test_an_override_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"^params\.year: "):
        JobSpec.from_text(FLIGHTS).with_params({"year": text})


def test_a_file_is_read_with_overrides(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(FLIGHTS)
    assert JobSpec.from_file(tmp_path / "s.yaml", {"year": "2014"}).params == {"year": 2014}


# --- what is wrong with one value


def test_every_wrong_value_is_told_at_once_by_place_and_expectation() -> None:
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
    for_each: {m: [1, {a: 2}, null]}
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
        "s.yaml:1:7: name: expected a name of letters, digits, _ . and - (beginning with a letter, digit or _, at most"
        " 63 characters), not 'a/b'",
        "s.yaml:2:15: max_parallel: expected a whole number, not true",
        "s.yaml:3:13: on_failure: expected cancel_others or finish_others, not 'cancel'; did you mean 'cancel_others'?",
        "s.yaml:4:10: publish: expected a list, not 'x'",
        "s.yaml:5:1: extra: unknown field 'extra'; known: name, params, defaults, max_parallel, on_failure, publish,"
        " groups",
        "s.yaml:7:11: groups[0].name: expected a group name (letters, digits, _ and -, beginning with a letter or _, at"
        " most 63 characters), not '../x'",
        "s.yaml:8:12: groups[0].needs: expected a list, not 'x'",
        "s.yaml:9:14: groups[0].timeout: expected a duration such as 15s, 10m, 1h30m or 7d, not 'soon'",
        's.yaml:10:25: groups[0].conf["spark.sql.x"]: expected text, not the number 8; put it in quotes',
        "s.yaml:11:23: groups[0].for_each.m[1]: expected text, a number or true or false, not a mapping",
        "s.yaml:11:31: groups[0].for_each.m[2]: expected text, a number or true or false, not nothing (null)",
        "s.yaml:12:18: groups[0].retry.max: expected a whole number, not 'a'",
        "s.yaml:12:29: groups[0].retry.jitter: expected 1 or less, not the number 2",
        "s.yaml:12:32: groups[0].retry.maxx: unknown field 'maxx'; did you mean 'max'?",
        "s.yaml:13:11: groups[0].join: expected all_succeeded, all_done, any_succeeded, at_least or none_failed, not"
        " 'all_good'",
        "s.yaml:15:14: groups[0].steps[0].sql: expected text, not the number 1; put it in quotes",
        "s.yaml:16:9: groups[0].steps[1]: a step is exactly one of python:, sql: or sql_file:",
        "s.yaml:17:18: groups[0].steps[2].python: expected module:function, such as examples.flights:clean, not 'foo'",
        "s.yaml:17:31: groups[0].steps[2].output: expected a name (letters, digits and _, not beginning with a digit,"
        " at most 63 characters), not 'a b'",
        "s.yaml:18:5: groups[1]: 'name' is missing",
        "s.yaml:20:26: groups[2].for_each.m.from: expected output.column, such as clean.months, not 'x'",
        "s.yaml:21:11: groups[2].join: at_least wants a whole number of 1 or more",
        "s.yaml:23:19: groups[3].for_each.m: expected a list of values, or from: output.column, not the number 3",
        's.yaml:24:14: groups[3].params["a b"]: expected a name (letters, digits and _, not beginning with a digit, at'
        " most 63 characters), not 'a b'",
        "s.yaml:25:5: groups[4]: expected a mapping, not the number 17",
    ]


@pytest.mark.parametrize("field", sorted(NOT_YET))
def test_a_field_of_the_design_that_is_still_to_come_says_so(field: str) -> None:
    assert told(f"{field}: 1\n" + HEAD + A) == [f"s.yaml:1:1: {field}: {field!r} is not supported yet; remove it"]
    group = HEAD + f"  - {{name: a, {field}: 1, steps: [{{python: 'm:f', {field}: 1}}]}}\n"
    assert [line.rpartition(": ")[2] for line in told(group)] == [f"{field!r} is not supported yet; remove it"] * 2


def test_every_pattern_has_words() -> None:
    def patterns(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["pattern"]} if isinstance(value.get("pattern"), str) else set()
            own |= set(value.get("patternProperties", ()))
            return own.union(*(patterns(child) for child in value.values()))
        return set().union(*(patterns(child) for child in value)) if isinstance(value, list) else set()

    of_models = {p for p in patterns(schema.json_schema()) if r"\s*" not in p}  # the duration's words are its own
    assert of_models == set(PATTERNS)


@pytest.mark.parametrize("text", ["- 1", "17", "just text", "[]"])
def test_a_text_that_is_no_mapping_says_what_is_wanted(text: str) -> None:
    assert told(text)[0].startswith("s.yaml:1:1: expected a mapping with name: and groups:, not ")


def test_an_empty_job_is_refused() -> None:
    assert told("name: x\ngroups: []\n") == ["s.yaml:2:9: groups: expected at least one, not none"]
    assert told("name: x\n") == ["s.yaml:1:1: 'groups' is missing"]
    assert told("name:\ngroups:\n") == [
        "s.yaml:1:6: name: expected text, not nothing (null)",
        "s.yaml:2:8: groups: expected a list, not nothing (null)",
    ]


def test_problems_of_reading_and_of_meaning_are_told_together() -> None:
    lines = told("name: x\nname: y\nparams: {c: NO}\nfoo: 1\n" + HEAD.partition("\n")[2] + A)
    assert [line.split(": ")[1] for line in lines] == ["name", "params.c", "foo"]


def test_problems_of_a_python_value_have_paths_without_lines() -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec.model_validate(minimal(max_paralel=3))
    (problem,) = caught.value.problems
    assert (problem.path, problem.line, problem.source) == ("max_paralel", None, "")
    assert str(caught.value) == "max_paralel: unknown field 'max_paralel'; did you mean 'max_parallel'?"


def test_a_thousand_problems_are_told_in_fifty_lines() -> None:
    lines = told(HEAD + "".join(f"  - {{name: g{i}, needs: [h{i}]}}\n" for i in range(2000)))
    assert len(lines) == 51
    assert lines[-1] == "… and 950 more problems"


def test_a_spec_error_travels_between_processes() -> None:
    error = SpecError([Problem("wrong", ("a", 1), False, "s.yaml", 2, 3)])
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.problems) == ("s.yaml:2:3: a[1]: wrong", error.problems)


def test_paths_are_written_without_a_second_reading() -> None:
    assert path_text(("groups", 2, "steps", 0, "sql")) == "groups[2].steps[0].sql"
    assert path_text(("conf", "spark.sql.x")) == 'conf["spark.sql.x"]'
    assert path_text(("params", "a\nb")) == 'params["a\\nb"]'
    assert path_text(()) == ""


# --- what only the whole can show to be wrong


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (A + A, "s.yaml:4:12: groups[1].name: two groups are named 'a', this one and groups[0]"),
        (
            A + "  - {name: b, needs: [aa]}\n",
            "s.yaml:4:23: groups[1].needs[0]: unknown group 'aa'; did you mean 'a'?",
        ),
        (
            A + "  - {name: b, needs: [zebra]}\n",
            "s.yaml:4:23: groups[1].needs[0]: unknown group 'zebra'; groups: a, b",
        ),
        (A + "  - {name: b, needs: [a, b]}\n", "s.yaml:4:26: groups[1].needs[1]: group 'b' needs itself; remove it"),
        (A + "  - {name: b, needs: [a, a]}\n", "s.yaml:4:26: groups[1].needs[1]: 'a' is needed twice; keep one"),
        (
            A + "  - name: b\n",
            "s.yaml:4:5: groups[1]: group 'b' has neither steps: nor needs:, so there is nothing to do",
        ),
        (
            "  - {name: a, needs: [c]}\n  - {name: b, needs: [a]}\n  - {name: c, needs: [b]}\n",
            "s.yaml:3:23: groups[0].needs[0]: a cycle, each needs the next: a → c → b → a",
        ),
        (
            "  - {name: a, needs: [b]}\n  - {name: b, needs: [a]}\n",
            "s.yaml:3:23: groups[0].needs[0]: a cycle, each needs the next: a → b → a",
        ),
        (
            A + "  - {name: b, needs: [a], join: {at_least: 2}}\n",
            "s.yaml:4:33: groups[1].join: at_least: 2 can never be met by 1 needs",
        ),
        (
            A + "  - {name: b, needs: [a], join: at_least}\n",
            "s.yaml:4:33: groups[1].join: at_least wants a number, as in join: {at_least: 2}",
        ),
        (
            A + "  - {name: b, needs: [a], join: {rule: all_done, count: 2}}\n",
            "s.yaml:4:33: groups[1].join: count: has no meaning for all_done; it belongs to at_least",
        ),
        (
            "  - {name: a, join: any_succeeded, steps: [{python: 'm:f'}]}\n",
            "s.yaml:3:21: groups[0].join: join: any_succeeded on a group without needs: there is nothing to join",
        ),
        (
            "  - {name: a, steps: [{sql: x, output: o}]}\n  - {name: b, steps: [{sql: x, output: o}]}\n",
            "s.yaml:4:40: groups[1].steps[0].output: output 'o' is made by groups[0].steps[0] too; an output has one"
            " maker, give one another name",
        ),
        (
            "  - {name: a, steps: [{sql: x, output: o}, {sql: x, output: O}]}\n",
            "s.yaml:3:62: groups[0].steps[1].output: output 'O' (or 'o': case does not count) is made by"
            " groups[0].steps[0] too; an output has one maker, give one another name",
        ),
        (
            "  - {name: a, for_each: {m: [1]}, params: {m: 2}, steps: [{python: 'm:f'}]}\n",
            "s.yaml:3:44: groups[0].params.m: 'm' is the fork's parameter already; remove it here",
        ),
        (
            "  - {name: a, for_each: {m: [1]}, steps: [{python: 'm:f', params: {m: 2}}]}\n",
            "s.yaml:3:69: groups[0].steps[0].params.m: 'm' is the fork's parameter already; remove it here",
        ),
    ],
)
def test_a_graph_that_cannot_work_is_refused(groups: str, message: str) -> None:
    assert told(HEAD + groups) == [message]


def test_a_fork_counts_with_its_members() -> None:
    fork = "  - {name: f, for_each: {m: [1, 2, 3]}, steps: [{python: 'm:f'}]}\n"
    assert JobSpec.from_text(HEAD + fork + "  - {name: b, needs: [f], join: {at_least: 2}}\n").groups[1].join.count == 2


def test_a_long_cycle_and_a_long_chain_are_no_trouble() -> None:
    def ring(first: int) -> str:
        chain = "".join(f"  - {{name: g{i}, needs: [g{i - 1}]}}\n" for i in range(1, 3000))
        return HEAD + f"  - {{name: g0, steps: [{{python: 'm:f'}}], needs: [{f'g{first}' if first else ''}]}}\n" + chain

    assert len(JobSpec.from_text(ring(0)).groups) == 3000
    (line,) = told(ring(2999))
    assert "g0 → g2999 → g2998" in line
    assert "… 2988 more …" in line


MAKER = "  - {name: a, steps: [{sql: x, output: o}]}\n"
PYTHON_MAKER = "  - {name: a, steps: [{python: 'm:f', output: o}]}\n"


def forked(source: str, needs: str = "a") -> str:
    return f"  - {{name: b, needs: [{needs}], for_each: {{m: {{from: {source}}}}}, steps: [{{python: 'm:f'}}]}}\n"


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (MAKER + forked("zebra.c"), "no needed group makes 'zebra'; known: a, o"),
        (MAKER + forked("o.c", ""), "a fork of 'o' must need the group that makes it; add needs:"),
        (
            A + MAKER.replace("a,", "c,") + forked("o.c"),
            "'o' is made by group 'c', which is not among the needs; add it",
        ),
        (
            A + MAKER.replace("a,", "c,") + forked("c.c"),
            "'c' is made by group 'c', which is not among the needs; add it",
        ),
        (A + forked("b.c"), "'b' is made by this group itself"),
        (
            "  - {name: a, for_each: {m: [1]}, steps: [{python: 'm:f', output: o}]}\n" + forked("o.c"),
            "group 'a' is a fork itself",
        ),
        (A + "  - {name: j, needs: [a]}\n" + forked("j.c", "j"), "group 'j' has no steps, so it makes no output"),
        (
            "  - {name: a, steps: [{sql: x, output: o}, {sql: x, output: p}]}\n" + forked("a.c"),
            "group 'a' has several outputs; name the one to take: o, p",
        ),
        ("  - {name: a, steps: [{sql: x}]}\n" + forked("a.c"), "group 'a' declares no output:; give its SQL step one"),
    ],
)
def test_a_dynamic_fork_without_a_maker_is_refused(groups: str, message: str) -> None:
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
def test_a_dynamic_fork_that_may_work_is_left_to_the_run(groups: str) -> None:
    assert JobSpec.from_text(HEAD + groups).groups[1].fork_from is not None


def test_publish_is_checked_where_no_python_step_can_make_the_output() -> None:
    assert told(HEAD + MAKER + "publish: [o, oo, o]\n") == [
        "s.yaml:4:14: publish[1]: no group makes an output 'oo'; outputs: o",
        "s.yaml:4:18: publish[2]: 'o' is listed twice; keep one",
    ]
    assert JobSpec.from_text(HEAD + A + "publish: [anything]\n").publish == ("anything",)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            date(2013, 1, 1),
            "params.p: expected text, a number, true, false, null, a list or a mapping, not a Python date",
        ),
        ({"a": [1, {2}]}, "params.p.a[1]: expected text"),
        (float("nan"), "params.p: nan is no number that JSON can hold"),
        (2**63, "params.p: a whole number of more than 64 bits; give it as text"),
        ({1: 2}, "params.p: a key must be text, not the number 1"),
        ("\ud800", "params.p: not valid Unicode text"),
        ("x" * 70_000, "params: more than 64 KB of parameters"),
    ],
)
def test_a_parameter_that_json_cannot_carry_is_refused_wherever_it_stands(value: Any, message: str) -> None:
    step = {"python": "m:f"}
    for spec, place in [
        (minimal(params={"p": value}), ""),
        (minimal(groups=[{"name": "a", "params": {"p": value}, "steps": [step]}]), "groups[0]."),
        (minimal(groups=[{"name": "a", "steps": [{**step, "params": {"p": value}}]}]), "groups[0].steps[0]."),
    ]:
        with pytest.raises(SpecError) as caught:
            JobSpec.model_validate(spec)
        assert str(caught.value).startswith(place + message)


def test_a_parameter_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless += [endless, endless]
    with pytest.raises(SpecError, match="nested more than 20 levels deep"):
        JobSpec.model_validate(minimal(params={"p": endless}))


def test_a_job_has_bounds() -> None:
    group = GroupSpec.model_validate(
        {"name": "a", "for_each": {"m": list(range(10_000))}, "steps": [{"python": "m:f"}]}
    )
    forks = tuple(group.model_copy(update={"name": f"f{i}"}) for i in range(11))
    with pytest.raises(SpecError, match="all forks together have 110,000 values; at most 100,000 are allowed"):
        JobSpec(name="x", groups=forks)
    plain = GroupSpec.model_validate({"name": "a", "steps": [{"python": "m:f"}]})
    many = tuple(plain.model_copy(update={"name": f"g{i}"}) for i in range(10_001))
    with pytest.raises(SpecError, match="10,001 groups; at most 10,000 are allowed"):
        JobSpec(name="x", groups=many)


# --- any text at all


def refuses_or_reads(text: str, source: str) -> None:
    """Anything but a SpecError, or a spec that stores and reads back, fails the test."""
    try:
        spec = JobSpec.from_text(text, source)
    except SpecError as error:
        told = str(error)
    else:
        again = JobSpec.from_text(spec.to_json(), "s.json")
        assert again == spec
        assert again.fingerprint == spec.fingerprint
        return
    assert told.startswith(source)


SOURCES = st.sampled_from(["s.yaml", "s.json", "<text>"])
TOKENS = [
    "- ",
    "? ",
    ": ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "\n",
    "\n  ",
    "\t",
    "&a ",
    "*a ",
    "<<: ",
    "!!set ",
    "!x ",
    "'",
    '"',
]
TOKENS += [
    "#",
    "|\n",
    ">\n",
    "%YAML 1.1\n",
    "---\n",
    "...\n",
    "\ufeff",
    "\x85",
    "\u2028",
    "\ud800",
    "name",
    "groups",
    "a",
]
TOKENS += ["steps", "needs", "for_each", "from", "join", "at_least", "params", "python", "m:f", "1", "no", "~", "1e999"]
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["a", "m:f", "a.c"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [*GroupSpec.model_fields, *JobSpec.model_fields, "python", "sql", "from", "rule", "at_least"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.text() | st.lists(st.sampled_from(TOKENS)).map("".join), SOURCES)
@settings(max_examples=500, deadline=None)
def test_any_text_is_read_or_refused_with_a_spec_error(text: str, source: str) -> None:
    refuses_or_reads(text, source)


@given(st.integers(0, len(FLIGHTS)), st.integers(0, 20), st.lists(st.sampled_from(TOKENS), max_size=3).map("".join))
@settings(max_examples=300, deadline=None)
def test_a_spec_with_a_wound_is_read_or_refused_with_a_spec_error(at: int, length: int, new: str) -> None:
    refuses_or_reads(FLIGHTS[:at] + new + FLIGHTS[at + length :], "s.yaml")


@given(
    st.fixed_dictionaries({"name": st.just("x"), "groups": VALUES | st.lists(st.just({"name": "a"}) | VALUES)})
    | st.dictionaries(st.sampled_from(list(JobSpec.model_fields)), VALUES)
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_json_value_is_read_or_refused_with_a_spec_error(value: Any) -> None:
    refuses_or_reads(json.dumps(value), "s.json")


# --- the schema for editors


def test_the_committed_schema_is_up_to_date() -> None:
    assert schema.FILE.read_text(encoding="utf-8") == schema.schema_text(), "run: python -m coordinator.schema"


def test_the_schema_knows_every_short_form_that_the_reader_takes() -> None:
    plain, at_least, long = schema.json_schema()["$defs"]["JoinRule"]["anyOf"]
    for rule in plain["enum"]:
        JobSpec.model_validate(minimal(groups=[*minimal()["groups"], {"name": "b", "needs": ["a"], "join": rule}]))
    assert sorted([*plain["enum"], "at_least"]) == sorted(long["properties"]["rule"]["enum"])
    assert list(at_least["properties"]) == ["at_least"]


def test_the_schema_leaves_no_object_open_that_the_reader_closes() -> None:
    parsed = schema.json_schema()
    objects = [parsed, *parsed["$defs"].values()]
    assert [part["title"] for part in objects if part.get("type") == "object" and part["additionalProperties"]] == []
    assert parsed["properties"]["params"]["additionalProperties"] is False
