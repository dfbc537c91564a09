"""Restores an older version of one dataset, as a new entry of the warehouse log.

The entry names the files of that version, so no row is copied. The versions in between stay
readable until a vacuum.
"""
# A vacuum may run at the same time. The version is held before the log is asked which versions
# stay, and a vacuum says in the log which ones stay before it asks what is held. So one of the two
# sees the other.

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from pydantic import computed_field

from unstuck.coordinator.command_table import Answer
from unstuck.coordinator.errors import Refused
from unstuck.coordinator.spec.problems import listed
from unstuck.coordinator.store.staging_index import StagingIndex
from unstuck.tasks.errors import VersionRemoved, WarehouseMismatch
from unstuck.tasks.protocol.replaced import Replaced, replaced
from unstuck.tasks.spec.table_formats.registry import table_format
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Change, DatasetState, Entry, State

RESTORE = "restore"
HOLD = 24 * 3600.0  # seconds until a vacuum no longer minds a restore that has died


@dataclass(frozen=True, slots=True)
class Restored:
    """A dataset that was restored to an older version.

    Attributes:
        target: name of the dataset.
        version: entry of the warehouse log that restored it.
        new: whether this call wrote that entry; False if the dataset was in that state before.
        rows: number of its rows.
        files: number of its files.
        replaced: partitions whose rows changed.
        stream: folder of the stream, whose position is restored too; None without a stream.
        text: a sentence for people.
    """

    target: str
    version: int
    new: bool
    rows: int
    files: int
    replaced: Replaced | None = None
    stream: str | None = None
    text: str = field(default="", compare=False)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def answer(self) -> Answer:
        """DONE, or ALREADY if nothing changed."""
        return Answer.DONE if self.new else Answer.ALREADY


def restore(
    warehouse: Warehouse, index: StagingIndex, name: str, version: int, *, by: str, reason: str = ""
) -> Restored:
    """Publish the dataset ``name`` in its state at ``version`` of the warehouse.

    Repeating the call is safe: a dataset in this state is left unchanged.

    Args:
        by, reason: who restores it and why, for the history.

    Raises:
        DatasetNotFound: no such dataset, or no such version.
        Refused: some of its files are gone; it is a table; or it was published meanwhile.
        WarehouseMismatch, LogBroken, WarehouseNewer, OSError, redis.RedisError: the call may be
            repeated.
    """
    place, identity = warehouse.storage.uri(""), warehouse.identity()
    if identity is None:
        raise WarehouseMismatch(f"There is no warehouse at {place}; is it mounted?")
    # With its identity, nothing is written to the place if the warehouse goes away.
    warehouse = Warehouse(place, identity)
    now = warehouse.dataset(name)
    publish_id = f"{RESTORE}-{name}-{version}-{now.changed}"
    what = f"version {version} of {name} is not restored"
    with index.hold(publish_id, identity, version, time.time() + HOLD):
        past = _standing_files(warehouse, name, version, what)
        if table := now.table or past.table:
            raise Refused(
                f"{what}: {name} is the {table.title}, with versions of its own. Restore it there: "
                f"{table_format(table.format).restore_hint}"
            )
        stream = None if now.checkpoint is None else now.checkpoint.stream
        change = _change(now, past)
        if not change.removed and not change.added and now.schema == past.schema:
            text = (
                f"{name} has nothing to restore: version {now.changed} is as it was at version "
                f"{version}"
            )
            return Restored(
                name, now.changed, False, now.rows, len(now.files), stream=stream, text=text
            )

        def entry(n: int, state: State) -> Entry:
            current = state[name]
            if current.changed != now.changed:
                raise Refused(
                    f"{what}: job {current.job} ({current.job_name}) has published it as version "
                    f"{current.changed} meanwhile, and a restore would undo that. See `unstuck "
                    "datasets NAME --history`, and repeat the command"
                )
            params: dict[str, Any] = {"version": version}
            if reason:
                params["reason"] = reason
            return Entry(
                n,
                n - 1,
                publish_id,
                "package",
                publish_id,
                f"{RESTORE} of version {version} by {by}",
                time.time(),
                params=params,
                datasets={name: change},
            )

        appended, new = warehouse.append(publish_id, now.changed, entry)
    text = (
        f"{name} is published as it was at version {version}, with {past.rows:,} rows, as version "
        f"{appended.n}"
    )
    if change.replaced is not None:
        text += f"\nIts partitions: {change.replaced.text()}"
    if stream is not None:
        text += (
            f"\n{name} is loaded from the stream {stream}, whose position stays: files that "
            "were read are not read again. A higher generation: of the input reads all of them "
            "again."
        )
    return Restored(
        name, appended.n, new, past.rows, len(past.files), change.replaced, stream, text
    )


def _change(now: DatasetState, past: DatasetState) -> Change:
    """Return the change that leads from the present state to a past one."""
    before = {file.path: file for file in now.files}
    after = {file.path: file for file in past.files}
    removed = [before[path] for path in before if path not in after]
    added = [after[path] for path in after if path not in before]
    return Change(
        RESTORE,
        added,
        [file.path for file in removed],
        sum(file.rows for file in added),
        past.schema,
        replaced=replaced(now.files, removed, added),
    )


def _standing_files(warehouse: Warehouse, name: str, version: int, what: str) -> DatasetState:
    """Return the dataset at ``version``, with all of its files.

    Raises: DatasetNotFound, Refused.
    """
    removed: VersionRemoved | None = None
    try:
        past = warehouse.dataset(name, version)
    except VersionRemoved as error:
        removed = error
        if (stood := warehouse.state(version, removed=True).get(name)) is None:
            raise
        past = stood
    gone = [file.path for file in past.files if warehouse.storage.size(file.path) != file.bytes]
    if removed is None and not gone:
        return past
    why = str(removed or "somebody outside has removed files of it, or cut them short")
    raise Refused(
        f"{what}: {why}. {len(gone):,} of its {len(past.files):,} files are gone: "
        f"{listed(gone) or 'none'}"
    )
