"""Steps for tests that run on real workers."""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unstuck import Unrecoverable
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.worker.shutdown import this_worker


def table(spark: Any, ctx: Any, rows: int = 3) -> Any:
    import pyarrow as pa

    ctx.log.info("making %d rows", rows)
    print("printed by the step")
    ctx.progress(rows, rows)
    ctx.result("rows", rows)
    return pa.table({"n": list(range(rows)), "word": [f"w{i}" for i in range(rows)]})


def total(spark: Any, ctx: Any) -> Any:
    import pandas as pd

    found = ctx.input("numbers")
    return pd.DataFrame({"total": [sum(found.column("n").to_pylist())]})


def boom(spark: Any, ctx: Any, text: str = "boom") -> None:
    raise RuntimeError(text)


def never(spark: Any, ctx: Any) -> None:
    raise Unrecoverable("no use trying again")


def leave(spark: Any, ctx: Any, code: Any = 3) -> None:
    sys.exit(code)


def no_memory(spark: Any, ctx: Any) -> None:
    raise MemoryError


def die(spark: Any, ctx: Any) -> None:
    """Takes its whole runner along, as a native crash does."""
    os.kill(os.getpid(), signal.SIGKILL)


def notes(spark: Any, ctx: Any, log: str, name: str, gate: str) -> Any:
    """Writes down that it ran."""
    import pyarrow as pa

    with open(log, "a") as file:
        file.write(f"{name}\n")
    return pa.table({"name": [name]})


def fails_until(spark: Any, ctx: Any, log: str, name: str, gate: str) -> Any:
    """Fails until a file is there."""
    made = notes(spark, ctx, log, name, gate)
    if not Path(gate).exists():
        raise RuntimeError("not mended yet")
    return made


def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)


def wait_for_cancel(spark: Any, ctx: Any) -> None:
    """Polite: leaves when it is told to."""
    _until(lambda: ctx.cancelled)
    raise RuntimeError("interrupted")


def until(spark: Any, ctx: Any, path: str) -> None:
    _until(Path(path).exists)


def gated_table(spark: Any, ctx: Any, started: str, gate: str) -> Any:
    """A table, made once it is told to."""
    Path(started).touch()
    until(spark, ctx, gate)
    return table(spark, ctx)


def gated_never(spark: Any, ctx: Any, started: str, gate: str) -> Any:
    """Fails for good, once it is told to."""
    Path(started).touch()
    until(spark, ctx, gate)
    never(spark, ctx)


def gated_error(spark: Any, ctx: Any, started: str, gate: str) -> Any:
    """Fails as any step may, once it is told to."""
    Path(started).touch()
    until(spark, ctx, gate)
    boom(spark, ctx, "no use trying again")


def false_folder(spark: Any, ctx: Any, started: str, gate: str) -> None:
    """Makes the warehouse's folder and its own staging folder again, as Spark does with any path it
    writes to.
    """
    Path(started).touch()
    until(spark, ctx, gate)
    warehouse = Path(gate).parent / "warehouse"
    job, group, *attempt = ctx.token.split("/")
    (warehouse / "_staging" / job / group / "-".join(attempt)).mkdir(parents=True)
    ctx.result("made", True)  # so that there is a marker to write


def hang(file: Path) -> None:
    """Whoever opens ``file`` from now on waits, as on a mount whose server is gone."""
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def warehouse_hangs(spark: Any, ctx: Any, warehouse: str, then: str = "") -> None:
    """The warehouse hangs when the step is over, with the attempt's own log in it."""
    ctx.result("made", True)  # so that there is a marker to write
    hang(Path(warehouse) / Token.parse(ctx.token).log)
    hang(Path(warehouse) / "_warehouse_id")
    if then == "fail":
        never(spark, ctx)


