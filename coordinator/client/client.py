"""The client, by which an app or the command line submits jobs, gives commands and reads states."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import redis

from unstuck.coordinator.client.client_commands import ClientCommands
from unstuck.coordinator.client.job_handle import JobHandle
from unstuck.coordinator.client.schedule_client import ScheduleClient
from unstuck.coordinator.commands.apply import CommandApplier
from unstuck.coordinator.commands.job_commands import (
    RETRY_LEGAL,
    against_damage,
    against_retry,
)
from unstuck.coordinator.commands.retry_job import retried
from unstuck.coordinator.errors import BadKey, BadRequest, KeyConflict, NewerJob, NoSuchJob, Refused
from unstuck.coordinator.explain.explanation import Explanation, FleetFacts
from unstuck.coordinator.explain.job import explain
from unstuck.coordinator.fleet_address import with_local_fleet
from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.listed_job import ListedJob
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.model.tick import belongs_to_tick, is_by_hand, tick_of_key, tick_text
from unstuck.coordinator.notices.known_targets import unknown_targets
from unstuck.coordinator.notices.outbox import Notices
from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.coordinator.publishing.restore import Restored, restore
from unstuck.coordinator.publishing.streams.skip_file import SkippedFile, skip_file
from unstuck.coordinator.spec.checks.sql_tables import check_tables
from unstuck.coordinator.spec.checks.unused import doubts
from unstuck.coordinator.spec.job_params import check_key
from unstuck.coordinator.spec.model import JobSpec, Spec, fingerprint_of
from unstuck.coordinator.store.answers import KeyTaken, NotEnded, Submitted
from unstuck.coordinator.store.dead_letter_store import DeadLetters
from unstuck.coordinator.store.expected_job_store import ExpectedJobsStore
from unstuck.coordinator.store.job_queries import Queries
from unstuck.coordinator.store.job_store import Store
from unstuck.coordinator.store.pool_store import Pools
from unstuck.coordinator.store.schedule_store import ScheduleStore
from unstuck.coordinator.store.staging_index import StagingIndex
from unstuck.coordinator.store.submissions import Submissions
from unstuck.coordinator.submitter import StandsAlready, Submitter
from unstuck.coordinator.unreachable import in_sentences
from unstuck.coordinator.views.fleet_view import FleetView, fleet_of
from unstuck.coordinator.views.jobs.job_facts import JobFacts
from unstuck.coordinator.views.jobs.job_views import JobView, fleet_facts, view_of
from unstuck.coordinator.views.jobs.late_jobs import LateJob, late_jobs
from unstuck.coordinator.views.queues import full_pools, nobody_takes, unread_messages
from unstuck.coordinator.views.running_code import different_code_for, unlike_runners
from unstuck.coordinator.views.waiting_offers import WaitingOffers, waiting_offers
from unstuck.tasks.identity import user_here
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.processes import ProcessRegistry
from unstuck.tasks.settings import Settings
from unstuck.tasks.settings import settings as default_settings
from unstuck.tasks.transport.redis_client import REPLY_WITHIN, connect
from unstuck.tasks.warehouse.log import Warehouse

T = TypeVar("T")
_BREAKER = CircuitBreaker()  # of this process: what hangs in a warehouse outlives the client that asked


class Client(ClientCommands):
    """Submit jobs, give them commands, and ask about them.

    Settings come from ``UNSTUCK_*`` unless given; where these name no Redis, it is that of the fleet which `unstuck up`
    runs in this folder. Any method may raise `Unreachable`.

    >>> with Client() as client:
    ...     client.submit("sales.yaml", key="sales-2026-01-02").wait(timeout=3600).job.status
    <Status.FINISHED: 'FINISHED'>
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        redis_client: redis.Redis | None = None,
        breaker: CircuitBreaker = _BREAKER,
    ) -> None:
        """``redis_client``: a connection of the caller to the Redis of ``settings``, which must decode responses.

        Raises: SettingsInvalid: those of the environment.
        """
        self.settings = settings or with_local_fleet(default_settings())
        # WAITAOF and WAIT take up to five seconds.
        within = REPLY_WITHIN if self.settings.durability == "everysec" else 6.0
        self._redis = redis_client or connect(self.settings.redis_url, timeout=within)
        self._store = Store(self.settings, self._redis)
        self._keys, url = (keys := Keys(self.settings.prefix)), self.settings.redis_url
        self._queries = Queries(self._redis, keys)
        self.pools = in_sentences(Pools(self._redis, keys), url)
        self.notices = in_sentences(Notices(self._redis, keys), url)
        self.dead_letters = in_sentences(DeadLetters(self._redis, keys), url)
        self._submitter = Submitter(self.settings, self._redis, Submissions(self._redis, keys), breaker)
        schedules = ScheduleClient(
            ScheduleStore(self._redis, keys),
            ProcessRegistry(self._redis, keys),
            self._submitter,
            self._queries,
            self._why,
        )
        self.schedules = in_sentences(schedules, url)
        self._applier = CommandApplier(self._store, lambda: secrets.token_hex(8), time.monotonic, time.sleep)
        in_sentences(self, url)

    def close(self) -> None:
        """Close the connection to Redis; leaving a ``with`` block does so too."""
        self._redis.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def job(self, job: str) -> JobHandle:
        """A handle of a job that was submitted before. Raises: NoSuchJob."""
        record = self._job_record(job)
        return JobHandle(
            self, Submitted(record.id, new=False, found_as=record.status, halted=record.halted is not None)
        )

    def submit(
        self,
        spec: Spec,
        *,
        key: str | None = None,
        params: Mapping[str, Any] | None = None,
        retry: bool = False,
        take_over: bool = False,
        by: str | None = None,
    ) -> JobHandle:
        """Store a job, to be run by the fleet. Durable when it returns, as far as ``UNSTUCK_DURABILITY`` says.

        Args:
            spec: a JobSpec, a Job, a mapping, or the path of a YAML or JSON file.
            key: submitting the same spec under the same key again answers with the same job, or with the last retry of
                it, and its status.
            params: values for parameters that the spec names; those that it requires must be among them.
            retry: if that job is FAILED, CANCELED or STOPPED, retry it, with ``spec``.
            take_over: publish also datasets that another job owns. The job owns them from then on.
            by: who submits; the OS user by default.

        Raises:
            SpecError: the spec is wrong, names a version that the warehouse does not have, or its SQL reads a table
                that nothing provides; nothing was stored.
            BadKey: the key is empty, longer than 200 characters, holds control characters, or has the form of the
                run of a tick; nothing was stored.
            BadRequest: ``retry`` without a key.
            KeyConflict: the key belongs to a job with another spec, which is not to be retried.
            DatasetOwned: another job owns a dataset that the job publishes; nothing was stored.
            NotDurable: stored, but not confirmed as durable in time.
            WarehouseSilent, OSError: the warehouse has not answered in time, or with an error; nothing was stored.
            Unreachable: Redis could not be asked. Submitting again under a key is safe, and answered with the job if it
                is stored, also while the warehouse does not answer.

        >>> job = client.submit(spec, key="sales-2026-01-02")
        >>> job.new, client.submit(spec, key="sales-2026-01-02").id == job.id
        (True, True)
        """
        if key is not None:
            check_key(key)
            if belongs_to_tick(key):
                name = key.rpartition("@")[0]
                raise BadKey(
                    f"the key {key!r} has the form of the run of a tick, which only schedule {name} submits; choose "
                    f"another key, or run the tick with `unstuck schedule backfill {name} --from TICK --to TICK`"
                )
        elif retry:
            raise BadRequest("retry is for a submit under a key: it retries the last job of the key")
        job_spec, other = JobSpec.of(spec, params or {}), False
        doubtful = check_tables(job_spec, self.settings, self._submitter.published_names)
        try:
            place, fields = self.settings.warehouse, {"take_over": take_over}
            why = "takes over what it publishes" if take_over else ""
            found = self._submitter.store_job(job_spec, place, key or "", by, why, fields=fields)
        except KeyTaken as taken:
            found, other = Submitted(str(taken), new=False), True
        unknown = unknown_targets(job_spec.notify, ProcessRegistry(self._redis, self._keys))
        warnings = tuple(map(str, (*doubts(job_spec), *doubtful, *unknown)))
        if found.new:
            return JobHandle(self, replace(found, warnings=warnings))
        job = self._job_record(found.id)
        if retry and job.status in RETRY_LEGAL:
            again = self.retry(found.id, spec=job_spec, take_over=take_over, by=by).submitted
            found = replace(again, retried=found.id)
            job = self._job_record(found.id)
        elif other:
            mend = ", or this one with --retry"
            raise KeyConflict(
                f"the key {key!r} belongs to job {found.id}, which is {job.status}, with another spec or other "
                f"parameters; use another key, or submit that spec unchanged{mend * (job.status in RETRY_LEGAL)}"
            )
        found = replace(found, found_as=job.status, halted=job.halted is not None, warnings=warnings)
        return JobHandle(self, found)

    def retry(
        self,
        job: str,
        *,
        spec: Spec | None = None,
        params: Mapping[str, Any] | None = None,
        rerun: Sequence[str] = (),
        adopt_all: bool = False,
        take_over: bool = False,
        reason: str = "",
        by: str | None = None,
    ) -> JobHandle:
        """A new job that runs what ``job`` did not finish: FAILED, CANCELED or STOPPED, it never changes itself.

        Work that stands is taken over by its marker, if it would be done the same way again. Retrying a job twice is
        one new job.

        Args:
            spec: as of `submit`, in the place of the stored one; what differs, and what depends on it, runs again.
            params: values for parameters that are to change; what depends on them runs again.
            rerun: groups that run again in any case, with all that comes after them.
            adopt_all: take over work also where the code of its steps has changed since.
            take_over: as of `submit`; a retry of a job that was submitted so takes over, too.
            reason: why, for the event log of the new job.

        Raises:
            NoSuchJob, NoSuchGroup: there is none.
            Refused: the job has not ended, or it is FINISHED.
            DatasetOwned: another job owns a dataset that the job publishes.
            WarehouseMismatch: its warehouse, in which its work would be looked for, is not to be seen from here.
            WarehouseSilent: its warehouse has not answered in time; nothing was stored.
            SpecError: the parameters are wrong, or the spec names a version that the warehouse does not have yet.
            Unreachable: Redis could not be asked; asking again is safe.
        """
        state = self._state(job)[0]
        old = state.job
        if state.damage:
            raise Refused(against_damage(old, state.damage).text)
        if old.status not in RETRY_LEGAL:
            raise Refused(against_retry(old))
        if old.schedule and not is_by_hand(old.key) and self.schedules.goes_on(old.schedule):
            raise Refused(
                f"job {job} is a run of schedule {old.schedule}, which retries its runs by itself; "
                f"`unstuck schedule run {old.schedule}` tries at once, and an older tick is run again by "
                f"`{_redo(old)}`"
            )
        try:
            mended = JobSpec.of(old.written() if spec is None else spec, params or {})
            if spec is not None:
                check_tables(mended, self.settings, self._submitter.published_names)
            changed = mended.fingerprint != fingerprint_of(old.spec)
            word = secrets.token_hex(8)
            again = retried(state, rerun, adopt_all, word, changed=changed, take_over=take_over)
            return JobHandle(self, self._submitter.store_job(mended, old.warehouse, "", by, reason, again))
        except NotEnded as error:
            raise Refused(against_retry(replace(old, status=error.status))) from None
        except StandsAlready as error:
            raise Refused(
                f"job {job} was retried before, as job {error.job}, which published version {error.result.version}. "
                f"Redis has forgotten that job in a rollback. `unstuck retry {job} --rerun GROUP` publishes once more"
            ) from None

    def show(self, job: str, *, why: bool = False, members: int | None = None, by_fleet: bool = False) -> JobView:
        """Everything there is to know of one job.

        Args:
            why: also explain what the job and its groups wait for, from the same read.
            members: of each fork, explain at most so many; None: all.
            by_fleet: explain it as `explain` does, also by what the fleet and earlier jobs say.

        Raises: NoSuchJob, NewerJob.
        """
        state, now, due = self._state(job)
        if not why:
            return view_of(state, now, due)
        if by_fleet:
            known = self._fleet_facts(state, now)
        else:
            known = replace(fleet_facts(self._queries, state, now), pools=full_pools(self.pools.all()))
        return view_of(state, now, due, explain(state, self._environment(now), due, members, known))

    def _why(self, job: str) -> str:
        """The reason why a job waits, in one line; empty if there is no such job, or it cannot be read."""
        try:
            return self.show(job, why=True, members=1).why_line(job)
        except (NoSuchJob, NewerJob):
            return ""

    def facts(self, job: str) -> JobFacts:
        """The job without its groups, which cost nothing then. Raises: NoSuchJob, NewerJob."""
        return JobFacts.of(self._job_record(job))

    def written(self, job: str) -> dict[str, Any]:
        """The stored spec of a job, with the values of its parameters. Raises: NoSuchJob."""
        return self._job_record(job).written()

    def explain(self, job: str) -> list[Explanation]:
        """Explain why the job, and each of its groups that is not done, waits; the job comes first.

        Raises: NoSuchJob.
        """
        state, now, due = self._state(job)
        return explain(state, self._environment(now), due, fleet=self._fleet_facts(state, now))

    def _fleet_facts(self, state: JobState, now: float) -> FleetFacts:
        fleet = self.fleet(wanted=False)
        return replace(
            fleet_facts(self._queries, state, now),
            durations=self._queries.durations(state),
            unread=unread_messages(fleet, self.settings.stalled_after),
            busy=nobody_takes(fleet),
            pools=full_pools(self.pools.all()),
            code=different_code_for(state, fleet.runners),
            unlike=unlike_runners({} if state.job.mixed else self._queries.versions(state.job.id), fleet.runners),
        )

    def _state(self, job: str) -> tuple[JobState, float, float | None]:
        """Raises: NoSuchJob."""
        return self._found(job, self._queries.state(job))

    def _job_record(self, job: str) -> JobRecord:
        """The record alone: force-stop needs nothing else, so it works however damaged the rest is.

        Raises: NoSuchJob.
        """
        return self._found(job, self._store.job(job))

    def _found(self, job: str, found: T | None) -> T:
        if found is None:
            raise NoSuchJob(f"no job {job} is in the store at {self.settings.prefix}; `unstuck list` shows what is")
        return found

    def _environment(self, now: float) -> Environment:
        """The environment of a decision, as far as explaining needs it."""
        return Environment.of(self.settings, now, "", self._store.listening(now, self.settings.runner_silence))

    def fleet(self, *, wanted: bool = True) -> FleetView:
        """Runners, coordinators, and the queues between them.

        Args:
            wanted: show also queues that open jobs name and nobody listens to; costs a look at each of them.
        """
        return fleet_of(self._redis, self._keys, self.settings.runner_silence, wanted=wanted)

    def late_jobs(self) -> list[LateJob]:
        """Names of jobs without a schedule of which a rule ``late`` was told, and of no end; the oldest first."""
        return late_jobs(ExpectedJobsStore(self._redis, self._keys))

    def failed_jobs(self) -> list[ListedJob]:
        """Return the last job of each name that FAILED, unless a job of the name was submitted since then.

        The runs of ticks are not included: their schedules report them. The last failure comes first.
        """
        return self._queries.failed()

    def offers(self) -> list[WaitingOffers]:
        """The offers that stand ready for runners, by queue and pool, those first that wait for longest."""
        return waiting_offers(self._redis, self._keys)

    def events(self, job: str, after: str = "-") -> Iterator[tuple[str, dict[str, Any]]]:
        """The events of a job after the entry ``after``, the oldest first, each with the id of its entry."""
        while page := self._queries.events(job, after):
            yield from page
            after = page[-1][0]

    def newest_events(self, job: str, count: int, before: str = "+") -> list[tuple[str, dict[str, Any]]]:
        """At most ``count`` events of a job before the entry ``before``, the newest first, each with its entry's id."""
        return self._queries.newest_events(job, count, before)

    def counters(self) -> dict[str, int]:
        """How many reports of workers were APPLIED, DUPLICATE, STALE, … since the store was made."""
        return self._queries.counters()

    def jobs(
        self,
        *,
        status: Sequence[Status] = (),
        name: str | None = None,
        since: float | None = None,
        limit: int | None = 50,
    ) -> list[ListedJob]:
        """Jobs, the newest first.

        Args:
            status: only these; all if empty.
            name: a glob that the job's name must match.
            since: only jobs submitted at or after this time, seconds since the epoch.
            limit: at most this many; None: all.

        >>> job = client.submit(spec)
        >>> [found.id == job.id for found in client.jobs(status=[Status.PENDING], name="sa*")]
        [True]
        """
        return self._queries.jobs(status, name, since, limit)

    def skip_file(self, dataset: str, file: str, *, reason: str = "", by: str | None = None) -> SkippedFile:
        """Let the stream of a dataset pass over one file for good.

        Args:
            file: its path, or its path below the folder of the stream.

        Raises:
            DatasetNotFound: no such dataset.
            Refused: it is loaded from no list of files, or this file is none of them, or is not there.
            SourceUnavailable: this process cannot ask the folder of the stream.
            WarehouseMismatch, LogBroken, WarehouseNewer, OSError: it may be repeated.
        """
        return skip_file(Warehouse(self.settings.warehouse), dataset, file, by=by or user_here(), reason=reason)

    def restore(self, dataset: str, version: int, *, reason: str = "", by: str | None = None) -> Restored:
        """Publish a dataset of the warehouse as it stood at ``version``. Schedules that run after the dataset run.

        Raises:
            DatasetNotFound: there is no such dataset, or no such version.
            Refused: its files are not all there any more; it is a Delta table; or it was published meanwhile.
            WarehouseMismatch, LogBroken, WarehouseNewer, OSError: it may be repeated.
        """
        place, index = self.settings.warehouse, StagingIndex(self._redis, self._keys)
        done = restore(Warehouse(place), index, dataset, version, by=by or user_here(), reason=reason)
        ScheduleStore(self._redis, self._keys).note_published(place, dataset, done.version)
        return done

    def wait(self, job: str, timeout: float | None = None, every: float = 0.2) -> JobView:
        """Wait until the job has ended, or is HALTED and cannot go on by itself; the last view of it.

        Raises:
            TimeoutError: it had not ended after ``timeout`` seconds. The job goes on.
            NoSuchJob: there is no such job.
        """
        began = time.monotonic()
        while not (record := self._job_record(job)).at_rest:  # a view of ten thousand groups takes its time
            if timeout is not None and time.monotonic() - began >= timeout:
                raise TimeoutError(f"job {job} is still {record.status}; it goes on without you")
            time.sleep(every)
        return self.show(job)

    def follow(self, job: str, every: float = 0.5) -> Iterator[JobView]:
        """Views of the job, one every ``every`` seconds, until it has ended; the last one is terminal."""
        while True:
            view = self.show(job)
            yield view
            if view.job.terminal:
                return
            time.sleep(every)


def _redo(run: JobRecord) -> str:
    """The command that runs the tick of ``run`` again."""
    tick = tick_text(tick_of_key(run.key) or 0.0)
    return f"unstuck schedule backfill {run.schedule} --from {tick} --to {tick} --redo failed"
