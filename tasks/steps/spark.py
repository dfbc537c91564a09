"""Spark: the driver of a runner, and all that this package asks of Spark.

The driver starts in the child, when a group first needs it, and stays for later attempts; each attempt gets its own
session. Importing this module does not import pyspark, so a runner of ``spark: false`` groups starts no JVM.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any

from unstuck.tasks.errors import HostUnfit, OutputInvalid, SparkLacksStore, Unrecoverable
from unstuck.tasks.host import lacking_java
from unstuck.tasks.protocol.failure import spark_condition
from unstuck.tasks.settings import NO_SPARK, Settings, whoami

log = logging.getLogger(__name__)
# By Spark's own defaults, or by a group's conf, timestamps would lose their zone, their microseconds or whole centuries
# in other readers, and dates of before 1582 would move by days.
_WRITE_CONF = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
NONE_SET = f"UNSTUCK_SPARK_MASTER={NO_SPARK}"
_VOID = re.compile(r'"(type|elementType|keyType|valueType)":"void"')  # in the JSON of a schema
_OBSERVED_WITHIN = "10 seconds"  # usually it is there at once


def local_master(master: str, slots: int, cores: int) -> str:
    """``local[*]`` shared by ``slots`` runners of one machine; any other master as it is."""
    return f"local[{max(1, cores // max(1, slots))}]" if master == "local[*]" else master


class Driver:
    """The Spark driver of this process."""

    def __init__(self, settings: Settings, *, slots: int = 1) -> None:
        """``slots``: how many runners share this machine's cores. Starts nothing."""
        self._settings = settings
        self._master = local_master(settings.spark_master, slots, os.cpu_count() or 1)
        self.remote = self._master.startswith("sc://")  # Spark Connect: a client session, and no context of ours
        self.application: dict[str, str] = {}  # ``app`` and ``ui`` of the session, for people
        self._lock = threading.Lock()
        self._base: Any = None
        self._started = False
        self._own: Mapping[str, str] = {}  # static conf of the only group that this process runs

    @property
    def running(self) -> bool:
        """True if a session is up and its JVM answers."""
        if self._base is None or self.remote:
            return self._base is not None
        try:
            return not (self._base.sparkContext._jsc is None or self._base.sparkContext._jsc.sc().isStopped())
        except Exception:  # noqa: BLE001 - py4j may raise anything once the JVM is dead
            return False

    @property
    def died(self) -> bool:
        """True if a session was up here and is no more: only a new process has another."""
        return self._base is not None and not self.running

    @property
    def starting(self) -> bool:
        """True while another thread starts or stops the session: then ``pids`` may lack the JVM."""
        return self._lock.locked()

    @property
    def pids(self) -> list[int]:
        """The process that this driver started: its JVM. The JVM outlives the session."""
        if not self._started or self.remote:
            return []
        from pyspark import SparkContext

        process = getattr(SparkContext._gateway, "proc", None)
        return [process.pid] if process is not None else []

    def start(self, own: Mapping[str, str] | None = None) -> None:
        """Start the session, unless one is running.

        Args:
            own: static conf of a group that alone uses this process. A Spark Connect server has its own.

        Raises:
            HostUnfit: this process cannot run a driver, or its driver has died, so no group is to blame.
            Exception: whatever Spark raises when it cannot start.
        """
        with self._lock:
            if self.running:
                return
            if self._master == NO_SPARK:
                raise HostUnfit(f"{whoami()} was given a group that wants Spark, and runs none ({NONE_SET})")
            if own and not self.remote:
                self._own, self._master = own, own.get("spark.master", self._master)
            replaced = "This runner is replaced, and the group is tried again; no retry: is used up"
            if self._base is not None:
                raise HostUnfit(f"the Spark session of {whoami()} has died. {replaced}")
            try:
                self._base = self._make()
            except Exception as error:
                started = self.remote or self.pids or (self._own and not lacking_java())
                if started and not isinstance(error, ImportError):
                    raise  # the cluster or the conf may be at fault, also where Java refuses the group's own
                why = lacking_java() or f"{type(error).__name__}: {error}"
                raise HostUnfit(f"{whoami()} could not start Spark: {why}. {replaced}") from error

    def stop(self) -> None:
        """Stop the session; the JVM ends with this process."""
        with self._lock:
            try:
                if self._base is not None:
                    self._base.stop()
            except Exception as error:  # noqa: BLE001 - the JVM may be gone, which is the aim
                log.info("the Spark session did not stop in good order: %s", error)
            self._base = None

    @contextlib.contextmanager
    def attempt(self, tag: str, conf: Mapping[str, str]) -> Iterator[Any]:
        """A session for one attempt: ``tag`` on all its jobs, ``conf`` as run-time conf. It is cleaned up at the end.

        Raises:
            Unrecoverable: ``conf`` has a key that cannot be set at run time.
            Exception: the session could not be cleaned; this process must run no other attempt.
        """
        self.start()
        session = self._base.newSession()
        self._activate(session)
        if self.remote:
            session.addTag(tag)
        else:
            session.sparkContext.addJobTag(tag)
            session.sparkContext.setLocalProperty("spark.jobGroup.id", tag)
        try:
            for key, value in conf.items():
                if key not in self._own:
                    _set_conf(session, key, value)
            yield session
        finally:
            self._clean(session)

    def cancel(self, tag: str) -> None:
        """Cancel every running Spark job of ``tag``, and each that its thread starts from now on.

        Repeat it: a job of another thread, or of a group that the step named itself, is reached only once it runs.
        """
        base = self._base
        if base is None:
            return
        try:
            if self.remote:
                base.interruptTag(tag)
            else:
                # interruptTag cancels nothing from another thread on a classic session (measured); this does.
                base.sparkContext.cancelJobsWithTag(tag)
                # So a step between two actions is canceled at its next action; in Spark 3.5 by the next call of this.
                if not base.version.startswith("3."):
                    base.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(tag)
        except Exception as error:  # noqa: BLE001 - the session may be stopping; the caller repeats
            log.info("jobs of %s were not canceled this time: %s", tag, error)

    # -- making and cleaning -----------------------------------------------------------------------------------

    def _make(self) -> Any:
        from pyspark.sql import SparkSession

        self._started = True
        if self.remote:
            return SparkSession.builder.remote(self._master).getOrCreate()
        logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs every connection it opens and closes
        builder = SparkSession.builder.appName(f"unstuck {os.uname().nodename}:{os.getpid()}").master(self._master)
        conf = {
            "spark.ui.port": "0",  # any free one: runners share a host
            "spark.ui.showConsoleProgress": "false",
            # How long a canceled task waits before it ends its Python worker; Spark's own 2s is most of a cancel.
            "spark.python.task.killTimeout": "200ms",
            "spark.sql.session.timeZone": "UTC",  # a job must not depend on which host runs it
            "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        }
        if self._master.startswith("local"):
            # Nobody else needs to reach a local driver. The UI listens where this variable says.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            # Spark's own default is the first python3 on the PATH: another one, without our packages, unless somebody
            # activated the virtual environment.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            conf |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
        for key, value in {**conf, **store_conf(os.environ), **self._settings.spark_conf, **self._own}.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        context = session.sparkContext
        context.setLogLevel("WARN")
        self.application = {"app": str(context.applicationId), "ui": str(context.uiWebUrl or "")}
        return session

    def _activate(self, session: Any) -> None:
        """Let ``SparkSession.builder.getOrCreate()`` in a step return the attempt's own session."""
        if self.remote:
            return
        from pyspark.sql import SparkSession

        SparkSession._instantiatedSession = session
        SparkSession._activeSession = session
        java = session._jsparkSession
        java.setDefaultSession(java)
        java.setActiveSession(java)

    def _clean(self, session: Any) -> None:
        """Remove what outlives a session: the cache, global views, queries, and properties of this thread."""
        if self.remote:
            session.clearTags()
            return
        if not self.running:
            raise RuntimeError("the Spark context was stopped, or its JVM has died")
        for query in session.streams.active:
            query.stop()
        session.catalog.clearCache()
        context = session.sparkContext
        stored = context._jsc.getPersistentRDDs()
        if len(stored):  # py4j takes 15 ms to find that there is nothing to iterate over (measured)
            for one in stored.values():
                one.unpersist()
        # Not by SQL: the first statement of a session takes seconds, which would delay a cancel.
        session._jsparkSession.sharedState().globalTempViewManager().clear()
        context.clearJobTags()
        for key in ("jobGroup.id", "job.description", "job.interruptOnCancel", "scheduler.pool"):
            context.setLocalProperty(f"spark.{key}", None)
        self._activate(self._base)


def _set_conf(session: Any, key: str, value: str) -> None:
    from pyspark.errors import PySparkException

    try:
        session.conf.set(key, value)
    except PySparkException as error:
        raise Unrecoverable(
            f"conf: {key} cannot be set for one group ({spark_condition(error) or 'refused by Spark'}); a running "
            "session takes run-time settings only: give the group fresh: true, or all in UNSTUCK_SPARK_CONF; on Spark "
            "Connect, the server"
        ) from error


# -- frames ----------------------------------------------------------------------------------------------------


def is_frame(value: Any) -> bool:
    """True for a Spark DataFrame, without importing Spark for anything else."""
    # First the name alone: this runs after a step, which may have replaced `isinstance`.
    if not type(value).__module__.startswith("pyspark."):
        return False
    from pyspark.sql import DataFrame

    return isinstance(value, DataFrame)


def hadoop_uri(uri: str) -> str:
    """``uri`` as Hadoop spells it."""
    return "s3a://" + uri.removeprefix("s3://") if uri.startswith("s3://") else uri


def check_reaches(session: Any, uri: str) -> None:
    """Check that Spark can use the warehouse at ``uri``, before any step works for nothing.

    Raises: SparkLacksStore: no connector for that kind of store is among Spark's jars.
    """
    scheme, is_uri, _ = hadoop_uri(uri).partition("://")
    if not is_uri or scheme == "file" or session.__class__.__module__.startswith("pyspark.sql.connect"):
        return  # what the cluster behind Spark Connect has is not for this process to see
    from py4j.protocol import Py4JError

    try:
        session._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(
            scheme, session.sparkContext._jsc.hadoopConfiguration()
        )
    except Py4JError as error:
        jars = f"its Hadoop connector for {scheme}://"
        if scheme == "s3a":
            hadoop = session._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
            jars = f"org.apache.hadoop:hadoop-aws:{hadoop}"
        raise SparkLacksStore(
            f"Spark on {whoami()} cannot use the warehouse {uri}: there is no {jars} among its jars. Give it to the "
            'workers: UNSTUCK_SPARK_CONF=\'{"spark.jars.packages": "…"}\'. Groups with spark: false need none'
        ) from error


def store_conf(environ: Mapping[str, str]) -> dict[str, str]:
    """Spark conf for the S3 that the variables of AWS name. S3A reads keys and roles by itself; none stands here."""
    conf: dict[str, str] = {}
    if endpoint := environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL"):
        conf |= {"spark.hadoop.fs.s3a.endpoint": endpoint, "spark.hadoop.fs.s3a.path.style.access": "true"}
    if region := environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"):
        conf["spark.hadoop.fs.s3a.endpoint.region"] = region
    return conf


def write_parquet(frame: Any, uri: str, writer: Callable[[Any], Any] = lambda frame: frame.write) -> int | None:
    """Write the rows of a Spark ``frame`` into the folder ``uri``, over what an earlier try left there.

    Args:
        writer: makes the ``DataFrameWriter`` of a frame.

    Returns:
        The rows that its tasks wrote, as they counted them; None if Spark does not say. The driver commits whatever
        it then finds in the folder, and reports no error where that is less.
    """
    for key, value in _WRITE_CONF.items():
        # Not put back, since another thread of the step may be writing an output too.
        frame.sparkSession.conf.set(key, value)
    frame = _typed(frame)
    if frame.sparkSession.__class__.__module__.startswith("pyspark.sql.connect"):
        writer(frame).mode("overwrite").parquet(hadoop_uri(uri))
        return None
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    counted = Observation()
    writer(frame.observe(counted, count(lit(1)).alias("rows"))).mode("overwrite").parquet(hadoop_uri(uri))
    return _observed_rows(frame, counted)


def _typed(frame: Any) -> Any:
    """``frame`` with its columns without a type as text: Polars cannot read what Spark writes for them."""
    from pyspark.sql.types import StructType

    schema = frame.schema.json()
    typed = _VOID.sub(r'"\1":"string"', schema)
    return frame if typed == schema else frame.to(StructType.fromJson(json.loads(typed)))


def _observed_rows(frame: Any, counted: Any) -> int | None:
    """The observation may come late, and Spark drops observations when it has too many."""
    from py4j.protocol import Py4JJavaError

    concurrent = frame.sparkSession._jvm.scala.concurrent
    try:
        concurrent.Await.ready(counted._jo.future(), concurrent.duration.Duration.apply(_OBSERVED_WITHIN))
    except Py4JJavaError as error:
        log.warning("Spark did not say how many rows it wrote; they are not compared with what stands: %s", error)
        return None
    rows = counted.get.get("rows")
    return None if rows is None else int(rows)


def read_parquet(session: Any, groups: Sequence[tuple[str, Sequence[str]]]) -> Any:
    """One frame of all files: each of ``groups`` is a schema and its files; columns that one lacks are null.

    Spark is told the schema. What it would infer depends on its conf, and is an integer for a column of nulls.
    """
    frames = [_read(session, schema, uris) for schema, uris in groups]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame, allowMissingColumns=True)
    return whole