def sleep_on(spark: Any, ctx: Any, started: str = "") -> None:
    """Rude: hears nothing; with a child of its own in a process group of its own, as pyspark.daemon
    has.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], process_group=0
    )
    if started:
        Path(started).write_text(str(child.pid))
    while True:
        time.sleep(1)


def hold_the_gil(spark: Any, ctx: Any, seconds: int) -> Any:
    """One C call that lets no other thread of this process run for ``seconds``: ``PyDLL`` keeps the
    global lock.
    """
    ticks = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.05):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    before = time.monotonic()
    thread.start()
    ctypes.PyDLL(None).sleep(seconds)
    stop.set()
    thread.join()
    ctx.result(
        "silent_for",
        max(b - a for a, b in zip([before, *ticks], [*ticks, time.monotonic()], strict=True)),
    )


def unspeakable(spark: Any, ctx: Any) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    raise Unspeakable


_HOARD: list[int] = []


def hoard(spark: Any, ctx: Any) -> None:
    """Leaves not one descriptor to its runner."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    while True:
        _HOARD.append(os.open(os.devnull, os.O_RDONLY))


def looks_through(spark: Any, ctx: Any) -> None:
    """Does a collection of garbage look through what the main process of the worker made before it
    forked?
    """
    made_before = this_worker()
    ctx.result("looks_through", any(one is made_before for one in gc.get_objects()))


def leave_a_thread(spark: Any, ctx: Any) -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=False).start()
    ctx.result("pid", os.getpid())


def die_at_once(spark: Any, ctx: Any) -> None:
    os._exit(3)


def a_log_that_cannot_be_closed(spark: Any, ctx: Any) -> None:
    class Blocks(logging.Handler):
        def flush(self) -> None:
            signal.pause()

    logging.getLogger("blocks").addHandler(Blocks())


def stop_the_session(spark: Any, ctx: Any) -> None:
    spark.stop()


def my_pid(spark: Any, ctx: Any) -> None:
    ctx.result("pid", os.getpid())


def fails_on(spark: Any, ctx: Any, host: str) -> None:
    if os.uname().nodename == host:
        raise OSError(f"{host} is bad")


def slots_in_use(spark: Any, ctx: Any, pool: str) -> None:
    """How many attempts hold a slot of the pool while this one runs."""
    from unstuck import Client

    ctx.result("used", next(each.used for each in Client().pools.all() if each.name == pool))


def with_secret(spark: Any, ctx: Any, password: str) -> None:
    ctx.log.info("the password is %s", password)
    ctx.result("length", len(password))
    raise RuntimeError(f"login with {password} failed")


def records(spark: Any, ctx: Any, **values: Any) -> Any:
    """Ten numbers, and its parameters as results."""
    for key, value in values.items():
        ctx.result(key, value)
    return spark.range(10).toDF("n")


def spark_numbers(spark: Any, ctx: Any, rows: int = 10) -> Any:
    spark.range(100).createOrReplaceTempView("left_behind")
    spark.range(100).createOrReplaceGlobalTempView("left_for_all")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    return spark.range(rows).withColumnRenamed("id", "n")


def views(spark: Any, ctx: Any) -> None:
    ctx.result("views", sorted(t.name for t in spark.catalog.listTables() if t.isTemporary))
    ctx.result(
        "global", sorted(t.name for t in spark.catalog.listTables("global_temp") if t.namespace)
    )
    ctx.result("partitions", spark.conf.get("spark.sql.shuffle.partitions"))
    ctx.result("same", type(spark).builder.getOrCreate() is spark)
    ctx.result("tags", sorted(spark.sparkContext.getJobTags()))


def commented(spark: Any, ctx: Any, text: str) -> Any:
    return spark.range(3).withMetadata("id", {"comment": text})


def jvm_dies_when_left(spark: Any, ctx: Any) -> None:
    """In the middle of it: when the session is cleaned."""
    clear, jvm = spark.catalog.clearCache, spark.sparkContext._gateway.proc

    def die() -> None:
        jvm.kill()
        jvm.wait()
        clear()

    spark.catalog.clearCache = die


