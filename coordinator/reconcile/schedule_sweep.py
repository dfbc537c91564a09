"""Decides the schedules that are due, and submits their runs in the background.

A submit reads the warehouse, which may take long.
"""

from __future__ import annotations

import datetime
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import redis

from unstuck.coordinator.commands.retry_job import retried
from unstuck.coordinator.errors import Damaged, DatasetOwned, NewerJob
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import Run, ScheduleRecord
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.publishing.background import Background
from unstuck.coordinator.reconcile.schedule_notices import NO_RULES, ScheduleNotices
from unstuck.coordinator.reconcile.stream_looks import (
    LOOK_EVERY,
    StreamLooks,
    place_of,
    reads_streams,
)
from unstuck.coordinator.schedules.backfill import NO_TICKS, Ticks, window
from unstuck.coordinator.schedules.decide_schedule import (
    ScheduleDecision,
    decide,
    earliest_package,
    settled,
)
from unstuck.coordinator.schedules.run_outcome import RunSeen, seen_as, seen_in_log
from unstuck.coordinator.schedules.steps import NOT_READ, LogSeen, policy_of
from unstuck.coordinator.schedules.submission import (
    Noted,
    not_submitted,
    nothing_new,
    stood_already,
    submitted,
)
from unstuck.coordinator.schedules.tick_params import reading, run_spec
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.problems import SpecError
from unstuck.coordinator.store.answers import CommitAnswer, KeyTaken
from unstuck.coordinator.store.job_store import Store
from unstuck.coordinator.store.schedule_store import ScheduleChange, ScheduleStore
from unstuck.coordinator.submitter import OfSchedule, StandsAlready, Submitter
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.log_lines import about
from unstuck.tasks.transport.redis_client import unavailable

log = logging.getLogger(__name__)
REPAIR_EVERY = 60.0  # seconds
TURN = 5.0  # seconds for which one sweep decides schedules before it decides jobs
_SUBMITTED = ("RUN_SUBMITTED", "RUN_STANDS")
MAX_TRIES = 100  # of one commit, if others come first
_MAX_REASON = 2000  # characters
_MAX_DAMAGE = 1800  # characters, which leave room for the remedy
_MAX_ERROR = 500  # characters of an unexpected error


class NotWanted(Exception):
    """The schedule no longer needs the run, or not now."""


Note = Callable[[ScheduleRecord, float], Noted]
"""Notes on the record, as it stands at a time, how the try to submit a run ended."""


