"""The same histories, played on the model and on the real store code and scripts on a real Valkey at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest
import redis
from servers import RedisServer

from .history import Verdict, simulate
from .mirror import AGREE, ClockedRedis, Mirrored
from .model import ModelStore
from .short import explained

SEEDS = 200
SECONDS = 15.0  # on a machine that is busy fewer histories are played


class Twins:
    """Plays histories on both stores, and remembers which answers it has seen to be the same."""

    def __init__(self, server: RedisServer) -> None:
        self.client = ClockedRedis.from_url(server.url, decode_responses=True)
        self.bytes_client = redis.Redis.from_url(server.url)
        self.seen: set[str] = set()

    def play(self, seed: int, store: type[Mirrored] = Mirrored) -> Verdict:
        both = partial(store, client=self.client, bytes_client=self.bytes_client, compared=self.seen.add)
        return simulate(seed, store=both)


@pytest.fixture
def twins(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Twins]:
    monkeypatch.setattr("coordinator.job.JOB_SCHEMA", 2)  # jobs of a newer release can be compared too
    twins = Twins(redis_server)
    yield twins
    twins.client.close()
    twins.bytes_client.close()


def test_the_real_store_and_its_scripts_play_the_same_histories(twins: Twins) -> None:
    began, played = time.monotonic(), 0
    for seed in range(SEEDS):
        history = twins.play(seed)
        assert history.kept, explained(history)
        played += 1
        if time.monotonic() - began > SECONDS:
            break
    assert played >= 20
    # What comes up in the first histories; rarer answers are held by test_model.py.
    assert {"commit: APPLIED", "claim: CLAIMED", "claim: STALE", "finish: APPLIED"} <= twins.seen
    assert {"renew: CONTINUE", "begin: LOCKED", "begin: BUSY", "end: RELEASED", "command: APPLIED"} <= twins.seen


class _Blind(Mirrored):
    """A model that is not what the scripts are: a pass sets the due to what it thinks right."""

    def _set_due(self, job_id: str, due: float | None, due_seen: str) -> None:
        if due is None:
            self.due.pop(job_id, None)
        else:
            self.due[job_id] = due


def test_a_model_that_is_not_what_the_scripts_are_is_found(twins: Twins) -> None:
    assert any(twins.play(seed, _Blind).promise == AGREE for seed in range(SEEDS))


def test_a_history_is_the_same_with_and_without_the_real_store(twins: Twins) -> None:
    alone, beside = simulate(4, store=ModelStore), twins.play(4)
    assert (alone.steps, alone.commits, alone.statuses) == (beside.steps, beside.commits, beside.statuses)
