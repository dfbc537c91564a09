"""Histories on both stores at once: the model, and the real store and scripts on a Valkey of their
own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import redis

import unstuck.coordinator.model.records
from tests.simulation.model.mirror import ClockedRedis, Mirrored
from tests.simulation.stage.history import HistoryResult, simulate
from tests.support.servers import RedisServer


class PairedStores:
    """Plays histories on both stores, and remembers which answers it has seen to be the same."""

    def __init__(self, url: str) -> None:
        """``url``: of a server that is emptied."""
        self.client = ClockedRedis.from_url(url, decode_responses=True)
        self.bytes_client = redis.Redis.from_url(url)
        self.seen: set[str] = set()

    def play(self, seed: int, store: type[Mirrored] = Mirrored) -> HistoryResult:
        both = partial(
            store, client=self.client, bytes_client=self.bytes_client, compared=self.seen.add
        )
        return simulate(seed, store=both)

    def close(self) -> None:
        self.client.close()
        self.bytes_client.close()


@contextmanager
def paired_stores() -> Iterator[PairedStores]:
    """Both stores, with a server that is started and stopped.

    Jobs of a newer release can be compared too.
    """
    with tempfile.TemporaryDirectory(prefix="unstuck-paired-") as folder:
        server, schema = RedisServer(Path(folder)), unstuck.coordinator.model.records.JOB_SCHEMA
        unstuck.coordinator.model.records.JOB_SCHEMA = 2
        server.start()
        made = PairedStores(server.url)
        try:
            yield made
        finally:
            made.close()
            server.stop()
            unstuck.coordinator.model.records.JOB_SCHEMA = schema
