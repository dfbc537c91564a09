"""The views for BI tools show the rows, names and types that are published, in a real DuckDB and a
real Spark.
"""

from __future__ import annotations

import datetime
import decimal
import threading
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from unstuck import published
from unstuck.doctor.host_facts import stale_views
from unstuck.doctor.installation_checks import of_views
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Change, DatasetState, Entry, Table
from unstuck.tasks.warehouse.marker import DataFile
from unstuck.tasks.warehouse.view_file import Kind, kept_version, view_path, views_sql, write_views
from unstuck.testing import Unstuck as Fixture

pytestmark = pytest.mark.variant

UTC = datetime.UTC
TYPED = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "day": pa.array([datetime.date(2026, 1, 2), None], pa.date32()),
        "at": pa.array(
            [datetime.datetime(2026, 3, 29, 1, 30, tzinfo=UTC), None], pa.timestamp("us", "UTC")
        ),
        "wall": pa.array([datetime.datetime(2026, 3, 29, 2, 30), None], pa.timestamp("us")),
        "price": pa.array([decimal.Decimal("12.50"), None], pa.decimal128(10, 2)),
        'it\'s "odd" `x`, y': pa.array(["ä", ""], pa.string()),
        "raw": pa.array([b"\x00\xff", None], pa.binary()),
        "tags": pa.array([["a", None], []], pa.list_(pa.string())),
        "by": pa.array(
            [{"a b": 1, "c": None}, None], pa.struct([("a b", pa.int32()), ("c", pa.float64())])
        ),
        "sizes": pa.array([[("s", 1)], None], pa.map_(pa.string(), pa.int16())),
    }
)


def in_duckdb(sql: str) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(sql)
    return connection


def in_spark(spark: Any, sql: str) -> None:
    for statement in sql.split(";\n"):
        if any(not line.startswith("--") for line in statement.split("\n") if line):
            spark.sql(statement)


def sql_of(unstuck: Fixture, kind: Kind) -> str:
    place = Warehouse(unstuck.warehouse)
    return views_sql(kind, place.storage, place.state(), place.head())


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A path with a quote, a comma and a space in it, which that of the warehouse has, too."""
    folder = tmp_path / "it's, mine"
    folder.mkdir()
    return folder


def test_a_view_has_the_published_rows_names_and_types(unstuck: Fixture) -> None:
    unstuck.publish("select", TYPED)
    unstuck.publish(
        "visits",
        [{"day": "a,b", "n": 1}, {"day": "it's {x}", "n": 2}, {"day": None, "n": 3}],
        partition_by=["day"],
    )
    unstuck.publish("nothing", [], schema="id BIGINT, day DATE, price DECIMAL(10, 2)")

    with in_duckdb(sql_of(unstuck, "duckdb")) as connection:
        rows = connection.sql('SELECT * FROM "select" ORDER BY id').to_arrow_table()
        assert rows.schema.names == TYPED.schema.names
        assert rows.cast(TYPED.schema).to_pylist() == TYPED.to_pylist()
        kinds = dict(
            zip(rows.schema.names, map(str, connection.table("select").types), strict=True)
        )
        assert (kinds["at"], kinds["wall"]) == ("TIMESTAMP WITH TIME ZONE", "TIMESTAMP")
        assert (kinds["price"], kinds["id"], kinds["tags"]) == (
            "DECIMAL(10,2)",
            "BIGINT",
            "VARCHAR[]",
        )
        assert (kinds["by"], kinds["sizes"]) == (
            'STRUCT("a b" INTEGER, c DOUBLE)',
            "MAP(VARCHAR, SMALLINT)",
        )
        assert connection.sql("SELECT day, n FROM visits ORDER BY n").fetchall() == [
            ("a,b", 1),
            ("it's {x}", 2),
            (None, 3),
        ]
        assert connection.table("nothing").columns == ["id", "day", "price"]
        assert list(map(str, connection.table("nothing").types)) == [
            "BIGINT",
            "DATE",
            "DECIMAL(10,2)",
        ]
        assert connection.table("nothing").fetchall() == []

    spark = unstuck.spark
    in_spark(spark, sql_of(unstuck, "spark"))
    for name in ("select", "visits", "nothing"):
        wanted = published(spark, unstuck.warehouse, name)
        shown = spark.table(f"`{name}`")
        assert [(one.name, one.dataType) for one in shown.schema] == [
            (one.name, one.dataType) for one in wanted.schema
        ]
        assert sorted(map(str, shown.collect())) == sorted(map(str, wanted.collect()))


def test_stored_views_show_each_publish_until_they_are_removed(unstuck: Fixture) -> None:
    place = Warehouse(unstuck.warehouse)
    for kind in ("duckdb", "spark"):
        assert write_views(place, kind) == 0
    unstuck.publish("orders", [{"id": 1}])
    files = {kind: Path(unstuck.warehouse) / view_path(kind) for kind in ("duckdb", "spark")}
    with in_duckdb(files["duckdb"].read_text()) as connection:
        assert connection.table("orders").fetchall() == [(1,)]
        unstuck.publish("orders", [{"id": 2}], mode="append")
        unstuck.publish("customers", [{"name": "ann"}])
        connection.execute(files["duckdb"].read_text())
        assert sorted(connection.table("orders").fetchall()) == [(1,), (2,)]
        assert connection.table("customers").fetchall() == [("ann",)]
    spark = unstuck.spark
    in_spark(spark, files["spark"].read_text())
    assert sorted(row.id for row in spark.table("orders").collect()) == [1, 2]
    assert files["spark"].read_text().startswith(f"-- unstuck: version 3 of {unstuck.warehouse}")
    files["spark"].unlink()
    unstuck.publish("customers", [{"name": "bob"}])
    assert not files["spark"].exists(), "it is kept no more"
    assert stale_views(unstuck.warehouse) == {}


def entry(n: int) -> Entry:
    schema = (
        '{"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": true, '
        '"metadata": {}}]}'
    )
    change = {
        "orders": Change("replace", [DataFile(f"_staging/j/{n}.parquet", 1, 100)], [], 1, schema)
    }
    return Entry(n, n - 1, f"job{n}", "package", f"job{n}", "orders", 1e9, {}, change)


@pytest.fixture
def kept(tmp_path: Path) -> Warehouse:
    place = Warehouse(str(tmp_path / "warehouse"))
    place.ensure_id()
    write_views(place, "duckdb")
    return place


def test_a_late_publisher_never_leaves_outdated_views(
    kept: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older one stops just before it writes; the newer one publishes and writes meanwhile."""
    at_write, go_on = threading.Event(), threading.Event()
    write = Files.write_durable

    def late(self: Files, path: str, data: bytes) -> None:
        if path == view_path("duckdb") and b"version 1 of" in data:
            at_write.set()
            assert go_on.wait(60)
        write(self, path, data)

    monkeypatch.setattr(Files, "write_durable", late)
    older = threading.Thread(target=lambda: kept.append("job1", 0, lambda n, state: entry(n)))
    older.start()
    assert at_write.wait(60)
    kept.append("job2", 1, lambda n, state: entry(n))
    assert kept_version(kept.storage, "duckdb") == 2
    go_on.set()
    older.join()
    assert kept_version(kept.storage, "duckdb") == 2
    assert b"2.parquet" in kept.storage.read(view_path("duckdb"))


