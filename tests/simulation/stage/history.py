"""One history: a seed becomes jobs, processes and trouble, and is played to its end."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.simulation.actors.broker import Broker
from tests.simulation.actors.coordinators import Office
from tests.simulation.actors.fleet import Host
from tests.simulation.actors.user import User
from tests.simulation.actors.warehouse import Depot
from tests.simulation.model.locks import Locks
from tests.simulation.model.store import ModelStore
from tests.simulation.model.stream import ReportStream
from tests.simulation.rules.broken import FORGOTTEN, WORD, Broken
from tests.simulation.rules.clocks import Clocks
from tests.simulation.rules.lateness import Lateness
from tests.simulation.rules.promises import Promises
from tests.simulation.stage.jobs import QUEUES, SimulatedJob, random_job
from tests.simulation.stage.retries import Retries
from tests.simulation.stage.stage import Life, Routine, Stage
from tests.simulation.stage.store_faults import (
    FAULT_FREE,
    NEWER,
    StoreFaultActor,
    random_store_faults,
)
from tests.simulation.stage.trouble import Trouble
from tests.simulation.stage.user_requests import random_demands, random_requests, random_retries
from unstuck.coordinator.model.records import JobRecord
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.token import Offer
from unstuck.tasks.settings import Settings

SETTINGS = Settings(redis_url="redis://nowhere", prefix="simulated", warehouse="/nowhere")
# Virtual seconds from the end of all trouble by which every job has ended. A storm leaves at most a
# lease, a grace and a publish to wait for; the rest is the jobs' own work, with all its retries.
# For each kind of wait, see ``lateness``.
BOUND = 400.0
LOOK_EVERY = 0.1  # virtual seconds between two looks at what is late: each bound is of seconds


@dataclass(frozen=True, slots=True)
class Part:
    """As much of a history as is played: jobs, requests and faults by their numbers from 1 on;
    None: all of them.
    """

    jobs: frozenset[int] | None = None
    requests: frozenset[int] | None = None
    faults: frozenset[int] | None = None


WHOLE = Part()


@dataclass(slots=True)
class HistoryResult:
    """How a history ended. ``jobs``, ``requests``, ``faults``: how many there were to be.

    ``command``: the command that plays such histories.
    """

    seed: int
    promise: str = ""
    text: str = ""
    trace: list[str] = field(default_factory=list)
    steps: int = 0
    claims: int = 0
    commits: int = 0
    commands: int = 0
    # Virtual seconds from the end of all trouble to the end of the last job.
    fault_free_for: float = 0.0
    statuses: dict[str, str] = field(default_factory=dict)
    jobs: int = 0
    requests: int = 0
    faults: int = 0
    command: str = "python -m tests.simulation"

    @property
    def kept(self) -> bool:
        return not self.promise


def simulate(
    seed: int,
    *,
    store: Callable[..., ModelStore] = ModelStore,
    keep_all: bool = False,
    part: Part = WHOLE,
) -> HistoryResult:
    """Play the history of ``seed`` on a store of the given kind.

    Args:
        keep_all: Keep the whole trace, not only its end.
        part: The part of the history to play.
    """
    logging.disable(logging.CRITICAL)
    try:
        return _play(seed, store, keep_all, part)
    finally:
        logging.disable(logging.NOTSET)


def _play(seed: int, store: Callable[..., ModelStore], keep_all: bool, part: Part) -> HistoryResult:
    stage = Stage(seed, keep_all=keep_all)
    rng = stage.rng
    # Every third history is plain: no conditions, no timeouts, no requests for single groups, no
    # faults of the store.
    plain = seed % 3 == 2
    later = None if plain else random.Random(f"later {seed}")
    # Long enough, in some, that jobs with retries publish while there still is trouble.
    ends = stage.now + rng.uniform(20.0, 60.0) * (1 if later is None else later.choice((1, 1, 4)))
    trouble = Trouble(rng, lambda: stage.now, ends, later, part.faults)
    settings = SETTINGS.model_copy(
        update={
            "dispatch_window": rng.choice((None, None, 1, 3)),
            "cancel_grace": rng.choice((2.0, 10.0)),
            "cancel_deadline": rng.choice((4.0, 15.0, 40.0)),
        }
    )
    stream = ReportStream(stage, trouble)
    broker, depot = Broker(stage, trouble), Depot()
    core = store(
        lambda: stage.now, stream, lock_term=settings.lock_term, lease_ttl=settings.lease_ttl
    )
    hosts: list[Host] = []

    def listening() -> dict[str, list[RunnerInfo]]:
        return {
            queue: [one.status for one in hosts if one.listening and queue in one.queues]
            for queue in QUEUES
        }

    def slots() -> dict[str, int]:
        return {queue: len(there) for queue, there in listening().items()}

    def lateness(clocks: Clocks, locks: Locks) -> Lateness:
        return Lateness(stage, trouble, core, stream, broker, settings, clocks, locks, hosts)

    promises = Promises(stage, core, depot, settings, slots, lateness)
    core.watching = promises
    more = (
        None if plain else random.Random(f"more {seed}")
    )  # of its own, as what is asked: the rest is as it would be
    pooled = random.Random(f"pools {seed}") if seed % 6 == 0 else None
    cleaned = random.Random(f"cleanups {seed}") if seed % 7 == 0 else None
    told = random.Random(f"notices {seed}") if seed % 5 in (1, 3) else None
    numbers = range(1, rng.randint(1, 3) + 1)
    jobs = {
        job.record.id: job
        for job in (random_job(rng, n, more, pooled, cleaned, told) for n in numbers)
    }
    core.set_pool("two", 2)
    result = HistoryResult(seed, jobs=len(jobs))
    planned, every = dict(jobs), list(jobs)
    store_faults = (
        FAULT_FREE if later is None else random_store_faults(later, jobs, ends - stage.now)
    )
    for n, job in enumerate(list(jobs), 1):
        if part.jobs is not None and n not in part.jobs:
            del jobs[job]
        elif job in store_faults.newer_jobs:
            jobs[job].record = replace(jobs[job].record, schema=NEWER)
    for n in range(rng.randint(1, 3)):
        queues = QUEUES if n == 0 else (rng.choice(QUEUES),)
        newer = f"worker{n}" in store_faults.newer_hosts
        hosts.append(
            Host(
                stage,
                trouble,
                core,
                broker,
                depot,
                jobs,
                settings,
                f"worker{n}",
                queues,
                newer=newer,
            )
        )
    beat = rng.choice(
        (0, 0, 1, 2)
    )  # which coordinators beat reaches; 0: none, the consumers sweep by themselves
    offices = [
        Office(
            *(stage, trouble, core, stream, broker, depot, settings, listening),
            *(promises.wrote, promises.lateness.answered, f"coordinator{n}"),
            beaten=n < beat,
            knows=store_faults.knows(stage, f"coordinator{n}"),
            behind=store_faults.behind,
        )
        for n in range(rng.randint(1, 2))
    ]

    promises.lateness.beaten = beat > 0
    promises.lateness.undecidable = store_faults.undecidable(stage)

    def pushed(queue: str, at: float) -> None:
        for host in hosts:
            host.pushed(queue, at)

    def added(at: float) -> None:
        for office in offices:
            office.report_added(at)

    def notified(queue: str) -> None:
        for host in hosts:
            host.notified(queue)

    broker.pushed, stream.added, stream.dropped = pushed, added, promises.dropped
    core.notify = notified
    store_fault_actor = StoreFaultActor(
        stage,
        trouble,
        core,
        store_faults,
        [core.remember, stream.remember, broker.remember, promises.remember],
    )
    if store_faults.faults:
        Routine(stage, "store", store_fault_actor.life())
    if not plain:
        Routine(stage, "vandal", _spoil(trouble, core, random.Random(f"spoilt {seed}")))
    if seed % 4 == 1:
        Routine(
            stage, "backup", _roll_back(stage, trouble, core, random.Random(f"rolled back {seed}"))
        )
    for each in jobs.values():
        Routine(
            stage,
            "client",
            _submit(stage, trouble, core, each, depot, store_fault_actor),
            each.submit_at,
        )
    dice = random.Random(seed)  # of its own: what goes wrong is the same with and without a user
    requests = random_requests(dice, every, stage.now, trouble.ends)
    if not plain:
        requests += random_demands(
            random.Random(f"demands {seed}"), planned, stage.now, trouble.ends
        )
        requests += random_retries(
            random.Random(f"retries {seed}"), planned, stage.now, trouble.ends
        )
    result.requests = len(requests)
    requests = [
        w
        for n, w in enumerate(requests, 1)
        if w.job in jobs and (part.requests is None or n in part.requests)
    ]
    retries = Retries(stage, jobs, random.Random(f"retried {seed}"), store_fault_actor.forget)
    user = User(
        stage,
        trouble,
        core,
        broker,
        settings,
        requests,
        store_faults.knows(stage, "user"),
        depot,
        retries,
    )
    promises.happened = user.happened

    try:
        with user.at_hand():
            _run(stage, trouble, core, jobs, promises, user, store_fault_actor, retries)
    except Broken as broken:
        result.promise, result.text = broken.promise, str(broken)
    finally:
        stage.close()
    result.trace = stage.lines()
    result.steps, result.claims, result.commits = stage.steps, promises.claims, promises.commits
    result.commands, result.faults = promises.commands, trouble.faults
    result.fault_free_for = max(0.0, stage.now - trouble.ends)
    result.statuses = {job_id: str(job.record.status) for job_id, job in core.jobs.items()}
    return result


def _spoil(trouble: Trouble, core: ModelStore, dice: random.Random) -> Life:
    """Ready sets are an index: now and then one is lost, or holds what no longer stands, or what
    somebody has.
    """
    share = dice.choice((0.0, 0.1, 0.4))
    while True:
        yield dice.uniform(0.5, 4.0)
        if not trouble.on or trouble.away or dice.random() >= share:
            continue
        lane = dice.choice([*QUEUES, *sorted(set(core.ready) - set(QUEUES))])
        if dice.random() < 0.3:
            core.spoil(lane, [])
        else:
            known = [
                Offer(job_id, group, attempt.epoch - dice.choice((0, 0, 1)), attempt.nonce)
                for job_id, job in core.jobs.items()
                for group, attempt in job.attempts.items()
            ]
            core.spoil(lane, dice.sample(known, min(len(known), 3)))


def _roll_back(stage: Stage, trouble: Trouble, core: ModelStore, dice: random.Random) -> Life:
    """A ready set alone is as it once was; or old offers stand in it again, some of them with old
    nonces.
    """
    saved: list[tuple[str, dict[Offer, float]]] = []
    while True:
        yield dice.uniform(0.2, 2.0)
        if trouble.away:
            continue
        saved += [(lane, dict(standing)) for lane, standing in core.ready.items()]
        if not trouble.on or not saved or dice.random() < 0.6 or not trouble.happens():
            continue
        lane, standing = dice.choice(saved)
        if dice.random() < 0.5:
            stage.log("store", f"the ready set of {lane} is ROLLED BACK to {len(standing)} offers")
            core.roll_back(lane, standing)
        elif old := sorted({offer for _, offers in saved for offer in offers}, key=str):
            stage.log("store", f"OLD OFFERS stand in {lane} again")
            core.spoil(lane, dice.sample(old, min(len(old), 3)))


def _submit(
    stage: Stage,
    trouble: Trouble,
    core: ModelStore,
    job: SimulatedJob,
    depot: Depot,
    store_fault_actor: StoreFaultActor,
) -> Life:
    while trouble.away:
        yield 1.0
    stage.log("client", f"submits {job.record.id}")
    core.submit(replace(job.record, base=depot.head()))
    store_fault_actor.forget()


def _run(
    stage: Stage,
    trouble: Trouble,
    core: ModelStore,
    jobs: dict[str, SimulatedJob],
    promises: Promises,
    user: User,
    store_fault_actor: StoreFaultActor,
    retries: Retries,
) -> None:
    # From when on leases and graces from the storm are over.
    fault_free = trouble.ends + SETTINGS.lease_ttl * 2 + SETTINGS.lock_term
    left_paused: list[str] = []
    next_look = stage.now

    def done() -> bool:
        nonlocal next_look
        promises.every_job_is_due()
        if stage.now >= next_look:
            next_look = stage.now + LOOK_EVERY
            promises.lateness.look()
            if stage.now > fault_free:
                promises.nothing_lies_about()
            if not trouble.on:
                promises.what_is_ended_ends(trouble.ends)
        if len(core.jobs) < len(jobs) or user.busy or store_fault_actor.pending:
            return False
        left_paused[:] = [job_id for job_id, job in core.jobs.items() if not job.record.terminal]
        return all(map(promises.waits_for_a_person, left_paused))

    while True:
        began = stage.now
        while not stage.run(done, until=max(began, trouble.ends, retries.last_at) + BOUND):
            if stage.now <= max(began, trouble.ends, retries.last_at) + BOUND:
                continue  # a job was retried meanwhile, and has as long as any other
            left = {
                job_id: str(job.record.status)
                for job_id, job in core.jobs.items()
                if not job.record.terminal
            }
            promises.broken(
                FORGOTTEN, f"{BOUND:.0f}s after the last trouble these jobs have not ended: {left}"
            )
        if not left_paused:
            break
        _left_alone(stage, core, trouble, promises, left_paused)
        user.resume(left_paused)
    _afterwards(stage, core, trouble, promises)


def _left_alone(
    stage: Stage, core: ModelStore, trouble: Trouble, promises: Promises, paused: list[str]
) -> None:
    """What was left paused waits for a person: it stays as it is, and says how to go on."""
    stage.run(lambda: False, until=max(stage.now, trouble.ends) + SETTINGS.lock_term)
    before = {
        job_id: (core.jobs[job_id].record, dict(core.jobs[job_id].groups)) for job_id in paused
    }
    stage.run(lambda: False, until=stage.now + SETTINGS.lease_ttl)
    for job_id, (record, groups) in before.items():
        now = core.jobs[job_id]
        if (_but_noted(now.record, record, core), now.groups) != (record, groups):
            promises.broken(
                WORD, f"{job_id} is paused, and changed while nobody asked for anything"
            )
        promises.told_why(job_id)


def _but_noted(now: JobRecord, before: JobRecord, core: ModelStore) -> JobRecord:
    """``now`` without what a coordinator may note of any job at any time: times that lie ahead of a
    clock set back.
    """
    times = {"paused_at": before.paused_at, "counted_from": before.counted_from}
    moved_back = {
        name: at for name, at in times.items() if core.set_back and getattr(now, name) < at
    }
    return replace(now, commit=before.commit, **moved_back)


def _afterwards(stage: Stage, core: ModelStore, trouble: Trouble, promises: Promises) -> None:
    """All jobs have ended: time goes on, zombies thaw, late messages arrive, and nothing changes
    any more.
    """
    ended = {job_id: job.record for job_id, job in core.jobs.items()}
    stage.run(lambda: False, until=max(stage.now, trouble.ends) + 2 * SETTINGS.lease_ttl)
    for job_id, record in ended.items():
        if core.jobs[job_id].record != record:
            promises.broken("5. A terminal state is final", f"{job_id} changed after it had ended")
