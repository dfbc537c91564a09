"""What a user will ask for in one history: commands, and what they ask of single groups.

Plain values and dice.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.simulation.stage.jobs import QUEUES, WHEN, SimulatedJob
from unstuck.coordinator.spec.plan import Plan

# Instead of a time, a moment: an attempt of the job was claimed, or has ended; or the job begins to
# publish.
MOMENTS = ("claimed", "claimed", "ended", "publishing", "publishing")
# Of what is asked of single groups, also: a group begins to recover.
ASK_MOMENTS = ("claimed", "ended", "recovering", "recovering", "recovering")
# Of a retry: the job has ended, and is not FINISHED.
OVER = "over"
# The commands after which a job can still do something come most often.
_COMMANDS = (
    *(
        "pause",
        "pause",
        "pause",
        "resume",
        "resume",
        "resume",
        "resume",
    ),
    *("stop", "cancel", "cancel", "cancel", "force-stop"),
)


@dataclass(frozen=True, slots=True)
class Demand:
    """Something that is asked of a ``group``, or an ``alter`` or a ``retry`` with these
    ``values``.
    """

    word: Literal["alter", "skip", "rerun", "retry"]
    group: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.word} {self.group or dict(self.values)} of"


@dataclass(frozen=True, slots=True)
class UserRequest:
    """One command that will be given, at a time or at a moment, and to be repeated at once if
    ``twice``.

    Attributes:
        job: and, at a moment, also every retry of it.
        then: what the same user gives after it, each so many seconds after the one before. After a
            retry it is given to the new job.
    """

    at: float
    job: str
    given: str | Demand
    now: bool = False
    twice: bool = False
    moment: str = ""
    then: tuple[tuple[float, str | Demand], ...] = ()


def random_requests(
    rng: random.Random, jobs: Sequence[str], begin: float, end: float
) -> list[UserRequest]:
    """Commands to whole jobs; in some histories, none."""
    requests = []
    for _ in range(rng.choice((0, 0, 1, 3, 6, 9))):
        given, job = rng.choice(_COMMANDS), rng.choice(jobs)
        moment = rng.choice(MOMENTS) if given != "resume" and rng.random() < 0.75 else ""
        now = given == "pause" and rng.random() < 0.4
        requests.append(
            UserRequest(rng.uniform(begin, end), job, given, now, rng.random() < 0.2, moment)
        )
    return requests


def random_demands(
    rng: random.Random, jobs: Mapping[str, SimulatedJob], begin: float, end: float
) -> list[UserRequest]:
    """Alter, skip and rerun; of what is RETRYING at once, else under a pause, most often with a
    resume after it.
    """
    requests = []
    for _ in range(rng.choice((0, 0, 0, 2, 4, 8))):
        job = rng.choice(list(jobs))
        plan = jobs[job].plan
        moment = rng.choice(ASK_MOMENTS) if rng.random() < 0.8 else ""
        group = rng.choice(list(plan.groups))
        asked = [_demand(rng, plan, group) for _ in range(rng.choice((1, 1, 2, 3)))]
        then: list[tuple[float, str | Demand]] = [
            (rng.choice((0.0, 0.0, 0.3, 2.0)), demand) for demand in asked
        ]
        first: str | Demand = "pause"
        if moment == "recovering" and rng.random() < 0.6:
            first = then.pop(0)[1]
        elif rng.random() < 0.8:
            then.append((rng.choice((0.0, 0.1, 3.0, 20.0)), "resume"))
        at, now, twice = rng.uniform(begin, end), rng.random() < 0.4, rng.random() < 0.2
        requests.append(
            UserRequest(at, job, first, now and first == "pause", twice, moment, tuple(then))
        )
    return requests


def random_retries(
    rng: random.Random, jobs: Mapping[str, SimulatedJob], begin: float, end: float
) -> list[UserRequest]:
    """Retries: most often of what has just ended, now and then of what has not, or is FINISHED;
    twice, and in a row.
    """
    requests = []
    for _ in range(rng.choice((0, 0, 1, 2, 4))):
        job = rng.choice(list(jobs))
        moment = OVER if rng.random() < 0.8 else rng.choice(("", "", *MOMENTS))
        then: list[tuple[float, str | Demand]] = []
        if rng.random() < 0.4:
            ending = rng.choice(("stop", "cancel", "force-stop", "force-stop"))
            then = [
                (rng.choice((0.1, 1.0, 5.0)), ending),
                (rng.choice((0.1, 2.0, 20.0)), _retry(rng, jobs[job].plan)),
            ]
        at, twice = rng.uniform(begin, end), rng.random() < 0.3
        requests.append(
            UserRequest(at, job, _retry(rng, jobs[job].plan), False, twice, moment, tuple(then))
        )
    return requests


def _retry(rng: random.Random, plan: Plan) -> Demand:
    """With the parameters as they were; with others; with one that the spec does not name."""
    drawn = rng.random()
    if drawn > 0.95:
        return Demand("retry", values={"nobody": 1})
    if drawn > 0.5 and plan.params:
        return Demand(
            "retry",
            values=rng.choice(({"full": True}, {"full": False}, {"level": rng.randint(0, 9)})),
        )
    return Demand("retry")


def _demand(rng: random.Random, plan: Plan, group: str) -> Demand:
    """Most often of ``group``, or of a group that comes after it: what is asked together gets into
    each other's way.
    """
    drawn = rng.random()
    name = rng.choice((group, group, *plan.groups[group].successors, *plan.groups))
    if drawn < 0.4:
        return Demand("alter", values=_values(rng, plan))
    sources = [n for n, group in plan.groups.items() if group.feeds]
    if sources and rng.random() < 0.3:
        name = rng.choice(sources)
    if plan.groups[name].spec.for_each is not None and rng.random() < 0.5:
        name = f"{name}[{rng.randint(0, 2)}]"
    return Demand("skip" if drawn < 0.65 else "rerun", name)


def _values(rng: random.Random, plan: Plan) -> dict[str, Any]:
    """What an alter is to set: code, policy, both, or something good with something bad."""
    group = rng.choice([name for name, planned in plan.groups.items() if planned.spec.steps])
    code: list[dict[str, Any]] = [
        {"params.level": rng.randint(1, 9)},
        {f"groups.{group}.params.fixed": True},
        {f"groups.{group}.params.fixed": True},
        {f"groups.{group}.steps.0.params.level": rng.randint(1, 9)},
        {f"groups.{group}.when": rng.choice((None, *WHEN))},
    ]
    policy: list[dict[str, Any]] = [
        {f"groups.{group}.retry.max": rng.randint(0, 5)},
        {f"groups.{group}.worker_losses": rng.randint(1, 5)},
        {f"groups.{group}.queue": rng.choice(QUEUES)},
        {f"groups.{group}.queue_timeout": rng.choice((None, 5.0, 30.0))},
        {"max_parallel": rng.choice((None, 1, 2))},
        {"on_failure": rng.choice(("cancel_others", "finish_others"))},
        {"timeout": rng.choice((None, 30.0, 90.0))},
    ]
    bad: list[dict[str, Any]] = [
        {"groups.nobody.timeout": 3.0},
        {f"groups.{group}.worker_losses": -1},
        {f"groups.{group}.needs": []},
        {f"groups.{group}.steps.7.python": "model.steps:run"},
    ]
    drawn = rng.random()
    if drawn < 0.4:
        return rng.choice(code)
    if drawn < 0.7:
        return rng.choice(policy)
    return {**rng.choice(code), **rng.choice(policy if drawn < 0.85 else bad)}
