"""Modes: what publishing does to the rows that are published, and what cannot stand beside them."""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.unit.coordinator.publishing.test_publish_outputs import FLIGHTS, schema
from unstuck import JobSpec, SpecError
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.publishing.publish_outputs import publish
from unstuck.coordinator.publishing.publish_request import PublishRequest
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.warehouse import files as files_module
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.marker import (
    DataFile,
    Marker,
    NamedPartitions,
    StagedOutput,
    are_named,
    write_marker,
)

APPEND = OutputSpec(mode="append")
BY_DAY = OutputSpec(
    mode="partition_overwrite", partition_by=("day",), partitions={"day": (":day",)}
)


@dataclass
class Nightly:
    """A job that publishes the dataset ``flights`` again each time."""

    root: str
    done: list[str] = field(default_factory=list)

    def publish(
        self,
        job: str,
        output: OutputSpec,
        *days: str | None,
        rows: int = 3,
        columns: str = FLIGHTS,
        base: int = 0,
        dataset: str = "flights",
        read: int | None = None,
        load: NamedPartitions | None = None,
        **more: Any,
    ) -> PublishResult:
        """Stage one file for each of ``days`` (one without a partition where there is none), and
        publish them.

        Args:
            read: the version of the dataset that they were made from.
            load: the partitions that the job replaces; None: the ``days``, unless ``replaces``
                names others.
        """
        files, staging = Files(self.root), f"_staging/{job}/load/1-nonce-claimant"
        made = []
        for number, day in enumerate(days or ("",)):
            path = f"{staging}/flights/part-{number}.parquet"
            files.write_durable(path, b"x" * 10)
            made.append(DataFile(path, rows, 10, {"day": day} if output.partition_by else {}))
        if load is None and output.partitions and "replaces" not in more:
            load = {"day": list(days)}
        staged = StagedOutput(made, rows * len(made), columns, **more)
        outputs = {dataset: staged if load is None else staged.of_load(load)}
        sources = {} if read is None else {dataset: [read]}
        write_marker(
            files, staging, Marker(f"{job}/load", "same", outputs, {}, {}, 1.0, sources=sources)
        )
        return self.again(job, job, output, base)

    def again(self, made: str, job: str, output: OutputSpec, base: int = 0) -> PublishResult:
        """Publish what the job ``made`` has staged, as ``job``."""
        known = Warehouse(self.root).ensure_id()
        request = PublishRequest(
            *(self.root, known, job, job, "flights", base, 1000.0),
            sources={"load": (f"_staging/{made}/load/1-nonce-claimant",)},
            published_by={"load"},
            outputs={"flights": output, "events": output},
        )
        return publish(request)

    @property
    def files(self) -> list[str]:
        """The files that are published: the job that made each, and its partition."""
        found = Warehouse(self.root).dataset("flights").files
        return [
            f"{file.path.split('/')[1]} {' '.join(map(str, file.partition.values()))}".strip()
            for file in found
        ]


@pytest.fixture
def nightly(tmp_path: Path) -> Nightly:
    return Nightly(str(tmp_path / "warehouse"))


def test_append_keeps_published_rows(nightly: Nightly) -> None:
    assert nightly.publish("one", APPEND).version == 1
    assert nightly.publish("two", APPEND).rows == {"flights": 3}

    assert nightly.files == ["one", "two"]
    assert Warehouse(nightly.root).dataset("flights").rows == 6
    assert Warehouse(nightly.root).dataset("flights", version=1).rows == 3


@pytest.mark.claim("A job appends its rows once, also if it is repeated.")
def test_a_repeated_append_appends_once(nightly: Nightly) -> None:
    nightly.publish("one", APPEND)
    first = nightly.publish("two", APPEND)

    assert nightly.publish("two", APPEND) == first
    assert nightly.files == ["one", "two"]


def test_replace_after_append_removes_all(nightly: Nightly) -> None:
    for job in ("one", "two"):
        nightly.publish(job, APPEND)
    nightly.publish("three", OutputSpec())

    assert nightly.files == ["three"]


