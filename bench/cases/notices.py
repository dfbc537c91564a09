"""Case o: what commits that tell nothing cost more with rules of notices, in CPU of the coordinator
and of Redis.

Three coordinators in this process decide the same jobs in turn, a pass over each of them at a time:
one without rules, one more without, which shows how far equal ones differ, and one with rules of
the fleet of which none comes true. Workers are played by their scripts, which are not measured.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import mean, median
from typing import Any

import redis

from bench.case import Case, Size, Stage
from bench.fleet import chain, wide
from bench.server import Server
from unstuck import Client, Settings, Status
from unstuck.coordinator.decide.receipts import Delivered
from unstuck.coordinator.notices.setting import notify_setting
from unstuck.coordinator.publishing.background import Background
from unstuck.coordinator.publishing.background_tries import Warehouses
from unstuck.coordinator.reconcile.reconciler import Reconciler
from unstuck.coordinator.reconcile.wiring import mint
from unstuck.coordinator.store.job_store import Store
from unstuck.coordinator.store.reports import ReportStream
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.transport.lease import Lease
from unstuck.tasks.transport.redis_client import connect

SHAPES: dict[Size, tuple[tuple[int, str, int], ...]] = {  # jobs, their form, groups of each
    "tiny": ((2, "chain", 2), (1, "fork", 4)),
    "quick": ((40, "chain", 10), (1, "fork", 1_000)),
    "full": ((40, "chain", 10), (1, "fork", 1_000)),
}
TIMES: dict[Size, int] = {"tiny": 1, "quick": 2, "full": 6}
CONDITIONS: Sequence[Any] = (
    [
        "failed",
        "halted",
        "recovered",
        {"retrying_for": "15m"},
        {"running_for": "2h"},
        {"waiting_for_worker": "5m"},
    ],
    [{"running_for": "3 x usual"}],
)
RULES = [{"on": on, "to": "ops"} for on in CONDITIONS]
NOTIFY = json.dumps({"targets": {"ops": {"command": ["false"]}}, "rules": RULES})
NONE, NONE_AGAIN, SEVEN = "no rules", "no rules, once more", "seven conditions"


def run(stage: Stage) -> Case:
    case = Case("o", "commits that tell nothing", "s")
    folder = stage.folder / "notices"
    folder.mkdir()
    with closing(Server(folder)) as server, ExitStack() as stack:
        sides = {
            name: stack.enter_context(closing(_Side(server, folder / f"side{number}", notify)))
            for number, (name, notify) in enumerate(
                {NONE: "", NONE_AGAIN: "", SEVEN: NOTIFY}.items()
            )
        }
        for jobs, form, groups in SHAPES[stage.size]:
            shape = f"{jobs:,} {form}{'s' if jobs > 1 else ''} of {groups:,} groups"
            spec = wide(groups) if form == "fork" else chain(groups)
            _decided(sides, [spec] * jobs, 0)  # the scripts are loaded
            for _ in stage.rounds():
                steps = [
                    step
                    for n in range(TIMES[stage.size])
                    for step in _decided(sides, [spec] * jobs, n)
                ]
                case.add(
                    f"{shape}, {NONE}",
                    "ms of CPU",
                    1000 * sum(step[NONE] for step in steps) / TIMES[stage.size],
                )
                # Of single steps, since a machine that is busy at times makes some of them dear.
                for name, beside in ((NONE_AGAIN, (NONE,)), (SEVEN, (NONE, NONE_AGAIN))):
                    ratios = [step[name] / mean(step[one] for one in beside) for step in steps]
                    case.add(f"{shape}, {name}: more", "%", 100 * (median(ratios) - 1))
    return case


def _decided(
    sides: dict[str, _Side], specs: Sequence[dict[str, Any]], number: int
) -> list[dict[str, float]]:
    """CPU seconds of each side for each step of these jobs, from their submit to their end."""
    steps: list[dict[str, float]] = []
    for side in sides.values():
        side.submit(specs)
    # Each side is as often the first as the last, so what is warm by then favours none.
    turn = list(sides)[number % 3 :] + list(sides)[: number % 3]
    going = dict.fromkeys(turn, True)
    while any(going.values()):
        used: dict[str, float] = {}
        for name in turn:
            going[name] = sides[name].decide()
            used[name] = sides[name].used
            sides[name].work()
        if all(going.values()):
            steps.append(used)
    for side in sides.values():
        side.require_all_finished()
    return steps


class _Side:
    """A coordinator with names of its own in Redis, and its runner. ``used``: CPU seconds of its
    last step.
    """

    def __init__(self, server: Server, warehouse: Path, notify: str) -> None:
        prefix = warehouse.name
        settings = Settings(
            redis_url=server.url(), prefix=prefix, warehouse=str(warehouse), notify=notify
        )
        self._redis, self._keys = connect(settings.redis_url), Keys(prefix)
        self._client = Client(settings)
        store, publishing, rules = (
            Store(settings, self._redis),
            Background(1),
            notify_setting(settings).rules,
        )
        self._reconciler = Reconciler(
            store, lambda wake_ups: None, Warehouses(), settings, mint, publishing, rules=rules
        )
        self._stream = ReportStream(self._redis, self._keys, prefix)
        self._stream.open()
        self._lease = Lease(self._redis, self._keys, settings.lease_ttl, prefix)
        self._again: set[str] = set()
        self._jobs: list[str] = []
        self.used = 0.0

    def submit(self, specs: Sequence[dict[str, Any]]) -> None:
        self._jobs = [self._client.submit(spec).id for spec in specs]

    def require_all_finished(self) -> None:
        """Raises: RuntimeError: a job has not ended well, so what was measured is not what it was
        to be.
        """
        for job in self._jobs:
            if (status := self._client.show(job).status) is not Status.FINISHED:
                raise RuntimeError(f"job {job} is {status}")

    def decide(self) -> bool:
        """One pass over each job of which reports are there. Returns whether there were any."""
        redis_before, began = _cpu(self._redis), time.thread_time()
        reports: dict[str, list[Delivered]] = defaultdict(list)
        due = self._again
        wake_ups = []
        entries = self._stream.read(500, 0.0)
        for entry in entries:
            if entry.fields.get("kind") == "due":
                due.add(entry.fields["job"])
                wake_ups.append(entry)
            else:
                reports[entry.report.token.job].append(Delivered(entry.id, entry.report))
        self._again = set()
        for job in {**reports, **dict.fromkeys(due)}:
            if self._reconciler.reconcile(job, reports[job], due=job in due) == "MORE":
                self._again.add(job)
        self._stream.ack(wake_ups)
        self.used = time.thread_time() - began + _cpu(self._redis) - redis_before
        return bool(entries or self._again)

    def work(self) -> None:
        """Every group that is offered succeeds."""
        while claim := self._lease.take(["light"], mint(), "host:bench", mint()):
            self._lease.finish(claim.token, Outcome(OutcomeKind.SUCCEEDED), mint())

    def close(self) -> None:
        self._client.close()
        self._redis.close()


def _cpu(client: redis.Redis) -> float:
    found: Any = client.info("cpu")
    return float(found["used_cpu_user"] + found["used_cpu_sys"])
