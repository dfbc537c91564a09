"""One Spark session for a run of tests. It starts when something first needs it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unstuck.tasks.driver.driver import Driver
from unstuck.tasks.errors import HostUnfit
from unstuck.tasks.host import how_to_install, lacking_java
from unstuck.tasks.settings import Settings

# Small data alone: fewer tasks, and no page that nobody looks at. UNSTUCK_SPARK_CONF has the last word.
_CONF = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}


class SharedSpark:
    """The Spark driver of this process, with one session for each attempt, as a runner has it.

    Attributes:
        settings: those of the environment, with Spark on this machine unless they name a master.
    """

    def __init__(self, temporary: Path) -> None:
        """Starts nothing. ``temporary``: a folder for the files of the JVM."""
        known = Settings()
        given: dict[str, Any] = {"spark_conf": {**_CONF, **known.spark_conf}}
        if "spark_master" not in known.model_fields_set:
            given["spark_master"] = "local[2]"
        self.settings = known.model_copy(update=given)
        self._temporary = temporary
        self._driver: Driver | None = None
        self._found = False  # a session was here, which others have started

    @property
    def driver(self) -> Driver:
        """The driver, with its session started.

        Raises:
            ModuleNotFoundError: there is no PySpark.
            HostUnfit: no Java is here that Spark can run on, or Spark does not start.
        """
        if self._driver is None:
            if find_spec("pyspark") is None:
                raise ModuleNotFoundError(
                    f"this test needs Spark, which is not installed here. {how_to_install('worker')}"
                )
            from pyspark import SparkContext

            self._found = SparkContext._active_spark_context is not None
            if not self._found and (why := lacking_java()):
                raise HostUnfit(f"this test needs Spark. {why}")
            driver = Driver(self.settings, temporary=self._temporary)
            driver.start()
            self._driver = driver
        return self._driver

    @property
    def session(self) -> Any:
        """A new session of the driver, for frames of a test. Raises: as `driver`."""
        return self.driver.new_session()

    def stop(self) -> None:
        """End the session, unless others have started it."""
        if self._driver is not None and not self._found:
            self._driver.stop()
