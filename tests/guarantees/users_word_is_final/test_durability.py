"""``UNSTUCK_DURABILITY``: what is answered as stored is as durable as was asked, whichever
connection answers.
"""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from tests.support.servers import RedisServer, wait_until
from unstuck import Client, NotDurable, Settings
from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.coordinator.store.submissions import Submissions
from unstuck.coordinator.submitter import Submitter
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.transport.redis_client import connect

JOB = {
    "name": "job",
    "groups": [{"name": "a", "spark": False, "steps": [{"python": "some.where:step"}]}],
}


@pytest.mark.claim(
    "With `UNSTUCK_DURABILITY`, a command is confirmed only if the disk or a replica has it."
)
def test_unreplicated_writes_are_not_reported_as_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WAIT speaks of what its own connection has written, and threads share the connections of a
    client.
    """
    monkeypatch.setattr("unstuck.coordinator.submitter.DURABLE_WITHIN_S", 0.2)
    for name in ("primary", "replica"):
        (tmp_path / name).mkdir()
    server = RedisServer(tmp_path / "primary")
    replica = RedisServer(tmp_path / "replica", options=("--replicaof", f"127.0.0.1 {server.port}"))
    server.start()
    replica.start()
    settings = Settings(redis_url=server.url, warehouse=str(tmp_path / "warehouse"))
    store = connect(server.url, timeout=6.0)
    submitter = Submitter(
        settings, store, Submissions(store, Keys(settings.prefix)), CircuitBreaker()
    )
    with Client(settings, redis_client=store) as client:
        jobs = [client.submit(JOB).id for _ in range(4)]
        wait_until(
            lambda: store.set("x", "y") and store.wait(1, 1000) == 1, 30, "the replica to follow"
        )
        settings.durability = "replica"
        client.pause(jobs[0])
        assert replica.process is not None
        replica.process.send_signal(signal.SIGSTOP)
        asked = Barrier(len(jobs))

        def canceled(job: str) -> bool:
            asked.wait(60)
            with pytest.raises(NotDurable, match=job):
                client.cancel(job)
            return True

        with ThreadPoolExecutor(len(jobs)) as pool:
            assert all(pool.map(canceled, jobs))
        # As after a network that failed between the write and the question.
        store.connection_pool.disconnect()
        with pytest.raises(NotDurable):
            submitter.make_durable("what was written")
        replica.process.send_signal(signal.SIGCONT)
        submitter.make_durable("what was written")
    replica.stop()
    server.stop()