@pytest.mark.claim("A job appends its rows once, also if it is repeated.")
def test_concurrent_appends_all_succeed(nightly: Nightly) -> None:
    Warehouse(nightly.root).ensure_id()
    jobs = [f"job-{n}" for n in range(12)]
    with ThreadPoolExecutor(6) as pool:
        versions = [
            result.version for result in pool.map(lambda job: nightly.publish(job, APPEND), jobs)
        ]

    assert sorted(versions) == list(range(1, 13))
    assert sorted(nightly.files) == sorted(jobs)


def test_partition_overwrite_replaces_its_listed_partitions(nightly: Nightly) -> None:
    nightly.publish("one", BY_DAY, "2013-01-01", "2013-01-02", None)
    nightly.publish("two", BY_DAY, "2013-01-02", "2013-01-03")
    assert nightly.files == ["one 2013-01-01", "one None", "two 2013-01-02", "two 2013-01-03"]

    nightly.publish("three", BY_DAY, None)
    assert nightly.files == ["one 2013-01-01", "two 2013-01-02", "two 2013-01-03", "three None"]


def test_only_published_rows_of_listed_partitions_are_removed(nightly: Nightly) -> None:
    nightly.publish("one", BY_DAY, "2013-01-01", "2013-01-02", None)
    nightly.publish(
        "two", BY_DAY, "2013-01-01", "2013-01-02", replaces=[{"day": ["2013-01-02", None]}]
    )

    assert nightly.files == ["one 2013-01-01", "two 2013-01-01", "two 2013-01-02"], (
        "one is appended, one is emptied"
    )


@pytest.mark.parametrize(
    ("mode", "base", "read", "days", "refused"),
    [
        pytest.param(
            "replace", 1, 1, ["1", "2"], True, id="the rows of the other job would be lost"
        ),
        pytest.param(
            "replace", 0, 0, ["1", "2"], True, id="nothing was published when it was read"
        ),
        pytest.param("replace", 2, 2, ["1", "2"], False, id="all was read"),
        pytest.param("replace", 1, None, ["1", "2"], False, id="nothing of it was read"),
        pytest.param("replace", 2, 1, ["1", "2"], False, id="the spec names an older version"),
        pytest.param(
            "append",
            1,
            1,
            ["1"],
            True,
            id="a row that both have found missing would be there twice",
        ),
        pytest.param(
            "partition_overwrite", 1, 1, ["2"], True, id="the other job has replaced this partition"
        ),
        pytest.param(
            "partition_overwrite", 1, 1, ["1", "3"], False, id="it has replaced another one"
        ),
        pytest.param("partition_overwrite", 0, 0, ["3"], False, id="a new partition"),
    ],
)
def test_a_dataset_derived_from_itself_is_published_only_without_concurrent_changes(
    nightly: Nightly, mode: Any, base: int, read: int | None, days: list[str], *, refused: bool
) -> None:
    nightly.publish("one", BY_DAY, "1", "2")
    nightly.publish("two", BY_DAY, "2", base=1)
    before = nightly.files

    output = (
        BY_DAY if mode == "partition_overwrite" else OutputSpec(mode=mode, partition_by=("day",))
    )
    result = nightly.publish("three", output, *days, base=base, read=read)

    assert (result.failed is not None) == refused
    if result.failed is not None:
        assert result.failed.code == "DATASET_CHANGED"
        assert "Since then job two has published version 2 of it." in result.failed.text
        assert nightly.files == before


def test_two_retries_that_reuse_the_same_files_append_late_rows_once(
    nightly: Nightly,
) -> None:
    nightly.publish("one", BY_DAY, "2013-01-01", "2013-01-02")
    nightly.publish("two", BY_DAY, "2013-01-01", "2013-01-02", replaces=[{"day": ["2013-01-02"]}])
    nightly.again("two", "its-retry", BY_DAY)

    assert nightly.files == ["one 2013-01-01", "two 2013-01-01", "two 2013-01-02"]
    assert Warehouse(nightly.root).dataset("flights").rows == 9


