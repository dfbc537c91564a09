"""The upkeep of a warehouse: vacuum and compaction, with the answer of Redis to what open jobs and retries need."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import redis

from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.publishing.vacuum import Vacuumed, vacuum
from unstuck.coordinator.store.staging_index import Staged, StagingIndex
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.settings import Settings
from unstuck.tasks.warehouse.compact import COMPACT, Compacted, compact
from unstuck.tasks.warehouse.log import Warehouse

TARGET = 128  # MB
Progress = Callable[[int, int], None]


class Upkeep:
    """The upkeep of one warehouse, whose jobs are in one Redis."""

    def __init__(self, warehouse: Warehouse, client: redis.Redis, settings: Settings) -> None:
        """``client`` must decode responses.

        Raises:
            BadRequest: there is no warehouse.
            OSError: it did not answer.
        """
        if (identity := warehouse.identity()) is None:
            raise BadRequest(f"There is no warehouse at {warehouse.storage.uri('')}; is it mounted?")
        # With its id: if the warehouse goes away meanwhile, nothing is written where it was.
        self._warehouse = Warehouse(warehouse.storage.uri(""), identity)
        self._identity, self._settings = identity, settings
        self._index = StagingIndex(client, Keys(settings.prefix))

    def compact(self, dataset: str, *, target: int, dry_run: bool = False, progress: Progress) -> Compacted:
        """Write the small files of ``dataset`` together. ``target``: MB of a new file; the rest as of `compact`.

        Raises:
            redis.RedisError: and what `compact` raises. It may be repeated.
        """
        publish_id = f"{COMPACT}-{secrets.token_hex(8)}"
        if not dry_run:  # first: if this process dies, the staging collector removes what it wrote
            until = time.time() + self._settings.retention
            place = self._warehouse.storage.uri("")
            self._index.add(Staged(publish_id, place, self._identity, self._warehouse.head(), until))
        return compact(
            *(self._warehouse, dataset, publish_id, self._index.needed()),
            target=target * 1_000_000,
            at=time.time(),
            dry_run=dry_run,
            progress=progress,
        )

    def vacuum(self, *, keep: int, before: float, dry_run: bool = False, progress: Progress) -> Vacuumed:
        """Remove the files of old versions; the arguments as of `vacuum`.

        Raises:
            redis.RedisError: and what `vacuum` raises. It may be repeated.
        """
        return vacuum(
            *(self._warehouse, self._index.needed()),
            keep=keep,
            before=before,
            reading=self._index.reading(self._identity),
            dry_run=dry_run,
            progress=progress,
        )
