"""Reads published datasets from the warehouse log: their rows, versions and sources.

Read-only. A warehouse may hang, so a caller that must answer in time uses `Datasets`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from unstuck.coordinator.errors import BadRequest, NoWarehouse
from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.coordinator.publishing.streams.sources_read import SourceRead, sources_of
from unstuck.read_model.dataset import DatasetInfo, DatasetVersion
from unstuck.tasks.errors import DatasetNotFound, WarehouseUnsupported
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import DatasetState, State

T = TypeVar("T")

LOOKS = 200  # entries of the log that one page of versions reads
ANSWER_WITHIN = 4.0  # seconds


@dataclass(frozen=True, slots=True)
class VersionPage:
    """Versions of one dataset, newest first.

    ``older`` is the first version of the next page; 0 if there is none.
    """

    versions: tuple[DatasetVersion, ...]
    older: int


@dataclass(frozen=True, slots=True)
class SourcePutAside:
    """A file or message that a version of a dataset was not loaded from, and why."""

    dataset: str
    version: int
    source: str
    why: str


@dataclass(frozen=True, slots=True)
class WarehouseSnapshot:
    """All datasets of a warehouse at its newest version, ``head``."""

    id: str
    head: int
    datasets: State


def warehouse_at(uri: str) -> Warehouse:
    """Return the warehouse at ``uri``.

    Raises: BadRequest: no warehouse can be there.
    """
    try:
        return Warehouse(uri)
    except (ValueError, WarehouseUnsupported) as error:
        raise BadRequest(str(error)) from error


def check_there(place: Warehouse, uri: str) -> None:
    """Check that there is a warehouse, since a missing mount looks like an empty one.

    Raises: NoWarehouse.
    """
    if place.identity() is None and not place.state():
        raise NoWarehouse(
            f"There is no warehouse at {uri}: the first job makes it. If one should be there, see "
            "whether it is mounted, and whether UNSTUCK_WAREHOUSE or --warehouse is the path that "
            "was meant."
        )


def shown_dataset(
    place: Warehouse, uri: str, name: str, state: DatasetState, with_paths: bool
) -> DatasetInfo:
    """Return a dataset of the warehouse ``place``, which the user wrote as ``uri``."""
    files = place.storage
    paths = tuple(files.uri(file.path) for file in state.files) if with_paths else None
    return DatasetInfo.of(name, state, uri, paths)


def versions_of(
    place: Warehouse, name: str, newest: int, most: int, looks: int | None = None
) -> VersionPage:
    """Return at most ``most`` versions of a dataset, from ``newest`` on.

    Args:
        looks: as for `Warehouse.history`.

    Raises: LogBroken, WarehouseNewer, OSError.
    """
    entries = place.history(name, most, newest, looks)
    last = (
        entries[-1].n
        if len(entries) == most
        else 1
        if looks is None
        else max(1, newest - looks + 1)
    )
    return VersionPage(tuple(DatasetVersion.of(name, entry) for entry in entries), last - 1)


class Datasets:
    """The datasets of one warehouse, for who must answer in time. Threads may share it.

    Each method raises WarehouseSilent if the warehouse has not answered in time, and LogBroken,
    WarehouseNewer, VersionRemoved, BadRequest or OSError if it cannot be read.
    """

    def __init__(self, uri: str, breaker: CircuitBreaker, within: float = ANSWER_WITHIN) -> None:
        """``within``: seconds for one answer."""
        self.uri, self._breaker, self._within = uri, breaker, within
        self._cached: WarehouseSnapshot | None = None

    def published(self) -> WarehouseSnapshot:
        """Return all datasets; the log is read again if it has changed since the last call."""
        return self._ask("nothing can be shown of what is published", self._published)

    def _published(self) -> WarehouseSnapshot:
        place = warehouse_at(self.uri)
        cached, id_ = self._cached, place.identity() or ""
        if cached is None or not id_ or (cached.id, cached.head) != (id_, place.head()):
            check_there(place, self.uri)
            # Before the state: the next call sees what is published meanwhile.
            head = place.head()
            cached = self._cached = WarehouseSnapshot(id_, head, place.state(head) if head else {})
        return cached

    def versions(self, name: str, newest: int, most: int = 20) -> VersionPage:
        """Return versions of a dataset from ``newest`` on, from at most `LOOKS` log entries."""
        what = f"the versions of {name} cannot be shown"
        return self._ask(
            what, lambda: versions_of(warehouse_at(self.uri), name, newest, most, LOOKS)
        )

    def version(self, name: str, n: int) -> tuple[DatasetVersion, list[SourceRead]]:
        """Return one version, and the files or messages that it was loaded from.

        Raises: DatasetNotFound, too.
        """

        def read() -> tuple[DatasetVersion, list[SourceRead]]:
            place = warehouse_at(self.uri)
            entry = place.entry(n) if n > 0 else None
            if entry is None or name not in entry.datasets:
                raise DatasetNotFound(f"no version {n} of {name} is in the warehouse {self.uri}")
            return DatasetVersion.of(name, entry), sources_of(place, name, entry)

        return self._ask(f"version {n} of {name} cannot be shown", read)

    def put_aside(self, n: int) -> list[SourcePutAside]:
        """Return the files and messages that the streams of one version have put aside."""

        def read() -> list[SourcePutAside]:
            place = warehouse_at(self.uri)
            entry = place.existing_entry(n)
            streams = [
                name for name, change in entry.datasets.items() if change.checkpoint is not None
            ]
            sources = [
                (name, source) for name in streams for source in sources_of(place, name, entry)
            ]
            return [
                SourcePutAside(name, n, source.source, source.put_aside)
                for name, source in sources
                if source.put_aside
            ]

        return self._ask("nobody can say here what was put aside", read)

    def _ask(self, what: str, function: Callable[[], T]) -> T:
        return self._breaker.call(self.uri, what, function, self._within)
