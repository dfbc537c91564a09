"""The catalog of an attempt: tables, databases and functions that its steps create end with it.

A metastore that the user names (``spark.sql.catalogImplementation``) and catalogs with names are
the user's.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

_FOLDER = "spark.sql.warehouse.dir"


class Catalog:
    """Replaces the session catalog in Spark's shared state by an empty one for each attempt.

    Nothing is dropped from a catalog, because dropping a database removes the folder that a user
    gave it.
    """

    def __init__(self, session: Any) -> None:
        context = session.sparkContext
        self._jvm, self._context = context._jvm, context
        # Of the runner, and on the disk that Spark has for temporary files.
        self._own = Path(context._temp_dir) / "catalog"
        # There already, if another driver of this process has the same context.
        self._own.mkdir(exist_ok=True)
        shared, named = session._jsparkSession.sharedState(), session.conf.get(_FOLDER)
        # What Spark takes by itself is nobody's folder.
        self._named = "" if unquote(named).endswith(f"{os.getcwd()}/spark-warehouse") else named
        # Where Spark creates the default database.
        shared.conf().set(_FOLDER, f"file://{self._own}")
        self._wrapper = shared.externalCatalog()
        if self._named:
            shared.conf().set(_FOLDER, named)  # of all sessions
        self._delegate = self._wrapper.getClass().getDeclaredField("delegate")
        self._delegate.setAccessible(True)
        self._default = self._wrapper.getDatabase("default")
        self._make = self._jvm.org.apache.spark.sql.catalyst.catalog.InMemoryCatalog
        self._database = self._jvm.org.apache.spark.sql.catalyst.catalog.CatalogDatabase
        self._path = self._jvm.org.apache.hadoop.fs.Path
        # The folder of the attempt that executors on other hosts can write, too.
        self._shared: Any = None

    @classmethod
    def of(cls, session: Any) -> Catalog | None:
        """Return the catalog of the session's context; None if it belongs to the user."""
        return (
            cls(session)
            if session.conf.get("spark.sql.catalogImplementation") == "in-memory"
            else None
        )

    def enter(self, session: Any, shared: str) -> None:
        """Give ``session`` an empty catalog.

        Args:
            shared: a folder of the attempt, for tables that executors on other hosts write; empty
                without such executors.
        """
        catalog = self._make(
            self._context._jsc.sc().conf(), self._context._jsc.hadoopConfiguration()
        )
        catalog.createDatabase(self._default, True)
        self._shared = None
        if folder := self._named or shared:
            where = self._path(folder)
            more = [self._default.productElement(i) for i in range(4, self._default.productArity())]
            about = (
                self._default.name(),
                self._default.description(),
                where.toUri(),
                self._default.properties(),
            )
            catalog.alterDatabase(self._database(*about, *more))
            # The folder of new databases.
            session._jsparkSession.sessionState().conf().setConfString(_FOLDER, folder)
            self._shared = None if self._named else where
        self._delegate.set(self._wrapper, catalog)

    def leave(self) -> None:
        """Remove the files of the attempt's tables, which no later attempt can see."""
        for path in self._own.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        catalog = self._wrapper.unwrapped()
        if self._shared is not None and (
            catalog.listDatabases().size() > 1 or catalog.listTables("default").size()
        ):
            files = self._shared.getFileSystem(self._context._jsc.hadoopConfiguration())
            files.delete(self._shared, True)
