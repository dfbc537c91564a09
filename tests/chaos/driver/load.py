"""The load: jobs of several shapes, submitted as an app would, over a link of its own, until each
is acknowledged.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from tests.chaos.driver.fleet import ChaosFleet
from unstuck import Client, Status, Unreachable
from unstuck.read_model.job_list import JobList

WORK, PART, COPY = (f"tests.chaos.driver.steps:{name}" for name in ("work", "part", "copy"))
POOLS = {"narrow": 1, "wide": 2}  # pool → its slots, fewer than there are runners
# The driver kills far more workers than a fleet loses: the budget that ends a poisonous group must
# not run out.
PATIENT = {"worker_losses": 100, "retry": {"max": 50, "backoff": "200ms", "max_backoff": "1s"}}
ENOUGH = 8  # jobs that are open at a time
# Every so many jobs one has a group of Spark: a session costs more than all the rest.
SPARK_EVERY = 5
# Of those that are open: they wait for one worker, and must not keep the others from being
# submitted.
ENOUGH_SPARK = 2


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job as it was submitted.

    Attributes:
        dataset: the one that it publishes, which no other job does.
        rows: what must be in it: the numbers from 0 to below ``rows``, each once.
        groups: the ids of all groups that run steps; some take a slot of a pool.
    """

    name: str
    dataset: str
    rows: int
    groups: tuple[str, ...]
    spec: dict[str, Any]


def asked(number: int, rng: random.Random, ran: Path, *, spark: bool = True) -> SubmittedJob:
    """The job of this number: a line, a fork with its join, or, if ``spark``, a group of Spark in
    the middle.
    """
    shape = rng.choice(("line", "fork"))
    if spark and number % SPARK_EVERY == 2:
        shape = "spark"
    name, dataset = f"{shape}-{number:04d}", f"d{number:04d}"
    rows, seconds = rng.randint(1, 50), round(rng.uniform(0.1, 2.5), 2)

    def step(function: str, **more: Any) -> dict[str, Any]:
        return {
            "python": function,
            "params": {"ran": str(ran), "rows": rows, "seconds": seconds, **more},
        }

    def group(
        name: str, step: dict[str, Any], output: str, *needs: str, **more: Any
    ) -> dict[str, Any]:
        pool = {"pool": rng.choice(sorted(POOLS))} if rng.random() < 0.4 else {}
        steps = [{**step, "output": output}]
        return {"name": name, "spark": False, "needs": list(needs), "steps": steps, **pool, **more}

    if shape == "fork":
        members = rng.randint(2, 8)
        parts = group("parts", step(PART), "parts", for_each={"part": list(range(members))})
        groups = [
            group("first", step(WORK), "first"),
            {**parts, "needs": ["first"]},
            {"name": "all", "needs": ["parts"], "join": "all_succeeded"},
            group("last", step(COPY, source="parts"), dataset, "all"),
        ]
        ids, total = ("first", *(f"parts[{n}]" for n in range(members)), "last"), rows * members
    elif shape == "spark":
        groups = [
            group("first", step(WORK), "first"),
            group("middle", step(COPY, source="first"), "middle", "first", spark=True),
            group("last", step(COPY, source="middle"), dataset, "middle"),
        ]
        ids, total = ("first", "middle", "last"), rows
    else:
        groups = [
            group("first", step(WORK), "first"),
            group("last", step(COPY, source="first"), dataset, "first"),
        ]
        ids, total = ("first", "last"), rows
    priority = rng.choice(("high", "normal", "low"))
    spec = {
        "name": name,
        "priority": priority,
        "defaults": PATIENT,
        "publish": [dataset],
        "groups": groups,
    }
    return SubmittedJob(name, dataset, total, ids, spec)


@dataclass(slots=True)
class Load:
    """Submits jobs in a thread of its own, so that some are open at any time.

    Attributes:
        accepted: job id → what was asked; only what was acknowledged.
        refused: how often a submit ended in an error and was tried again under its key.
        took: the seconds that each submit took that was acknowledged at once.
    """

    fleet: ChaosFleet
    client: Client
    rng: random.Random
    accepted: dict[str, SubmittedJob] = field(default_factory=dict)
    refused: int = 0
    took: list[float] = field(default_factory=list)
    open: int = 0
    open_spark: int = 0
    ended: int = 0
    _enough: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        for pool, slots in POOLS.items():
            self.client.pools.set(pool, slots)
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 60.0) -> None:
        """One last submit, seen through. Raises: TimeoutError: it is not acknowledged in time."""
        self._enough.set()
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise TimeoutError(
                    f"a submit was not acknowledged within {timeout:g} s, though all faults were "
                    "undone"
                )

    def count(self) -> None:
        """Look how many jobs are open. Keeps the last number while the server is away."""
        try:
            found = JobList(self.fleet.queries).jobs(limit=None)
        except redis.RedisError:
            return
        ended = {job.id for job in found if job.status.terminal and not job.schedule}
        self.ended = len(ended)
        still = [asked for job, asked in list(self.accepted.items()) if job not in ended]
        self.open, self.open_spark = (
            len(still),
            sum(asked.name.startswith("spark") for asked in still),
        )

    def status(self) -> dict[str, Status]:
        """Of every job in the store. Raises: redis.RedisError."""
        return {job.id: job.status for job in JobList(self.fleet.queries).jobs(limit=None)}

    def _run(self) -> None:
        number = 0
        while not self._enough.is_set():
            self.count()
            if self.open >= ENOUGH:
                self._enough.wait(0.2)
                continue
            number += 1
            spark = self.open_spark < ENOUGH_SPARK
            self._submit(asked(number, self.rng, self.fleet.ran, spark=spark))
        # One more once all faults are undone, so that whatever was broken last is seen to work
        # again.
        self._submit(asked(number + 1, self.rng, self.fleet.ran, spark=False))

    def _submit(self, job: SubmittedJob) -> None:
        """Under a key, again and again until it is acknowledged: as an app does that must know."""
        refused, began = self.refused, time.monotonic()
        while True:
            try:
                self.accepted[self.client.submit(job.spec, key=job.name).id] = job
                if self.refused == refused:
                    self.took.append(time.monotonic() - began)
                return
            except Unreachable:
                self.refused += 1
                threading.Event().wait(0.1)
