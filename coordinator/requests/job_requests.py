"""Requests about jobs: submit, retry and commands. Each is stored when its method returns."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import redis

from unstuck.coordinator.command_table import (
    COMMANDS,
    Answer,
    Arg,
    By,
    Command,
    Order,
    Params,
    Reason,
    TargetKind,
)
from unstuck.coordinator.commands import alter, group_commands  # noqa: F401 - they declare commands
from unstuck.coordinator.commands.apply import CommandApplier
from unstuck.coordinator.commands.job_commands import (
    RETRY_LEGAL,
    Commanded,
    against_damage,
    against_retry,
)
from unstuck.coordinator.commands.retry_job import retried
from unstuck.coordinator.errors import BadKey, BadRequest, KeyConflict, NoSuchJob, Refused
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.tick import belongs_to_tick, is_by_hand, tick_of_key
from unstuck.coordinator.notices.known_targets import unknown_targets
from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.coordinator.requests.schedule_requests import ScheduleRequests
from unstuck.coordinator.spec.checks.sql_tables import check_tables
from unstuck.coordinator.spec.checks.unused import doubts
from unstuck.coordinator.spec.job_params import check_key
from unstuck.coordinator.spec.model import JobSpec, Spec, fingerprint_of
from unstuck.coordinator.store.answers import KeyTaken, NotEnded, Submitted
from unstuck.coordinator.store.job_queries import Queries
from unstuck.coordinator.store.job_store import Store
from unstuck.coordinator.store.schedule_store import ScheduleStore
from unstuck.coordinator.store.submissions import Submissions
from unstuck.coordinator.submitter import StandsAlready, Submitter
from unstuck.tasks.identity import user_here
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.processes import ProcessRegistry
from unstuck.tasks.settings import Settings
from unstuck.tasks.transport.redis_client import REPLY_WITHIN, connect

T = TypeVar("T")

# Those that judge the record of a job.
JUDGED = {**COMMANDS[TargetKind.JOB], **COMMANDS[TargetKind.GROUP]}
Rerun = Annotated[
    Sequence[str],
    Arg("Run this group again in any case, and all that comes after it.", metavar="GROUP"),
]
TakeOver = Annotated[
    bool, Arg("Publish also datasets that another job owns, and own them from then on.")
]


def connect_for_requests(settings: Settings) -> redis.Redis:
    """Connect for requests that wait at most 5 s until their write is durable (WAIT, WAITAOF)."""
    return connect(
        settings.redis_url, timeout=REPLY_WITHIN if settings.durability == "everysec" else 6.0
    )


class JobRequests:
    """Submit jobs, retry them, and give them commands."""

    def __init__(
        self,
        store: Store,
        registry: ProcessRegistry,
        submitter: Submitter,
        queries: Queries,
        schedules: ScheduleRequests,
    ) -> None:
        """``registry``: names the targets of notices that coordinators have."""
        self.settings = submitter.settings
        self._store, self._registry, self._submitter = store, registry, submitter
        self._queries, self.schedules = queries, schedules
        self._applier = CommandApplier(
            store, lambda: secrets.token_hex(8), time.monotonic, time.sleep
        )

    @classmethod
    def at(cls, settings: Settings, client: redis.Redis, breaker: CircuitBreaker) -> JobRequests:
        """Return requests to the fleet of ``settings``; ``client`` must decode responses."""
        keys = Keys(settings.prefix)
        registry, queries = ProcessRegistry(client, keys), Queries(client, keys)
        submitter = Submitter(settings, client, Submissions(client, keys), breaker)
        schedules = ScheduleRequests(ScheduleStore(client, keys), registry, submitter, queries)
        return cls(Store(settings, client), registry, submitter, queries, schedules)

    def submit(
        self,
        spec: Spec,
        *,
        key: str | None = None,
        params: Mapping[str, Any] | None = None,
        retry: bool = False,
        take_over: bool = False,
        by: str | None = None,
    ) -> Submitted:
        """Store a job, or find the stored job with its key; see `Client.submit`."""
        if key is not None:
            check_key(key)
            if belongs_to_tick(key):
                name = key.rpartition("@")[0]
                raise BadKey(
                    f"the key {key!r} has the form of the run of a tick, which only schedule "
                    f"{name} submits; choose another key, or run the tick with `unstuck schedule "
                    f"backfill {name} --from TICK --to TICK`"
                )
        elif retry:
            raise BadRequest(
                "retry is for a submit under a key: it retries the last job of the key"
            )
        job_spec, other = JobSpec.of(spec, params or {}), False
        doubtful = check_tables(job_spec, self.settings, self._submitter.published_names)
        try:
            place, fields = self.settings.warehouse, {"take_over": take_over}
            why = "takes over what it publishes" if take_over else ""
            submitted = self._submitter.store_job(
                job_spec, place, key or "", by, why, fields=fields
            )
        except KeyTaken as taken:
            submitted, other = Submitted(taken.job, new=False), True
        unknown = unknown_targets(job_spec.notify, self._registry)
        warnings = tuple(map(str, (*doubts(job_spec), *doubtful, *unknown)))
        if submitted.new:
            return replace(submitted, warnings=warnings)
        job = self.job_record(submitted.id)
        if retry and job.status in RETRY_LEGAL:
            again = self.retry(submitted.id, spec=job_spec, take_over=take_over, by=by)
            submitted = replace(again, retried=submitted.id)
            job = self.job_record(submitted.id)
        elif other:
            mend = ", or this one with --retry"
            raise KeyConflict(
                f"the key {key!r} belongs to job {submitted.id}, which is {job.status}, with "
                "another spec or other parameters; use another key, or submit that spec "
                f"unchanged{mend * (job.status in RETRY_LEGAL)}"
            )
        return replace(
            submitted, found_as=job.status, halted=job.halted is not None, warnings=warnings
        )

    @Command("retry", TargetKind.JOB, "unstuck retry flights --param year=2014", legal=RETRY_LEGAL)
    def retry(
        self,
        job: str,
        *,
        spec: Annotated[
            Spec | None,
            Arg("Retry with this spec: work that does not differ is taken over.", metavar="SPEC"),
        ] = None,
        params: Params = None,
        rerun: Rerun = (),
        start: Annotated[
            str | None,
            Arg("As `rerun`, and take over all other work.", alias="from", metavar="GROUP"),
        ] = None,
        adopt_all: Annotated[
            bool, Arg("Take over work also where the code of its steps has changed.")
        ] = False,
        take_over: TakeOver = False,
        reason: Reason = "",
        by: By = None,
    ) -> Submitted:
        """Create a new job that retries a FAILED, CANCELED or STOPPED one.

        Finished work is reused if the new job would do it the same way. Retrying a job twice
        creates one new job.

        Raises:
            NoSuchJob, NoSuchGroup: there is none.
            Refused: the job has not ended, or it is FINISHED.
            DatasetOwned: another job owns a dataset that the job publishes.
            WarehouseMismatch: this process does not see its warehouse, which has the finished work.
            WarehouseSilent: its warehouse did not answer in time; nothing was stored.
            SpecError: the parameters are wrong, or the spec names a version that does not exist
                yet.
            Unreachable: Redis could not be reached; repeating the call is safe.
        """
        again, adopts = [*rerun, *filter(None, [start])], adopt_all or start is not None
        state = self.state(job)[0]
        old = state.job
        if state.damage:
            raise Refused(against_damage(old, state.damage).text)
        if old.status not in RETRY_LEGAL:
            raise Refused(against_retry(old))
        if self._is_run_of_schedule(old):
            commands = self.again(old)
            remedy = f"see `{commands[0]}`" if commands else "this tick needs no other run"
            raise Refused(
                f"job {job} is a run of schedule {old.schedule}, which alone runs its ticks again; "
                f"{remedy}"
            )
        try:
            mended = JobSpec.of(old.written() if spec is None else spec, params or {})
            if spec is not None:
                check_tables(mended, self.settings, self._submitter.published_names)
            changed = mended.fingerprint != fingerprint_of(old.spec)
            word = secrets.token_hex(8)
            how = retried(state, again, adopts, word, changed=changed, take_over=take_over)
            return self._submitter.store_job(mended, old.warehouse, "", by, reason, how)
        except NotEnded as error:
            raise Refused(against_retry(replace(old, status=error.status))) from None
        except StandsAlready as error:
            raise Refused(
                f"job {job} was retried before, as job {error.job}, which published version "
                f"{error.result.version}. Redis has forgotten that job in a rollback. `unstuck "
                f"retry {job} --rerun GROUP` publishes once more"
            ) from None

    def again(self, job: JobRecord) -> tuple[str, ...] | None:
        """Return the commands that run the tick of an ended job again.

        Empty if the tick is done or skipped; None if a retry runs the job again.
        """
        if job.status not in RETRY_LEGAL or not self._is_run_of_schedule(job):
            return None
        return self.schedules.commands_that_run(job.schedule, tick_of_key(job.key) or 0.0)

    def _is_run_of_schedule(self, job: JobRecord) -> bool:
        """Return whether ``job`` is the run of a tick of an active schedule."""
        of_tick = job.schedule and not is_by_hand(job.key)
        return bool(of_tick) and self.schedules.goes_on(job.schedule)

    def state(self, job: str) -> tuple[JobState, float, float | None]:
        """Return the state of a job, the time of Redis, and its due time. Raises: NoSuchJob."""
        return self._found(job, self._queries.state(job))

    def job_record(self, job: str) -> JobRecord:
        """Return only the record. Force-stop needs nothing else, so it works on any damaged job.

        Raises: NoSuchJob.
        """
        return self._found(job, self._store.job(job))

    def _found(self, job: str, record: T | None) -> T:
        if record is None:
            raise NoSuchJob(
                f"no job {job} is in the store at {self.settings.prefix}; `unstuck list` shows "
                "what is"
            )
        return record

    def command(
        self, job: str, word: str, *, reason: str = "", by: str | None = None, **arguments: Any
    ) -> Commanded:
        """Give the command ``word`` of `COMMANDS` to a job or to one of its groups.

        See `Client.command`.
        """
        command = JUDGED[word]
        who, group = by or user_here(), str(arguments.get("group", ""))
        order = Order(who, reason, time.time(), self._applier.mint())

        def judge() -> tuple[JobRecord, Commanded]:
            if command.damaged_too:
                record = self.job_record(job)
                return record, command.handler(record, order, **arguments)
            state = self.state(job)[0]
            if state.damage:
                return state.job, against_damage(state.job, state.damage)
            return state.job, command.handler(state, order, **arguments)

        result = self._applier.apply(word, judge, reason, who, group, wait=command.settles)
        if result.answer is Answer.DONE:
            self._submitter.make_durable(f"job {job}")
        return result
