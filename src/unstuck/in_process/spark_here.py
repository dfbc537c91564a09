"""The Spark driver of a process that runs attempts itself: ``unstuck run``, `Job.run`, tests."""

from __future__ import annotations

import sys
from pathlib import Path

from unstuck.tasks.driver.driver import Driver
from unstuck.tasks.settings import Settings


class SparkHere:
    """Keeps one driver, and replaces it where a fleet would replace the runner."""

    def __init__(self, settings: Settings, temporary: Path) -> None:
        """Create the object without starting Spark. ``temporary``: a folder for JVM files."""
        self._settings, self._temporary = settings, temporary
        self._driver = Driver(settings, temporary=temporary)
        self._is_of_others = False  # they have started the context of the driver, and end it

    @property
    def driver(self) -> Driver:
        """Return the driver, whose session starts when something first needs it.

        The driver is replaced after its session was stopped, its JVM has died, or steps have left
        something on the context.
        """
        if self._driver.spent:
            self._end()
            self._driver = Driver(self._settings, temporary=self._temporary)
        if self._driver.unused:
            self._is_of_others = _has_context()
        return self._driver

    def stop(self) -> None:
        """End the session, unless other code started it."""
        if not self._is_of_others:
            self._driver.stop()

    def _end(self) -> None:
        if self._driver.broken[0]:
            self._driver.end_jvm()
        else:
            self.stop()


def _has_context() -> bool:
    """Return whether this process has a Spark context, without importing Spark."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None
