"""One history of schedules: a seed becomes schedules, processes, commands and trouble, and is
played to its end.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from tests.simulation.actors.warehouse import Depot
from tests.simulation.rules.broken import Broken
from tests.simulation.schedules.actors import Landing, ScheduleOffice, ScheduleUser, Unfit, fleet
from tests.simulation.schedules.rules import Rules
from tests.simulation.schedules.store import ModelSchedules
from tests.simulation.schedules.told import AGAIN, rules_of
from tests.simulation.stage.history import SETTINGS, WHOLE, HistoryResult, Part
from tests.simulation.stage.network import LONGEST_WAIT
from tests.simulation.stage.stage import Life, Routine, Stage
from tests.simulation.stage.store_faults import (
    StoreFault,
    StoreFaultActor,
    StoreFaults,
    random_store_faults,
)
from tests.simulation.stage.trouble import Trouble
from unstuck.client.schedule_client import ScheduleClient
from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.model.tick import TickOutcome, tick_text
from unstuck.coordinator.notices.rules import alerts
from unstuck.coordinator.reconcile.schedule_sweep import REPAIR_EVERY
from unstuck.coordinator.requests import schedule_requests

# Before the nights on which the clocks of Berlin change, before a leap day, and on any day.
BEGINNINGS = (1793496300.0, 1774745700.0, 1835395000.0, 1764200000.0)
TERMS = SETTINGS.model_copy(
    update={"lock_ttl": 10.0}
)  # what a coordinator takes is left to it for half of that
GOES_ON = 150.0  # virtual seconds that are played after the last trouble


def simulate_schedules(
    seed: int,
    *,
    store: Callable[[Callable[[], float]], ModelSchedules] = ModelSchedules,
    keep_all: bool = False,
    part: Part = WHOLE,
) -> HistoryResult:
    """Play the history of ``seed``, or a part of it, on a store of the given kind; its jobs are its
    schedules.
    """
    logging.disable(logging.CRITICAL)
    try:
        with (
            patch.object(alerts, "TOLD_AGAIN_AFTER", AGAIN),
            patch.object(
                schedule_requests, "unknown_targets", lambda *_: ()
            ),  # they are asked of a Redis
        ):
            return _play(seed, store, keep_all, part)
    finally:
        logging.disable(logging.NOTSET)


def _play(
    seed: int, store: Callable[[Callable[[], float]], ModelSchedules], keep_all: bool, part: Part
) -> HistoryResult:
    dice = random.Random(f"schedules {seed}")
    stage = Stage(seed, keep_all=keep_all, start=dice.choice(BEGINNINGS))
    ends = stage.now + dice.choice((30.0, 90.0, 240.0))
    trouble = Trouble(
        stage.rng, lambda: stage.now, ends, random.Random(f"later {seed}"), part.faults
    )
    core, depot = store(lambda: stage.now), Depot()
    bound = TERMS.lock_term + 3 * TERMS.sweep_every + 2 * LONGEST_WAIT
    landing, drops, unfit = Landing(), random.Random(f"drops {seed}"), Unfit(trouble, seed)
    streamed = drops.random() < 0.15
    rules = Rules(stage, trouble, core, depot, landing, bound)
    core.watching = rules
    beats = dice.choice((0, 1, 2))
    for n in range(dice.randint(1, 2)):
        ScheduleOffice(
            stage, trouble, core, depot, landing, unfit, TERMS, f"coordinator{n}", beaten=n < beats
        )
    calm: list[bool] = []
    Routine(stage, "fleet", fleet(stage, trouble, core, depot, landing, seed, calm))
    faults = random_store_faults(random.Random(f"faults {seed}"), [], ends - stage.now)
    wishes = Wishes(streamed)
    names = [f"schedule{n}" for n in range(dice.randint(1, 2))]
    for name in names:
        _wishes(wishes, dice, name, stage.now, ends - stage.now, rules_of(seed, name, stage.now))
    ahead = random.Random(f"ahead {seed}")
    if ahead.random() < 0.15:
        faults = replace(faults, faults=_day_ahead(ahead, faults, wishes, names, ends - stage.now))
    person = ScheduleUser(stage, trouble, core, depot, unfit, TERMS)
    for number, (name, *wish) in enumerate(wishes.all, 1):
        if (part.jobs is None or names.index(name) + 1 in part.jobs) and (
            part.requests is None or number in part.requests
        ):
            person.gives(*wish)
    fault_actor = StoreFaultActor(stage, trouble, core, faults, [core.remember])  # type: ignore[arg-type]
    if faults.faults:
        Routine(stage, "store", fault_actor.life())
    if streamed:
        Routine(stage, "source", landing.arrives(stage, drops, names, ends))
    result = HistoryResult(seed, jobs=len(names), requests=len(wishes.all))
    result.command += " --schedules"
    Routine(stage, "rules", _looks(rules))
    if dice.random() < 0.3:
        Routine(stage, "vandal", _spoil(stage, trouble, core, random.Random(f"spoilt {seed}")))
    try:
        stage.run(lambda: False, until=ends)
        calm.append(True)
        stage.run(lambda: False, until=ends + GOES_ON)
    except Broken as broken:
        result.promise, result.text = broken.promise, str(broken)
    finally:
        stage.close()
    result.trace, result.steps = stage.lines(), stage.steps
    result.commits, result.commands, result.faults = rules.commits, rules.commands, trouble.faults
    result.claims = len(core.jobs)
    result.statuses = {name: str(stored.read().status) for name, stored in core.schedules.items()}
    return result


def _spoil(stage: Stage, trouble: Trouble, core: ModelSchedules, dice: random.Random) -> Life:
    """The due index is an index: now and then it loses a schedule."""
    while True:
        yield dice.uniform(5.0, 60.0)
        if trouble.on and core.due and trouble.happens():
            name = dice.choice(sorted(core.due))
            stage.log("store", f"the due index LOSES {name}")
            core.lose_due(name)
            trouble.disturb(stage.now + REPAIR_EVERY)


def _day_ahead(
    dice: random.Random, faults: StoreFaults, person: Wishes, names: list[str], lasts: float
) -> tuple[StoreFault, ...]:
    """``faults``, and a clock that is a day ahead for a while; a person lets the schedules count
    from now then.
    """
    at = dice.uniform(2.0, lasts)
    back = at + dice.uniform(1.0, 15.0)
    for name in names:
        given = dice.choice(("resume", "run"))
        person.gives(
            back + dice.uniform(0.1, 30.0),
            f"{given} {name}",
            partial(_command, name=name, given=given),
        )
    day = (StoreFault(at, "jump", 86400.0), StoreFault(back, "jump", -86400.0))
    return tuple(sorted((*faults.faults, *day), key=lambda fault: fault.at))


class Wishes:
    """All that a person would give: dice are thrown for it whether or not it is played."""

    def __init__(self, streamed: bool) -> None:
        """``streamed``: schedules read streams, and run at their ticks only if something has
        arrived.
        """
        self.streamed = streamed
        self.all: list[tuple[str, float, str, Callable[[ScheduleClient], Any]]] = []

    def gives(self, at: float, what: str, command: Callable[[ScheduleClient], Any]) -> None:
        """``what`` ends with the name of the schedule, or with that and ``again``."""
        self.all.append((what.removesuffix(" again").split()[-1], at, what, command))


def _looks(rules: Rules) -> Life:
    while True:
        rules.look()
        yield 0.5


def _wishes(
    person: Wishes,
    dice: random.Random,
    name: str,
    start: float,
    lasts: float,
    notify: list[dict[str, Any]],
) -> None:
    """What a person wants of one schedule, and when."""
    person.gives(
        0.1,
        f"set {name}",
        partial(_set, spec=_spec(dice, name, person.streamed) | {"notify": notify}),
    )
    for _ in range(dice.choice((0, 2, 5))):
        at = dice.uniform(1.0, lasts)
        drawn = dice.random()
        if drawn < 0.2:
            person.gives(
                at,
                f"set {name}",
                partial(_set, spec=_spec(dice, name, person.streamed) | {"notify": notify}),
            )
        elif drawn < 0.4:
            _gives_backfill(person, dice, name, start, at)
        else:
            words = (
                *["pause"] * 3,
                *["resume"] * 4,
                *["run"] * 3,
            )
            given = dice.choice((*words, "stop")) if dice.random() < 0.7 else "resume"
            person.gives(at, f"{given} {name}", partial(_command, name=name, given=given))


def _gives_backfill(
    person: Wishes, dice: random.Random, name: str, start: float, at: float
) -> None:
    first = start - dice.choice((30.0, 100.0, 200.0))
    how: dict[str, Any] = {
        "parallel": dice.randint(1, 3),
        "redo": dice.choice(("none", "failed", "all")),
        "backwards": dice.random() < 0.3,
    }
    begin = partial(
        _backfill, name=name, first=tick_text(first), last=tick_text(start + 20), how=how
    )
    person.gives(at, f"backfill {name}", begin)
    for _ in range(dice.choice((0, 0, 1, 3))):
        given = dice.choice(("pause", "resume", "cancel"))
        person.gives(
            at + dice.uniform(1.0, 60.0),
            f"{given} backfill {name}",
            partial(_steer, name=name, given=given),
        )
    if dice.random() < 0.5:
        person.gives(at + dice.uniform(1.0, 60.0), f"backfill {name} again", begin)
    own = random.Random(f"in order {name} {at}")
    plain = partial(
        _backfill, name=name, first=tick_text(first), last=tick_text(start + 20), how={}
    )
    person.gives(at + own.uniform(0.5, 20.0), f"plain backfill {name}", plain)
    if own.random() < 0.5:
        again = {"from_here": True}
        from_here = partial(
            _backfill, name=name, first=tick_text(start - 40.0), last=None, how=again
        )
        person.gives(at + own.uniform(20.0, 60.0), f"from here backfill {name}", from_here)
    skip = partial(_skip, name=name, first=tick_text(first), last=tick_text(start + 20))
    person.gives(at + own.uniform(5.0, 60.0), f"skip {name}", skip)


def _set(client: ScheduleClient, spec: dict[str, Any]) -> Any:
    return client.set(spec, by="ann")


def _command(client: ScheduleClient, name: str, given: str) -> Any:
    return getattr(client, given)(name, by="ann")


def _skip(client: ScheduleClient, name: str, first: str, last: str) -> Any:
    """Skip the oldest of these ticks that failed, if any did."""
    try:
        ticks = client.backfill_ticks(name, first, last)
    except BadRequest:
        ticks = []  # none has come
    failed = [one.tick for one in ticks if one.outcome is TickOutcome.FAILED]
    return client.skip(name, tick_text(failed[0] if failed else 0.0), by="ann")


def _backfill(
    client: ScheduleClient, name: str, first: str, last: str | None, how: dict[str, Any]
) -> Any:
    return client.backfill(name, first, last, **how, by="ann")


def _steer(client: ScheduleClient, name: str, given: str) -> Any:
    return getattr(client, f"{given}_backfill")(name, by="ann")


def _spec(dice: random.Random, name: str, streamed: bool) -> dict[str, Any]:
    schedule: dict[str, Any] = dice.choice(
        (
            {"every": dice.choice((5, 7, 20, 60))},
            {"every": 10, "jitter": dice.choice((0, 3, 9))},
            {"cron": "* * * * *", "zone": "Europe/Berlin"},
            {"cron": "*/2 2,3 * * *", "zone": "Europe/Berlin"},
            {"after": ["schedule0_rows"]},
            {},
        )
    )
    if schedule.get("after") and name == "schedule0":
        schedule = {"every": 7}
    group: dict[str, Any] = {"name": "a", "steps": [{"python": "m:f"}]}
    job: dict[str, Any] = {"name": name, "groups": [group]}
    if streamed and schedule.get("every"):
        schedule |= {"every": min(schedule["every"], 20), "only_if": "arrived"}
        group["inputs"] = {"events": {"stream": "/landing", "format": "json", "schema": "n INT"}}
        group["steps"][0]["output"] = "rows"
        job["outputs"] = {"rows": {"mode": "append"}}
    schedule |= {
        "overlap": dice.choice(("skip", "skip", "wait", "allow")),
        "missed": dice.choice(("latest", "all", "none")),
        "keep_runs": dice.choice((1, 3, 100)),
        "missed_within": dice.choice((20, 86400)),
        "retry": {
            "max": dice.choice((0, 2, 10)),
            "backoff": dice.choice((1, 10)),
            "max_backoff": 60,
        },
    }
    # Dice of its own, so that the rest of a history stays what it is.
    own = random.Random(f"order {name} {schedule}")
    if schedule["overlap"] != "allow" and own.random() < 0.25:
        schedule["sequential"] = True
    elif own.random() < 0.3:
        schedule["on_failure"] = "continue"
    return job | {"schedule": schedule}
