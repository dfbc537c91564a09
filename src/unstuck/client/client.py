"""The client, by which an app or the command line submits jobs, gives commands and reads states."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import redis
from pydantic import Field

from unstuck.client.job_handle import JobHandle
from unstuck.client.schedule_client import ScheduleClient
from unstuck.coordinator.command_table import (
    COMMANDS,
    Answer,
    Arg,
    By,
    Command,
    CommandOutcome,
    Reason,
    TargetKind,
    documented,
)
from unstuck.coordinator.errors import NewerJob, NoSuchJob, NoSuchProblem
from unstuck.coordinator.explain.explanation import Explanation, FleetFacts
from unstuck.coordinator.explain.job import explain
from unstuck.coordinator.fleet_address import with_local_fleet
from unstuck.coordinator.model.acknowledgement import Acknowledgement
from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.fleet import FleetInfo
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.notices.outbox import Notices
from unstuck.coordinator.problems.detect import Detected, detect
from unstuck.coordinator.problems.problem import OPEN, Problem
from unstuck.coordinator.problems.queues import full_pools, nobody_takes, unread_messages
from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.coordinator.publishing.restore import Restored, restore
from unstuck.coordinator.publishing.streams.skip_file import SkippedFile, skip_file
from unstuck.coordinator.requests.job_requests import JobRequests, connect_for_requests
from unstuck.coordinator.spec.model import Spec
from unstuck.coordinator.store.acknowledgement_store import Acknowledgements
from unstuck.coordinator.store.answers import Submitted
from unstuck.coordinator.store.dead_letter_store import DeadLetters
from unstuck.coordinator.store.expected_job_store import ExpectedJobsStore
from unstuck.coordinator.store.job_queries import Queries
from unstuck.coordinator.store.job_store import Store
from unstuck.coordinator.store.pool_store import Pools
from unstuck.coordinator.store.schedule_store import ScheduleStore
from unstuck.coordinator.store.staging_index import StagingIndex
from unstuck.coordinator.store.submissions import Submissions
from unstuck.coordinator.submitter import Submitter
from unstuck.coordinator.unreachable import in_sentences
from unstuck.read_model.command_result import CommandResult
from unstuck.read_model.job import JobInfo
from unstuck.read_model.job_list import JobList
from unstuck.tasks.identity import user_here
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.processes import ProcessRegistry
from unstuck.tasks.settings import Settings
from unstuck.tasks.settings import settings as default_settings
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.views.fleet_view import fleet_of
from unstuck.views.installation import limits_of, read_state
from unstuck.views.jobs.job_views import fleet_facts
from unstuck.views.jobs.late_jobs import late_jobs
from unstuck.views.running_code import different_code_for, unlike_runners
from unstuck.views.waiting_offers import WaitingOffers, waiting_offers

_BREAKER = (
    CircuitBreaker()
)  # of this process: what hangs in a warehouse outlives the client that asked


@documented(*COMMANDS[TargetKind.JOB].values(), *COMMANDS[TargetKind.GROUP].values())
class Client:
    """Submit jobs, give them commands, and read their state.

    Settings come from ``UNSTUCK_*`` unless given. If these name no Redis, the client uses that of
    the fleet that `unstuck up` runs in this folder. Any method may raise `Unreachable`.

    >>> with Client() as client:
    ...     client.submit("sales.yaml", key="sales-2026-01-02").wait(timeout=3600).status
    <Status.FINISHED: 'FINISHED'>
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        redis_client: redis.Redis | None = None,
        breaker: CircuitBreaker = _BREAKER,
    ) -> None:
        """Connect to the Redis of ``settings``; these default to the environment.

        Args:
            redis_client: a connection of the caller to that Redis, which must decode responses.

        Raises: SettingsInvalid: the environment has invalid settings.
        """
        self.settings = settings or with_local_fleet(default_settings())
        self._redis = redis_client or connect_for_requests(self.settings)
        self._keys, url = (keys := Keys(self.settings.prefix)), self.settings.redis_url
        self._store, self._queries = Store(self.settings, self._redis), Queries(self._redis, keys)
        self._jobs = JobList(self._queries)
        self.pools = in_sentences(Pools(self._redis, keys), url)
        self.notices = in_sentences(Notices(self._redis, keys), url)
        self.dead_letters = in_sentences(DeadLetters(self._redis, keys), url)
        registry = ProcessRegistry(self._redis, keys)
        submitter = Submitter(self.settings, self._redis, Submissions(self._redis, keys), breaker)
        schedules = ScheduleClient(
            ScheduleStore(self._redis, keys), registry, submitter, self._queries, self._why
        )
        self.schedules = in_sentences(schedules, url)
        self._requests = JobRequests(self._store, registry, submitter, self._queries, schedules)
        in_sentences(self, url)

    def close(self) -> None:
        """Close the connection to Redis; leaving a ``with`` block does so too."""
        self._redis.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def job(self, job: str) -> JobHandle:
        """Return a handle of a submitted job.

        Raises: NoSuchJob.
        """
        record = self._requests.job_record(job)
        return JobHandle(
            self,
            Submitted(
                record.id, new=False, found_as=record.status, halted=record.halted is not None
            ),
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
        """Submit a job to the fleet.

        The job is durable when the call returns, as far as ``UNSTUCK_DURABILITY`` promises.

        Args:
            spec: a JobSpec, a Job, a mapping, or the path of a YAML or JSON file.
            key: submitting the same spec under the same key again answers with the same job, or
                with the last retry of it, and its status.
            params: values for parameters that the spec names; those that it requires must be among
                them.
            retry: if that job is FAILED, CANCELED or STOPPED, retry it, with ``spec``.
            take_over: publish also datasets that another job owns. The job owns them from then on.
            by: who submits; the OS user by default.

        Raises:
            SpecError: the spec is wrong, names a version that the warehouse does not have, or its
                SQL reads a table that nothing provides; nothing was stored.
            BadKey: the key is empty, longer than 200 characters, holds control characters, or has
                the form of the run of a tick; nothing was stored.
            BadRequest: ``retry`` without a key.
            KeyConflict: the key belongs to a job with another spec, which is not to be retried.
            DatasetOwned: another job owns a dataset that the job publishes; nothing was stored.
            NotDurable: stored, but not confirmed as durable in time.
            WarehouseSilent, OSError: the warehouse has not answered in time, or with an error;
                nothing was stored.
            Unreachable: Redis could not be asked. Submitting again under a key is safe, and
                answered with the job if it is stored, also while the warehouse does not answer.

        >>> job = client.submit(spec, key="sales-2026-01-02")
        >>> job.new, client.submit(spec, key="sales-2026-01-02").id == job.id
        (True, True)
        """
        how: dict[str, Any] = {"key": key, "params": params, "retry": retry, "take_over": take_over}
        return JobHandle(self, self._requests.submit(spec, **how, by=by))

    def retry(
        self,
        job: str,
        *,
        spec: Spec | None = None,
        params: Mapping[str, Any] | None = None,
        rerun: Sequence[str] = (),
        start: str | None = None,
        adopt_all: bool = False,
        take_over: bool = False,
        reason: str = "",
        by: str | None = None,
    ) -> JobHandle:
        how: dict[str, Any] = {"spec": spec, "params": params, "rerun": rerun, "start": start}
        how |= {"adopt_all": adopt_all, "take_over": take_over, "reason": reason, "by": by}
        return JobHandle(self, self._requests.retry(job, **how))

    def command(
        self, job: str, word: str, *, reason: str = "", by: str | None = None, **arguments: Any
    ) -> CommandResult:
        """Give a job a command by its name on the command line.

        The command is durable and idempotent: a repeat changes nothing.

        Args:
            word: such as ``force-stop``; ``arguments``: those of its method.
            reason: why, for the event log.
            by: who asks; the OS user by default.

        Returns: DONE, ALREADY or REFUSED, with a sentence that says what holds and what can be
        done.

        Raises:
            NoSuchJob: there is no such job.
            Unreachable: Redis could not be asked; asking again is safe.
        """
        return CommandResult.of(
            self._requests.command(job, word, reason=reason, by=by, **arguments)
        )

    def pause(
        self, job: str, *, now: bool = False, reason: str = "", by: str | None = None
    ) -> CommandResult:
        return self.command(job, "pause", now=now, reason=reason, by=by)

    def resume(self, job: str, *, reason: str = "", by: str | None = None) -> CommandResult:
        return self.command(job, "resume", reason=reason, by=by)

    def stop(self, job: str, *, reason: str = "", by: str | None = None) -> CommandResult:
        return self.command(job, "stop", reason=reason, by=by)

    def cancel(self, job: str, *, reason: str = "", by: str | None = None) -> CommandResult:
        return self.command(job, "cancel", reason=reason, by=by)

    def force_stop(self, job: str, *, reason: str = "", by: str | None = None) -> CommandResult:
        return self.command(job, "force-stop", reason=reason, by=by)

    def alter(
        self, job: str, values: Mapping[str, Any], *, reason: str = "", by: str | None = None
    ) -> CommandResult:
        return self.command(job, "alter", values=values, reason=reason, by=by)

    def skip(
        self, job: str, group: str, *, reason: str = "", by: str | None = None
    ) -> CommandResult:
        return self.command(job, "skip", group=group, reason=reason, by=by)

    def rerun(
        self, job: str, group: str, *, reason: str = "", by: str | None = None
    ) -> CommandResult:
        return self.command(job, "rerun", group=group, reason=reason, by=by)

    def show(
        self, job: str, *, why: bool = False, members: int | None = None, by_fleet: bool = False
    ) -> JobInfo:
        """Return one job with its groups.

        Args:
            why: also explain what the job and its groups wait for, from the same read.
            members: of each fork, explain at most so many; None: all.
            by_fleet: explain it as `explain` does, also by what the fleet and earlier jobs say.

        Raises: NoSuchJob, NewerJob.
        """
        state, now, due = self._requests.state(job)
        if not why:
            return JobInfo.of_state(state, now, due)
        fleet = self._fleet_facts(state, now) if by_fleet else self._facts_of_job(state, now)
        explained = explain(state, self._environment(now), due, members, fleet)
        return JobInfo.of_state(state, now, due, explained)

    def _why(self, job: str) -> str:
        """Return why a job waits, in one line; empty if the job is missing or cannot be read."""
        try:
            return self.show(job, why=True, members=1).why_line(job)
        except (NoSuchJob, NewerJob):
            return ""

    def facts(self, job: str) -> JobInfo:
        """Return a job without its groups, which is cheaper.

        Raises: NoSuchJob, NewerJob.
        """
        return JobInfo.of_record(self._requests.job_record(job))

    def written(self, job: str) -> dict[str, Any]:
        """Return the stored spec of a job, with the values of its parameters.

        Raises: NoSuchJob.
        """
        return self._requests.job_record(job).written()

    def explain(self, job: str) -> list[Explanation]:
        """Explain why the job, and each of its groups that is not done, waits; the job comes first.

        Raises: NoSuchJob.
        """
        state, now, due = self._requests.state(job)
        return explain(state, self._environment(now), due, fleet=self._fleet_facts(state, now))

    def _fleet_facts(self, state: JobState, now: float) -> FleetFacts:
        fleet = self.fleet(include_unserved=False)
        return replace(
            self._facts_of_job(state, now),
            durations=self._queries.durations(state),
            unread=unread_messages(fleet, self.settings.stalled_after),
            busy=nobody_takes(fleet),
            code=different_code_for(state, fleet.runners),
            unlike=unlike_runners(
                {} if state.job.mixed else self._queries.versions(state.job.id), fleet.runners
            ),
        )

    def _facts_of_job(self, state: JobState, now: float) -> FleetFacts:
        again = self._requests.again(state.job)
        pools = full_pools(self.pools.all())
        return replace(fleet_facts(self._queries, state, now), pools=pools, again=again)

    def _environment(self, now: float) -> Environment:
        """Return the environment of a decision, as far as an explanation needs it."""
        return Environment.of(
            self.settings, now, "", self._store.listening(now, self.settings.runner_silence)
        )

    def fleet(self, *, include_unserved: bool = True) -> FleetInfo:
        """Return the runners, the coordinators, and the queues between them.

        Args:
            include_unserved: show also queues that open jobs name and nobody listens to; costs a
                look at each of them.
        """
        return fleet_of(
            self._redis, self._keys, self.settings.runner_silence, include_unserved=include_unserved
        )

    def late_jobs(self) -> list[Problem]:
        """Return the problems of late names that no schedule submits, the oldest first."""
        return late_jobs(ExpectedJobsStore(self._redis, self._keys))

    def problems(self) -> list[Problem]:
        """Return the problems of the installation, the worst first; see `unstuck now`.

        >>> [(problem.code.value, problem.name) for problem in client.problems()]
        [('NO_COORDINATOR', 'coordinators')]
        """
        return self.detected().problems

    @Command(
        "ack",
        TargetKind.PROBLEM,
        "unstuck ack schedule/nightly/FAILED --reason 'the source is away'",
        legal={OPEN},
    )
    def acknowledge(self, problem: str, *, reason: Reason = "", by: By = None) -> CommandOutcome:
        """Acknowledge a problem: `now` and the metrics ignore it until it changes, at most 30 days.

        Raises: NoSuchProblem.
        """
        detected = self.detected()
        problems = {each.id: each for each in detected.problems}
        if (current := problems.get(problem)) is None:
            raise NoSuchProblem(f"there is no problem {problem} now; `unstuck now` shows them")
        entry = Acknowledgement(current.version, detected.at, by or user_here(), reason)
        Acknowledgements(self._redis, self._keys).set(problem, entry)
        return CommandOutcome(problem, Answer.DONE, f"{problem} is acknowledged until it changes")

    def detected(self) -> Detected:
        """Return the problems of the installation, with the time and the jobs of this read."""
        state = read_state(self._redis, self._keys, self.settings)
        return Detected(state.fleet.at, detect(state, limits_of(self.settings)), state.jobs)

    def offers(self) -> list[WaitingOffers]:
        """Return the offers that wait for runners, by queue and pool, the oldest first."""
        return waiting_offers(self._redis, self._keys)

    def events(self, job: str, after: str = "-") -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the events of a job after ``after``, oldest first, each with its entry id."""
        while page := self._queries.events(job, after):
            yield from page
            after = page[-1][0]

    def newest_events(
        self, job: str, count: int, before: str = "+"
    ) -> list[tuple[str, dict[str, Any]]]:
        """Return the newest events of a job, newest first, each with its entry id.

        At most ``count`` events are returned, all of them before the entry ``before``.
        """
        return self._queries.newest_events(job, count, before)

    def counters(self) -> dict[str, int]:
        """Return how many reports of workers were APPLIED, DUPLICATE, STALE, …, since the start."""
        return self._queries.counters()

    def jobs(
        self,
        *,
        status: Sequence[Status] = (),
        name: str | None = None,
        since: float | None = None,
        limit: int | None = 50,
    ) -> list[JobInfo]:
        """Return jobs, newest first.

        Args:
            status: only these; all if empty.
            name: a glob that the job's name must match.
            since: only jobs submitted at or after this time, seconds since the epoch.
            limit: at most this many; None: all.

        >>> job = client.submit(spec)
        >>> [found.id == job.id for found in client.jobs(status=[Status.PENDING], name="sa*")]
        [True]
        """
        return self._jobs.jobs(status, name, since, limit)

    @Command(
        "skip", TargetKind.STREAM, "unstuck stream skip loads broken.json --reason 'cut short'"
    )
    def skip_file(
        self,
        dataset: str,
        file: Annotated[str, Arg("Its path, or its path in the folder of the stream.")],
        *,
        reason: Reason = "",
        by: By = None,
    ) -> SkippedFile:
        """Skip one file of the stream of a dataset for good, with its present content.

        Raises:
            DatasetNotFound: no such dataset.
            Refused: it is loaded from no list of files, or this file is none of them, or is not
                there.
            SourceUnavailable: this process cannot ask the folder of the stream.
            WarehouseMismatch, LogBroken, WarehouseNewer, OSError: it may be repeated.
        """
        return skip_file(
            Warehouse(self.settings.warehouse), dataset, file, by=by or user_here(), reason=reason
        )

    @Command(
        "restore", TargetKind.DATASET, "unstuck restore flights --version 3 --reason 'late rows'"
    )
    def restore(
        self,
        dataset: str,
        version: Annotated[
            int,
            Arg("The version of the warehouse to go back to.", option="--version"),
            Field(ge=1, lt=2**53),
        ],
        *,
        reason: Reason = "",
        by: By = None,
    ) -> Restored:
        """Publish an older version of a dataset again, as a new version.

        Schedules that follow the dataset run after it. Other datasets stay unchanged.

        Raises:
            DatasetNotFound: there is no such dataset, or no such version.
            Refused: its files are not all there any more; it is a table; or it was published
                meanwhile.
            WarehouseMismatch, LogBroken, WarehouseNewer, OSError: it may be repeated.
        """
        place, index = self.settings.warehouse, StagingIndex(self._redis, self._keys)
        done = restore(
            Warehouse(place), index, dataset, version, by=by or user_here(), reason=reason
        )
        ScheduleStore(self._redis, self._keys).note_published(place, dataset, done.version)
        return done

    def wait(self, job: str, timeout: float | None = None, every: float = 0.2) -> JobInfo:
        """Wait until a job has ended, or is HALTED until a person acts, and return it.

        Raises:
            TimeoutError: it had not ended after ``timeout`` seconds. The job goes on.
            NoSuchJob: there is no such job.
        """
        began = time.monotonic()
        while not (
            record := self._requests.job_record(job)
        ).at_rest:  # a view of ten thousand groups takes its time
            if timeout is not None and time.monotonic() - began >= timeout:
                raise TimeoutError(f"job {job} is still {record.status}; it goes on without you")
            time.sleep(every)
        return self.show(job)

    def follow(self, job: str, every: float = 0.5) -> Iterator[JobInfo]:
        """Yield the job every ``every`` seconds until it has ended; the last one is terminal."""
        while True:
            view = self.show(job)
            yield view
            if view.terminal:
                return
            time.sleep(every)
