"""Define an entry of the warehouse log, and fold entries into the state of datasets (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from unstuck.tasks.json_fields import DEFERRED
from unstuck.tasks.protocol.replaced import Replaced
from unstuck.tasks.spec.table_formats.delta import DeltaFormat
from unstuck.tasks.spec.table_formats.registry import PARQUET, table_title
from unstuck.tasks.warehouse.dataset_owner import Owner, Owners
from unstuck.tasks.warehouse.files import WarehousePath
from unstuck.tasks.warehouse.marker import Checkpoint, DataFile, NamedPartitions

ENTRY_VERSION = 1  # raised when an older release could no longer read what this one writes
# Up to the year 9999, the last that Python can represent.
Moment = Annotated[float, Field(ge=0, le=253_402_300_799)]
# With this many files that have fewer bytes each, a dataset is slow to read.
MANY, SMALL = (500, 1 << 20)


@dataclass(frozen=True, slots=True, config=DEFERRED)
class Change:
    """The change that one entry makes to one dataset.

    Attributes:
        removed: paths.
        rows: of ``added``.
        checkpoint: of the stream that ``added`` was read from; None: the stream of the dataset
            stays where it was.
        replaces: for a table, whose files the log does not name: as of the output.
        replaced: the partitions that were replaced, for people; None where none was.
        owner: the owner of the dataset from this entry on; None: as before, since no job published
            it.
        taken_from: name of the job that owned the dataset before, if this job took it over.
        inputs: the published datasets that the rows were made from, each with the versions that
            were read.
        steps: the code of the group that made the rows, and of the groups before it in the same
            package; by group.
    """

    mode: str
    added: list[DataFile]
    removed: list[WarehousePath]
    rows: int
    schema: str
    checkpoint: Checkpoint | None = None
    replaces: list[NamedPartitions] = field(default_factory=list)
    replaced: Replaced | None = None
    owner: Owner | None = None
    taken_from: str = ""
    inputs: dict[str, list[int]] = field(default_factory=dict)
    steps: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, config=DEFERRED)
class Table:
    """The table into which an entry writes a dataset. Its `Change` has the files.

    Attributes:
        path: where it is, as its format writes places.
        format: the name of its `TableFormat`.
        partition_by: its partition columns.
        keys: for the mode ``merge``.
        after: the entry before that writes this dataset into a table, and must be carried out
            first; 0: none.
    """

    path: str
    format: str = DeltaFormat.name  # of entries without the field
    partition_by: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    after: int = 0

    @property
    def title(self) -> str:
        """The table in words, such as "Delta table /lake/flights"."""
        return table_title(self.format, self.path)


@dataclass(frozen=True, slots=True, config=DEFERRED)
class Entry:
    """One entry of the log.

    Attributes:
        n: its number; ``parent`` is the version it was made against, ``n - 1``.
        publish_id: the job, or job/generation/batch of a streaming job. At most one entry has it.
        package_id: what was asked for: the tick of a schedule, or the first job of a chain of
            retries. At most one package has it, whichever job made it. Empty: of an ABORT.
        kind: a package, or an ABORT: the publish id can never be published, and no dataset changes.
        at: seconds since the epoch, by the clock of the coordinator; for people only.
        tokens: the staging folders the files came from.
        code, reason: of an ABORT: what a machine may compare, and a sentence.
        made_on: dataset → the versions that made its rows, in words; several where a job is mixed.
        tables: by dataset, for those that are written into tables.
        judged_at: the time as of which the job was judged, such as its tick; None: ``at``.
    """

    n: int
    parent: int
    publish_id: str
    kind: Literal["package", "abort"]
    job: str
    job_name: str
    at: Moment
    params: dict[str, Any] = field(default_factory=dict)
    datasets: dict[str, Change] = field(default_factory=dict)
    tokens: list[WarehousePath] = field(default_factory=list)
    code: str = ""
    reason: str = ""
    made_on: dict[str, list[str]] = field(default_factory=dict)
    version: int = ENTRY_VERSION
    tables: dict[str, Table] = field(default_factory=dict)
    package_id: str = ""
    judged_at: float | None = None

    @property
    def as_of(self) -> float:
        """The time to which its rows belong: of the run of a tick, the tick."""
        return self.at if self.judged_at is None else self.judged_at

    def is_of(self, publish_id: str, package_id: str) -> bool:
        """Return whether it is an entry of ``publish_id``, or of a package with ``package_id``."""
        same_package = self.kind == "package" and package_id != "" and self.package_id == package_id
        return self.publish_id == publish_id or same_package


@dataclass(frozen=True, slots=True, config=DEFERRED)
class DatasetState:
    """A dataset at one version: its files, and the entry, time and job that changed it last.

    Attributes:
        table: the table with its rows; None if the log names its files.
        checkpoint: of the stream that was published into it last, whatever else was published
            since.
        owner: None until a job has published it.
    """

    files: list[DataFile]
    schema: str
    changed: int
    at: Moment
    job: str
    job_name: str
    table: Table | None = None
    checkpoint: Checkpoint | None = None
    owner: Owner | None = None

    @property
    def format(self) -> str:
        """The table format, or parquet if the log names the files."""
        return PARQUET if self.table is None else self.table.format

    @property
    def many_small(self) -> int:
        """Its files, if readers feel how many they are for what is in them; else 0."""
        count = len(self.files)
        return (
            count if count >= MANY and sum(file.bytes for file in self.files) < count * SMALL else 0
        )

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


State = dict[str, DatasetState]


def fold(state: Mapping[str, DatasetState], entry: Entry) -> State:
    """Return ``state`` after ``entry``. Pure.

    It knows no modes, since an entry names every file that it adds and removes.
    """
    folded = dict(state)
    for name, change in entry.datasets.items():
        before = state.get(name)
        about = (change.schema, entry.n, entry.at, entry.job, entry.job_name)
        checkpoint = change.checkpoint or (before.checkpoint if before is not None else None)
        owner = change.owner or (before.owner if before is not None else None)
        if name in entry.tables:
            folded[name] = DatasetState([], *about, entry.tables[name], checkpoint, owner)
            continue
        gone = set(change.removed)
        kept = (
            [file for file in before.files if file.path not in gone] if before is not None else []
        )
        folded[name] = DatasetState([*kept, *change.added], *about, None, checkpoint, owner)
    return folded


def owners_of(state: Mapping[str, DatasetState]) -> Owners:
    """Return the owner of each dataset that has one."""
    return {name: dataset.owner for name, dataset in state.items() if dataset.owner is not None}


def owners_after(owners: Owners, entry: Entry) -> Owners:
    """Return the owners of all datasets after ``entry``, as `fold` does."""
    changed = {
        name: change.owner for name, change in entry.datasets.items() if change.owner is not None
    }
    return {**owners, **changed}
