"""One Spark session for a test run. It starts when something first needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unstuck.in_process.spark_here import SparkHere
from unstuck.tasks.driver.driver import Driver
from unstuck.tasks.errors import HostUnfit
from unstuck.tasks.host import lacking
from unstuck.tasks.settings import settings

# Small data alone: fewer tasks, and no page that nobody looks at. UNSTUCK_SPARK_CONF has the last
# word.
_CONF = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}


class SharedSpark:
    """The Spark driver of this process, with one session per attempt, as in a runner.

    Attributes:
        settings: those of the environment, with Spark on this machine unless they name a master.
    """

    def __init__(self, temporary: Path) -> None:
        """Create the object without starting Spark. ``temporary``: a folder for JVM files."""
        base = settings()
        overrides: dict[str, Any] = {"spark_conf": {**_CONF, **base.spark_conf}}
        if "spark_master" not in base.model_fields_set:
            overrides["spark_master"] = "local[2]"
        self.settings = base.model_copy(update=overrides)
        self._spark = SparkHere(self.settings, temporary)

    @property
    def driver(self) -> Driver:
        """Return the driver of `SparkHere`."""
        return self._spark.driver

    @property
    def session(self) -> Any:
        """Return a new session of the driver, for frames of a test.

        Raises: HostUnfit: this machine has no PySpark, or no Java that Spark can run on, or Spark
        does not start.
        """
        self.check()
        return self.driver.new_session()

    def check(self) -> None:
        """Check the host. Raises: HostUnfit: as `session`."""
        if lacks := lacking(self.settings, ["spark"]):
            raise HostUnfit(lacks)

    def stop(self) -> None:
        """End the session, unless other code started it."""
        self._spark.stop()