def _read(session: Any, schema: str, uris: Sequence[str]) -> Any:
    from pyspark.sql.functions import col
    from pyspark.sql.types import NullType, StructType

    fields = StructType.fromJson(json.loads(schema))
    if not uris:
        return session.createDataFrame([], fields)
    # A column without a type stands as another one in the file. It goes with a column of any type of other members.
    known = StructType([field for field in fields if field.dataType != NullType()])
    # In a list, map or struct Arrow stores integers for it, and Spark 4.0 reads nothing else.
    stored = StructType.fromJson(json.loads(_VOID.sub(r'"\1":"integer"', known.json())))
    # As written: a conf, or Spark 3.5 by itself, would move dates of before 1582 or refuse them.
    reader = session.read.schema(stored).option("datetimeRebaseMode", "CORRECTED")
    frame = reader.parquet(*map(hadoop_uri, uris))
    if stored == fields:
        return frame
    columns = [(field, col("`" + field.name.replace("`", "``") + "`")) for field in fields]
    return frame.select(*(_emptied(column, field.dataType).alias(field.name) for field, column in columns))


def _emptied(column: Any, kind: Any) -> Any:
    """``column`` with nulls for the values that have no type in ``kind``."""
    from pyspark.sql.functions import (
        array_repeat,
        lit,
        map_from_arrays,
        map_keys,
        map_values,
        size,
        struct,
        transform,
        when,
    )
    from pyspark.sql.types import ArrayType, MapType, NullType

    if isinstance(kind, NullType):
        return lit(None)
    if not _VOID.search(kind.json()):
        return column
    if isinstance(kind, ArrayType):
        if isinstance(kind.elementType, NullType):
            # Not by transform: in Spark 4.3 it reads the integers, and fails where all of a file are null.
            return when(column.isNotNull(), array_repeat(lit(None), size(column)))
        return transform(column, lambda one: _emptied(one, kind.elementType))
    if isinstance(kind, MapType):
        keys = _emptied(map_keys(column), ArrayType(kind.keyType))
        return map_from_arrays(keys, _emptied(map_values(column), ArrayType(kind.valueType)))
    fields = [_emptied(column.getField(field.name), field.dataType).alias(field.name) for field in kind]
    return when(column.isNotNull(), struct(*fields))