def test_a_load_replaces_late_rows_appended_by_earlier_loads_of_its_partitions(
    nightly: Nightly,
) -> None:
    first, second = "2013-01-01", "2013-01-02"
    nightly.publish("one", BY_DAY, first)
    nightly.publish("two", BY_DAY, first, second, load={"day": [second, None]})
    nightly.publish("other", BY_DAY, first, load={"day": ["2013-01-03"]})
    nightly.publish("rerun", BY_DAY, first, second, load={"day": [None, second]})
    assert nightly.files == [f"one {first}", f"other {first}", f"rerun {first}", f"rerun {second}"]

    nightly.publish("without late rows", BY_DAY, second, load={"day": [second, None]})
    assert nightly.files == [f"one {first}", f"other {first}", f"without late rows {second}"]


def test_listed_partitions_need_files_with_the_same_partitioning(
    nightly: Nightly,
) -> None:
    nightly.publish("one", OutputSpec())
    result = nightly.publish(
        "two", BY_DAY, "2013-01-02", rows=0, replaces=[{"day": ["2013-01-02"]}]
    )
    assert result.failed is not None
    assert result.failed.code == "PARTITION_MISMATCH"


def test_a_dataset_with_its_last_partition_emptied_keeps_its_columns(nightly: Nightly) -> None:
    nightly.publish("one", BY_DAY, "2013-01-01")
    named: list[NamedPartitions] = [{"day": ["2013-01-01"]}]
    nightly.publish("two", BY_DAY, "2013-01-01", rows=0, replaces=named)
    assert (nightly.files, Warehouse(nightly.root).dataset("flights").rows) == (
        ["two 2013-01-01"],
        0,
    )

    nightly.publish("three", BY_DAY, "2013-01-01")
    nightly.publish(
        "four", BY_DAY, "2013-01-01", rows=0, columns=schema("month:void"), replaces=named
    )
    assert (nightly.files, Warehouse(nightly.root).dataset("flights").schema) == ([], FLIGHTS), (
        "void is a guess"
    )


def test_replaced_partitions_are_listed_up_to_a_limit_with_shrunk_ones_first(
    nightly: Nightly,
) -> None:
    days = [f"2013-01-{n:02}" for n in range(1, 31)]
    nightly.publish("one", BY_DAY, *days, "2013-02-01", None, rows=9)
    # The second file of a day counts with the first; the day that grows by more rows than the
    # others lose comes after.
    result = nightly.publish(
        "two", BY_DAY, *days[:1] * 9, *days[1:], None, rows=4, replaces=[{"day": [*days, None]}]
    )

    told = result.replaced["flights"]
    assert (len(told.examples), told.count, told.shrunk) == (20, 31, 30)
    assert {(one.before, one.after) for one in told.examples} == {(9, 4)}
    assert str(told.examples[-1]) == "day=2013-01-21: 9 → 4 rows"
    assert told.text(limit=1) == "day=2013-01-02: 9 → 4 rows, and 30 more"
    assert told.text(shrunk=True, limit=1) == "day=2013-01-02: 9 → 4 rows, and 29 more", (
        "not the one that grew"
    )
    entry = Warehouse(nightly.root).existing_entry(2)
    assert entry.datasets["flights"].replaced == told

    half = nightly.publish("three", BY_DAY, None, rows=2).replaced["flights"]
    assert (half.text(), half.shrunk) == ("day=null: 4 → 2 rows", 0)


def test_the_partitions_of_any_number_of_members_are_found_in_one_pass() -> None:
    """Of two columns, in any order; with several values; a column that is left out may have any
    value.
    """
    one_each: list[NamedPartitions] = [{"day": [str(n)], "air": ["UA"]} for n in range(10_000)]
    is_named = are_named([*one_each, {"air": ["AA", None], "day": ["1"]}, {"air": ["DL"]}])

    assert all(is_named({"air": "UA", "day": str(n)}) for n in range(10_000))
    assert is_named({"day": "1", "air": None})
    assert is_named({"day": None, "air": "DL"})
    assert not any(
        map(
            is_named,
            ({"day": "2", "air": "AA"}, {"day": None, "air": "UA"}, {"day": "1", "air": "B6"}),
        )
    )
    assert not are_named([{"day": []}])({"day": None})


