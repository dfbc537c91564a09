"""Case c: from the outcome of a join's last branch to the claim of the join, by the clock of
Redis.
"""

# One job is a fork of N groups, and joins one after the other, each of which needs the whole fork
# and the join before it: so each join has N + 1 branches, of which the last one ends alone. The
# first join is told apart: its last branch ends among the reports of all others. Then the same with
# the job's lock in other hands for half of the time.

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import redis

from bench.case import Case, Stage
from bench.fleet import Fleet
from bench.measure import percentile

SHAPES = {
    "tiny": ((3, 2),),
    "quick": ((100, 100),),
    "full": ((100, 100), (5_000, 40)),
}  # width, joins
LONG = 1_000  # of the widths whose rounds take long
TURN = 0.025  # seconds for which the other one holds the lock, and then does not


def run(stage: Stage) -> Case:
    case = Case("c", "join: from its last branch's outcome to its claim")
    for width, joins in SHAPES[stage.size]:
        for _ in stage.rounds(most=2 if width < LONG else 1):
            for contended in (False, True):
                first, others = _latencies(stage.fleet, width, joins, contended)
                lock = ", lock held by another half of the time" if contended else ""
                what = f"width {width:,}{lock}"
                case.add(f"{what}: p50", "ms", 1000 * percentile(others, 50))
                case.add(f"{what}: p99", "ms", 1000 * percentile(others, 99))
                if not contended:
                    case.add(f"{what}: first join, behind all reports", "ms", 1000 * first)
    return case


def _latencies(fleet: Fleet, width: int, joins: int, contended: bool) -> tuple[float, list[float]]:
    """Seconds of the first join, and of each later one."""
    with outcomes(fleet) as ended:
        job = fleet.client.submit(_joins(width, joins)).id
        if contended:
            fleet.await_that(lambda: _succeeded(fleet) >= width, "the fork has ended")
            with _other_holder(fleet, fleet.keys.of(job).lock):
                fleet.finish(job)
        else:
            fleet.finish(job)
    claimed = {
        group.id: group.started_at
        for fork in fleet.client.show(job).groups
        for group in fork.members
    }
    first = claimed["j0"] - max(
        at for (of, group), at in ended.items() if of == job and group.startswith("fork")
    )
    names = [f"j{i}" for i in range(joins + 1)]
    return first, [claimed[name] - ended[job, before] for before, name in pairwise(names)]


def _succeeded(fleet: Fleet) -> int:
    """How many groups of the newest job have succeeded."""
    return fleet.client.jobs(limit=1)[0].states.get("SUCCEEDED", 0)


@contextmanager
def outcomes(fleet: Fleet) -> Iterator[dict[tuple[str, str], float]]:
    """When each group succeeded, by job and group, as reported while the block runs; complete when
    it is left.

    Read along, since coordinators trim the stream of what is applied.
    """
    found: dict[tuple[str, str], float] = {}
    enough = threading.Event()
    last = next(
        (entry for entry, _ in fleet.server.client.xrevrange(fleet.keys.reports, count=1)), b"0"
    )

    def read() -> None:
        after = last
        with redis.Redis.from_url(fleet.server.url()) as client:
            while True:
                ended = enough.is_set()  # before the look: one more is taken afterwards
                for _, entries in (
                    client.xread({fleet.keys.reports: after}, count=5_000, block=100) or []
                ):
                    after = entries[-1][0]
                    for _, fields in entries:
                        if fields.get(b"kind") == b"succeeded":
                            job, group, *_ = fields[b"token"].decode().split("/")
                            found[job, group] = float(fields[b"at"])
                if ended:
                    return

    reader = threading.Thread(target=read, name="outcomes")
    reader.start()
    try:
        yield found
    finally:
        enough.set()
        reader.join()


@contextmanager
def _other_holder(fleet: Fleet, key: str) -> Iterator[None]:
    """Take the lock and let it go, in turn, as a slow coordinator would."""
    enough = threading.Event()

    def hold() -> None:
        with redis.Redis.from_url(fleet.server.url()) as client:
            while not enough.is_set():
                with client.lock(key, timeout=2.0, sleep=0.001):
                    enough.wait(TURN)
                enough.wait(TURN)

    holder = threading.Thread(target=hold, name="other-holder")
    holder.start()
    try:
        yield
    finally:
        enough.set()
        holder.join()


def _joins(width: int, joins: int) -> dict[str, Any]:
    noop = {"queue": "light", "spark": False}
    fork = {"for_each": {"n": list(range(width))}, "steps": [{"python": "noop_steps:member"}]}
    groups: list[dict[str, Any]] = [{"name": "fork", **noop, **fork}]
    for i in range(joins + 1):
        needs = ["fork", f"j{i - 1}"] if i else ["fork"]
        groups.append(
            {"name": f"j{i}", "needs": needs, **noop, "steps": [{"python": "noop_steps:hop"}]}
        )
    return {"name": "joins", "groups": groups}
