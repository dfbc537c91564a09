"""The Spark driver of a runner: one long-lived session, and one session for each attempt.

The driver starts in the child, when a group first needs it, and stays for later attempts. Importing
this module does not import pyspark.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from unstuck.tasks.driver.attempt_catalog import Catalog
from unstuck.tasks.driver.context_snapshot import LOG_LEVEL, ContextSnapshot
from unstuck.tasks.driver.running_stages import running_stages
from unstuck.tasks.errors import HostUnfit, NotBegun, SparkLacksStore, Unrecoverable
from unstuck.tasks.frames.spark import hadoop_uri
from unstuck.tasks.host import lacking_java
from unstuck.tasks.identity import NO_SPARK
from unstuck.tasks.process.tree import describe_exit
from unstuck.tasks.protocol.failure import MAX_TEXT, shorten, spark_condition
from unstuck.tasks.protocol.report import Failure
from unstuck.tasks.protocol.step_stack import SparkStage
from unstuck.tasks.settings import Settings, whoami
from unstuck.tasks.time_zone import SESSION_ZONE, conf_of_zone, other_zone

log = logging.getLogger(__name__)

TABLES = "_catalog"  # in the staging of an attempt; Spark and our own readers pass over such a name

_OUT_OF_MEMORY = "out-of-memory"  # a file that the JVM makes when a thread of it runs out of memory
_EXIT_OF_SPARK = 52  # of a JVM that Spark ends for that


def local_master(master: str, slots: int, cores: int) -> str:
    """Return ``master``; ``local[*]`` gets a share of the cores for each of ``slots`` runners."""
    return f"local[{max(1, cores // max(1, slots))}]" if master == "local[*]" else master


class Driver:
    """The Spark driver of this process."""

    def __init__(
        self, settings: Settings, *, slots: int = 1, temporary: Path | None = None
    ) -> None:
        """Starts nothing.

        Args:
            slots: how many runners share this machine's cores.
            temporary: a folder for temporary files of the JVM, which is made for it; None: where
                Java has them.
        """
        self._settings = settings
        self._master = local_master(settings.spark_master, slots, os.cpu_count() or 1)
        # Spark Connect: a client session, without a context of our own.
        self.remote = self._master.startswith("sc://")
        self.application: dict[str, str] = {}  # ``app`` and ``ui`` of the session, for people
        self._temporary = temporary
        # In words, what an attempt left on the context, and only another context is without.
        self.left = ""
        self._lock = threading.Lock()
        self._base: Any = None
        self._started = False
        self._context: Any = None
        self._catalog: Catalog | None = None
        self._own: Mapping[str, str] = {}  # static conf of the only group that this process runs

    @property
    def running(self) -> bool:
        """True if a session is up and its JVM answers."""
        if self._base is None or self.remote:
            return self._base is not None
        try:
            return not (
                self._base.sparkContext._jsc is None
                or self._base.sparkContext._jsc.sc().isStopped()
            )
        except Exception:  # noqa: BLE001 - py4j may raise anything once the JVM is dead
            return False

    @property
    def unused(self) -> bool:
        """Whether no session was ever started or is being started. Does not call the JVM."""
        return self._base is None and not self._lock.locked()

    @property
    def died(self) -> bool:
        """Whether the session of this process has died; only a new process can have another."""
        return self._base is not None and not self.running

    @property
    def spent(self) -> bool:
        """Whether no further attempt may use this driver."""
        return self.died or bool(self.left) or bool(self.broken[0])

    @property
    def broken(self) -> tuple[str, str]:
        """A code and a reason why the JVM must not be used any more; empty if it may.

        Does not call the JVM. After a thread ran out of memory, the JVM continues with its other
        threads in an undefined state.
        """
        jvm = self._jvm
        ended = None if jvm is None else jvm.poll()
        if (
            self._temporary is not None and (self._temporary / _OUT_OF_MEMORY).exists()
        ) or ended == _EXIT_OF_SPARK:
            memory = {**self._settings.spark_conf, **self._own}.get(
                "spark.driver.memory", "by default 1g"
            )
            return "JVM_OUT_OF_MEMORY", (
                f"the JVM of the Spark driver on {whoami()} ran out of memory: its Java heap space "
                f"is spark.driver.memory ({memory}). Give it more in UNSTUCK_SPARK_CONF, or in the "
                "conf: of a group with fresh: true, or let the group hold less at once"
            )
        if ended is not None:
            why = "; its host may have run out of memory" if ended == -signal.SIGKILL else ""
            return (
                "JVM_DIED",
                f"the JVM of the Spark driver on {whoami()} {describe_exit(ended)}{why}",
            )
        return "", ""

    def blamed(self, failure: Failure) -> Failure:
        """Return the failure of a step, with a broken JVM as its cause if there is one.

        Spark itself may report only a lost connection.
        """
        if (jvm := self._jvm) is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                jvm.wait(0.2)  # its sockets are closed before it has ended
        code, why = self.broken
        text = f"{why}. The runner is replaced. {failure.text}"
        return replace(failure, code=code, text=shorten(text, MAX_TEXT)) if code else failure

    @property
    def starting(self) -> bool:
        """Whether another thread starts or stops the session, so that ``pids`` may lack the JVM."""
        return self._lock.locked()

    @property
    def pids(self) -> list[int]:
        """The pid of the JVM that this driver started, which outlives the session."""
        return [] if self._jvm is None else [self._jvm.pid]

    @property
    def _jvm(self) -> subprocess.Popen[bytes] | None:
        if not self._started or self.remote:
            return None
        from pyspark import SparkContext

        return getattr(SparkContext._gateway, "proc", None)

    def start(self, own: Mapping[str, str] | None = None) -> None:
        """Start the session, unless one is running.

        Args:
            own: static conf of a group that runs in a process of its own; not for Spark Connect.

        Raises:
            HostUnfit: no driver can start on this host, so no group is to blame.
            NotBegun: the driver of this process has died.
            Exception: whatever Spark raises when it cannot start.
        """
        with self._lock:
            if self.running:
                return
            if self._master == NO_SPARK:
                raise HostUnfit(
                    f"{whoami()} was given a group that wants Spark, and runs none "
                    f"(UNSTUCK_SPARK_MASTER={NO_SPARK})"
                )
            if own and not self.remote:
                self._own, self._master = own, own.get("spark.master", self._master)
            replaced = "This runner is replaced, and the group is tried again; no retry: is used up"
            if self._base is not None:
                raise NotBegun(f"the Spark session of {whoami()} has died. {replaced}")
            try:
                self._base = self._make()
            except Exception as error:
                if self._is_fault_of_conf(error):
                    raise
                why = lacking_java() or f"{type(error).__name__}: {error}"
                raise HostUnfit(f"{whoami()} could not start Spark: {why}. {replaced}") from error

    def _is_fault_of_conf(self, error: Exception) -> bool:
        """Whether the cluster or the conf may be at fault, also where Java refuses it."""
        if isinstance(error, ImportError):
            return False
        return bool(self.remote or self.pids or (self._own and not lacking_java()))

    def new_session(self) -> Any:
        """Return a session on the context of this driver, with its own views and conf.

        Starts the driver if needed; raises as `start`.
        """
        self.start()
        return self._base.newSession()

    def try_arrow(self) -> None:
        """Run an Arrow function in an executor, if executors are on this host.

        Raises: as Spark.
        """
        if self._base is not None and self._master.startswith("local"):
            self._base.newSession().range(1).mapInArrow(
                lambda batches: batches, "id long"
            ).collect()

    def stop(self) -> None:
        """Stop the session; the JVM ends with this process."""
        with self._lock:
            try:
                if self._base is not None:
                    self._base.stop()
            except Exception as error:  # noqa: BLE001 - the JVM may be gone, which is the aim
                log.info("the Spark session did not stop in good order: %s", error)
            self._base = None

    def end_jvm(self) -> None:
        """End the JVM of this process and the state of PySpark, so that a new one can start."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        with self._lock:
            base, self._base = self._base, None
            if (jvm := self._jvm) is not None:
                jvm.kill()
                jvm.wait()
                if jvm.stdin is not None:
                    jvm.stdin.close()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # PySpark warns that the JVM has ended
                    base.sparkContext.stop()
            except Exception as error:  # noqa: BLE001 - the JVM is gone, which is the aim
                log.info("the Spark context did not stop in good order: %s", error)
            SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
            SparkSession._instantiatedSession = SparkSession._activeSession = None
            if self._temporary is not None:
                (self._temporary / _OUT_OF_MEMORY).unlink(missing_ok=True)

    @contextlib.contextmanager
    def attempt(
        self, tag: str, conf: Mapping[str, str], tables: str = "", zone: str = ""
    ) -> Iterator[Any]:
        """Yield a session for one attempt, with ``tag`` on all jobs and ``conf`` as run-time conf.

        The session is cleaned up at the end.

        Args:
            tables: a folder of the attempt that executors on other hosts can write, for the tables
                of its catalog.
            zone: time zone of the attempt, which this process has already; empty for that of the
                fleet.

        Raises:
            Unrecoverable: ``conf`` has a key that cannot be set at run time, or another time zone.
            Exception: the session could not be cleaned; this process must run no other attempt.
        """
        owner, zone = "its job" if zone else "this fleet", zone or self._settings.time_zone
        if why := other_zone(conf, zone, owner):
            raise Unrecoverable(f"conf: {why}")
        session = self.new_session()
        self._activate(session)
        if self.remote:
            session.addTag(tag)
        else:
            session.sparkContext.addJobTag(tag)
            session.sparkContext.setLocalProperty("spark.jobGroup.id", tag)
        try:
            self._use_zone(session, zone)
            if self._catalog is not None:
                is_local = self._master.startswith("local")
                self._catalog.enter(session, "" if is_local else hadoop_uri(tables))
            for key in sorted(conf.keys() - self._own.keys()):
                _set_conf(session, key, conf[key])
            yield session
        finally:
            try:
                self._clean(session, zone)
            except BaseException:
                self.left = "a session that could not be cleaned"
                raise

    def _use_zone(self, session: Any, zone: str) -> None:
        if self.remote or zone != self._settings.time_zone:
            session.conf.set(SESSION_ZONE, zone)
        if self._context is not None and zone != self._settings.time_zone:
            self._context.use_zone(zone)

    def cancel(self, tag: str) -> None:
        """Cancel every running Spark job with ``tag``, and each job that its thread starts later.

        Repeat the call: a job of another thread, or of a job group that the step set itself, can
        only be canceled while it runs.
        """
        base = self._base
        if base is None:
            return
        try:
            if self.remote:
                base.interruptTag(tag)
            else:
                # interruptTag cancels nothing from another thread on a classic session (measured);
                # this does.
                base.sparkContext.cancelJobsWithTag(tag)
                # So a step between two actions is canceled at its next action; in Spark 3.5 by the
                # next call of this.
                if not base.version.startswith("3."):
                    base.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(tag)
        except Exception as error:  # noqa: BLE001 - the session may be stopping; the caller repeats
            log.info("jobs of %s were not canceled this time: %s", tag, error)

    def stages(self, clean: Callable[[str], str]) -> list[SparkStage]:
        """Return the running stages, with secrets removed from their names.

        None for Spark Connect, whose client does not know them.
        """
        base = self._base
        try:
            return [] if base is None or self.remote else running_stages(base.sparkContext, clean)
        except Exception as error:  # noqa: BLE001 - py4j may raise anything while the JVM ends
            log.info("the stages that run are not known: %s", error)
            return []

    # -- making and cleaning -----------------------------------------------------------------------

    def _make(self) -> Any:
        from pyspark.sql import SparkSession

        self._started = True
        _silence_repeats()
        if self.remote:
            return SparkSession.builder.remote(self._master).getOrCreate()
        # At INFO it logs every connection that it opens and closes.
        logging.getLogger("py4j").setLevel(logging.WARNING)
        builder = SparkSession.builder.appName(
            f"unstuck {os.uname().nodename}:{os.getpid()}"
        ).master(self._master)
        conf = {
            "spark.ui.port": "0",  # any free one: runners share a host
            "spark.ui.showConsoleProgress": "false",
            # How long a canceled task waits before it ends its Python worker; Spark's own 2s is
            # most of a cancel.
            "spark.python.task.killTimeout": "200ms",
            # Compiled stages that are kept. This session runs many groups, for which the 100 of
            # Spark are few.
            "spark.sql.codegen.cache.maxEntries": "1000",
            **conf_of_zone(self._settings.time_zone),
            "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
            # Inputs are lists of files. Spark would look at 5,000 in as many tasks, and read 32
            # small ones in a task.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
            "spark.sql.files.openCostInBytes": "65536",
            # CREATE TABLE without USING makes a table of Spark, as from Spark 4 on. Spark 3.5 would
            # ask for Hive.
            "spark.sql.legacy.createHiveTableByDefault": "false",
        }
        if self._master.startswith("local"):
            # Nobody else needs to reach a local driver. The UI listens where this variable says.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            # Spark's own default is the first python3 on the PATH: another one, without our
            # packages, unless somebody activated the virtual environment.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            conf |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
        if self._temporary is not None:
            self._temporary.mkdir(mode=0o700, exist_ok=True)
            conf |= temporary_conf(self._temporary, self._master, os.environ)
        zone = f"-Duser.timezone={self._settings.time_zone}"
        conf["spark.driver.defaultJavaOptions"] = (
            f"{zone} {conf.get('spark.driver.defaultJavaOptions', '')}".strip()
        )
        for key, value in {
            **conf,
            **store_conf(os.environ),
            **self._settings.spark_conf,
            **self._own,
        }.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        context = session.sparkContext
        context.setLogLevel(LOG_LEVEL)
        self._context, self._catalog = (
            ContextSnapshot(context, self._settings.time_zone),
            Catalog.of(session),
        )
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

    def _clean(self, session: Any, zone: str) -> None:
        """Remove what outlives a session: cache, global views, queries, and thread properties."""
        if self.remote:
            session.clearTags()
            return
        if self._base is not None and session.sparkContext is not self._base.sparkContext:
            # The host was tried in another context, in the JVM that has the zone of the job.
            self._context.put_back()
            return
        if not self.running:
            self.left = "no context: it was stopped, or its JVM has died"
            log.warning(
                "the steps left %s. Another is started before another group runs", self.left
            )
            return
        if (left := session.conf.get(SESSION_ZONE)) != zone:
            log.warning(
                "the steps set %s to %s, and Python went on with %s: a time without a zone that "
                "went from one to the other has changed by the difference",
                SESSION_ZONE,
                left,
                zone,
            )
        _clear(session)
        if left := ", ".join(self._context.put_back()):
            log.warning(
                (
                    "the steps left on the Spark context: %s. It is replaced before another group "
                    "runs "
                    "on it"
                ),
                left,
            )
            self.left = left
        if self._catalog is not None:
            self._catalog.leave()
        self._activate(self._base)


