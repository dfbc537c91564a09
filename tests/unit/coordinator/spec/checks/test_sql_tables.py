"""Names of tables in SQL that nothing provides: refused before the run, and only where no run could
read them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from unstuck.coordinator.spec.checks.sql_tables import Writes, check_tables, unknown_tables
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.problems import SpecError
from unstuck.tasks.settings import Settings

LOAD = {"name": "load", "steps": [{"sql": "SELECT 1 AS id", "output": "orders"}]}
PYTHON = {"name": "load", "steps": [{"python": "jobs:load", "output": "orders"}]}


def nothing() -> Collection[str]:
    return ()


def report(*statements: Any, load: dict[str, Any] = LOAD, **group: Any) -> JobSpec:
    """A job whose group ``report`` runs ``statements`` over what the group ``load`` makes."""
    steps = [one if isinstance(one, dict) else {"sql": one} for one in statements]
    steps[-1] = {**steps[-1], "output": "totals"} if "SELECT" in steps[-1]["sql"][:7] else steps[-1]
    spec = {
        "name": "sales",
        "groups": [load, {"name": "report", "needs": ["load"], "steps": steps, **group}],
    }
    return JobSpec.of(spec, {})


def refusal(
    spec: JobSpec, published: Collection[str] = (), settings: Settings | None = None
) -> str:
    """The error of the check; empty if it lets ``spec`` through."""
    try:
        check_tables(spec, settings or Settings(), lambda: published)
    except SpecError as error:
        return str(error)
    return ""


def test_a_misspelled_table_is_refused_with_the_nearest_name() -> None:
    assert refusal(report("SELECT * FROM orders JOIN Oders USING (id)")) == (
        "groups[1].steps[0].sql: group report cannot read a table oders: no needed group makes it, and it is not an input; did you mean 'orders'?"
    )


def test_a_name_without_similar_names_lists_the_inputs_of_the_group() -> None:
    text = refusal(report("SELECT * FROM x", inputs={"rates": "fx_rates"}))
    assert "it can read: load, orders, rates." in text
    assert "default.x" in text


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("customers", "; it is a published dataset: add inputs: {customers: customers}"),
        (
            "custmers",
            (
                "; did you mean the published dataset 'customers'? Then add inputs: {customers: "
                "customers}"
            ),
        ),
        ("total", "; did you mean 'totals', an output of group report? Then add needs: [report]"),
    ],
)
def test_a_name_from_elsewhere_is_refused_with_the_way_to_read_it(name: str, remedy: str) -> None:
    spec = report("SELECT 1 AS id")
    other = {
        "name": "other",
        "needs": ["load"],
        "steps": [{"sql": f"SELECT * FROM {name}", "output": "x"}],
    }
    spec = JobSpec.of({**spec.dumped(), "groups": [*spec.dumped()["groups"], other]}, {})
    assert refusal(spec, ["customers"]).endswith(remedy)


@pytest.mark.parametrize(
    "spec",
    [
        report("SELECT * FROM ORDERS JOIN load JOIN orders__rejected"),
        report("SELECT * FROM rates", inputs={"rates": "fx_rates"}),
        report({"sql": "SELECT 1 AS id", "output": "first"}, "SELECT * FROM first"),
        report("CREATE TEMP VIEW v AS SELECT * FROM orders", "SELECT * FROM v"),
        report("USE sales", "SELECT * FROM x"),
        report({"python": "jobs:view"}, "SELECT * FROM x"),
        report("SHOW TABLES FROM x"),
        report(
            "SELECT * FROM default.x JOIN parquet.`/x` JOIN explode(array(1)) JOIN IDENTIFIER(:t)"
        ),
        report("WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT * FROM x"),
        report("SELECT * FROM x", conf={"spark.sql.defaultCatalog": "lake"}),
        report("SELECT * FROM x", conf={"spark.sql.catalog.spark_catalog": "org.example.Catalog"}),
        report("SELECT * FROM x", fresh=True, conf={"spark.sql.catalogImplementation": "hive"}),
        report("SELECT * FORM x"),
    ],
    ids=lambda spec: spec.groups[1].steps[-1].sql[:40],
)
def test_tables_that_may_exist_at_run_time_are_not_refused(spec: JobSpec) -> None:
    assert unknown_tables(spec, Settings(), nothing) == []


@pytest.mark.parametrize(
    "settings",
    [
        Settings(spark_conf={"spark.sql.catalogImplementation": "hive"}),
        Settings(spark_master="sc://example"),
    ],
)
def test_a_fleet_with_a_metastore_has_tables_of_any_name(settings: Settings) -> None:
    assert not refusal(report("SELECT * FROM x"), settings=settings)


def test_settings_with_the_default_spark_catalog_have_no_metastore_tables() -> None:
    settings = Settings(spark_conf={"spark.sql.catalogImplementation": "in-memory"})
    assert refusal(report("SELECT * FROM x"), settings=settings)


def test_a_table_that_python_may_write_is_a_warning() -> None:
    (warning,) = check_tables(report("SELECT * FROM oders", load=PYTHON), Settings(), nothing)
    assert str(warning).endswith("; did you mean 'orders'?")


@pytest.mark.parametrize(
    ("writes", "sure"), [({"load": {"orders"}}, [True]), ({"load": {"oders"}}, [])]
)
def test_the_code_of_steps_decides_which_tables_python_writes(
    writes: Writes, sure: list[bool]
) -> None:
    spec = report("SELECT * FROM oders", load=PYTHON)
    assert [one.is_sure for one in unknown_tables(spec, Settings(), nothing, writes)] == sure


def test_the_warehouse_is_read_only_for_suggestions() -> None:
    def fail() -> Collection[str]:
        raise AssertionError("the warehouse was asked")

    assert check_tables(report("SELECT * FROM orders"), Settings(), fail) == []
