"""Restores the Spark context after the steps of an attempt.

State that only a new context would reset requires a new runner (docs/decisions/0021).
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

LOG_LEVEL = "WARN"


class ContextSnapshot:
    """The Spark context of a runner before its first attempt.

    A call of the JVM takes about 0.03 ms, and resolving a class ten times as long, so the classes
    are cached here.
    """

    def __init__(self, context: Any, zone: str) -> None:
        """``zone``: the time zone of the fleet."""
        jvm = context._jvm
        self._context, self._java = context, context._jsc.sc()
        self._properties = jvm.java.util.Properties
        self._zones = jvm.java.util.TimeZone
        self._zone = self._zones.getTimeZone(zone)
        self._map = jvm.java.util.HashMap
        self._hadoop = context._jsc.hadoopConfiguration()
        self._hadoop_before = jvm.org.apache.hadoop.conf.Configuration(self._hadoop)
        # All that was ever set and not unset. A look at all values takes half a millisecond
        # (measured).
        overlay = self._hadoop.getClass().getDeclaredField("overlay")
        overlay.setAccessible(True)
        self._overlay = overlay.get(self._hadoop)
        self._hadoop_seen = self._see_hadoop()
        self._artifacts = jvm.org.apache.spark.JobArtifactSet
        self._artifacts_before = self._artifacts.getActiveOrDefault(self._java)
        self._checkpoint_folder = self._java.checkpointDir()
        self._environment = dict(context.environment)

    def use_zone(self, zone: str) -> None:
        """Set the time zone of the JVM, and of Python in tasks, until `put_back`.

        Spark separates Python workers by their environment. The JVM of an executor on another host
        keeps its zone, but its SQL uses the zone of the session.
        """
        self._zones.setDefault(self._zones.getTimeZone(zone))
        self._context.environment["TZ"] = zone

    def put_back(self) -> list[str]:
        """Restore the context as far as possible. Return a description of the rest."""
        # Properties of this thread: tags, job group, pool, and those of steps.
        self._java.setLocalProperties(self._properties())
        self._context._jsc.setLogLevel(LOG_LEVEL)
        # The name that Scala gives a setter.
        getattr(self._java, "checkpointDir_$eq")(self._checkpoint_folder)
        self._zones.setDefault(self._zone)
        self._context.environment = dict(self._environment)
        self._clear_temp_files()
        left = []
        if not self._artifacts.getActiveOrDefault(self._java).equals(self._artifacts_before):
            left.append("files, archives or jars that it added")
        overlay, size, resources = self._hadoop_seen
        if not (
            self._overlay.equals(overlay)
            and self._hadoop.size() == size
            and self._hadoop.toString() == resources
        ):
            left += self._put_hadoop_back()
        return left

    def _see_hadoop(self) -> tuple[Any, int, str]:
        return self._overlay.clone(), self._hadoop.size(), self._hadoop.toString()

    def _put_hadoop_back(self) -> list[str]:
        now, before = (
            self._hadoop.getPropsWithPrefix(""),
            self._hadoop_before.getPropsWithPrefix(""),
        )
        changed = self._map(now)
        changed.entrySet().removeAll(before.entrySet())
        gone = self._map(before)
        gone.keySet().removeAll(now.keySet())
        names = sorted({*changed.keySet(), *gone.keySet()})
        for name in names:
            if (value := self._hadoop_before.getRaw(name)) is None:
                self._hadoop.unset(name)
            else:
                self._hadoop.set(name, value)
        self._hadoop_seen = self._see_hadoop()
        # Hadoop keeps a client for each place, here and in executors, with the keys that it was
        # made with.
        kept = [name for name in names if name.startswith("fs.")]
        return [f"clients of file systems that know {', '.join(kept)}"] if kept else []

    def _clear_temp_files(self) -> None:
        """Remove the files that PySpark wrote for the steps, such as values of broadcasts.

        PySpark keeps them as long as the context. Only the steps of an attempt need them, and all
        have ended.
        """
        with suppress(FileNotFoundError), os.scandir(self._context._temp_dir) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)
