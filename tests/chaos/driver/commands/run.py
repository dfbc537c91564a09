"""The run: a fleet, a load and faults for some minutes; then every fault is undone, and the ledger
is drawn up.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

import redis

from tests.chaos.driver.faults import Faults, Injector
from tests.chaos.driver.fleet import QUICK, ChaosFleet, plain
from tests.chaos.driver.judging.asked import judge_backfill, judge_pauses
from tests.chaos.driver.judging.lateness import judge_lateness
from tests.chaos.driver.judging.ledger import Ledger, gather, judge
from tests.chaos.driver.judging.pools import use_of
from tests.chaos.driver.judging.repeated import gather_schedules, judge_schedules
from tests.chaos.driver.judging.reports import transactions
from tests.chaos.driver.load import Load
from tests.chaos.driver.person import PARALLEL, SECONDS_A_TICK, Person
from tests.chaos.driver.schedules import HELD, PAST, Schedules
from tests.chaos.driver.screen import Screen
from tests.chaos.driver.uptime import UptimeObserver
from tests.chaos.driver.watch import Watch
from unstuck import Unreachable
from unstuck.coordinator.model.fleet import PoolInfo
from unstuck.local.programs import Size

SIZE = Size(workers=1, coordinators=2, light=2)
PAUSES = (0.8, 3.0)  # seconds between two faults
AT_ONCE = 2  # faults that last


def run(folder: Path, seed: int, seconds: float, settle: float, *, as_json: bool = False) -> int:
    """Deal faults for ``seconds``. Returns 0 if nothing was lost, doubled or stuck, else 1.

    Args:
        settle: seconds after the last fault within which every job must have ended.
    """
    rng = random.Random(seed)
    with Screen(quiet=as_json) as screen:
        screen.say(f"seed {seed}: {SIZE}, a beat and a Valkey (appendfsync always), below {folder}")
        with (
            ChaosFleet(folder, QUICK, SIZE, screen.say) as fleet,
            Watch(fleet.eye, fleet.keys) as watch,
            UptimeObserver(fleet) as observer,
        ):
            fleet.ready()
            screen.say("the fleet is ready")
            load = Load(fleet, fleet.client, random.Random(rng.random()))
            load.start()
            schedules = Schedules(fleet)
            schedules.start()
            person = Person(
                fleet, random.Random(f"{seed} person"), max(1, round(seconds / SECONDS_A_TICK))
            )
            person.start()
            injector = Injector(Faults(fleet, watch, random.Random(rng.random())))
            dealt = _deal(
                seconds, random.Random(rng.random()), injector, screen, fleet, load, watch
            )
            for injected in injector.undo_due(everything=True):
                screen.undone(injected)
            screen.say("all faults are undone; the jobs that are open must end")
            ended = time.monotonic()
            person.stop(settle)
            schedules.end_feed()
            load.stop(settle)
            _settle(ended + settle, screen, fleet, load, schedules, watch)
            settled = time.monotonic() - ended
            ledger = judge(load.accepted, gather(fleet, load.accepted))
            found, aside = gather_schedules(fleet, schedules)
            by_name = {one.name: one for one in found}
            repeated = judge_schedules(found, schedules.fed, aside)
            judge_pauses(repeated, by_name[HELD], person.acts)
            judge_backfill(repeated, by_name[PAST], person.wanted, PARALLEL)
            uptime, submit = observer.seen(injector.past), statistics.median(load.took or [0.0])
            lateness = judge_lateness(by_name[HELD], person.acts, uptime, fleet.settings, submit)
            ledger.schedules, ledger.lateness = str(repeated), str(lateness)
            ledger.disobeyed, ledger.late = repeated.disobeyed, lateness.late
            ledger.lost += repeated.lost
            ledger.doubled += repeated.doubled
            ledger.stuck += repeated.stuck
            ledger.settled, ledger.faults = settled, dict(dealt)
            ledger.recoveries, ledger.submits_repeated = list(watch.done), load.refused
            ledger.stuck += [f"after {hit.fault}, {hit.victim} never went on" for hit in watch.open]
            ledger.stuck += [
                f"a slot of pool {pool.name} is never free again" for pool in _held(fleet)
            ]
            if not ledger.kept:
                for name in sorted({hit.victim for hit in watch.open} & set(fleet.names)):
                    screen.say(f"the end of the log of {name}:\n{fleet.child(name).log_tail()}")
    use = use_of(transactions(fleet.server.folder), fleet.keys, load.accepted)
    ledger.pools, ledger.overfull = str(use), use.over
    _tell(ledger, seed, as_json=as_json)
    return 0 if ledger.kept else 1


def _deal(
    seconds: float,
    rng: random.Random,
    injector: Injector,
    screen: Screen,
    fleet: ChaosFleet,
    load: Load,
    watch: Watch,
) -> Counter[str]:
    dealt: Counter[str] = Counter()
    end = time.monotonic() + seconds
    following = time.monotonic() + rng.uniform(*PAUSES)
    while (now := time.monotonic()) < end:
        for injected in injector.undo_due():
            screen.undone(injected)
        if now >= following and len(injector.lasting) < AT_ONCE:
            following = now + rng.uniform(*PAUSES)
            if (injected := injector.inject()) is not None:
                dealt[injected.fault] += 1
                screen.dealt(injected)
        screen.show(fleet, load, watch, end - now)
        time.sleep(0.05)  # the pace of the driver; nothing is awaited here
    return dealt


def _settle(
    deadline: float,
    screen: Screen,
    fleet: ChaosFleet,
    load: Load,
    schedules: Schedules,
    watch: Watch,
) -> None:
    """Wait until every job has ended, all slots are free and everything that was hit goes on, or
    until the deadline.
    """
    over = False
    while (left := deadline - time.monotonic()) > 0:
        try:
            status = load.status()
            ended = all(job in status and status[job].terminal for job in load.accepted)
            if not over and (over := schedules.ended()):  # it stops them, so it is asked first
                screen.say("the schedules have ended")
            if over and ended and not watch.open and not _held(fleet):
                return
        except (redis.RedisError, Unreachable):
            screen.say("Redis does not answer, though all faults were undone")
        load.count()
        screen.show(fleet, load, watch, left)
        time.sleep(0.1)


def _held(fleet: ChaosFleet) -> list[PoolInfo]:
    """The pools of which attempts hold slots. Raises: Unreachable."""
    return [pool for pool in fleet.client.pools.all() if pool.used]


def _tell(ledger: Ledger, seed: int, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"seed": seed, **ledger.to_dict()}) + "\n")
        return
    result = "The promise was kept" if ledger.kept else "THE PROMISE WAS BROKEN"
    plain("\n".join((f"{result} (seed {seed}):", *ledger.lines())))
