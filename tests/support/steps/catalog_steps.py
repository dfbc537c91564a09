"""Steps that make tables, databases and functions in Spark's catalog, and one that looks what is
there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def appends(spark: Any, ctx: Any, fails: bool = False) -> Any:
    spark.range(3).write.mode("append").saveAsTable("acc")
    if fails:
        raise ConnectionError("the first attempt fails after its write")
    return spark.table("acc")


def keeps_the_first(spark: Any, ctx: Any, day: str) -> Any:
    spark.sql(f"CREATE TABLE IF NOT EXISTS scratch AS SELECT '{day}' AS day")
    ctx.result("day", [row.day for row in spark.table("scratch").collect()])
    return spark.table("scratch")


def makes(spark: Any, ctx: Any, place: str) -> None:
    """One of each, also a database and a table in a folder of the user's."""
    spark.range(3).write.saveAsTable("work")
    spark.sql("CREATE DATABASE own")
    spark.sql("CREATE TABLE own.inner AS SELECT 1 AS id")
    spark.sql(f"CREATE DATABASE placed LOCATION '{place}/database'")
    spark.sql("CREATE TABLE placed.kept AS SELECT 1 AS id")
    spark.sql(f"CREATE TABLE external USING parquet LOCATION '{place}/external' AS SELECT 1 AS id")
    spark.sql("CREATE FUNCTION shout AS 'org.apache.hadoop.hive.ql.udf.generic.GenericUDFUpper'")
    ctx.result("rows", spark.sql("SELECT * FROM work JOIN own.inner USING (id)").count())
    ctx.result("pid", os.getpid())


def looks(spark: Any, ctx: Any) -> None:
    folder = Path(spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:"))
    ctx.result("tables", [one.name for one in spark.catalog.listTables()])
    ctx.result("databases", [one.name for one in spark.catalog.listDatabases()])
    ctx.result("functions", [row[0] for row in spark.sql("SHOW USER FUNCTIONS").collect()])
    ctx.result("files", sorted(os.listdir(folder)) if folder.is_dir() else [])
    ctx.result("folder", str(folder))
    ctx.result("pid", os.getpid())