def test_an_output_without_rows_changes_no_partition(nightly: Nightly) -> None:
    nightly.publish("one", BY_DAY, "2013-01-01")
    result = nightly.publish("two", OutputSpec(mode="append"), rows=0)

    assert result.version == 2
    assert nightly.files == ["one 2013-01-01"]


def test_the_first_output_without_rows_publishes_its_columns(nightly: Nightly) -> None:
    nightly.publish("one", APPEND, rows=0)
    assert Warehouse(nightly.root).dataset("flights").schema == FLIGHTS

    nightly.publish("two", BY_DAY, "2013-01-01", columns=schema("other:string"))
    assert nightly.files == ["two 2013-01-01"]


def test_an_output_without_rows_may_have_inferred_columns(nightly: Nightly) -> None:
    nightly.publish("one", APPEND)
    assert (
        nightly.publish("two", APPEND, rows=0, columns=schema("month:void", "flights:void")).failed
        is None
    )
    assert Warehouse(nightly.root).dataset("flights").schema == FLIGHTS


def test_two_retries_that_reuse_the_same_files_append_them_once(nightly: Nightly) -> None:
    nightly.publish("one", APPEND)
    nightly.publish("two", APPEND)
    assert nightly.again("two", "its-retry", APPEND).rows == {"flights": 0}
    assert nightly.files == ["one", "two"]
    assert Warehouse(nightly.root).dataset("flights").rows == 6


def test_an_unpartitioned_output_overwrites_no_partition(nightly: Nightly) -> None:
    nightly.publish("one", BY_DAY, "2013-01-01")
    nightly.publish("plain", OutputSpec(mode="append"))
    result = nightly.again("plain", "again", BY_DAY)
    assert result.failed is not None
    assert result.failed.code == "PARTITION_MISMATCH"


def test_one_unpartitioned_published_file_prevents_an_overwrite(
    nightly: Nightly,
) -> None:
    """Its rows may be of the partitions that are replaced, wherever it stands among files that are
    parted.
    """
    nightly.publish("one", BY_DAY, "2013-01-01", "2013-01-02")
    nightly.publish("plain", APPEND)
    nightly.publish("three", OutputSpec(mode="append", partition_by=("day",)), "2013-01-03")
    result = nightly.publish("four", BY_DAY, "2013-01-01")
    assert result.failed is not None
    assert result.failed.code == "PARTITION_MISMATCH"
    assert nightly.files == ["one 2013-01-01", "one 2013-01-02", "plain", "three 2013-01-03"]


@pytest.mark.parametrize("output", [APPEND, BY_DAY])
def test_appending_different_columns_is_refused(nightly: Nightly, output: OutputSpec) -> None:
    nightly.publish("one", BY_DAY, "2013-01-01")
    result = nightly.publish(
        "two", output, "2013-01-02", columns=schema("month:long", "carrier:string")
    )

    assert result.failed is not None
    assert result.failed.code == "SCHEMA_MISMATCH"
    assert "added carrier (string); removed flights (bigint)" in result.failed.text
    assert nightly.files == ["one 2013-01-01"]
    entry = Warehouse(nightly.root).entry(2)
    assert entry is not None
    assert entry.kind == "abort", "a frozen publisher must not publish it later"


def test_columns_that_differ_only_in_nullability_are_equal(nightly: Nightly) -> None:
    nightly.publish("one", APPEND, columns=schema("month:long", nullable=False))
    assert nightly.publish("two", APPEND, columns=schema("month:long")).failed is None
    assert Warehouse(nightly.root).dataset("flights").schema == schema("month:long")