def pandas_in_spark(spark: Any, ctx: Any) -> None:
    import pandas as pd

    ctx.output("small").write(pd.DataFrame({"n": [1, 2], "name": ["a", None]}))
    ctx.result("seen", spark.table("small").count())


def empty(spark: Any, ctx: Any) -> Any:
    return spark.createDataFrame([], "n long, name string")


def taken_away(spark: Any, ctx: Any, warehouse: str, back: bool) -> Any:
    """30 rows, by three tasks one after the other. While the second writes the warehouse is away;
    or from then on.
    """
    here, away, false = (Path(warehouse + end) for end in ("", "-away", "-false"))

    def a_task_has_written() -> bool:
        try:
            return any(here.glob("_staging/**/_temporary/0/task_*"))
        except FileNotFoundError:  # a folder that another task renamed meanwhile
            return False

    def part(index: int, rows: Any) -> Any:
        if index == 1:
            _until(a_task_has_written)
            here.rename(away)
        if index == 2:
            _until(away.exists)
            _until(a_task_has_written)
            if back:
                here.rename(false)
                away.rename(here)
        return ((row,) for row in rows)

    return spark.sparkContext.parallelize(range(30), 3).mapPartitionsWithIndex(part).toDF("n long")


def slow_stage(spark: Any, ctx: Any, started: str) -> None:
    """A Spark stage that would run for minutes."""

    def crawl(rows: Any) -> Any:
        Path(started).write_text(str(os.getpid()))
        for row in rows:
            time.sleep(0.5)
            yield row

    spark.sparkContext.parallelize(range(10_000), 2).mapPartitions(crawl).count()


def between_actions(spark: Any, ctx: Any, started: str) -> None:
    """A Spark action, Python until long after it was told to end, and one more action that it never
    comes back from.
    """
    spark.range(10).count()
    Path(started).touch()
    _until(lambda: ctx.cancelled)
    time.sleep(1)  # in which the cancel is repeated, and finds no job
    spark.range(10).count()
    time.sleep(600)


def whose_python(spark: Any, ctx: Any) -> None:
    (task,) = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    ctx.result("driver", sys.executable)
    ctx.result("task", task)


def stuck_udf(spark: Any, ctx: Any, started: str) -> None:
    """A UDF that ignores whatever it is told: signals of its own process, and the end of its
    task.
    """
    from pyspark.sql.functions import udf

    @udf("long")
    def stubborn(value: int) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        Path(started).touch()
        while True:
            try:
                time.sleep(60)
            except BaseException:  # noqa: BLE001 - the point of it
                continue

    spark.range(2).select(stubborn("id")).collect()


def one_c_call(spark: Any, ctx: Any, started: str) -> None:
    """A C call that holds the GIL for longer than any test waits."""
    Path(started).touch()
    re.match(r"(a+)+$", "a" * 60 + "b")


def union(spark: Any, ctx: Any) -> None:
    frame = ctx.input("part")
    ctx.result("rows", frame.count())
    ctx.result("sum", frame.groupBy().sum("n").first()[0])
    ctx.result("by_group", spark.table("`by-part`").count())


def counted(
    spark: Any,
    ctx: Any,
    folder: str,
    gate: str = "",
    seconds: float = 0.0,
    n: int = 0,
    gated: int = 1,
) -> None:
    """Polite, and counts: one file per ``n``, a line when it began and one when it was done.

    Of all ``n`` those below ``gated`` wait for ``gate``; the others take ``seconds``, or less once
    it is open.
    """

    def note(word: str) -> None:
        with open(Path(folder) / str(n), "a") as file:
            file.write(f"{word}\n")

    note("began")
    end = time.monotonic() + seconds
    while not (gate and Path(gate).exists()) and (n < gated or time.monotonic() < end):
        if ctx.cancelled:
            raise RuntimeError("interrupted")
        time.sleep(0.02)
    note("done")
    ctx.result("n", n)  # so that its work is found again


