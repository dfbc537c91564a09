"""Random job specs, and how their steps will behave when somebody runs them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.plan import Plan, PlannedGroup, plan_of

QUEUES = ("spark", "heavy")
POOLS = ("one", "two")  # each has as many slots as its name says
# Conditions on parameters: true, false, and one that cannot be evaluated. On results, see
# `_condition`.
WHEN = ("params.full", "params.full", "params.level > 5", "params.word > 1")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a run of a group does, given how many runs of it went before.

    Attributes:
        kind: ``ok``, ``flaky`` (fails ``times`` times first), ``fails``, ``fatal`` (unrecoverable)
            or ``kills``.
        silent: of a flaky fork source: it does not make the column that a fork waits for.
    """

    kind: str = "ok"
    times: int = 0
    seconds: float = 1.0
    silent: bool = False

    def fails(self, runs: int) -> bool:
        return self.kind in ("fails", "fatal") or (self.kind == "flaky" and runs < self.times)

    def with_params(self, params: dict[str, Any]) -> Behaviour:
        """The same with the parameters of an attempt: a user may have mended what made it fail."""
        return Behaviour(seconds=self.seconds, silent=self.silent) if params.get("fixed") else self


@dataclass(slots=True)
class SimulatedJob:
    """A job of one history."""

    record: JobRecord
    plan: Plan
    behaviours: dict[str, Behaviour]
    submit_at: float
    runs: dict[str, int] = field(default_factory=dict)  # group id → times that user code was run
    root: str = ""  # of a retry: the job that was submitted first

    def makes_outputs(self, group: str, params: dict[str, Any]) -> bool:
        """All jobs do but the third of a history and its retries, and the second one where it was
        altered.

        Of the first one, two groups make none.
        """
        root = self.root or self.record.id
        none = (
            root == "job3"
            or (root == "job2" and params.get("fixed"))
            or (root == "job1" and group in ("g1", "g2"))
        )
        return not none

    def behaviour(self, group: str) -> Behaviour:
        return self.behaviours[group]


def random_job(
    rng: random.Random,
    number: int,
    more: random.Random | None,
    pooled: random.Random | None = None,
    cleaned: random.Random | None = None,
    told: random.Random | None = None,
) -> SimulatedJob:
    """One job: two to seven groups, with every kind of join, fork, policy and failure.

    Args:
        more: dice of their own for conditions, timeouts and optional groups, which some of the jobs
            have; None: none.
        pooled: dice of their own for pools and priorities, likewise.
        cleaned: dice of their own for groups that run after a failure, likewise.
        told: dice of their own for rules of who is told of what, likewise.
    """
    groups: list[dict[str, Any]] = []
    for index in range(rng.randint(2, 7)):
        groups.append(_group(rng, index, groups))
    spec: dict[str, Any] = {
        "name": f"job{number}",
        "groups": groups,
        "on_failure": rng.choice(_ON_FAILURE),
    }
    if rng.random() < 0.4:
        spec["max_parallel"] = rng.randint(1, 3)
    for group in groups if cleaned is not None else ():
        if group.get("needs") and cleaned is not None and cleaned.random() < 0.5:
            group["join"] = cleaned.choice(("any_failed", "all_failed", "all_done"))
    outputs = [group["name"] for group in groups if group.get("steps")]
    if rng.random() < 0.4:
        spec["publish"] = rng.sample(outputs, rng.randint(0, min(2, len(outputs))))
    if more is not None and more.random() < 0.6:
        _add_more(more, spec)
    if pooled is not None:
        _add_pools(pooled, spec)
    if told is not None:
        waits = [{"retrying_for": 4.0}, {"running_for": 6.0}, {"waiting_for_worker": 3.0}]
        on = ["failed", "finished", "recovered", *told.sample(waits, told.randint(1, 3))]
        spec["notify"] = [
            {"on": on, "to": "ops"},
            {"on": ["failed", *told.sample(waits, 1)], "to": "boss"},
        ]
    text = JobSpec.model_validate(spec).to_json()
    plan = plan_of(text)
    name, priority = f"job{number}", spec.get("priority", "normal")
    record = JobRecord(
        name, name, text, "new", warehouse="model", warehouse_id="w", priority=priority
    )
    return SimulatedJob(
        record, plan, random_behaviours(rng, plan), submit_at=rng.uniform(0.0, 15.0)
    )


