"""Columns on a real fleet: declared types, columns without one, and what is refused in the attempt
that made it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.support import fleet
from tests.support.programs.coordinator_processes import coordinator_processes
from tests.support.servers import RedisServer
from unstuck import Client, JobSpec, Settings, SpecError, Status, published_files
from unstuck.coordinator.publishing.dataset_change import change_of
from unstuck.coordinator.spec.plan import plan_of
from unstuck.read_model.job import JobInfo
from unstuck.tasks.errors import SchemaMismatch
from unstuck.tasks.frames.output import read_table, stage
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.spec.work_order import FrozenInputs, GroupPlan, WorkOrder
from unstuck.tasks.steps.beside import BesidePublished
from unstuck.tasks.steps.step_inputs import PublishedDatasets
from unstuck.tasks.steps.work import OutputRules, Work
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Entry
from unstuck.tasks.warehouse.marker import StagedOutput

STEPS = "tests.support.steps.frame_steps.columns"
Columns = dict[str, list[Any]]


class ColumnFleet:
    """Jobs of plain Python, and a warehouse of a test's own."""

    def __init__(self, redis_url: str, warehouse: str) -> None:
        self._client, self.warehouse = (
            Client(Settings(redis_url=redis_url, warehouse=warehouse)),
            warehouse,
        )

    def run(self, *groups: dict[str, Any], **more: Any) -> JobInfo:
        full = [{"spark": False, "retry": {"max": 5, "backoff": "1s"}, **group} for group in groups]
        job = self._client.submit(JobSpec.model_validate({"name": "x", "groups": full, **more})).id
        return self._client.wait(job)

    def night(self, columns: Columns, output: dict[str, Any], **params: Any) -> JobInfo:
        """A job of one group that makes the dataset ``out``."""
        step = {
            "python": f"{STEPS}:made",
            "output": "out",
            "params": {"columns": columns, **params},
        }
        return self.run({"name": "load", "steps": [step]}, outputs={"out": output})

    def fork(self, members: dict[str, Columns], *after: dict[str, Any], **output: Any) -> JobInfo:
        """A job whose fork makes the dataset ``out``."""
        step = {"python": f"{STEPS}:member", "output": "out", "params": {"members": members}}
        fork = {"name": "each", "for_each": {"one": list(members)}, "steps": [step]}
        more = {"publish": ["out", *(group["steps"][0]["output"] for group in after)]}
        return self.run(fork, *after, **more, **({"outputs": {"out": output}} if output else {}))

    @property
    def types(self) -> dict[str, Any]:
        fields = json.loads(Warehouse(self.warehouse).dataset("out").schema)["fields"]
        return {column["name"]: column["type"] for column in fields}

    def rows(self, name: str = "out") -> list[tuple[Any, ...]]:
        """The rows as DuckDB finds them, in order."""
        return sorted(
            duckdb.read_parquet(
                published_files(self.warehouse, name), union_by_name=True
            ).fetchall(),
            key=str,
        )