def test_partitions_are_unknown_for_other_partition_columns(nightly: Nightly) -> None:
    nightly.publish("one", OutputSpec())
    result = nightly.publish("two", BY_DAY, "2013-01-02")

    assert result.failed is not None
    assert result.failed.code == "PARTITION_MISMATCH"
    assert "partitioned by no column" in result.failed.text
    assert "partitions by day" in result.failed.text

    nightly.publish("three", OutputSpec(partition_by=("day",)), "2013-01-02", "2013-01-03")
    nightly.publish("four", BY_DAY, "2013-01-02")
    assert nightly.files == ["three 2013-01-03", "four 2013-01-02"]


def test_history_has_each_change_with_its_job(nightly: Nightly) -> None:
    nightly.publish("one", APPEND)
    nightly.publish("two", BY_DAY, "2013-01-01")  # fails: its files cannot be told apart
    nightly.publish("three", APPEND)
    found = Warehouse(nightly.root).history("flights", 10)

    assert [(entry.n, entry.job, entry.datasets["flights"].mode) for entry in found] == [
        (3, "three", "append"),
        (1, "one", "append"),
    ]
    assert len(Warehouse(nightly.root).history("flights", 1)) == 1


# -- what a spec may say


def spec(**more: Any) -> JobSpec:
    groups = [{"name": "load", "steps": [{"sql": "SELECT 1", "output": "flights"}]}]
    return JobSpec.model_validate({"name": "nightly", "groups": groups} | more)