def _silence_repeats() -> None:
    """Stop PySpark 4 from logging errors that it also raises, so that a log has each error once."""
    with contextlib.suppress(ImportError):  # PySpark 3.5 logs none
        from pyspark.logger import PySparkLogger

        for kind in ("SQL", "DataFrame"):
            PySparkLogger.getLogger(f"{kind}QueryContextLogger").setLevel(logging.CRITICAL + 1)


def _clear(session: Any) -> None:
    """Stop the queries of a session, and empty its cache and its global views."""
    for query in session.streams.active:
        query.stop()
    session.catalog.clearCache()
    stored = session.sparkContext._jsc.getPersistentRDDs()
    if len(stored):  # py4j takes 15 ms to find that there is nothing to iterate over (measured)
        for rdd in stored.values():
            rdd.unpersist()
    # Not by SQL: the first statement of a session takes seconds, which would delay a cancel.
    session._jsparkSession.sharedState().globalTempViewManager().clear()


def _set_conf(session: Any, key: str, value: str) -> None:
    from pyspark.errors import PySparkException

    try:
        session.conf.set(key, value)
    except PySparkException as error:
        raise Unrecoverable(
            f"conf: {key} cannot be set for one group "
            f"({spark_condition(error) or 'refused by Spark'}); a running session takes run-time "
            "settings only: give the group fresh: true, or all in UNSTUCK_SPARK_CONF; on Spark "
            "Connect, the server"
        ) from error