@pytest.fixture(scope="module")
def running(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A worker and a coordinator for the jobs of all tests; the URL of their Redis."""
    home = tmp_path_factory.mktemp("fleet")
    environ = {"UNSTUCK_REDIS_URL": redis_server.url, "UNSTUCK_SPARK_MASTER": "none"}
    with (
        fleet.worker(redis_server.url, home, concurrency=2, environ=environ),
        coordinator_processes(home, environ) as coordinators,
    ):
        coordinators.tend(1)
        yield redis_server.url


@pytest.fixture
def given(running: str, tmp_path: Path) -> ColumnFleet:
    return ColumnFleet(running, str(tmp_path / "warehouse"))


def refusal(view: JobInfo) -> tuple[str, str]:
    """Code and text of the group that was refused, in its first attempt."""
    assert view.status is Status.FAILED, view.reason
    (record,) = [member for group in view.groups for member in group.members if member.reason]
    assert record.reason is not None
    assert record.attempt == 1, "no retry would help"
    return record.reason.code, record.reason.text


@pytest.mark.variant
def test_untyped_columns_of_a_fork_member_take_the_types_of_other_members(
    given: ColumnFleet,
) -> None:
    sums = {
        "python": f"{STEPS}:total",
        "output": "sums",
        "params": {"name": "out", "column": "amount"},
    }
    after = {"name": "after", "needs": ["each"], "steps": [sums]}
    members: dict[str, Columns] = {
        "empty": {"id": [], "amount": []},
        "full": {"id": [1], "amount": [10]},
        "nulls": {"id": [2], "amount": [None]},
    }
    view = given.fork(members, after)

    assert view.status is Status.FINISHED, view.reason
    assert given.types == {"id": "long", "amount": "long"}
    assert given.rows() == [(1, 10), (2, None)]
    assert given.rows("sums") == [(2, 10, 2)]


@pytest.mark.parametrize(
    "output",
    [
        {"mode": "append"},
        {"mode": "append", "on_schema_change": "evolve"},
        {"mode": "replace", "on_schema_change": "fail"},
        {},
    ],
    ids=str,
)
def test_a_null_column_stays_untyped_until_its_first_value_sets_the_type(
    given: ColumnFleet, output: dict[str, Any]
) -> None:
    keeps = output.get("mode", "replace") != "replace"
    seen: list[tuple[Any, ...]] = []
    for night, (x, kind) in enumerate(
        [(None, "void"), (None, "void"), (2**40, "long"), (None, "long")]
    ):
        view = given.night({"id": [night], "x": [x]}, output)
        assert view.status is Status.FINISHED, view.reason
        assert given.types == {"id": "long", "x": kind}
        seen = [*(seen if keeps else []), (night, x)]
        assert [row[:1] for row in given.rows()] == [row[:1] for row in seen]
    if keeps:
        assert given.rows() == seen
    else:  # the type is in the file, so a reader of this one finds it
        (path,) = published_files(given.warehouse, "out")
        assert [str(kind) for kind in duckdb.read_parquet(path).types] == ["BIGINT", "BIGINT"]


@pytest.mark.claim(
    "Columns that do not fit the published columns fail the attempt that wrote them."
)
def test_columns_that_differ_from_the_published_ones_fail_the_attempt(given: ColumnFleet) -> None:
    given.night(
        {"id": [1], "to": [{"city": "x", "geo": {"lat": 1.5}}]}, {"mode": "append"}, library="arrow"
    )
    other = {"id": [2], "to": [{"city": "y", "geo": {"lat": "1.5", "lon": 2.5}}]}

    code, text = refusal(given.night(other, {"mode": "append"}, library="arrow"))
    assert code == "SCHEMA_MISMATCH"
    assert "added to.geo.lon (double); changed to.geo.lat from double to string" in text
    assert "struct" not in text
    assert len(given.rows()) == 1


def test_declared_columns_cast_all_members_to_one_type_or_are_refused(
    given: ColumnFleet,
) -> None:
    members: dict[str, Columns] = {
        "empty": {},
        "full": {"id": [1], "amount": [10]},
        "guessed": {"amount": [20, None], "ID": [2, 3]},  # pandas makes floats of these
        "nulls": {"id": [4], "amount": [None]},
    }
    view = given.fork(members, columns={"id": "bigint", "amount": "int"})
    assert view.status is Status.FINISHED, view.reason
    assert given.types == {"id": "long", "amount": "integer"}
    assert given.rows() == [(1, 10), (2, 20), (3, None), (4, None)]

    code, text = refusal(
        given.night(
            {"id": [1, 2], "amount": [1.0, 2.5]}, {"columns": {"id": "bigint", "amount": "int"}}
        )
    )
    assert code == "OUTPUT_INVALID"
    assert (
        "the column amount is to be int, and holds the double 2.5, which cannot be cast without "
        "loss"
    ) in text
    assert "Row 2 of 2: id = 2, amount = 2.5" in text
    assert len(given.rows()) == 4


@pytest.mark.parametrize("known", ["declared", "published", ""])
def test_a_fork_without_members_is_read_as_zero_rows_with_known_columns(
    given: ColumnFleet, known: str
) -> None:
    def run(values: list[Any]) -> JobInfo:
        values_of = {"columns": {"customer id": values}, "library": "arrow"}
        made = {
            "name": "made",
            "steps": [{"python": f"{STEPS}:made", "output": "wide", "params": values_of}],
        }
        step = {"python": f"{STEPS}:member_of", "output": "out"}
        fork = {
            "name": "each",
            "needs": ["made"],
            "for_each": {"one": {"from": "wide.customer id"}},
            "steps": [step],
        }
        sums = {
            "python": f"{STEPS}:total",
            "output": "sums",
            "params": {"name": "out", "column": "amount"},
        }
        after = {"name": "after", "needs": ["each"], "join": "none_failed", "steps": [sums]}
        outputs = (
            {"outputs": {"out": {"columns": {"one": "bigint", "amount": "bigint"}}}}
            if known == "declared"
            else {}
        )
        return given.run(
            made, fork, after, publish=["sums", "out"] if values else ["sums"], **outputs
        )

    if known == "published":
        view = run([4, 5])
        assert view.status is Status.FINISHED, view.reason
        assert given.rows() == [(4, 1), (5, 1)]
    view = run([])
    assert view.status is Status.FINISHED, view.reason
    assert given.rows("sums") == [(0, 0, 2 if known else 0)]


# -- what a runner knows, without a fleet ----------------------------------------------------------


class PublishedFrames:
    """A warehouse to which frames are published, and attempts that write beside them."""

    def __init__(self, root: Path) -> None:
        self.warehouse = Warehouse(str(root))
        self.warehouse.ensure_id()
        self.files = Files(str(root))

    def publish(self, frame: Any, output: OutputSpec) -> None:
        job = f"job-{self.warehouse.head()}"
        staged = stage(self.files, f"_staging/{job}/g/1-n-c/out", frame, output.partition_by)

        def package(n: int, state: Any) -> Entry:
            change = change_of("out", staged, output, state.get("out"))
            return Entry(n, n - 1, job, "package", job, job, 1.0, datasets={"out": change})

        self.warehouse.append(job, 0, package)

    def attempt(self, base: int, output: OutputSpec, *, member: bool = False) -> Work:
        published = PublishedDatasets(self.warehouse, base)
        beside = BesidePublished(published, {"out": output.publishing}.get, member)
        return Work(
            self.files,
            Token("mine", "g[0]" if member else "g", 1, "n", "c"),
            None,
            {},
            rules=OutputRules(beside=beside),
        )


APPEND = OutputSpec(mode="append")


@pytest.mark.claim(
    "Columns that do not fit the published columns fail the attempt that wrote them."
)
def test_columns_published_since_the_submit_are_accepted(tmp_path: Path) -> None:
    log = PublishedFrames(tmp_path)
    log.publish(pa.table({"id": [1]}), APPEND)
    log.publish(pa.table({"id": ["a"]}), OutputSpec())

    assert log.attempt(1, APPEND).write("out", pa.table({"id": ["b"]})).rows == 1
    with pytest.raises(SchemaMismatch, match="changed id from string to double"):
        log.attempt(1, APPEND).write("out", pa.table({"id": [0.5]}))
    assert (
        log.attempt(1, APPEND).write("out", pa.table({"id": pa.array([], pa.float64())})).rows == 0
    )
    assert log.attempt(2, OutputSpec()).write("out", pa.table({"id": [0.5]})).rows == 1, (
        "replace takes any columns"
    )


def test_all_null_columns_stay_untyped_only_in_a_replacing_fork_member(tmp_path: Path) -> None:
    """Another member may give a column another type than the published one."""
    log = PublishedFrames(tmp_path)
    tags = pa.array([["a"]])
    log.publish(
        pa.table({"id": [1], "x": [2], "tags": tags, "s": [{"a": 1, "b": "t"}]}), OutputSpec()
    )
    nulls = pa.table(
        {"id": [1], "x": pa.nulls(1), "tags": pa.array([[None]]), "s": [{"a": 1, "b": None}]}
    )

    def types(staged: StagedOutput) -> list[Any]:
        return [column["type"] for column in json.loads(staged.schema)["fields"]]

    published = types(log.attempt(1, APPEND).write("out", nulls))
    assert published == types(
        stage(
            log.files,
            "as_it_is",
            pa.table({"id": [1], "x": [2], "tags": tags, "s": [{"a": 1, "b": "t"}]}),
        )
    )
    assert types(log.attempt(1, OutputSpec()).write("out", nulls)) == published
    assert types(log.attempt(1, APPEND, member=True).write("out", nulls)) == published
    assert types(log.attempt(1, OutputSpec(), member=True).write("out", nulls))[1] == "void"


def test_a_step_that_catches_the_refusal_does_not_publish_the_rest(tmp_path: Path) -> None:
    log = PublishedFrames(tmp_path)
    log.publish(pa.table({"id": [1]}), APPEND)
    work = log.attempt(1, APPEND)
    with pytest.raises(SchemaMismatch):
        work.write("out", pa.table({"id": ["a"]}))
    with pytest.raises(SchemaMismatch):
        work.check_refused()


def test_a_dataset_with_an_untyped_column_is_read_with_one_schema(tmp_path: Path) -> None:
    """Also by ``ctx.published``: the columns are those of the schema, in its order, whatever a file
    holds.
    """
    log = PublishedFrames(tmp_path)
    for x in (pa.nulls(1), pa.array(["a"]), pa.nulls(1)):
        log.publish(pa.table({"x": x, "id": [1]}), APPEND)
    (part,) = PublishedDatasets(log.warehouse, 3).read("out").parts
    table = read_table(log.files, [part])
    assert (table.column_names, table["x"].to_pylist()) == (["x", "id"], [None, "a", None])
    assert table.schema.field("x").type == pa.string()


# -- the spec --------------------------------------------------------------------------------------


def spec(**output: Any) -> JobSpec:
    step = {"python": "a:b", "output": "out"}
    return JobSpec.model_validate(
        {"name": "x", "outputs": {"out": output}, "groups": [{"name": "g", "steps": [step]}]}
    )


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (
            {"columns": {"id": "bigit"}},
            "outputs.out.columns.id: 'bigit' is no type of a column; expected a type",
        ),
        ({"columns": {"id": "varchar(3)"}}, "outputs.out.columns.id: 'varchar(3)' is no type"),
        ({"columns": {"id": "array<int"}}, "outputs.out.columns.id"),
        ({"columns": {"id": "int", "ID": "int"}}, "names a column twice"),
        (
            {"columns": {"id": "int"}, "mode": "partition_overwrite", "partition_by": ["day"]},
            "partition_by names 'day'",
        ),
        (
            {"columns": {"id": "int"}, "expect": {"unique": ["key"]}},
            "expect.unique names 'key', and columns: has id",
        ),
        ({"on_schema_change": "evolve"}, "no published row stays"),
    ],
)
def test_invalid_columns_are_refused_at_submit_with_their_place(
    output: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError) as refused:
        spec(**output)
    assert said in str(refused.value)


def test_work_is_reused_only_for_the_same_columns_in_the_same_order() -> None:
    def fingerprint(**output: Any) -> str:
        plans = plan_of(spec(**output).to_json()).group_plans("/w", None)
        return WorkOrder(
            plan=GroupPlan.model_validate_json(plans["g"]), frozen=FrozenInputs()
        ).fingerprint

    first = fingerprint(columns={"b": "int", "a": "int"})
    assert first == fingerprint(columns={"b": "int", "a": "int"}, mode="append")
    assert first not in {
        fingerprint(),
        fingerprint(columns={"a": "int", "b": "int"}),
        fingerprint(columns={"b": "int", "a": "bigint"}),
        fingerprint(columns={"b": "int", "a": "int"}, on_schema_change="evolve"),
    }