def _add_more(rng: random.Random, spec: dict[str, Any]) -> None:
    """Conditions, timeouts and optional groups."""
    spec["params"] = {"full": rng.random() < 0.7, "level": rng.choice((0, 9)), "word": "x"}
    if rng.random() < 0.4:
        spec["timeout"] = rng.choice((8.0, 25.0, 60.0))
    for group in spec["groups"]:
        if rng.random() < 0.3:
            group["when"] = _condition(rng, group, spec["groups"])
        if group.get("steps") and rng.random() < 0.3:
            group["queue_timeout"] = rng.choice((2.0, 8.0, 30.0))
        if rng.random() < 0.2:
            group["optional"] = True


def _add_pools(rng: random.Random, spec: dict[str, Any]) -> None:
    spec["priority"] = rng.choice(("high", "normal", "low"))
    for group in spec["groups"]:
        if group.get("steps") and rng.random() < 0.5:
            group["pool"] = rng.choice(POOLS)


def _condition(rng: random.Random, group: dict[str, Any], groups: list[dict[str, Any]]) -> str:
    needs = group.get("needs", ())
    makers = [
        g["name"] for g in groups if g["name"] in needs and g.get("steps") and "for_each" not in g
    ]
    if not makers or rng.random() < 0.4:
        return rng.choice(WHEN)
    maker = rng.choice(makers)
    return rng.choice(
        (f"results.{maker}.rows > 3", f"results.{maker}.rows > -1", f"results.{maker}.rows is none")
    )


_ON_FAILURE = ("cancel_others", "finish_others")


def _group(rng: random.Random, index: int, before: list[dict[str, Any]]) -> dict[str, Any]:
    name = f"g{index}"
    group: dict[str, Any] = {"name": name}
    count = min(len(before), rng.choice((0, 1, 1, 2, 2, 3)))
    needs = [g["name"] for g in rng.sample(before, count)]
    if needs:
        group["needs"] = needs
        group["join"] = rng.choice(
            (
                "all_succeeded",
                "all_succeeded",
                "all_done",
                "any_succeeded",
                "none_failed",
                {"at_least": 1},
            )
        )
        if rng.random() < 0.2:
            group["join"] = {"at_least": rng.randint(1, len(needs))}
        if rng.random() < 0.2:
            return group  # a join without steps
    group["steps"] = [{"python": "model.steps:run", "output": name}]
    group["queue"] = rng.choice(QUEUES)
    group["retry"] = {
        "max": rng.randint(0, 3),
        "backoff": rng.choice((0, 0.5, 2.0)),
        "max_backoff": 6.0,
    }
    group["worker_losses"] = rng.randint(1, 4)
    makers = [
        g["name"] for g in before if g["name"] in needs and g.get("steps") and "for_each" not in g
    ]
    drawn = rng.random()
    if drawn < 0.25:
        group["for_each"] = {"part": list(range(rng.choice((0, 1, 2, 3, 4))))}
    elif drawn < 0.45 and makers:
        group["for_each"] = {"part": {"from": f"{rng.choice(makers)}.part"}}
    return group


def random_behaviours(rng: random.Random, plan: Plan) -> dict[str, Behaviour]:
    """Of each group of one job."""
    fault_free = rng.random() < 0.3
    return {name: _behaviour(rng, planned, fault_free) for name, planned in plan.groups.items()}


def _behaviour(rng: random.Random, planned: PlannedGroup, fault_free: bool) -> Behaviour:
    seconds = rng.choice((0.05, 0.5, 2.0, 6.0))
    silent = rng.random() < 0.1
    drawn = rng.random()
    if fault_free or drawn < 0.65:
        return Behaviour(seconds=seconds, silent=silent)
    if drawn < 0.85:
        return Behaviour("flaky", rng.randint(1, planned.retry.max + 1), seconds, silent)
    return Behaviour(rng.choice(("fails", "fatal", "kills")), 0, seconds)
