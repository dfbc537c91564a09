"""What the publisher checks before a package appears: columns, rows, freshness; and where rejected
rows go.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.unit.coordinator.publishing.test_publish_outputs import FLIGHTS, schema
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.publishing.publish_outputs import publish
from unstuck.coordinator.publishing.publish_request import PublishRequest
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.marker import DataFile, Marker, StagedOutput, write_marker

NOW = 1_000_000.0


@dataclass
class PublishingJobs:
    """Jobs that publish into one warehouse, one after the other."""

    root: str
    done: list[str] = field(default_factory=list)

    def part(
        self, name: str, *days: str, rows: int = 3, columns: str = FLIGHTS, **more: Any
    ) -> StagedOutput:
        """An output of the next job: a file for each day, or one that is not parted."""
        files = []
        for day in days or ("",):
            path = f"_staging/job-{len(self.done)}/{name}{day}-{more.get('newest', '')}.parquet"
            Files(self.root).write_durable(path, b"x" * 10)
            files.append(DataFile(path, rows, 10, {"day": day} if day else {}))
        return StagedOutput(files, rows * len(files), columns, **more)

    def publish(
        self, spec: dict[str, Any], *members: dict[str, StagedOutput], **request: Any
    ) -> PublishResult:
        """Publish what the members of one group have made, the output ``flights`` by ``spec``."""
        job = f"job-{len(self.done)}"
        self.done.append(job)
        folders = []
        for number, outputs in enumerate(members):
            folders.append(f"_staging/{job}/load.{number}/1-nonce-claimant")
            write_marker(
                Files(self.root), folders[-1], Marker(f"{job}/load", "same", outputs, {}, {}, 1.0)
            )
        known = Warehouse(self.root).ensure_id()
        made = PublishRequest(
            *(self.root, known, job, job, "flights", 0, NOW),
            sources={"load": tuple(folders)},
            outputs={"flights": OutputSpec.model_validate(spec)},
            **{"published_by": {"load"}, **request},
        )
        return publish(made)

    def columns(self, name: str = "flights") -> dict[str, str]:
        fields = json.loads(Warehouse(self.root).dataset(name).schema)["fields"]
        return {column["name"]: column["type"] for column in fields}

    def files(self, name: str) -> list[str]:
        """The job and the partition of each published file."""
        found = Warehouse(self.root).dataset(name).files
        return [
            f"{file.path.split('/')[1]} {' '.join(map(str, file.partition.values()))}".strip()
            for file in found
        ]


@pytest.fixture
def loads(tmp_path: Path) -> PublishingJobs:
    return PublishingJobs(str(tmp_path / "warehouse"))


EVOLVE = {"mode": "append", "on_schema_change": "evolve"}


# -- columns that change ---------------------------------------------------------------------------


def test_evolve_adds_new_columns_and_keeps_missing_ones(loads: PublishingJobs) -> None:
    loads.publish(
        EVOLVE, {"flights": loads.part("flights", columns=schema("id:long", "old:string"))}
    )
    loads.publish(EVOLVE, {"flights": loads.part("flights", columns=schema("new:date", "id:long"))})
    assert loads.columns() == {"id": "long", "old": "string", "new": "date"}
    assert len(loads.files("flights")) == 2

    assert (
        loads.publish(EVOLVE, {"flights": loads.part("flights", columns=schema("id:long"))}).failed
        is None
    )
    assert loads.columns() == {"id": "long", "old": "string", "new": "date"}


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ("id:integer", "changed id from bigint to int"),
        ("id:string", "changed id from bigint to string"),
        ("ID:long", "id and ID are one name"),
    ],
)
def test_evolve_changes_no_existing_column(loads: PublishingJobs, column: str, why: str) -> None:
    loads.publish(EVOLVE, {"flights": loads.part("flights", columns=schema("id:long"))})
    failed = loads.publish(
        EVOLVE, {"flights": loads.part("flights", columns=schema(column))}
    ).failed

    assert failed is not None
    assert failed.code == "SCHEMA_MISMATCH"
    assert why in failed.text
    assert loads.columns() == {"id": "long"}


def test_column_differences_are_reported_as_added_removed_and_changed(
    loads: PublishingJobs,
) -> None:
    columns = schema("id:long", "a:string", "b:date")
    loads.publish({"mode": "append"}, {"flights": loads.part("flights", columns=columns)})
    for said in ({}, {"on_schema_change": "fail"}):
        columns = schema("id:integer", "b:date", "c:double")
        failed = loads.publish(
            {"mode": "append", **said}, {"flights": loads.part("flights", columns=columns)}
        ).failed
        assert failed is not None
        assert "added c (double); removed a (string); changed id from bigint to int" in failed.text


def test_a_replace_accepts_any_columns_unless_set_to_fail(loads: PublishingJobs) -> None:
    loads.publish({}, {"flights": loads.part("flights", columns=schema("id:long"))})
    failed = loads.publish(
        {"on_schema_change": "fail"},
        {"flights": loads.part("flights", columns=schema("id:string"))},
    ).failed
    assert failed is not None
    assert (failed.code, loads.columns()) == ("SCHEMA_MISMATCH", {"id": "long"})

    assert (
        loads.publish({}, {"flights": loads.part("flights", columns=schema("id:string"))}).failed
        is None
    )
    assert loads.columns() == {"id": "string"}


# -- expectations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expect", "why"),
    [
        ({"rows": {"min": 7}}, "flights: expect.rows: 6 rows, and at least 7 are expected"),
        ({"rows": {"min": 1, "max": 5}}, "6 rows, and at most 5 are expected"),
        ({"rows": {"min": 6, "max": 6}}, ""),
        ({"fresh": {"column": "day", "within": "1h"}}, ""),
        (
            {"fresh": {"column": "day", "within": "59m"}},
            "the newest day is 1970-01-12T12:46:40Z, 1h00m old, and 59m",
        ),
        (
            {"rows": {"min": 9}, "fresh": {"column": "day", "within": 1}},
            "at least 9 are expected; flights: expect.fr",
        ),
    ],
)
def test_expectations_cover_all_members_of_a_fork_together(
    loads: PublishingJobs, expect: dict[str, Any], why: str
) -> None:
    members = [{"flights": loads.part("flights", newest=NOW - hours * 3600)} for hours in (50, 1)]
    members[0]["other"] = loads.part("other")
    result = loads.publish({"expect": expect}, *members)

    if why:
        assert result.failed is not None
        assert result.failed.code == "EXPECTATION_FAILED"
        assert why in result.failed.text
        assert Warehouse(loads.root).state() == {}, "nothing of the package appears"
    else:
        assert result.rows == {"flights": 6, "other": 3}


@pytest.mark.parametrize(
    "request_",
    [{"published_by": frozenset({"report"})}, {"requested": ()}, {"requested": ("other",)}],
)
def test_expectations_also_cover_unpublished_outputs(
    loads: PublishingJobs, request_: dict[str, Any]
) -> None:
    for expect, well in (
        ({"rows": {"min": 6}, "fresh": {"column": "day", "within": "2h"}}, True),
        ({"rows": {"max": 5}}, False),
    ):
        members = [
            {"flights": loads.part("flights", newest=NOW - hours * 3600)} for hours in (50, 1)
        ]
        members[0]["other"] = loads.part("other")
        result = loads.publish({"expect": expect}, *members, **request_)
        assert "flights" not in result.rows
        assert (
            result.failed is None if well else "flights: expect.rows: 6 rows" in str(result.failed)
        )


def test_an_output_without_a_date_is_not_fresh(loads: PublishingJobs) -> None:
    expect = {"fresh": {"column": "day", "within": "9d"}}
    failed = loads.publish({"expect": expect}, {"flights": loads.part("flights")}).failed
    assert failed is not None
    assert "the column day has no value" in failed.text


@pytest.mark.parametrize(
    ("judged_at", "is_fresh"), [(NOW - 40 * 3600, True), (NOW, False), (None, False)]
)
def test_the_freshness_of_a_backfill_run_is_measured_at_its_tick(
    loads: PublishingJobs, judged_at: float | None, is_fresh: bool
) -> None:
    spec = {"expect": {"fresh": {"column": "day", "within": "1h"}}}
    made = {"flights": loads.part("flights", newest=NOW - 40 * 3600 - 60)}
    assert (loads.publish(spec, made, judged_at=judged_at).failed is None) is is_fresh


# -- rejected rows ---------------------------------------------------------------------------------


RULES = {"quality": {"rules": {"ok": "true"}, "max_rejected_ratio": 1.0}}


def test_rejected_rows_are_published_with_their_output_in_the_same_mode(
    loads: PublishingJobs,
) -> None:
    for _ in range(2):
        made = {
            "flights": loads.part("flights", rejected_by={"ok": 3}),
            "flights__rejected": loads.part("flights__rejected", rejected_of="flights"),
            "other": loads.part("other"),
        }
        result = loads.publish({"mode": "append", **RULES}, made, requested=("flights",))
        assert result.rows == {"flights": 3, "flights__rejected": 3}
    assert loads.files("flights__rejected") == ["job-0", "job-1"]


def test_rejected_rows_are_not_published_without_their_output(loads: PublishingJobs) -> None:
    made = {
        "flights": loads.part("flights"),
        "flights__rejected": loads.part("flights__rejected", rejected_of="flights"),
        "other": loads.part("other"),
    }
    assert loads.publish(RULES, made, requested=("other",)).rows == {"other": 3}


def test_a_partition_without_new_bad_rows_loses_its_old_ones(loads: PublishingJobs) -> None:
    spec = {
        "mode": "partition_overwrite",
        "partition_by": ["day"],
        "partitions": {"day": ":day"},
        **RULES,
    }

    def load(good: list[str], bad: list[str]) -> None:
        named = {"replaces": [{"day": [*good, *bad]}]}
        rejected = {"rejected_of": "flights", "rows": 3 if bad else 0, **named}
        made = {
            "flights": loads.part("flights", *good, **named),
            "flights__rejected": loads.part("flights__rejected", *bad, **rejected),
        }
        assert loads.publish(spec, made).failed is None

    load(["1", "2"], ["1", "2"])
    load(["2", "3"], ["3"])
    assert loads.files("flights__rejected") == ["job-0 1", "job-1 3"]
    load(["1"], [])
    assert loads.files("flights__rejected") == ["job-1 3"]
    assert loads.files("flights") == ["job-1 2", "job-1 3", "job-2 1"]