def test_unwritable_views_fail_no_publish_and_are_reported(
    kept: Warehouse, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(kept.storage.uri("_views"))
    (folder / "duckdb.sql").rename(folder / "old")
    (folder / "duckdb.sql").mkdir()
    made, new = kept.append("job1", 0, lambda n, state: entry(n))
    assert (made.n, new) == (1, True)
    assert "could not be written anew" in caplog.text

    (folder / "duckdb.sql").rmdir()
    (folder / "old").rename(folder / "duckdb.sql")
    (told,) = of_views(stale_views(kept.storage.uri("")))
    assert (told.code, told.level) == ("VIEWS_STALE", "warning")
    assert "shows version 0 of the warehouse, of which 1 is the newest" in told.text
    assert told.cure.startswith("unstuck datasets --export-views duckdb --keep")

    assert kept.append("job1", 0, lambda n, state: entry(n))[1] is False, (
        "a publisher that takes over"
    )
    assert stale_views(kept.storage.uri("")) == {}


def test_names_differing_only_in_case_are_reported_and_tables_are_read_in_place(
    tmp_path: Path,
) -> None:
    storage = Files(str(tmp_path))
    schema = (
        '{"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": true, '
        '"metadata": {}}]}'
    )
    one = DatasetState([], schema, 1, 1e9, "job", "orders")
    table = DatasetState([], schema, 1, 1e9, "job", "orders", table=Table("/lake/it's", "delta"))
    iceberg = DatasetState(
        [], schema, 1, 1e9, "job", "orders", table=Table("prod.lake.flights", "iceberg")
    )
    states = {"Orders": one, "orders": one, "lake": table, "iceberg": iceberg}
    for kind, read in (
        ("duckdb", "delta_scan('/lake/it''s')"),
        ("spark", r"USING delta OPTIONS (path '/lake/it\'s')"),
        ("duckdb", 'SELECT * FROM "prod"."lake"."flights"'),
        ("spark", "AS SELECT * FROM `prod`.`lake`.`flights`"),
    ):
        text = views_sql(kind, storage, states, 1)
        assert (
            "-- orders has no view: its name is that of Orders but for upper and lower case."
            in text
        )
        assert read in text
