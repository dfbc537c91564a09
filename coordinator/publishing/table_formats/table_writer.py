"""Defines the interface by which outputs are written into the tables of one format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from unstuck.coordinator.errors import PublishFailed
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.spec.table_formats.registry import table_title
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Change, Entry, Table
from unstuck.tasks.warehouse.marker import DataFile, StagedOutput

TABLE_UNFIT = "TABLE_UNFIT"
KEYS_UNFIT = "KEYS_UNFIT"
PARTITION_MISMATCH = "PARTITION_MISMATCH"
SCHEMA_MISMATCH = "SCHEMA_MISMATCH"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A staged output that a job wants to publish into a table. Nothing is decided yet."""

    warehouse: Warehouse
    job: str
    name: str
    output: StagedOutput
    spec: OutputSpec

    @property
    def path(self) -> str:
        """The place of the table."""
        assert self.spec.table is not None
        return self.spec.table

    @property
    def what(self) -> str:
        """The beginning of the error that explains why it is not published."""
        table = table_title(self.spec.format, self.path)
        return f"the output {self.name} of job {self.job} cannot be written into the {table}"

    def refused(self, code: str, why: str) -> PublishFailed:
        """Return the error that ends the job."""
        return PublishFailed(code, f"{self.what}: {why}")


@dataclass(frozen=True, slots=True)
class TableCommit:
    """The commit that a log entry makes to one table."""

    warehouse: Warehouse
    entry: Entry
    name: str
    into: Table

    @property
    def change(self) -> Change:
        """The change of the dataset."""
        return self.entry.datasets[self.name]

    @property
    def app_id(self) -> str:
        """The id of the warehouse and dataset, under which a table records the newest entry."""
        return app_id(self.warehouse, self.name)

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the commit that the table records for people."""
        return {
            "unstuck.job": self.entry.job,
            "unstuck.version": str(self.entry.n),
            "unstuck.publish_id": self.entry.publish_id,
        }


def app_id(warehouse: Warehouse, name: str) -> str:
    """Return the id under which tables record the entries of one dataset."""
    return f"unstuck/{warehouse.identity()}/{name}"


class TableWriter(Protocol):
    """Writes the tables of one format.

    Any method may raise errors of its library; the caller reports them with the name of the table,
    and retries later. ``table`` is what `open` returned: one version of the table.
    """

    def open(self, path: str) -> Any | None:
        """Return the table; None if there is none.

        Raises: TableTrouble: the library is not installed.
        """
        ...

    def newest_entry(self, table: Any, app_id: str) -> int:
        """Return the newest log entry of ``app_id`` that the table has; 0 if it has none."""
        ...

    def check(self, candidate: Candidate, table: Any | None) -> None:
        """Check everything that could prevent the commit once the entry is in the log.

        Raises: PublishFailed: the output does not fit its table.
        """
        ...

    def check_table(
        self, what: str, table: Any, schema: str, mode: str, partition_by: Sequence[str]
    ) -> None:
        """Check that rows with ``schema``, Spark's JSON of a struct, fit the table.

        Raises: PublishFailed. Its text begins with ``what``.
        """
        ...

    def counted_files(self, table: Any) -> Sequence[DataFile]:
        """Return the files with their rows and partitions; none if these are not recorded."""
        ...

    def commit(self, commit: TableCommit, table: Any | None) -> bool:
        """Commit once, if ``table`` is unchanged. Return False if another writer came first.

        The commit records ``commit.entry.n`` as the newest entry of ``commit.app_id``.
        """
        ...

    def sync(self, path: str, table: Any, app_id: str) -> None:
        """Sync the newest commit of ``app_id`` to disk, if the library does not.

        Raises: OSError.
        """
        ...
