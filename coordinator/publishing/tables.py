"""Publishes outputs into tables of any format, after their entry is in the warehouse log.

Each table gets one commit for each entry. The table records the number of the entry in the same
commit, so a repeat finds it. Entries are written in the order of the log.
"""
# A commit is tried against one version of the table and no other. So a commit of a second
# publisher, or of a writer from outside, is seen before the next try, and no two entries change
# places.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from unstuck.coordinator.errors import PublishFailed, TableTrouble
from unstuck.coordinator.publishing.table_formats.table_writer import (
    TABLE_UNFIT,
    Candidate,
    TableCommit,
    app_id,
)
from unstuck.coordinator.publishing.table_formats.writers import TABLE_WRITERS
from unstuck.tasks.errors import WarehouseMismatch, WarehouseUnsafe
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import DatasetState, Entry, Table
from unstuck.tasks.warehouse.marker import DataFile

TRIES = 100  # commits of other writers that may come first in one try


@dataclass(frozen=True, slots=True)
class Target:
    """A table that an output can be written into.

    Attributes:
        written: the newest entry of this warehouse in the table.
        last_entry: the entry that published the dataset last; 0 without one.
        appended: files of the output that an earlier try of the same job has appended.
        counted_files: for ``partition_overwrite``, the files of the table, if it records their
            rows.
    """

    table: Table
    written: int
    last_entry: int = 0
    appended: frozenset[str] = frozenset()
    counted_files: Sequence[DataFile] = ()

    def made_by(self, n: int, name: str, published: DatasetState | None) -> Table:
        """Return the table for the log entry ``n``.

        Raises:
            TableMoved: another job has published the dataset since the table was checked.
            PublishFailed: the table already has a commit with that number.
        """
        if (0 if published is None else published.changed) != self.last_entry:
            raise TableMoved(name)
        if self.written >= n:
            raise PublishFailed(
                TABLE_UNFIT,
                f"the {self.table.title} has version {self.written} of {name}, and this "
                f"warehouse only comes to version {n}: it seems to have been restored from an "
                f"older copy. Write {name} into another table",
            )
        after = published.changed if published is not None and published.table is not None else 0
        return replace(self.table, after=after)


class TableMoved(Exception):
    """The dataset was published since its table was checked, so the table must be checked again."""


def check(candidate: Candidate, published: DatasetState | None = None) -> Target:
    """Check that an output can be written into its table, before anything is published.

    Args:
        published: the published dataset; None if there is none. If it is in a table, its last entry
            is written first.

    Raises:
        PublishFailed: the table, its columns or the keys do not fit.
        TableTrouble: the table cannot be read.
    """
    spec, warehouse, name = candidate.spec, candidate.warehouse, candidate.name
    into = Table(candidate.path, spec.format, list(spec.partition_by), list(spec.keys))
    writer = TABLE_WRITERS[spec.format]
    counted_files: Sequence[DataFile] = ()
    written = 0
    with _trouble(name, into):
        table = writer.open(into.path)
        writer.check(candidate, table)
        if table is not None:
            written = writer.newest_entry(table, app_id(warehouse, name))
            if spec.mode == "partition_overwrite":
                counted_files = writer.counted_files(table)
    warehouse.storage.answered()
    return Target(
        into,
        written,
        0 if published is None else published.changed,
        _appended(candidate, published),
        counted_files,
    )


def _appended(candidate: Candidate, published: DatasetState | None) -> frozenset[str]:
    """Return files of an earlier job that the job adopted and another retry has appended.

    The log decides, since others may have rewritten the files of the table.
    """
    own_folder = f"_staging/{candidate.job}/"
    adopted = {file.path for file in candidate.output.files if not file.path.startswith(own_folder)}
    appended: set[str] = set()
    if candidate.spec.mode != "append" or published is None or published.table is None:
        return frozenset()
    n = published.changed
    while n and adopted - appended:
        entry = candidate.warehouse.existing_entry(n)
        change, table = entry.datasets[candidate.name], entry.tables[candidate.name]
        if (table.format, table.path) == (candidate.spec.format, candidate.path):
            appended |= adopted & {file.path for file in change.added}
            if change.mode == "replace":
                break
        n = table.after
        candidate.warehouse.storage.answered()
    return frozenset(appended)


def write_tables(warehouse: Warehouse, entry: Entry) -> None:
    """Write all tables of ``entry``, after those of earlier entries that it builds on.

    A repeat continues.

    Raises:
        TableTrouble: a table cannot be written now.
        OSError, WarehouseMismatch: the warehouse did not answer.
    """
    todo, open_ = {entry.n: entry}, [entry]
    while open_:
        for table in open_.pop().tables.values():
            earlier = table.after
            if earlier and earlier not in todo and not warehouse.tables_written(earlier):
                todo[earlier] = warehouse.existing_entry(earlier)
                open_.append(todo[earlier])
    for n in sorted(todo):
        if warehouse.tables_written(n):
            continue
        for name, table in todo[n].tables.items():
            with _trouble(name, table):
                _write(TableCommit(warehouse, todo[n], name, table))
        warehouse.note_tables_written(n)


def _write(commit: TableCommit) -> None:
    """Write one commit into its table, and sync it to disk."""
    entry, into, change = commit.entry, commit.into, commit.change
    writer = TABLE_WRITERS[into.format]
    for _ in range(TRIES):
        table = writer.open(into.path)
        commit.warehouse.storage.answered()
        if table is not None and writer.newest_entry(table, commit.app_id) >= entry.n:
            writer.sync(into.path, table, commit.app_id)
            return
        reach(Point.BEFORE_TABLE, entry.job)
        if table is not None:
            what = f"entry {entry.n} of the log cannot be written"
            try:
                writer.check_table(what, table, change.schema, change.mode, into.partition_by)
            except PublishFailed as unfit:  # the table has changed since the entry was appended
                raise TableTrouble(str(unfit)) from unfit
        if writer.commit(commit, table):
            reach(Point.AFTER_TABLE, entry.job)
    raise TableTrouble(f"other writers came first, {TRIES} times")


@contextmanager
def _trouble(name: str, table: Table) -> Iterator[None]:
    """Name the table in every error but a failure for good. Raises: TableTrouble."""
    try:
        yield
    except (PublishFailed, WarehouseMismatch, WarehouseUnsafe):
        raise
    except Exception as error:  # the libraries of tables raise errors of many types for one cause
        trouble = (
            str(error) if isinstance(error, TableTrouble) else f"{type(error).__name__}: {error}"
        )
        raise TableTrouble(f"the {table.title} of {name}: {trouble}") from error