def sql_error(error: BaseException) -> str | None:
    """What is wrong with a SQL text, if that is what ``error`` says; None for any other error."""
    if not type(error).__module__.startswith("pyspark."):
        return None
    from pyspark.errors import AnalysisException, ParseException

    return str(error) if isinstance(error, AnalysisException | ParseException) else None


def spark_schema(arrow_schema: Any) -> str:
    """An Arrow schema of plain types as Spark's JSON of a struct."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return str(from_arrow_schema(arrow_schema, prefer_timestamp_ntz=True).json())


def comparable(schema: str) -> str:
    """A schema such that two with the same columns, types and order are equal, whether or not they may be null."""
    from pyspark.sql.types import StructType

    text = StructType.fromJson(json.loads(schema)).json()
    return re.sub(r'"(nullable|containsNull|valueContainsNull)":false', r'"\1":true', text)


def empty_table(schema: str) -> Any:
    """An Arrow table without rows, of a schema in Spark's JSON of a struct."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    # Before PySpark 4.3 the zone is UTC, and has no name.
    zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(StructType.fromJson(json.loads(schema)), **zone).empty_table()


def repeated_keys(
    session: Any, schema: str, uris: Sequence[str], columns: Sequence[str], some: int
) -> tuple[int, list[tuple[Any, ...]]]:
    """How many values of ``columns`` several rows share, and ``some`` of them with the number of their rows.

    Raises: OutputInvalid: the values of a column cannot be compared.
    """
    from pyspark.sql.functions import col, count, lit

    frame = read_parquet(session, [(schema, uris)])
    keys = [col(f"`{column.replace('`', '``')}`").alias(str(number)) for number, column in enumerate(columns)]
    try:
        counted = frame.groupBy(*keys).agg(count(lit(1)).alias("rows")).filter("rows > 1")
        found = [tuple(row) for row in counted.limit(some).collect()]
    except Exception as error:
        if (what := sql_error(error)) is None:
            raise
        raise OutputInvalid(f"expect.unique: {', '.join(columns)} cannot be compared: {what}") from error
    return (counted.count() if len(found) == some else len(found)), found
