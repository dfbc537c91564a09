"""Who acts on schedules: coordinators, a person who gives commands, and the fleet that runs the
jobs, by and large.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, TypeVar, cast

import redis

from tests.simulation.actors.coordinators import Behind
from tests.simulation.actors.warehouse import Depot, LogEntry
from tests.simulation.schedules.store import ModelSchedules
from tests.simulation.stage.network import Connection
from tests.simulation.stage.stage import Life, Stage, Turn
from tests.simulation.stage.trouble import Trouble
from unstuck.client.schedule_client import ScheduleClient
from unstuck.coordinator.errors import NoSuchSchedule
from unstuck.coordinator.model.backlog import Backlog, StreamBacklog
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.records import JobRecord, Reason
from unstuck.coordinator.model.schedule_record import RunSuccess, ScheduleRecord
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.model.tick import Tick, TickOutcome, tick_of_key
from unstuck.coordinator.publishing.background import Background
from unstuck.coordinator.reconcile.schedule_sweep import ScheduleSweep
from unstuck.coordinator.reconcile.stream_looks import StreamLooks
from unstuck.coordinator.schedules.steps import LogSeen
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.problems import SpecError, SpecProblem
from unstuck.coordinator.store.answers import CommitAnswer, Submitted
from unstuck.coordinator.store.job_queries import Queries
from unstuck.coordinator.store.job_store import Store
from unstuck.coordinator.store.schedule_store import ScheduleChange, ScheduleStore
from unstuck.coordinator.submitter import OfSchedule, StandsAlready, Submitter
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.processes import ProcessRegistry
from unstuck.tasks.settings import Settings

T = TypeVar("T")


class SchedulesAtHand:
    """The store of schedules as one process sees it."""

    def __init__(self, connection: Connection, core: ModelSchedules) -> None:
        self._connection, self._core = connection, core

    def _call(self, what: str, effect: Callable[[], T]) -> T:
        return self._connection.call(what, effect)

    def take_due(self, term: float) -> tuple[float, dict[str, str]]:
        return self._call("take due schedules", lambda: self._core.take_due(term))

    def repair(self) -> int:
        return self._call("repair the due index", self._core.repair)

    def forget_runs(self, name: str, keep: int) -> int:
        return self._call(f"forget runs of {name}", lambda: self._core.forget_runs(name, keep))

    def published(self, warehouse: str, datasets: Sequence[str]) -> dict[str, tuple[int, float]]:
        return (
            self._call("ask for versions", lambda: self._core.published(datasets))
            if datasets
            else {}
        )

    def now(self) -> float:
        return self._call("ask the time", lambda: self._core.now)

    def load(self, name: str) -> ScheduleRecord | None:
        return self._call(f"load {name}", lambda: self._core.load(name))

    def ticks(self, name: str, first: float, last: float = inf) -> dict[float, Tick]:
        return self._call(f"read the ticks of {name}", lambda: self._core.ticks(name, first, last))

    def due_at(self, names: Sequence[str]) -> list[None]:
        return [None for _ in names]

    def backlogs(self, names: Sequence[str]) -> list[None]:
        return [None for _ in names]

    def events(self, name: str, most: int) -> list[dict[str, Any]]:
        return self._call(f"read the events of {name}", list)

    def commit(self, change: ScheduleChange) -> CommitAnswer:
        told = ", ".join(
            f"{event['kind']} {event.get('code', '')}".strip() for event in change.events
        )

        def effect() -> CommitAnswer:
            answer = self._core.commit(change)
            self._connection.note(
                f"commit {change.record.name} {change.record.status}: {answer} {told}"
            )
            return answer

        return self._call(f"commit {change.record.name} {told}", effect)


class Landing:
    """Files that arrive for schedules with ``only_if: arrived``, and how many of them its jobs have
    published.
    """

    def __init__(self) -> None:
        self.arrived: dict[str, list[float]] = {}  # schedule → when each came
        self.read: dict[str, int] = {}
        self.idle_since: dict[str, float] = {}  # schedule → since when nothing is unread

    def publishes(self, name: str, up_to: int, now: float) -> None:
        """A job has published what had arrived up to the file of this number."""
        waiting = bool(self.unread(name))
        self.read[name] = max(self.read.get(name, 0), up_to)
        if waiting and not self.unread(name):
            self.idle_since[name] = now

    def idle_for(self, name: str, now: float) -> float:
        """Seconds for which nothing has been unread."""
        return 0.0 if self.unread(name) else now - self.idle_since.get(name, 0.0)

    def unread(self, name: str) -> list[float]:
        return self.arrived.get(name, [])[self.read.get(name, 0) :]

    def arrives(self, stage: Stage, dice: random.Random, names: Sequence[str], ends: float) -> Life:
        while stage.now < ends:
            yield dice.uniform(1.0, 30.0)
            name = dice.choice(names)
            self.arrived.setdefault(name, []).append(stage.now)
            stage.log("source", f"a file ARRIVES for {name}")


class LooksAtHand:
    """The looks at streams of one process."""

    def __init__(self, connection: Connection, landing: Landing) -> None:
        self._connection, self._landing = connection, landing

    def begin(self, record: ScheduleRecord, last: None, now: float) -> None:
        """Looks for the eyes of people are left out."""

    def look(self, record: ScheduleRecord, spec: JobSpec) -> Backlog:
        def effect() -> Backlog:
            return Backlog(
                0.0, {"/landing": StreamBacklog(new=len(self._landing.unread(record.name)))}
            )

        return self._connection.call(
            f"look at the stream of {record.name}", effect, lost=OSError, of_store=False
        )


class JobsAtHand:
    """The jobs as a coordinator sees them. What their groups did is not modelled."""

    def __init__(self, connection: Connection, core: ModelSchedules) -> None:
        self._connection, self._core = connection, core

    def job(self, job: str) -> JobRecord | None:
        return self._connection.call(f"look at {job}", lambda: self._core.jobs.get(job))

    def load(self, job: str) -> None:
        return None


class Unfit:
    """Makes some runs impossible to submit, such as for a version that is gone; in a tenth of
    histories.
    """

    def __init__(self, trouble: Trouble, seed: int) -> None:
        self._trouble, self._dice = trouble, random.Random(f"unfit {seed}")
        self._share = self._dice.choice((*[0.0] * 9, 0.2))

    def check(self) -> None:
        """Raises: SpecError."""
        if self._trouble.on and self._dice.random() < self._share and self._trouble.happens():
            raise SpecError([SpecProblem("there is no such version", ("groups",))])


class QueriesAtHand:
    """What a person asks of jobs."""

    def __init__(self, connection: Connection, core: ModelSchedules) -> None:
        self._connection, self._core = connection, core

    def summaries(self, jobs: Sequence[str]) -> list[str]:
        stored = self._core.jobs
        return self._connection.call(
            "list jobs", lambda: [json.dumps({"id": job}) for job in jobs if job in stored]
        )


class SubmitterAtHand:
    """Stores jobs, call by call, as ``Submitter.store_job``."""

    def __init__(
        self, connection: Connection, core: ModelSchedules, depot: Depot, unfit: Unfit
    ) -> None:
        self._connection, self._core, self._depot, self._unfit = connection, core, depot, unfit

    def store_job(
        self,
        spec: JobSpec,
        warehouse: str,
        key: str,
        by: str,
        reason: str,
        again: None,
        fields: Mapping[str, Any],
        run: OfSchedule,
    ) -> Submitted:
        print_ = spec.fingerprint
        call = self._connection.call
        if (
            stored := call(f"is {key} submitted?", lambda: self._core.submitted(key, print_))
        ) is not None:
            return Submitted(stored, new=False)
        if self._connection.trouble.chance(self._connection.trouble.blind):
            raise OSError("the warehouse cannot be reached")
        self._unfit.check()
        base = call("head of the log", self._depot.head, lost=OSError, of_store=False)
        find = partial(self._find, fields["package_id"], fields["id"], base)
        found = call(f"find {key} in the log", find, OSError, of_store=False)
        if found is not None:
            raise StandsAlready(
                self._depot.log[found - 1].publish_id, PublishResult(found, {"rows": 1})
            )
        known = {"base": base, **fields}
        job = JobRecord(name=spec.name, spec="{}", commit="new", key=key, submitted_by=by, **known)

        def effect() -> tuple[str, bool] | None:
            answer = self._core.submit(job, print_, expect)
            self._connection.note(
                f"submit {key} as {answer[0]}" if answer else f"{key} is not wanted as it was"
            )
            return answer

        while True:
            expect = run.expected_commit()
            if (answer := call(f"submit {key}", effect)) is not None:
                return Submitted(*answer)

    def log_seen(self, record: ScheduleRecord, first: float, schedules: ScheduleStore) -> LogSeen:
        runs = self._connection.call(
            "read the log", lambda: self._runs(record.name), lost=OSError, of_store=False
        )
        ticks = schedules.ticks(record.name, first) if runs else {}
        return LogSeen(
            first, runs, [at for at, tick in ticks.items() if tick.outcome is TickOutcome.DONE]
        )

    def _runs(self, schedule: str) -> dict[float, RunSuccess]:
        """Return the runs of ticks that have a package, by tick."""
        packages = [
            (n, entry)
            for n, entry in enumerate(self._depot.log, 1)
            if entry.package_id.startswith(schedule)
        ]
        ticks = {n: tick_of_key(entry.package_id) for n, entry in packages}
        runs = [
            RunSuccess(entry.publish_id, ticks[n] or 0.0, 0.0, n, {"rows": 1})
            for n, entry in packages
            if ticks[n]
        ]
        return {run.tick: run for run in runs}

    def _find(self, package_id: str, own_id: str, base: int) -> int | None:
        return next(
            (
                slot
                for slot in range(base, 0, -1)
                if self._depot.log[slot - 1].is_of(own_id, package_id)
            ),
            None,
        )


class ScheduleOffice:
    """One coordinator process, as far as schedules concern it. It is always restarted."""

    def __init__(
        self,
        stage: Stage,
        trouble: Trouble,
        core: ModelSchedules,
        depot: Depot,
        landing: Landing,
        unfit: Unfit,
        settings: Settings,
        name: str,
        *,
        beaten: bool,
    ) -> None:
        self._landing, self._unfit = landing, unfit
        self._stage, self._trouble, self._core, self._depot = stage, trouble, core, depot
        self._settings, self.name = settings, name
        # Without beat, a consumer sweeps when nobody has for two periods.
        self._period = settings.sweep_every * (1 if beaten else 3)
        self._threads: list[Turn] = []
        self._start(0.0)

    def _start(self, delay: float) -> None:
        connection = Connection(self._stage, self._trouble, self._die)
        schedules = ScheduleSweep(
            cast(ScheduleStore, SchedulesAtHand(connection, self._core)),
            cast(Store, JobsAtHand(connection, self._core)),
            cast(Submitter, SubmitterAtHand(connection, self._core, self._depot, self._unfit)),
            cast(Background, Behind(self._begin)),
            self._stage.mint,
            self._settings.lock_term,
            clock=lambda: self._stage.now,
            looks=cast(StreamLooks, LooksAtHand(connection, self._landing)),
        )

        def life() -> None:
            while True:
                with suppress(redis.ConnectionError):
                    connection.call("tick", lambda: self._core.tick(self._settings.sweep_every))
                    schedules.run()
                Turn.current().pause(self._period)

        self._threads = [Turn(self._stage, self.name, life, delay)]

    def _begin(self, work: Callable[[], None]) -> None:
        self._threads.append(Turn(self._stage, f"{self.name}/submit", work))

    def _die(self) -> None:
        mine = Turn.current()
        for thread in self._threads:
            thread.dead = True
            if thread is not mine:
                thread.ready_at = self._stage.now  # to unwind
        delay = self._stage.rng.uniform(0.2, 8.0)
        self._stage.log(self.name, f"DIES; another starts in {delay:.1f}s")
        self._trouble.disturb(self._stage.now + delay)
        self._start(delay)


class PersonsSubmitter(SubmitterAtHand):
    """What a client asks of its submitter."""

    def __init__(
        self,
        connection: Connection,
        core: ModelSchedules,
        depot: Depot,
        unfit: Unfit,
        settings: Settings,
    ) -> None:
        super().__init__(connection, core, depot, unfit)
        self.settings, self.breaker = settings, self

    def call(self, *_: object) -> None:
        """Answer as a warehouse that knows of no run."""

    def check_owners(self, job_spec: JobSpec, warehouse: str, refused: str) -> None:
        """Each schedule publishes datasets of its own here."""

    def published_names(self) -> Collection[str]:
        """Jobs of histories read no tables by SQL."""
        return ()

    def make_durable(self, what: str) -> None:
        """A store of a history is durable, until it is rolled back."""


class ScheduleUser:
    """Gives commands, and asks again until there is an answer."""

    class _Connection(Connection):
        of_coordinator = False

    def __init__(
        self,
        stage: Stage,
        trouble: Trouble,
        core: ModelSchedules,
        depot: Depot,
        unfit: Unfit,
        settings: Settings,
    ) -> None:
        connection = self._Connection(stage, trouble, lambda: None)
        self._stage = stage
        submitter = cast(Submitter, PersonsSubmitter(connection, core, depot, unfit, settings))
        store = cast(ScheduleStore, SchedulesAtHand(connection, core))
        registry = ProcessRegistry(redis.Redis(), Keys(settings.prefix))
        queries = cast(Queries, QueriesAtHand(connection, core))
        self.client = ScheduleClient(store, registry, submitter, queries, lambda job: "")
        self.busy = 0

    def gives(self, at: float, what: str, command: Callable[[ScheduleClient], Any]) -> None:
        """At ``at`` seconds from now: the command."""
        self.busy += 1

        def life() -> None:
            try:
                while True:
                    try:
                        result = command(self.client)
                    except redis.ConnectionError:
                        Turn.current().pause(1.0)
                        continue
                    except NoSuchSchedule:
                        return  # whoever was to set it was killed, or comes later
                    self._stage.log("person", f"{what}: {result.answer}: {result.text}")
                    return
            finally:
                self.busy -= 1

        Turn(self._stage, "person", life, at)


def fleet(
    stage: Stage,
    trouble: Trouble,
    core: ModelSchedules,
    depot: Depot,
    landing: Landing,
    seed: int,
    calm: list[bool],
) -> Life:
    """Runs every job: each takes its time, and ends well or not, as dice of its own say; ``calm``:
    all end well.
    """
    dice = random.Random(f"fleet {seed}")
    slow, bad = dice.choice((0.0, 2.0, 10.0, 40.0)), dice.choice((0.0, 0.2, 0.5))
    bad_from = stage.now + dice.uniform(0.0, 60.0)
    bad_until = bad_from + dice.choice((0.0, 0.0, 30.0, 120.0))
    streams = (
        random.Random(f"streams {seed}").random() < 0.2
    )  # whose runs leave something for another
    begun: dict[str, float] = {}
    reads: dict[str, int] = {}  # job → up to which file
    while True:
        yield 0.4
        if trouble.away:
            continue
        for job in [job for job in core.jobs.values() if not job.terminal]:
            own = random.Random(f"{seed} {job.id}")
            takes = own.choice((0.3, 1.0, 3.0)) + own.random() * slow
            reads.setdefault(job.id, len(landing.arrived.get(job.name, [])))
            if stage.now - begun.setdefault(job.id, stage.now) < takes:
                continue
            fails = not calm and (bad_from <= stage.now < bad_until or own.random() < bad)
            status, reason = Status.FINISHED, None
            if fails:
                status = own.choice((Status.FAILED, Status.FAILED, Status.FAILED, Status.CANCELED))
                code = own.choice((*["STEP_FAILED"] * 8, "EXPECTATION_FAILED"))
                reason = (
                    Reason(code, "it broke")
                    if status is Status.FAILED
                    else Reason("USER_CANCELED", "by a person")
                )
            version = 0
            if not fails:
                version = depot.find(job.id, job.base or 0, job.package_id) or depot.head() + 1
                if version > depot.head():
                    depot.create(
                        version, LogEntry(job.id, "package", {"rows": 1}, package_id=job.package_id)
                    )
                    stage.log("fleet", f"package of {job.key} in slot {version}")
                    landing.publishes(job.name, reads[job.id], stage.now)
            left = own.choice((0, 3)) if streams and not (fails or calm) else 0
            stage.log("fleet", f"{job.key} is {status}{', and has LEFT something' if left else ''}")
            core.end_job(job.id, status, version, reason, left)
