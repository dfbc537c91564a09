"""Steps that leave something on the Spark context, and one that looks what is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def pollutes(spark: Any, ctx: Any, hadoop: dict[str, str]) -> None:
    context = spark.sparkContext
    for key, value in hadoop.items():
        context._jsc.hadoopConfiguration().set(key, value)
    context._jsc.hadoopConfiguration().unset("io.file.buffer.size")
    context.setLocalProperty("my.tenant", "A")
    context.setJobDescription("of A")
    context.setLogLevel("OFF")
    context.setCheckpointDir(str(ctx.scratch))
    context.environment["MY_TENANT"] = "A"
    value = context.broadcast(bytearray(os.urandom(1 << 20)))
    ctx.result("sum", context.parallelize([1], 1).map(lambda _: len(value.value)).sum())
    spark._jvm.java.util.TimeZone.setDefault(
        spark._jvm.java.util.TimeZone.getTimeZone("Asia/Tokyo")
    )
    ctx.result("pid", os.getpid())


def looks(spark: Any, ctx: Any, keys: list[str]) -> Any:
    """What a stranger could see; and an action, which would copy the files that others have
    added.
    """
    context = spark.sparkContext
    configuration = context._jsc.hadoopConfiguration()
    ctx.result("pid", os.getpid())
    ctx.result(
        "seen",
        {
            **{key: configuration.get(key) for key in keys},
            "tenant": context.getLocalProperty("my.tenant"),
            "description": context.getLocalProperty("spark.job.description"),
            "level": str(
                spark._jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().toString()
            ),
            "checkpoints": context._jsc.sc().checkpointDir().toString(),
            "environment": context.parallelize([1], 1)
            .map(lambda _: os.environ.get("MY_TENANT"))
            .first(),
            "zone": spark._jvm.java.util.TimeZone.getDefault().getID(),
            "files": sum(one.is_file() for one in os.scandir(context._temp_dir)),
        },
    )
    return spark.range(4).repartition(2)


def adds_a_file(spark: Any, ctx: Any) -> None:
    path = Path(ctx.scratch) / "lookup.json"
    path.write_text("x")
    spark.sparkContext.addFile(str(path))
    ctx.result("pid", os.getpid())
