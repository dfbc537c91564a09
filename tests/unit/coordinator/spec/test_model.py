"""The job spec: read from a file, a text or values, stored as canonical JSON, its parameters
overridden.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs.specs import FLIGHTS, HEAD, A, minimal, told
from unstuck.coordinator.spec import json_schema as schema
from unstuck.coordinator.spec.defaults import Defaults
from unstuck.coordinator.spec.job_params import UnparsedText
from unstuck.coordinator.spec.model import JobSpec, SpecError
from unstuck.coordinator.spec.plan import plan_of
from unstuck.tasks.spec.group import GroupSpec


def test_the_example_spec_of_the_design_is_valid() -> None:
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


def test_json_and_python_values_give_the_same_spec_as_yaml() -> None:
    spec = JobSpec.from_text(FLIGHTS)
    assert JobSpec.from_text(spec.to_json(), "s.json") == spec
    assert JobSpec.model_validate(json.loads(spec.to_json())) == spec
    assert JobSpec.model_validate_json(spec.to_json()) == spec


def test_a_stored_spec_is_read_back_unchanged() -> None:
    # A group that asks for the default by name must still win over the job's defaults after a round
    # trip.
    spec = JobSpec.model_validate(
        minimal(
            defaults={"worker_losses": 9},
            groups=[{"name": "a", "worker_losses": 3, "steps": [{"python": "m:f"}]}],
        )
    )
    again = JobSpec.model_validate_json(spec.to_json())
    assert again == spec
    assert "worker_losses" in again.groups[0].model_fields_set
    assert again.to_json() == spec.to_json()


def test_a_stored_spec_contains_only_written_fields() -> None:
    # Else a release that knows one field more would store specs that the release before it refuses.
    assert (
        JobSpec.model_validate(minimal()).to_json()
        == '{"groups":[{"name":"a","steps":[{"python":"m:f"}]}],"name":"x"}'
    )


def test_the_fingerprint_ignores_layout_and_depends_on_every_value() -> None:
    spec = JobSpec.from_text(FLIGHTS)
    assert (
        JobSpec.from_text(
            "# a comment\n" + FLIGHTS.replace("timeout: 1h", "timeout:   60m")
        ).fingerprint
        == spec.fingerprint
    )
    assert JobSpec.from_text(FLIGHTS.replace("2013", "2014")).fingerprint != spec.fingerprint
    assert JobSpec.from_text(FLIGHTS.replace("2013", "'2013'")).fingerprint != spec.fingerprint
    assert len(spec.fingerprint) == 64


def test_all_forms_of_joins_and_forks_survive_storing() -> None:
    text = (
        HEAD
        + A
        + (
            "  - {name: f, needs: [a], for_each: {m: {from: a.months, distinct: true}}, steps: "
            "[{python: 'm:f'}]}\n"
            "  - {name: b, needs: [f, a], join: {at_least: 2}}\n"
            "  - {name: c, needs: [f, a], join: {rule: at_least, count: 1}}\n"
            "  - {name: d, needs: [f, a], join: none_failed}\n"
        )
    )
    spec = JobSpec.from_text(text)
    assert JobSpec.model_validate_json(spec.to_json()) == spec
    assert [str(group.join) for group in spec.groups[2:]] == [
        "at_least: 2",
        "at_least: 1",
        "none_failed",
    ]


def test_a_spec_built_in_python_is_checked_like_a_file() -> None:
    group = GroupSpec.model_validate({"name": "a", "steps": [{"python": "m:f"}]})
    assert JobSpec(name="x", groups=(group,), defaults=Defaults(timeout=60)).groups == (group,)
    with pytest.raises(SpecError, match=r"groups\[1\]\.name: groups\[0\] has the name 'a', too"):
        JobSpec(name="x", groups=(group, group))
    with pytest.raises(SpecError, match=r"name: expected a name \(letters"):
        JobSpec(name="../x", groups=(group,))


# --- the file


def test_a_spec_file_is_read_with_the_sql_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "q.sql").write_text("SELECT 1 AS é", encoding="utf-8")
    (tmp_path / "s.yaml").write_text(
        HEAD + "  - {name: a, steps: [{sql_file: sql/q.sql, output: o}]}\n"
    )
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
def test_an_unusable_sql_file_is_refused_with_its_place(
    tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "q.sql").write_text("SELECT 1")
    folder = tmp_path / "specs"
    folder.mkdir()
    (folder / "empty.sql").write_text(" \n")
    (folder / "latin.sql").write_bytes(b"SELECT '\xe9'")
    (folder / "big.sql").write_text("x" * (1024 * 1024 + 1))
    (line,) = told(HEAD + f"  - name: a\n    steps: [{{sql_file: {name}}}]\n", folder=folder)
    assert line.startswith("s.yaml:4:24: groups[0].steps[0].sql_file: ")
    assert message in line


def test_an_sql_file_of_a_spec_without_a_folder_is_refused() -> None:
    assert (
        "this spec was not read from a file"
        in told(HEAD + "  - {name: a, steps: [{sql_file: q.sql}]}\n")[0]
    )
    spec = JobSpec.model_validate(minimal(groups=[{"name": "a", "steps": [{"sql_file": "q.sql"}]}]))
    with pytest.raises(
        SpecError, match=r"groups\[0\]\.steps\[0\]\.sql_file: 'q\.sql' cannot be found"
    ):
        spec.to_json()


@pytest.mark.parametrize("name", ["none.yaml", "folder", "a\0b"])
def test_an_unreadable_file_is_reported_with_the_cause(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(SpecError, match="cannot be read: ") as caught:
        JobSpec.from_file(os.fspath(tmp_path) + "/" + name)
    assert name in str(caught.value)


def test_a_missing_file_is_reported_with_a_similar_name(tmp_path: Path) -> None:
    for name in ("sales.yaml", "sales.csv", "other.yaml"):
        (tmp_path / name).touch()
    with pytest.raises(SpecError, match=r"No such file or directory; did you mean 'sales\.yaml'\?"):
        JobSpec.from_file(tmp_path / "sale.yaml")


def test_a_file_above_ten_megabytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_bytes(b"#" * (10 * 1024 * 1024 + 1))
    with pytest.raises(SpecError, match="larger than 10 MB"):
        JobSpec.from_file(tmp_path / "s.yaml")


# --- parameters


def test_parameters_given_as_text_are_parsed_as_in_the_spec() -> None:
    spec = JobSpec.model_validate(
        minimal(params={"year": 2013, "on": True, "months": [1], "rest": None})
    )
    texts = {"year": "2014", "on": "false", "months": "[2, 3]", "rest": "2013-01-01"}
    new = spec.with_params({name: UnparsedText(text) for name, text in texts.items()})
    assert new.params == {"year": 2014, "on": False, "months": [2, 3], "rest": "2013-01-01"}
    assert spec.params["year"] == 2013
    assert spec.with_params({"year": 2015}).params["year"] == 2015


@pytest.mark.parametrize("value", [str, UnparsedText])
@pytest.mark.parametrize(
    "text", ["NO", "01234", "2014", "null", "a: b # c", "[1, 2]", "*x", '"q"', "'q'", '"q', ""]
)
def test_a_text_parameter_gets_the_literal_text(text: str, value: type[Any]) -> None:
    spec = JobSpec.model_validate(minimal(params={"p": "SE"}))
    assert spec.with_params({"p": value(text)}).params == {"p": text}


@pytest.mark.parametrize("text", ["2014", "true", "null", "[1]", "{a: 1}", '"q"', "01234", "yes"])
def test_text_given_in_python_is_never_parsed(text: str) -> None:
    spec = JobSpec.model_validate(minimal(params={"any": None, "year": 2013}))
    assert spec.with_params({"any": text}).params["any"] == text
    with pytest.raises(
        SpecError, match=r"^params\.year: expected a whole number, as in the spec, not '"
    ):
        spec.with_params({"year": text})


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("form", ["{}", "{}\n", "\ufeff{}\n\n"])
def test_line_endings_and_a_byte_order_mark_do_not_change_a_spec(
    tmp_path: Path, form: str, end: str
) -> None:
    """Submitting it once more under its key was a KEY_CONFLICT."""
    group = (
        "  - name: a\n    steps: [{sql_file: q.sql, output: o}]\n    description: |\n      "
        "two\n      lines"
    )

    def fingerprint(form: str, end: str) -> str:
        (tmp_path / "s.yaml").write_bytes(form.format(HEAD + group).replace("\n", end).encode())
        (tmp_path / "q.sql").write_bytes(form.format("SELECT 1,\n  2").replace("\n", end).encode())
        return JobSpec.from_file(tmp_path / "s.yaml").fingerprint

    assert fingerprint(form, end) == fingerprint("{}", "\n")


def test_overriding_an_unknown_parameter_lists_the_known_ones() -> None:
    spec = JobSpec.from_text(FLIGHTS)
    with pytest.raises(SpecError) as caught:
        spec.with_params({"yeer": "2014", "zzz": "1"})
    assert str(caught.value).splitlines() == [
        "params.yeer: no such parameter; did you mean 'year'?; the spec has: year",
        "params.zzz: no such parameter; the spec has: year",
    ]


@pytest.mark.parametrize("text", ["no", "010", "[1", "{a: 1, a: 2}", "9" * 30])
def test_an_unparsable_override_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"^params\.year: "):
        JobSpec.from_text(FLIGHTS).with_params({"year": UnparsedText(text)})


def test_a_file_is_read_with_overrides(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(FLIGHTS)
    assert JobSpec.from_file(tmp_path / "s.yaml", {"year": UnparsedText("2014")}).params == {
        "year": 2014
    }


# --- the schema for editors


def test_the_committed_schema_is_up_to_date() -> None:
    assert schema.FILE.read_text(encoding="utf-8") == schema.schema_text(), (
        "run: python -m unstuck.coordinator.spec.json_schema"
    )


def test_the_schema_includes_every_accepted_short_form() -> None:
    plain, at_least, long = schema.json_schema()["$defs"]["JoinRule"]["anyOf"]
    for rule in plain["enum"]:
        JobSpec.model_validate(
            minimal(groups=[*minimal()["groups"], {"name": "b", "needs": ["a"], "join": rule}])
        )
    assert sorted([*plain["enum"], "at_least"]) == sorted(long["properties"]["rule"]["enum"])
    assert list(at_least["properties"]) == ["at_least"]


def test_every_property_of_the_schema_has_a_description() -> None:
    def undescribed(part: Any, path: str) -> Iterator[str]:
        if isinstance(part, dict):
            for name, field in part.get("properties", {}).items():
                if not field.get("description"):
                    yield f"{path}/{name}"
            for name, inner in part.items():
                yield from undescribed(inner, f"{path}/{name}")
        elif isinstance(part, list):
            for at, inner in enumerate(part):
                yield from undescribed(inner, f"{path}/{at}")

    assert schema.json_schema()["$id"]
    assert list(undescribed(schema.json_schema(), "")) == []


def test_the_schema_forbids_unknown_keys_wherever_the_parser_does() -> None:
    parsed = schema.json_schema()
    objects = [parsed, *parsed["$defs"].values()]
    assert [
        part["title"]
        for part in objects
        if part.get("type") == "object" and part["additionalProperties"]
    ] == []
    assert parsed["properties"]["params"]["additionalProperties"] is False


def test_a_stored_spec_is_not_checked_again() -> None:
    """Each load of a job would else take as long as its submit, on a coordinator that others wait
    for.
    """
    stored = json.dumps(
        {"name": "x", "groups": [{"name": "g", "steps": [{"sql": "SELECT 1; SELECT 2"}]}]}
    )
    with pytest.raises(SpecError, match="several statements"):
        JobSpec.model_validate_json(stored)
    assert list(plan_of(stored).groups) == ["g"]
    with pytest.raises(SpecError, match="unknown field"):
        plan_of(stored.replace('"sql"', '"sqll": 1, "sql"'))
