"""Compact a dataset: rewrite many small files into few, as an entry of the warehouse log.

The rows stay the same, so readers cannot tell. Old versions keep their files until a vacuum removes
them.
"""
# The entry is made against the version that stands at that moment: of what another job has taken
# out meanwhile nothing comes back. A compaction that dies leaves files that no entry names, and the
# staging collector removes them.

from __future__ import annotations

import io
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from unstuck.tasks.errors import Unrecoverable, WarehouseMismatch
from unstuck.tasks.protocol.staging import Staged, Staging
from unstuck.tasks.spec.table_formats.registry import table_format
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Change, DatasetState, Entry, State
from unstuck.tasks.warehouse.marker import DataFile

COMPACT = "compact"
TARGET = 128  # MB of a new file


@dataclass(frozen=True, slots=True)
class Compacted:
    """The effect of a compaction on one dataset, or the effect it would have.

    Attributes:
        version: the entry that it made; 0 if there was nothing to do.
        before, after: files of the dataset.
        bytes: of the files that were written.
        kept: small files that stay as they are, since a retry may publish them once more.
    """

    version: int
    before: int
    after: int
    bytes: int
    kept: int


class _Rewritten(NamedTuple):
    """One new file, and those whose rows it holds."""

    file: DataFile
    sources: tuple[DataFile, ...]


class _Overtaken(Exception):
    """Other jobs have taken out all that was rewritten."""


def compact_dataset(
    warehouse: Warehouse,
    staging: Staging,
    name: str,
    *,
    target: int,
    retention: float,
    dry_run: bool = False,
    progress: Callable[[int, int], None],
) -> Compacted:
    """Compact the dataset ``name`` while jobs publish and retries reuse work.

    Args:
        target: MB of a new file.
        retention: seconds until the staging collector removes what this process wrote, if it dies
            before its entry.

    Raises:
        redis.RedisError: and what `compact` raises. It may be repeated.
    """
    if (identity := warehouse.identity()) is None:
        raise WarehouseMismatch(
            f"There is no warehouse at {warehouse.storage.uri('')}; is it mounted?"
        )
    place = warehouse.storage.uri("")
    # With the identity, nothing is written in its place if the warehouse goes away meanwhile.
    warehouse = Warehouse(place, identity)
    publish_id = f"{COMPACT}-{secrets.token_hex(8)}"
    if not dry_run:  # before the first byte is written
        staging.add(Staged(publish_id, place, identity, warehouse.head(), time.time() + retention))
    return compact(
        warehouse,
        name,
        publish_id,
        staging.needed(),
        target=target * 1_000_000,
        at=time.time(),
        dry_run=dry_run,
        progress=progress,
    )


