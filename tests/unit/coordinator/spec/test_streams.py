"""What a spec says of streams: who may read one, which outputs are written from one, and what is
refused.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.jobs.specs import told
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.plan import compile_plan
from unstuck.tasks.spec.fields import STORED
from unstuck.tasks.spec.work_order import FrozenInputs, GroupPlan, WorkOrder

EVENTS = {"stream": "/data/events", "format": "json", "schema": "id BIGINT, at STRING"}
SQL = [{"sql": "SELECT id FROM events", "output": "loads"}]


NO_SPARK = {"spark": False, "steps": [{"python": "m:f"}]}


def text_of(events: Any = None, outputs: Any = None, **group: Any) -> str:
    load = {"name": "load", "inputs": {"events": events or EVENTS}, "steps": SQL, **group}
    return json.dumps(
        {"name": "x", "groups": [load], "outputs": outputs or {"loads": {"mode": "append"}}}
    )


def test_a_group_may_not_write_an_output_declared_by_another_group() -> None:
    spec = json.loads(
        text_of(outputs={name: {"mode": "append"} for name in ("loads", "ids", "more")})
    )
    other = {
        "name": "ids",
        "inputs": {"events": EVENTS},
        "steps": [{"python": "m:f", "output": "ids"}],
    }
    plan = compile_plan(JobSpec.from_values({**spec, "groups": [*spec["groups"], other]}, None))
    assert plan.appended_by(plan.groups["load"]) == ("loads",), "of SQL, its own alone"
    assert plan.appended_by(plan.groups["ids"]) == ("ids", "more"), (
        "a function may write others by their names"
    )


def plan_of(text: str) -> GroupPlan:
    plans = compile_plan(
        JobSpec.model_validate_json(JobSpec.from_text(text).to_json())
    ).group_plans("/w", "id")
    return GroupPlan.model_validate_json(plans["load"], context=STORED)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"stream": "data/events"},
            "stream: 'data/events' must be an absolute path without .., file:///… or s3://…",
        ),
        (
            {"stream": "/data/../events"},
            "stream: '/data/../events' must be an absolute path without ..",
        ),
        ({"stream": 7}, "stream: expected text, not the number 7; put it in quotes"),
        ({"stream": "s3://key:secret@bucket/events"}, "stream: "),
        (
            {"format": "jsn"},
            "format: expected csv, json, orc, parquet or text, not 'jsn'; did you mean 'json'?",
        ),
        (
            {"schema": "id"},
            "schema: 'id' is no column; expected names and types, as id BIGINT, at STRING",
        ),
        ({"schema": "id BIGINT, at TXT"}, "schema: 'TXT' is no type of a column"),
        ({"schema": "a VARCHAR(10)"}, "schema: 'VARCHAR(10)' is no type of a column"),
        ({"schema": "id BIGINT,, at STRING"}, "schema: '' is no column"),
        ({"schema": "id BIGINT, ID STRING"}, "schema: the column id is there twice"),
        ({"schema": "a ARRAY<STRUCT<b: INT>, c INT"}, "schema: there is a < that is not closed"),
        ({"schema": "a INT COMMENT 'it''s, c INT"}, "schema: there is a ' that is not closed"),
        (
            {"schema": "a DECIMAL(1,2)), c INT"},
            "schema: there is a ) too many after 'a DECIMAL(1,2)'",
        ),
        ({"schema": ""}, "schema: expected text, not empty text"),
        (
            {"options": {"header": 1.5}},
            "options.header: expected text, not the number 1.5; put it in quotes",
        ),
        ({"changed": "maybe"}, "changed: expected fail, again or ignore, not 'maybe'"),
        ({"generation": 0}, "generation: expected 1 or more, not the number 0"),
        ({"generaton": 2}, "generaton: unknown field 'generaton'; did you mean 'generation'?"),
        ({"dataset": "flights"}, "dataset: unknown field 'dataset'"),
        ({"format": None}, "format: expected csv, json, orc, parquet or text"),
    ],
)
def test_an_invalid_stream_is_reported_with_the_expected_form(
    change: dict[str, Any], message: str
) -> None:
    (line,) = told(text_of({**EVENTS, **change}))
    assert f"groups[0].inputs.events.{message}" in line


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"format": "csv", "schema": "a ARRAY<INT>"},
            "a file of CSV holds no lists, maps and structs, as the column a",
        ),
        (
            {"format": "text", "schema": "a INT"},
            "a file of text has one column, of the type STRING",
        ),
        ({"schema": "_file STRING"}, "the schema wants a column beside _file"),
        (
            {"options": {"maxFilesPerTrigger": "1"}},
            "files of the format json have no option maxfilespertrigger; say",
        ),
        (
            {"options": {"Path": "/x"}},
            "files of the format json have no option path; the place is stream:",
        ),
        (
            {"options": {"cleanSource": "delete"}},
            "files of the format json have no option cleansource; there are: ",
        ),
    ],
)
@pytest.mark.parametrize("state", [False, True])
def test_columns_and_options_unsupported_by_the_format_are_refused(
    change: dict[str, Any], message: str, state: bool
) -> None:
    (line,) = told(text_of({**EVENTS, **change, "state": state}))
    assert f"inputs.events: {message}" in line


def test_the_dataset_name_of_quarantined_files_is_reserved() -> None:
    both = {"loads": {"mode": "append"}, "loads__rejected": {"mode": "append"}}
    lines = told(text_of({**EVENTS, "on_bad_file": "skip"}, both))
    assert (
        "the rejected rows of 'loads' have the name 'loads__rejected'; use another name"
        in " ".join(lines)
    )
    assert plan_of(text_of(EVENTS, {"loads": {"mode": "append"}}))


@pytest.mark.parametrize("field", ["format", "schema"])
def test_missing_parts_of_a_stream_are_named(field: str) -> None:
    (line,) = told(text_of({name: value for name, value in EVENTS.items() if name != field}))
    assert f"groups[0].inputs.events: {field!r} is missing" in line


@pytest.mark.parametrize(
    "schema",
    [
        "id BIGINT",
        "id: bigint, at: timestamp_ntz",
        "`a, b` DECIMAL(10, 2),\n  c ARRAY<STRUCT<x: INT, y: MAP<STRING, DATE>>>",
    ],
)
def test_columns_are_written_as_in_sql(schema: str) -> None:
    (stream,) = plan_of(text_of({**EVENTS, "schema": schema})).group.streams.values()
    assert stream.columns == schema


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (
            {
                "spark": False,
                "steps": [{"python": "m:f"}],
                "inputs": {"events": {**EVENTS, "state": True}},
            },
            "'events' is a stream: Spark reads state: true; remove spark: false",
        ),
        (
            {"for_each": {"n": [1, 2]}, "inputs": {"events": {**EVENTS, "identity": "content"}}},
            "'events' is a stream: the members of a fork cannot share identity: content",
        ),
        (
            {"for_each": {"n": [1, 2]}, "inputs": {"events": {**EVENTS, "state": True}}},
            "'events' is a stream: the members of a fork cannot share state: true",
        ),
        (
            {"steps": [{"sql": "SELECT 1 AS n", "output": "other"}]},
            "write outputs: {other: {mode: append}}",
        ),
    ],
)
def test_a_group_that_cannot_read_a_stream_is_reported_at_the_stream(
    group: dict[str, Any], message: str
) -> None:
    lines = [line for line in told(text_of(**group)) if "inputs.events" in line]
    assert len(lines) == 1
    assert f"groups[0].inputs.events: {message}" in lines[0] or message in lines[0]


@pytest.mark.parametrize(
    "output",
    [
        {},
        {"mode": "replace"},
        {"mode": "partition_overwrite", "partition_by": ["id"], "partitions": {"id": 1}},
        {"mode": "append", "format": "delta", "path": "/tables/loads"},
    ],
)
def test_an_output_of_a_stream_must_be_appended_to_a_dataset(
    output: dict[str, Any],
) -> None:
    (line,) = told(text_of(outputs={"loads": output}))
    assert (
        "groups[0].inputs.events: 'events' is a stream: no output of the group is published by appending"
    ) in line
    assert "write outputs: {loads: {mode: append}}" in line


def test_a_group_without_spark_reads_a_stream() -> None:
    assert plan_of(text_of(**NO_SPARK)).appended == ("loads",)


def test_a_group_reads_at_most_one_stream() -> None:
    spec = json.loads(text_of())
    spec["groups"][0]["inputs"]["more"] = EVENTS
    lines = told(json.dumps(spec))
    assert [line.partition("inputs.")[2].partition(":")[0] for line in lines] == ["events", "more"]
    assert all("a group cannot read more than one stream yet" in line for line in lines)


def test_a_runner_knows_which_outputs_it_may_write_from_the_stream() -> None:
    outputs = {"loads": {"mode": "append"}, "other": {"mode": "append"}, "last": {}}
    python = [{"python": "m:f"}]
    assert plan_of(text_of(outputs=outputs, steps=python)).appended == ("loads", "other")
    spec = json.loads(text_of(outputs={"loads": {"mode": "append"}}, steps=python))
    assert plan_of(json.dumps({**spec, "publish": ["loads"]})).appended == ("loads",)
    spec["groups"].append({"name": "after", "needs": ["load"], "steps": python})
    assert plan_of(json.dumps(spec)).appended == (), (
        "the outputs of a group that others need are not published"
    )


def test_another_stream_or_generation_changes_the_fingerprint() -> None:
    def fingerprint(**change: Any) -> str:
        return WorkOrder(
            plan=plan_of(text_of({**EVENTS, **change})), frozen=FrozenInputs()
        ).fingerprint

    same = fingerprint()
    assert fingerprint(generation=1) == same
    assert same not in {
        fingerprint(generation=2),
        fingerprint(stream="/elsewhere"),
        fingerprint(schema="id INT"),
    }


def test_an_option_may_be_a_boolean() -> None:
    options = {"header": True, "sep": ";"}
    spec = json.loads(
        JobSpec.from_text(text_of({**EVENTS, "format": "csv", "options": options})).to_json()
    )
    stored = spec["groups"][0]["inputs"]["events"]["options"]
    assert stored == {"header": "true", "sep": ";"}