class ScheduleSweep:
    """Decides schedules, one at a time.

    Two coordinators may do so at once: each commit is a compare-and-set.
    """

    def __init__(
        self,
        schedules: ScheduleStore,
        jobs: Store,
        submitter: Submitter,
        background: Background,
        ids: Callable[[], str],
        term: float,
        clock: Callable[[], float] = time.monotonic,
        notices: ScheduleNotices = NO_RULES,
        looks: StreamLooks | None = None,
    ) -> None:
        """Create the object.

        Args:
            background: submits outside the caller's thread.
            ids: creates random words for commit ids.
            term: seconds for which other coordinators leave a schedule to this one. If two decide
                the same, a commit compares, and a key has one job.
            clock: monotonic seconds.
            notices: adds notices to its commits.
            looks: reads the backlogs of streams; None: a `StreamLooks` on ``background``.
        """
        self._notices = notices
        self._schedules, self._jobs, self._submitter = schedules, jobs, submitter
        self._background, self._ids = background, ids
        self._term = term
        self._clock, self._next_repair = clock, 0.0
        self._looks = looks or StreamLooks(schedules, background, notices.concern_backlog)

    def run(self, after_each: Callable[[], None] = lambda: None) -> float:
        """Decide the schedules that are due. Returns the seconds until the next is due.

        Schedules that are left after `TURN` seconds stay due, so that jobs get their turn.

        Args:
            after_each: called after each schedule.

        Raises: redis.RedisError: they stay due.
        """
        if self._clock() >= self._next_repair:
            self._schedules.repair()  # if it raises, the next sweep tries it
            self._next_repair = self._clock() + REPAIR_EVERY
        until = self._clock() + TURN
        while self._clock() < until:
            wait, due = self._schedules.take_due(self._term)
            if not due:
                return wait
            for name, due_seen in due.items():
                with about(schedule=name):
                    reach(Point.AFTER_TAKE, name)
                    try:
                        self.decide(name, due_seen)
                    except Exception as error:
                        if unavailable(error):
                            raise
                        # It concerns this schedule alone, which is due again when its term is over.
                        log.exception("schedule %s could not be decided; it stays due", name)
                after_each()
        return 0.0

    def decide(self, name: str, due_seen: str = "", log_seen: LogSeen = NOT_READ) -> None:
        """Decide one schedule, and submit its runs.

        Before a tick is skipped, the warehouse log is read.
        """
        for _ in range(MAX_TRIES):
            record = self._schedules.load(name)
            if record is None or self._decide_once(record, due_seen, log_seen):
                return
        log.warning(
            "schedule %s was not decided: %d commits of others came first; it is decided again "
            "when it is due",
            name,
            MAX_TRIES,
        )

    def _decide_once(self, record: ScheduleRecord, due_seen: str, log_seen: LogSeen) -> bool:
        """Decide and commit once. Return False if another commit came first."""
        runs = self._runs_of(record)
        published = self._schedules.published(record.warehouse, record.follows)
        streams = reads_streams(record.spec) and not record.status.terminal
        backlog = self._schedules.backlogs([record.name])[0] if streams else None
        # After all reads, so that a wait counts from the failure.
        now = self._schedules.now()
        ticks = self._ticks_of_backfill(record)
        decision = decide(record, runs, now, published, self._term, ticks, log_seen)
        if streams and decision.due is not None:
            decision = replace(decision, due=min(decision.due, now + LOOK_EVERY))
        after, notices, due = self._notices.completed(
            record,
            decision.record,
            decision.events,
            decision.due,
            now,
            jobs={job: state.status for job, state in runs.items()},
            published=published,
            backlog=backlog,
        )
        decision = replace(decision, record=after, due=due)
        if self._commit(record, decision, due_seen, notices) is not CommitAnswer.APPLIED:
            return False
        self._forget_runs(decision)
        if streams:
            self._looks.begin(record, backlog, now)
        self._begin_work(record, decision, now)
        return True

    def _runs_of(self, record: ScheduleRecord) -> dict[str, RunSeen]:
        """Return the stored jobs of the runs of a schedule."""
        jobs = [run.job or run.job_id(record.name) for run in record.going_on]
        states = {job: self._seen(job) for job in jobs}
        return {job: job_state for job, job_state in states.items() if job_state is not None}

    def _begin_work(self, record: ScheduleRecord, decision: ScheduleDecision, now: float) -> None:
        """Begin to read the warehouse log and to submit runs, in the background."""
        name = record.name
        if decision.read_log_since is not None:
            work = partial(self._decide_by_log, record, decision.read_log_since)
            self._background((name, "skip"), record.warehouse, work)
        looks = policy_of(decision.record.policy).only_if is not None
        place = place_of(record) if looks else record.warehouse
        for run in decision.submits(now):
            submit = partial(self._submit, name, run)
            self._background((name, run.tick, run.number), place, submit)

    def _decide_by_log(
        self, record: ScheduleRecord, first: float, alive: Callable[[], None]
    ) -> None:
        """Decide a schedule that would skip ticks, after reading the warehouse log.

        Args:
            first: the first tick to skip.
        """
        with about(schedule=record.name):
            try:
                self.decide(
                    record.name, log_seen=self._submitter.log_seen(record, first, self._schedules)
                )
            except Exception as error:  # noqa: BLE001 - a warehouse's client may raise anything
                text = "ticks of schedule %s wait until the warehouse log can be read: %s"
                log.warning(text, record.name, error)

    def _ticks_of_backfill(self, record: ScheduleRecord) -> Ticks:
        fill = record.backfill
        bounds = None if fill is None else window(fill, policy_of(fill.policy))
        return NO_TICKS if bounds is None else self._schedules.ticks(record.name, *bounds)

    def _commit(
        self, old: ScheduleRecord, decision: ScheduleDecision, due_seen: str, notices: Sequence[str]
    ) -> CommitAnswer:
        runs = {
            event["job"]: event["at"] for event in decision.events if event["kind"] in _SUBMITTED
        }
        more: dict[str, Any] = {"due": decision.due, "due_seen": due_seen, "notices": notices}
        change = ScheduleChange(
            self._ids(), old.commit, decision.record, decision.events, runs, **more
        )
        return self._schedules.commit(change)

    def _forget_runs(self, decision: ScheduleDecision) -> None:
        """Remove the oldest runs from the store, but none whose work another try adopts."""
        record = decision.record
        retrying = record.retries or any(run.number > 1 for run in record.going_on)
        if not retrying and any(event["kind"].startswith("RUN_") for event in decision.events):
            self._schedules.forget_runs(record.name, policy_of(record.policy).keep_runs)

    def _seen(self, job: str) -> RunSeen | None:
        """Return the state of the job of a run; None if it is not stored."""
        try:
            record = self._jobs.job(job)
        except NewerJob:
            log.warning("job %s is left for a newer coordinator, which says how it stands", job)
            return RunSeen(Status.RUNNING)
        if record is None:
            return None
        state = None
        if record.status is Status.FAILED:
            try:
                state = self._jobs.load(job)
            except (Damaged, NewerJob):
                text = "the groups of job %s cannot be read: whether it can be retried is unknown"
                log.warning(text, job)
        return seen_as(record, state)

    def _submit(self, name: str, run: Run, alive: Callable[[], None]) -> None:
        """Submit ``run``, and note how that ended.

        What is not noted is submitted again, which is the same job.
        """
        with about(schedule=name):
            try:
                self._note(name, run, self._tried(self._wanted(name, run), run))
            except NotWanted:
                return
            except redis.RedisError as error:
                log.warning(
                    "a run of schedule %s could not be submitted; it is tried again: %s",
                    name,
                    error,
                )

    def _wanted(self, name: str, run: Run) -> ScheduleRecord:
        """Return the record of a schedule that still requests ``run``.

        Raises: NotWanted: a person may have paused or stopped it while the run waited for room, or
        for its warehouse.
        """
        record, now = self._schedules.load(name), self._schedules.now()
        due_runs = [] if record is None else ScheduleDecision(record, (), None).submits(now)
        if record is None or run.key(name) not in [due_run.key(name) for due_run in due_runs]:
            raise NotWanted(run.key(name))
        return record

    def _tried(self, record: ScheduleRecord, run: Run) -> Note:
        """Submit ``run``. Returns how that is noted on the record. Raises: redis.RedisError."""
        try:
            spec = self._spec_of(record, run)
            if self._waits_for_arrivals(record, run, spec):
                return lambda current, now: nothing_new(current, run, now)
            job, backfill = self._store_job(record, run, spec)
        except StandsAlready as error:
            job, result = error.job, error.result
            return lambda current, now: stood_already(
                current, run, job, seen_in_log(result, now), now
            )
        except SpecError as error:
            wrong = Reason("SPEC_INVALID", str(error)[:_MAX_REASON])
            return lambda current, now: not_submitted(current, run, wrong, True, now)
        except DatasetOwned as error:
            owned = Reason(error.code, str(error)[:_MAX_REASON])
            return lambda current, now: not_submitted(current, run, owned, True, now)
        except (Damaged, NewerJob) as error:
            damaged = isinstance(error, Damaged)
            helps = (
                f". `unstuck schedule resume {record.name}` runs its tick from the start"
                if damaged
                else ""
            )
            text = f"job {run.retry_of}, which is to be tried again, cannot be read: {error}"
            unread = Reason(error.code, text[:_MAX_DAMAGE] + helps)
            return lambda current, now: not_submitted(current, run, unread, damaged, now)
        except (redis.RedisError, NotWanted):
            raise
        except Exception as error:  # noqa: BLE001 - a warehouse's client may raise anything
            text = f"{type(error).__name__}: {error}"[:_MAX_ERROR]
            why = Reason(getattr(error, "code", "NOT_SUBMITTED"), text)
            return lambda current, now: not_submitted(current, run, why, False, now)
        return lambda current, now: submitted(current, run, job, backfill, now)

    def _waits_for_arrivals(self, record: ScheduleRecord, run: Run, spec: JobSpec) -> bool:
        """Return whether a tick gets no run, since no data has arrived.

        Raises: as `StreamLooks.look`.
        """
        if policy_of(record.policy).only_if != "arrived" or run.by or run.number > 1:
            return False
        if self._jobs.job(run.job_id(record.name)) is not None:
            # It was submitted, which is not recorded: it may have read the new data.
            return False
        return not any(stream.arrived for stream in self._looks.look(record, spec).streams.values())

    def _spec_of(self, record: ScheduleRecord, run: Run) -> JobSpec:
        """Return the job spec of ``run``. Raises: SpecError."""
        tick = datetime.datetime.fromtimestamp(run.tick, datetime.UTC)
        spec = JobSpec.from_values(json.loads(record.spec), None)
        if not run.backfill or record.backfill is None:
            return run_spec(spec, tick, run.params)
        fill = record.backfill
        # Its ticks are those of the trigger with which it was given: another zone would name other
        # days.
        spec = spec.model_copy(update={"schedule": policy_of(fill.policy), "priority": "low"})
        if fill.reads is not None and run.tick == fill.first:
            spec = reading(spec, record.builds_on, fill.reads)
        return run_spec(spec, tick)

    def _store_job(self, record: ScheduleRecord, run: Run, spec: JobSpec) -> tuple[str, str]:
        """Store the job of a run, if its tick has none yet.

        Returns: its id, and the backfill that submitted it, if one did.

        Raises:
            NotWanted: the schedule no longer requests the run.
            Damaged, NewerJob: the job to retry cannot be read.
            Exception: as `Submitter.store_job`.
        """
        name = record.name
        key, by = run.key(name), run.by or f"schedule {name}"
        fields = {
            "id": run.job_id(name),
            "schedule": name,
            "backfill": run.backfill,
            "package_id": run.package_id(name),
            "take_over": record.take_over,
        }
        reach(Point.BEFORE_SUBMIT, name)
        again = None
        failed = self._jobs.load(run.retry_of) if run.retry_of else None
        if failed is not None and failed.job.warehouse == record.warehouse:
            again = retried(failed, rerun=(), adopt_all=False, word="")
        try:
            since = earliest_package(record, run.tick, run.after)
            of = OfSchedule(since, lambda: self._wanted(name, run).commit)
            stored = self._submitter.store_job(
                spec, record.warehouse, key, by, reason="", again=again, fields=fields, run=of
            )
            if stored.new:
                return stored.id, run.backfill
            job = stored.id
        except KeyTaken as taken:
            job = taken.job  # submitted before the spec was changed
        # The clock decides each tick once, and so its run was begun by a coordinator that had no
        # time to note it.
        job_state = self._seen(job) if run.backfill else None
        return job, run.backfill if job_state is None else job_state.backfill

    def _note(self, name: str, run: Run, noted: Note) -> None:
        for _ in range(MAX_TRIES):
            record, now = self._schedules.load(name), self._schedules.now()
            if record is None:
                return
            if (result := noted(record, now)) is None:
                return
            changed, events = settled(result[0], now), result[1]
            runs = {event["job"]: now for event in events if event.get("job")}
            changed, notices, _ = self._notices.completed(record, changed, events, now, now)
            change = ScheduleChange(
                self._ids(), record.commit, changed, events, runs, due=now, notices=notices
            )
            if self._schedules.commit(change) is CommitAnswer.APPLIED:
                return
        log.warning(
            "a run of schedule %s was not recorded: %d commits of others came first; it is "
            "submitted again, which returns the same job",
            name,
            MAX_TRIES,
        )