def two_outputs(spark: Any, ctx: Any, log: str) -> None:
    """Writes down which attempt runs, and makes two outputs that say so as well."""
    import pyarrow as pa

    epoch = int(ctx.token.split("/")[2])
    with open(log, "a") as file:
        file.write(f"{epoch}\n")
    for name in ("carriers", "months"):
        ctx.output(name).write(pa.table({"epoch": [epoch]}))


def rows_of_tables(spark: Any, ctx: Any, names: list[str], made_by: str) -> None:
    """The rows 2 and 3 for each of the outputs."""
    import pyarrow as pa

    for name in names:
        ctx.output(name).write(
            pa.table({"n": pa.array([2, 3], pa.int64()), "made_by": [made_by] * 2})
        )


def slow_in_the_jvm(spark: Any, ctx: Any, started: str) -> Any:
    """40 rows that take 5 s to write, in which Python is not needed."""
    Path(started).touch()
    asleep = "java_method('java.lang.Thread', 'sleep', 250L)"
    return spark.range(0, 40, 1, 2).selectExpr("id", f"{asleep} AS asleep")


class Flaky(ConnectionError):
    """An error with a base that ``retry_on:`` may name."""


def raises(spark: Any, ctx: Any, kind: str) -> None:
    if kind == "slip":
        print(not_defined)  # type: ignore[name-defined]  # noqa: F821
    if kind == "wrong call":
        slow_in_the_jvm(spark, ctx)  # type: ignore[call-arg]
    raise {"flaky": Flaky, "value": ValueError}[kind]("as asked")


def flights_of(spark: Any, ctx: Any, names: list[str], days: list[str], made_by: str) -> None:
    """Three flights a day, as each of the outputs."""
    import pyarrow as pa

    rows = [(day, n, made_by) for day in days for n in range(3)]
    columns = dict(zip(("day", "n", "made_by"), map(list, zip(*rows, strict=True)), strict=True))
    for name in names:
        ctx.output(name).write(pa.table(columns))


def count_by_day(spark: Any, ctx: Any, paths: list[str]) -> Any:
    """The rows of each day in Parquet files."""
    return spark.read.parquet(*paths).groupBy("day").count()


def fills_temporary_folders(spark: Any, ctx: Any, started: str, gate: str) -> None:
    """Leave a file in each place for temporary files, as what is killed does.

    Write down where they are.
    """
    of_scratch = ctx.scratch / "scratch"
    of_scratch.touch()
    places = [str(of_scratch)]
    if spark is not None:
        # Beside the blocks of shuffles, which Spark itself may remove at any time.
        of_blocks = next(ctx.scratch.parent.rglob("blockmgr-*")) / "block"
        of_blocks.touch()
        places.append(str(of_blocks))
        places.append(spark._jvm.java.io.File.createTempFile("of-java", "").getAbsolutePath())
        # Where S3A keeps what it uploads, below this.
        hadoop = spark.sparkContext._jsc.hadoopConfiguration().get("hadoop.tmp.dir")
        os.makedirs(hadoop)
        places.append(hadoop)
    half = Path(f"{started}.half")
    half.write_text(json.dumps(places))
    half.rename(started)
    until(spark, ctx, gate)


def conf_of(spark: Any, ctx: Any, keys: list[str]) -> None:
    """What Spark and its context have of ``keys``."""
    conf = spark.sparkContext.getConf()
    ctx.result("conf", {key: spark.conf.get(key, None) or conf.get(key) for key in keys})
    ctx.result("pid", os.getpid())


def known_conf(spark: Any, ctx: Any, path: str) -> None:
    """Write down every setting that Spark knows, and whether a session that runs takes it."""
    config = spark.sparkContext._jvm.org.apache.spark.internal.config
    entries = getattr(getattr(config, "ConfigEntry$"), "MODULE$").knownConfigs().keySet().toArray()
    Path(path).write_text(
        json.dumps({key: spark.conf.isModifiable(key) for key in map(str, entries)})
    )