def check_reaches(session: Any, uri: str) -> None:
    """Check that Spark can use the warehouse at ``uri``, before any step works for nothing.

    Raises: SparkLacksStore: no connector for that kind of store is among Spark's jars.
    """
    scheme, is_uri, _ = hadoop_uri(uri).partition("://")
    if (
        not is_uri
        or scheme == "file"
        or session.__class__.__module__.startswith("pyspark.sql.connect")
    ):
        return  # what the cluster behind Spark Connect has is not for this process to see
    from py4j.protocol import Py4JError

    try:
        session._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(
            scheme, session.sparkContext._jsc.hadoopConfiguration()
        )
    except Py4JError as error:
        jars = f"Hadoop connector for {scheme}://"
        if scheme == "s3a":
            hadoop = session._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
            jars = f"org.apache.hadoop:hadoop-aws:{hadoop}"
        raise SparkLacksStore(
            f"Spark on {whoami()} cannot use the warehouse {uri}: there is no {jars} among its "
            "jars. Give it to the "
            'workers: UNSTUCK_SPARK_CONF=\'{"spark.jars.packages": "…"}\'. Groups with spark: '
            "false need none"
        ) from error


def temporary_conf(folder: Path, master: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return Spark conf that puts the temporary files of a driver into ``folder``.

    These are shuffle and spill files, libraries, and uploads to S3.

    Settings of the user (``SPARK_LOCAL_DIRS``, ``spark.local.dir``, options of Java) take
    precedence.
    """
    conf: dict[str, str] = {}
    if master.startswith("local"):  # executors on other hosts would get it, too
        conf["spark.hadoop.hadoop.tmp.dir"] = str(folder / "hadoop")
    options = [f"-XX:OnOutOfMemoryError=: > '{folder / _OUT_OF_MEMORY}'"]
    if not any(
        "java.io.tmpdir" in environ.get(name, "")
        for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
    ):
        options.append(f"-Djava.io.tmpdir={folder}")
    conf["spark.driver.defaultJavaOptions"] = " ".join(f'"{option}"' for option in options)
    return conf


def store_conf(environ: Mapping[str, str]) -> dict[str, str]:
    """Return Spark conf for the S3 of the AWS variables. S3A reads keys and roles by itself."""
    conf: dict[str, str] = {}
    if endpoint := environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL"):
        conf |= {
            "spark.hadoop.fs.s3a.endpoint": endpoint,
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }
    if region := environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"):
        conf["spark.hadoop.fs.s3a.endpoint.region"] = region
    return conf