def compact(
    warehouse: Warehouse,
    name: str,
    publish_id: str,
    needed: Callable[[str], bool],
    *,
    target: int,
    at: float,
    dry_run: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Compacted:
    """Rewrite the small files of the dataset ``name``, those below half of ``target`` bytes.

    Args:
        publish_id: a fresh word; it names the entry and the folder of the new files.
        needed: whether a job may need the attempt folder of a file. An append knows by its path
            that a file is published already, so such a file keeps its name.
        at: seconds since the epoch, for people.
        dry_run: write nothing, and count.
        progress: told of how many files of how many were rewritten.

    Raises:
        DatasetNotFound: no such dataset.
        Unrecoverable: it is a table.
        WarehouseMismatch, LogBroken, WarehouseNewer, OSError: it may be repeated; rows are never
            lost or doubled.
    """
    base, before = warehouse.head(), warehouse.dataset(name)
    if before.table is not None:
        raise Unrecoverable(
            f"{name} is the {before.table.title}; compact it there: "
            f"{table_format(before.table.format).compact_hint}"
        )
    small = [file for file in before.files if file.bytes * 2 < target]
    free = [file for file in small if not needed(file.path)]
    kept, count = len(small) - len(free), len(before.files)
    if dry_run:
        return Compacted(0, count, count - len(free) + _fewest(free, target), _size(free), kept)
    folder = f"_staging/{publish_id}/{name}/0-{COMPACT}-{COMPACT}"
    rewritten: list[_Rewritten] = []
    done = 0
    for replacement in rewrite(warehouse.storage, folder, free, target):
        rewritten.append(replacement)
        done += len(replacement.sources)
        progress(done, len(free))

    def entry(n: int, state: State) -> Entry:
        change = _change(rewritten, state[name])
        return Entry(
            n, n - 1, publish_id, "package", publish_id, COMPACT, at, datasets={name: change}
        )

    nothing = Compacted(0, count, count, 0, kept)
    if not rewritten:
        return nothing
    try:
        created = warehouse.append(publish_id, base, entry)[0]
    except _Overtaken:
        return nothing
    change = created.datasets[name]
    after = count - len(change.removed) + len(change.added)
    return Compacted(created.n, count, after, _size(change.added), kept)


def _size(files: Iterable[DataFile]) -> int:
    return sum(file.bytes for file in files)


_Key = tuple[frozenset[tuple[str, str | None]], str]


def _key_of(file: DataFile) -> _Key:
    """Return what files must share to be merged: their partition and their load.

    A load is replaced as a whole.
    """
    return frozenset(file.partition.items()), file.outside_of


def _fewest(small: list[DataFile], target: int) -> int:
    """Files that remain of ``small``, about: by their bytes, for each partition."""
    sizes: dict[_Key, int] = {}
    for file in small:
        key = _key_of(file)
        sizes[key] = sizes.get(key, 0) + file.bytes
    return sum(-(-size // target) for size in sizes.values())


def _change(rewritten: list[_Rewritten], now: DatasetState) -> Change:
    """Return the change that replaces the files that ``now`` still has.

    Raises:
        _Overtaken: there are none.
    """
    current = {file.path for file in now.files}
    applicable = [
        replacement
        for replacement in rewritten
        if all(file.path in current for file in replacement.sources)
    ]
    if not applicable:
        raise _Overtaken
    added = [replacement.file for replacement in applicable]
    removed = [file.path for replacement in applicable for file in replacement.sources]
    return Change(COMPACT, added, removed, sum(file.rows for file in added), now.schema)


def rewrite(
    files: Files, folder: str, small: Iterable[DataFile], target: int
) -> Iterator[_Rewritten]:
    """Write merged files below ``folder`` (relative to the warehouse) of about ``target`` bytes.

    Yields each file with its sources.

    Rows keep their order. Only files of one partition and load, whose columns have the same names
    and types, come together; one that would stand alone is left as it is.

    Raises: OSError: the store failed; what was written counts for nothing.
    """
    for number, bundle in enumerate(_bundles(files, small, target)):
        path = f"{folder}/part-{number:05d}.parquet"
        data = _together(files, bundle)
        files.write_durable(path, data)
        rows = sum(file.rows for file in bundle)
        yield _Rewritten(replace(bundle[0], path=path, rows=rows, bytes=len(data)), tuple(bundle))


def _bundles(files: Files, small: Iterable[DataFile], target: int) -> Iterator[list[DataFile]]:
    """Files that may come together, at most ``target`` bytes at a time, two at least."""
    alike: dict[Any, list[DataFile]] = {}
    for file in small:
        alike.setdefault((_key_of(file), _columns(files, file)), []).append(file)
    for candidates in alike.values():
        bundle: list[DataFile] = []
        for file in candidates:
            if bundle and sum(bundled.bytes for bundled in bundle) + file.bytes > target:
                if len(bundle) > 1:
                    yield bundle
                bundle = []
            bundle.append(file)
        if len(bundle) > 1:
            yield bundle


def _columns(files: Files, file: DataFile) -> tuple[tuple[str, str], ...]:
    import pyarrow.parquet as pq

    with files.open(file.path) as source:
        return tuple((field.name, str(field.type)) for field in pq.read_schema(source))


def _together(files: Files, bundle: list[DataFile]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for file in bundle:
        with files.open(file.path) as source:
            tables.append(pq.ParquetFile(source).read())
    data = io.BytesIO()
    # As in an output: the schema of Arrow would be known to some readers alone.
    pq.write_table(pa.concat_tables(tables, promote_options="default"), data, store_schema=False)
    return data.getvalue()
