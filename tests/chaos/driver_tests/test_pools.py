"""The account of the pools finds an attempt that was held beyond the slots, also for a moment
only.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.driver.judging.ledger import Ledger
from tests.chaos.driver.judging.pools import use_of
from tests.chaos.driver.judging.reports import Transaction, transactions
from tests.chaos.driver_tests.test_reports import words
from tests.support.coordinator import Coordinator, group
from tests.support.servers import RedisServer
from unstuck.tasks.protocol.keys import Keys

KEYS = Keys("unstuck")
JOB = KEYS.of("job")
SLOTS: Transaction = [words("HSET", KEYS.pools, "p", 1)]


def put(name: str, claimant: str = "", outcome: str = "") -> list[bytes]:
    attempt = {"epoch": 1, "nonce": "n", "pool": "p", "claimant": claimant, "outcome": outcome}
    return words("HSET", JOB.attempts, name, json.dumps(attempt))


ENDS = {
    "its outcome": put("a", "x", "SUCCEEDED"),
    "another attempt": put("a"),
    "its drop": words("HDEL", JOB.attempts, "a"),
    "the end of its job": words("HSET", JOB.job, "status", "CANCELED"),
}


@pytest.mark.parametrize("end", ENDS)
def test_overlapping_attempts_in_a_pool_are_reported(end: str) -> None:
    other = words("HSET", KEYS.of("other").attempts, "b", put("b", "y")[-1].decode())
    for written, over in (
        ([[put("a")], [put("a", "x")], [ENDS[end]], [other]], 0),
        ([[put("a")], [put("a", "x")], [ENDS[end], other]], 0),
        ([[put("a")], [put("a", "x")], [other], [ENDS[end]]], 1),
    ):
        use = use_of([SLOTS, *written], KEYS, ["job", "other"])
        assert (len(use.over), use.claims, use.most["p"]) == (over, 2, 1 + over), (use, written)
    assert "job/a, other/b" in use.over[0]
    assert not Ledger(overfull=use.over).kept


def test_the_file_of_a_real_server_records_the_use_of_its_pools(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, aof=True)
    server.start()
    try:
        coordinator = Coordinator(server.url, tmp_path / "warehouse")
        coordinator.client.pools.set("p", 2)
        job = coordinator.submit(group("g", for_each={"n": [1, 2, 3]}, pool="p"))
        coordinator.drive(job)
        use = use_of(transactions(tmp_path), coordinator.keys, [job])
        coordinator.redis.close()
    finally:
        server.stop()
    assert (use.slots, use.claims, use.over) == ({"p": 2}, 3, [])
