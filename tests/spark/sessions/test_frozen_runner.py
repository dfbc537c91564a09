"""A runner that is frozen past its lease while its JVM writes on; and a worker whose main process
is killed.
"""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
import redis

from tests.guarantees.shown_is_true.test_states import staged
from tests.support import fleet
from tests.support.coordinator import Coordinator
from tests.support.programs.processes import below
from tests.support.servers import RedisServer, wait_until
from unstuck import Status, published_files

pytestmark = pytest.mark.variant

ENVIRON = {
    "UNSTUCK_SPARK_CONF": json.dumps({"spark.driver.memory": "1g"}),
    "UNSTUCK_SPARK_MASTER": "local[2]",
}


def test_a_jvm_that_keeps_writing_under_a_frozen_runner_changes_nothing(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    coordinator = Coordinator(
        redis_server.url, tmp_path / "warehouse", lease_ttl=3.0, sweep_every=0.2
    )
    started = tmp_path / "started"
    step = {
        "python": "fleet_steps:slow_in_the_jvm",
        "params": {"started": str(started)},
        "output": "data",
    }
    job = coordinator.submit({"name": "g", "queue": "frozen", "steps": [step]})

    def offered() -> bool:
        coordinator.sweep.run()
        coordinator.read()
        return bool(coordinator.sent)

    def ended() -> bool:
        offered()
        return coordinator.status(job).terminal

    with fleet.worker(redis_server.url, tmp_path, queues="frozen", environ=ENVIRON) as worker:
        # Given: the runner of the first attempt is frozen in the middle of a write, and its JVM is
        # not.
        wait_until(offered, 10, "the first attempt")
        (first,) = coordinator.offers()
        fleet.send_wake_up(client, first, "frozen")
        claimed = fleet.claimed(client, first)
        runner, token = fleet.runner_of(client, first), first.held_by(claimed["claimant"])
        staging = tmp_path / "warehouse" / token.staging
        wait_until(
            lambda: started.exists() and list(staging.rglob("*.parquet")), 150, "the JVM to write"
        )
        runner.suspend()
        assert not list(staging.rglob("_SUCCESS")), "frozen too late: proves nothing"

        # When: its lease lapses, the second attempt is done elsewhere, and the JVM of the first has
        # done its write.
        wait_until(offered, 30, "the second attempt", every=0.1)
        (second,) = coordinator.offers()
        assert second.epoch == 2
        assert coordinator.work(second, staged(coordinator, second, "data", rows=7)) == "APPLIED"
        wait_until(ended, 30, "the job to end", every=0.1)

        def rows_of_the_first() -> int:
            try:
                found = [f for f in staging.rglob("*.parquet") if "_temporary" not in f.parts]
            except FileNotFoundError:  # a folder that Spark renamed meanwhile
                return 0
            return sum(pq.read_metadata(file).num_rows for file in found)

        wait_until(lambda: rows_of_the_first() == 40, 60, "the JVM to write all of it", every=0.2)
        assert runner.status() == psutil.STATUS_STOPPED
        runner.resume()

        # Then: the thawed runner lets go by itself, and readers and counters know the second
        # attempt alone.
        def let_go() -> bool:
            return all(one.job is None for one in fleet.listed(client) if one.pid == runner.pid)

        wait_until(let_go, 30, "the thawed runner to hold nothing any more")
        view, commit = coordinator.show(job), coordinator.record(job).commit
        record = view.groups[0].members[0]
        assert (view.status, record.attempt, record.rows) == (Status.FINISHED, 2, {"data": 7})
        rows = pq.read_table(published_files(view.warehouse, "data")).to_pylist()
        assert rows == [{"n": n} for n in range(7)]
        offered()
        assert coordinator.record(job).commit == commit, "and what it still said changed nothing"
        assert "succeeded APPLIED" not in worker.text()

        # And a worker whose main process is killed leaves nothing behind: runner, watchdog, JVM.
        left = below(psutil.Process(worker.process.pid))
        worker.process.kill()
        psutil.wait_procs(left)