PARTED = {"mode": "partition_overwrite", "partition_by": ["a"], "partitions": {"a": 1}}
DELTA = {"format": "delta", "path": "/lake/flights"}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            {"outputs": {"flight": {"mode": "append"}}},
            "no group makes an output 'flight'; did you mean 'flights'?",
        ),
        ({"outputs": {"flights": {"mode": "upsert"}}}, "outputs.flights.mode"),
        ({"outputs": {"flights": {"mode": "partition_overwrite"}}}, "wants partition_by:"),
        (
            {"outputs": {"flights": {"mode": "partition_overwrite", "partition_by": ["a"]}}},
            "wants partitions:",
        ),
        ({"outputs": {"flights": {"partition_by": ["a", "a"]}}}, "names a column twice"),
        (
            {"outputs": {"flights": {"partition_by": ["a"], "partitions": {"a": 1}}}},
            "is for mode: partition_overwrite",
        ),
        (
            {"outputs": {"flights": {**PARTED, "partitions": {"b": 1}}}},
            "names b, which is no column of partition_by:",
        ),
        ({"outputs": {"flights": {**PARTED, "partitions": {}}}}, "outputs.flights.partitions"),
        (
            {"outputs": {"flights": {**PARTED, "partitions": {"a": []}}}},
            "partitions.a: expected at least one",
        ),
        (
            {"outputs": {"flights": {**PARTED, "partitions": {"a": 1.5}}}},
            "expected text, a whole number, true, false",
        ),
        (
            {"outputs": {"flights": {"partition_by": ["a"], "outside": "fail"}}},
            "outside: wants partitions:",
        ),
        (
            {
                "params": {"day": 1},
                "outputs": {"flights": {**PARTED, "partitions": {"a": ["x", ":dya"]}}},
            },
            (
                "outputs.flights.partitions.a: the step that makes 'flights' has no parameter "
                "'dya'; did you mean 'day'?"
            ),
        ),
        (
            {
                "outputs": {
                    "flights": {
                        **PARTED,
                        "partitions": {"a": 1},
                        "outside": "append",
                        "format": "delta",
                        "path": "/x/y",
                    }
                }
            },
            "outside: append is for datasets of the warehouse",
        ),
        ({"outputs": {"flights": {"partition_by": "day"}}}, "outputs.flights.partition_by"),
        (
            {
                "outputs": {"flights": {"mode": "append"}},
                "groups": [
                    {"name": "load", "steps": [{"sql": "SELECT 1", "output": "flights"}]},
                    {
                        "name": "after",
                        "needs": ["load"],
                        "steps": [{"sql": "SELECT 1", "output": "more"}],
                    },
                ],
            },
            "'flights' is not published, since other groups need load; name it in publish:",
        ),
        (
            {"outputs": {"flights": {"mode": "append"}}, "publish": []},
            "publish: does not name 'flights'",
        ),
    ],
)
def test_an_impossible_mode_is_refused_at_submit(written: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as found:
        spec(**written)
    assert said in str(found.value)


def test_a_stored_spec_keeps_its_outputs() -> None:
    by_day = {"mode": "partition_overwrite", "partition_by": ["day"], "partitions": {"day": ":day"}}
    written = spec(outputs={"flights": by_day}, params={"day": "2013-01-01"})
    assert JobSpec.from_text(written.to_json()).outputs == {"flights": BY_DAY}


def test_a_partition_is_named_by_one_or_several_values_or_parameters() -> None:
    written = spec(
        params={"days": ["2013-01-01", None]},
        outputs={
            "flights": {
                **PARTED,
                "partition_by": ["a", "b"],
                "partitions": {"a": [1, ":days"], "b": None},
            }
        },
    )
    output = JobSpec.from_text(written.to_json()).outputs["flights"]

    assert output.checks.resolved(written.values).partitions == {
        "a": (1, "2013-01-01", None),
        "b": (None,),
    }
    with pytest.raises(ValueError, match="a is :days, and this parameter has no value"):
        output.checks.resolved({})


SIZES = (300, 3000)


@pytest.fixture(scope="module")
def staged_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each size: a warehouse in which two forks of as many members have staged one
    file each.

    Each file has a partition of its own, at which ``partition_overwrite`` alone looks.
    """
    folder = tmp_path_factory.mktemp("staged")
    with patch.object(files_module.os, "fsync"):
        for size in SIZES:
            root = str(folder / str(size))
            files = Files(root)
            Warehouse(root).ensure_id()
            for job in ("before", "after"):
                for n, staging in enumerate(members(job, size)):
                    path = f"{staging}/flights/part-0.parquet"
                    files.write_durable(path, b"x" * 10)
                    staged = StagedOutput(
                        [DataFile(path, 3, 10, {"day": f"{job} {n}"})], 3, FLIGHTS
                    )
                    write_marker(
                        files,
                        staging,
                        Marker(f"{job}/load[{n}]", "same", {"flights": staged}, {}, {}, 1.0),
                    )
    return folder


def members(job: str, count: int) -> tuple[str, ...]:
    return tuple(f"_staging/{job}/load.{n}/1-nonce-claimant" for n in range(count))


def request_of(root: str, job: str, output: OutputSpec, count: int) -> PublishRequest:
    """To publish what the members of the fork of ``job`` have staged."""
    return PublishRequest(
        *(root, Warehouse(root).ensure_id(), job, job, "flights", 0, 1000.0),
        sources={"load": members(job, count)},
        published_by={"load"},
        outputs={"flights": output},
    )


def calls_of(request: PublishRequest) -> int:
    """How many functions are called until it is published, those of C included."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        assert publish(request).failed is None
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.variant
@pytest.mark.parametrize("output", [OutputSpec(), APPEND, BY_DAY], ids=lambda output: output.mode)
def test_the_cost_of_publishing_is_linear_in_the_number_of_files(
    staged_files: Path, output: OutputSpec
) -> None:
    """Up to three thousand groups with one file each, beside as many that are published: by calls
    of functions.
    """
    calls: dict[int, float] = {}  # for one file
    with patch.object(files_module.os, "fsync"):  # the price of the disk is another matter
        for size in SIZES:
            root = str(staged_files / str(size))
            before, request = (request_of(root, job, output, size) for job in ("before", "after"))
            shutil.rmtree(f"{root}/_log", ignore_errors=True)
            assert publish(before).failed is None
            calls[size] = calls_of(request) / size
    assert max(calls.values()) <= 1.1 * calls[300], calls
