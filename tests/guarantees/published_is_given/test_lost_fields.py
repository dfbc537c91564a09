"""A record that has lost a field: a real runner, real scripts on a real Valkey, one field deleted
from each job.

The functions of the steps have defaults, so an order that lacks something makes other rows instead
of an error.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from tests.support import fleet
from tests.support.coordinator import Coordinator
from tests.support.paths import PYTHONPATH
from tests.support.servers import RedisServer, wait_until
from unstuck import Status, published_files

STEPS = """
import pyarrow as pa

def make(spark, ctx, rows=1, note=""):
    return pa.table({"n": list(range(rows)), "note": [note[:1]] * rows})

def part(spark, ctx, n=0, factor=1):
    return pa.table({"part": [n * factor], "note": ctx.input("made")["note"][:1]})

def report(spark, ctx, factor=1):
    parts = ctx.input("parts").to_pylist()
    total, notes = sum(one["part"] for one in parts), "".join(one["note"] for one in parts)
    return pa.table({"sum": [total], "notes": [notes], "factor": [factor]})

def extra(spark, ctx):
    return pa.table({"extra": [1]})
"""
SPEC = {
    "name": "lost",
    "params": {"factor": 3},
    "groups": [
        {
            "name": "make",
            "spark": False,
            "steps": [
                {"python": "lost:make", "output": "made", "params": {"rows": 2, "note": "x" * 2000}}
            ],
        },
        {"name": "extra", "spark": False, "steps": [{"python": "lost:extra", "output": "extra"}]},
        {
            "name": "part",
            "needs": ["make"],
            "for_each": {"n": {"from": "made.n"}},
            "spark": False,
            "steps": [{"python": "lost:part", "output": "parts"}],
        },
        {
            "name": "report",
            "needs": ["part"],
            "spark": False,
            "steps": [{"python": "lost:report", "output": "report"}],
        },
    ],
}
HASHES = ("job", "plans", "groups", "inputs", "forks", "attempts")
RIGHT: dict[str, list[tuple[object, ...]]] = {"report": [(3, "xx", 3)], "extra": [(1,)]}


class Lost:
    """Jobs of one spec, driven by one coordinator and one real runner."""

    def __init__(self, coordinator: Coordinator, worker: fleet.FleetWorker) -> None:
        self.coordinator, self.redis, self._worker = coordinator, coordinator.redis, worker

    def submit(self) -> str:
        return self.coordinator.client.submit(SPEC).id

    def turn(self) -> None:
        """All that stands ready is done, and taken in."""
        self.coordinator.read()
        self.coordinator.sweep.run()
        self.work()
        self.coordinator.read()

    def work(self) -> None:
        """All that stands ready is taken, before a coordinator looks at any job."""
        if self.coordinator.sent:
            fleet.wake(self.redis, "light")
            (runner,) = self._worker.runners
            wait_until(lambda: not self.coordinator.sent, 60, "all offers to be taken")
            wait_until(lambda: fleet.asleep(self.redis, runner), 60, "the runner to have done all")

    def ended(self, job: str) -> bool:
        return self.redis.hget(self.coordinator.keys.of(job).job, "status") in (
            "HALTED",
            "FINISHED",
            "FAILED",
        )

    def drive(self, jobs: dict[str, str]) -> None:
        def all_ended() -> bool:
            if left := [job for job in jobs.values() if not self.ended(job)]:
                self.redis.zadd(self.coordinator.keys.due, dict.fromkeys(left, 0), xx=True)
                # Turns are faster than the second for which a coordinator trusts what it has read
                # of a job.
                self.coordinator.reconciler.cache.clear()
                self.turn()
            return not left

        wait_until(all_ended, 60, f"every job to end or to be halted, of {jobs}")

    def rows(self, job: str) -> dict[str, list[tuple[object, ...]]]:
        version = self.coordinator.show(job).version
        root = self.coordinator.settings.warehouse
        made = {name for name in RIGHT if name in self.coordinator.show(job).published}
        files = {name: published_files(root, name, version) for name in made}
        return {
            name: sorted(duckdb.read_parquet(found).fetchall()) for name, found in files.items()
        }

    def told(self, job: str) -> str:
        """Why a job stands still, as a person hears it."""
        view = self.coordinator.client.show(job, why=True)
        assert view.halted is not None
        return f"{view.why_line(job)}; {view.halted.text}"


def offered(lost: Lost, jobs: list[str]) -> None:
    """The first groups stand ready."""
    lost.coordinator.read()


def half_done(lost: Lost, jobs: list[str]) -> None:
    """One group has succeeded, the user has skipped another one, and the members of a fork stand
    ready.
    """
    lost.coordinator.read()
    for job in jobs:
        lost.coordinator.client.pause(job)
    lost.coordinator.read()
    for job in jobs:
        assert lost.coordinator.client.skip(job, "extra").answer == "DONE"
    lost.coordinator.read()
    for job in jobs:
        lost.coordinator.client.resume(job)
    lost.turn()
    lost.coordinator.read()


@pytest.mark.variant
@pytest.mark.parametrize("come_to", [offered, half_done])
def test_a_job_that_lost_a_field_publishes_correct_rows_or_halts_with_the_field_name(
    redis_server: RedisServer,
    make_coordinator: Callable[..., Coordinator],
    tmp_path: Path,
    come_to: Callable[[Lost, list[str]], None],
) -> None:
    # A turn may take seconds on a busy machine. Three short periods without a sweep would count as
    # an outage each time, after which no lease lapses for a while.
    coordinator = make_coordinator(dispatch_timeout=0.3, sweep_every=60.0)
    (tmp_path / "lost.py").write_text(STEPS)
    environ = {"PYTHONPATH": f"{tmp_path}:{PYTHONPATH}"}
    with fleet.worker(redis_server.url, tmp_path, environ=environ) as worker:
        lost = Lost(coordinator, worker)
        model = lost.submit()
        come_to(lost, [model])
        fields = [
            (key, name)
            for key in HASHES
            for name in coordinator.redis.hkeys(getattr(coordinator.keys.of(model), key))
        ]
        jobs = {lost.submit(): found for found in fields}
        come_to(lost, list(jobs))
        for job, (key, name) in jobs.items():
            assert coordinator.redis.hdel(getattr(coordinator.keys.of(job), key), name) == 1, (
                key,
                name,
            )
        lost.work()
        lost.drive({f"{key} {name}": job for job, (key, name) in jobs.items()} | {"none": model})

        right = (
            RIGHT
            if come_to is not half_done
            else {name: rows for name, rows in RIGHT.items() if name != "extra"}
        )
        wrong = {}
        for job, (key, name) in jobs.items():
            status = coordinator.status_of_record(job)
            if status is Status.FINISHED and (rows := lost.rows(job)) != right:
                wrong[key, name] = f"FINISHED with {rows}"
            elif (
                status is Status.HALTED and key in ("job", "groups") and name not in lost.told(job)
            ):
                wrong[key, name] = lost.told(job)
            elif status is Status.FAILED:
                wrong[key, name] = f"FAILED: {coordinator.show(job).reason}"
        assert coordinator.status(model) is Status.FINISHED, coordinator.show(model).reason
        assert lost.rows(model) == right
        assert not wrong
