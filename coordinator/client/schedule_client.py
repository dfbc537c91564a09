"""The client of schedules: an app or the command line sets them, gives them commands and reads them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from unstuck.coordinator.commands.job_commands import Answer
from unstuck.coordinator.errors import BadRequest, Damaged, DatasetOwned, NoSuchSchedule, Refused
from unstuck.coordinator.model.listed_job import ListedJob
from unstuck.coordinator.model.schedule_record import Redo, ScheduleRecord
from unstuck.coordinator.model.size import compile_to_store
from unstuck.coordinator.model.tick import Tick, tick_text
from unstuck.coordinator.notices.known_targets import unknown_targets
from unstuck.coordinator.notices.rules.schedule_rules import told_of_removal
from unstuck.coordinator.publishing.last_run import last_run
from unstuck.coordinator.schedules.backfill import NO_TICKS, Bound, Ticks, Wanted
from unstuck.coordinator.schedules.decide_schedule import EMPTY_LOG, policy_of, settled
from unstuck.coordinator.schedules.explain import ScheduleExplanation, explain_schedule
from unstuck.coordinator.schedules.schedule_commands import (
    BackfillCommand,
    ScheduleCommand,
    ScheduleCommanded,
    backfill_command,
    begin_backfill,
    command,
    goes_on,
    run_by_hand,
    set_again,
    skip,
)
from unstuck.coordinator.schedules.schedule_facts import ScheduleResult
from unstuck.coordinator.schedules.schedule_view import BackfillTick, ScheduleView, view_of
from unstuck.coordinator.schedules.tick_params import run_spec, tick_params
from unstuck.coordinator.spec.checks.sql_tables import check_tables
from unstuck.coordinator.spec.checks.unused import doubts
from unstuck.coordinator.spec.model import JobSpec, Spec
from unstuck.coordinator.spec.schedule_spec import SEQUENTIAL, instant
from unstuck.coordinator.store.answers import CommitAnswer
from unstuck.coordinator.store.job_queries import Queries
from unstuck.coordinator.store.schedule_store import ScheduleChange, ScheduleStore
from unstuck.coordinator.submitter import Submitter
from unstuck.coordinator.views.jobs.job_views import idle
from unstuck.tasks.errors import UnstuckError
from unstuck.tasks.identity import user_here
from unstuck.tasks.protocol.processes import ProcessRegistry
from unstuck.tasks.warehouse.log import Warehouse


class ScheduleClient:
    """Set schedules and ask about them; `Client.schedules`."""

    def __init__(
        self,
        store: ScheduleStore,
        registry: ProcessRegistry,
        submitter: Submitter,
        queries: Queries,
        why_job: Callable[[str], str],
    ) -> None:
        """
        Args:
            registry: names the targets of notices that coordinators have.
            why_job: what a job waits for; empty if there is no such job.
        """
        self._why_job = why_job
        self._queries = queries
        self._submitter, self._settings = submitter, submitter.settings
        self._store, self._registry = store, registry

    def set(self, spec: Spec, *, take_over: bool = False, reason: str = "", by: str | None = None) -> ScheduleResult:
        """Make a schedule of a job spec, under its name, or change the one that there is. The same spec is no change.

        A schedule that is not there goes on from its last run that the warehouse knows: Redis may have lost it.

        Args:
            spec: a JobSpec, a Job, a mapping, or the path of a YAML or JSON file; its ``schedule:`` says when it runs.
            take_over: publish also datasets that another job owns. The job owns them once a run has published them.
            reason: why, for the event log of the schedule.
            by: who asks; the OS user by default.

        Returns: DONE; ALREADY: it is unchanged; REFUSED: the schedule has ended. ``warnings``: as of a submit.

        Raises:
            SpecError: the spec is wrong; nothing was stored.
            DatasetOwned: another job owns a dataset that the job publishes; nothing was stored.
            Unreachable: Redis could not be asked; asking again is safe.

        >>> client.schedules.set({**spec, "schedule": {"cron": "0 2 * * *", "zone": "UTC"}}).answer
        <Answer.DONE: 'DONE'>
        >>> client.schedules.names()
        ['sales']
        """
        job_spec = JobSpec.of(spec, {}, scheduled=True).in_zone(self._settings.time_zone)
        compile_to_store(job_spec)
        job_spec.check_zone(self._settings.time_zone)
        doubtful = check_tables(job_spec, self._settings, self._submitter.published_names)
        text = job_spec.to_json()
        new = ScheduleRecord(
            name=job_spec.name,
            commit="",
            spec=text,
            policy=json.dumps(json.loads(text).get("schedule") or {}),
            warehouse=self._settings.warehouse,
            builds_on=job_spec.builds_on,
            set_by=by or user_here(),
            take_over=take_over,
        )
        # It counts from now: what is published already makes no run.
        standing = self._store.published(new.warehouse, new.follows)
        new = replace(new, seen={name: version for name, (version, _) in standing.items()})
        trouble, old = "", self._store.load(new.name)
        if not (take_over or (old is not None and old.take_over)):
            self._check_owners(job_spec, new.warehouse)
        if old is None:
            new, trouble = self._after_its_last_run(new)
        result = self._write(lambda now: set_again(self._store.load(new.name), new, now, reason))
        warnings = (*doubts(job_spec), *doubtful, *unknown_targets(job_spec.notify, self._registry))
        return replace(result, text=result.text + trouble, warnings=tuple(map(str, warnings)))

    def _check_owners(self, job_spec: JobSpec, place: str) -> None:
        """Look whether another job owns a dataset of the job, if the warehouse answers. Raises: DatasetOwned."""
        try:
            self._submitter.check_owners(job_spec, place, f"schedule {job_spec.name} is not set")
        except DatasetOwned:
            raise
        except (UnstuckError, OSError):
            return  # the submit of each run looks again

    def _after_its_last_run(self, new: ScheduleRecord) -> tuple[ScheduleRecord, str]:
        """``new`` with its last run that the warehouse knows of: Redis may have lost the schedule.

        Returns: also what to say of that run, or if the warehouse could not be asked.
        """
        place = new.warehouse
        try:
            found = self._submitter.breaker.call(place, "it", lambda: last_run(Warehouse(place), new.name))
        except (UnstuckError, OSError) as error:
            return new, f"; its ticks count from now, whatever it ran before: {error}"
        if found is None:
            return new, ""
        told = (
            f"; it goes on from its last run, job {found.job}, which has published version {found.version} of {place}. "
            "If another fleet made it, remove this one and choose another name: no two may have one name in a warehouse"
        )
        return replace(new, last_success=found), told

    def command(self, name: str, given: ScheduleCommand, *, reason: str = "", by: str | None = None) -> ScheduleResult:
        """Pause, resume, run or stop a schedule. Durable and idempotent: repeating it changes nothing.

        Returns: DONE, ALREADY or REFUSED, with a sentence that says what holds and what can be done.

        Raises:
            NoSuchSchedule: there is no such schedule.
            Unreachable: Redis could not be asked; asking again is safe.
        """
        if given is ScheduleCommand.RESUME:
            return self._resume(name, reason, by or user_here())
        return self._write(lambda now: command(self._record(name), given, now, by or user_here(), reason))

    def _resume(self, name: str, reason: str, by: str) -> ScheduleResult:
        """Resume a schedule. Ticks that have a package in the warehouse log are done, and not skipped."""
        record, log, trouble = self._record(name), EMPTY_LOG, ""
        try:
            log = self._submitter.log_seen(record, record.cursor, self._store)
        except (UnstuckError, OSError) as error:
            trouble = f"; its past ticks are reported as skipped without a look at the warehouse log: {error}"
        result = self._write(lambda now: command(self._record(name), ScheduleCommand.RESUME, now, by, reason, log))
        return replace(result, text=result.text + trouble)

    def pause(self, name: str, *, reason: str = "", by: str | None = None) -> ScheduleResult:
        """Start no run any more, until `resume`; one that goes on may end. See `command`."""
        return self.command(name, ScheduleCommand.PAUSE, reason=reason, by=by)

    def resume(self, name: str, *, reason: str = "", by: str | None = None) -> ScheduleResult:
        """Go on with a schedule that is PAUSED or HALTED, with its full retry budget. See `command`."""
        return self.command(name, ScheduleCommand.RESUME, reason=reason, by=by)

    def run(
        self, name: str, *, params: Mapping[str, Any] | None = None, reason: str = "", by: str | None = None
    ) -> ScheduleResult:
        """Run now: what has failed is tried at once, or a run is made that belongs to no tick. See `command`.

        Args:
            params: values for parameters; with these, a run is made that belongs to no tick in any case.

        Raises: SpecError: the parameters are wrong; nothing was stored. Else as `command`.
        """
        if params is None:
            return self.command(name, ScheduleCommand.RUN, reason=reason, by=by)

        def judge(now: float) -> ScheduleCommanded:
            record = self._record(name)
            spec = JobSpec.from_values(json.loads(record.spec), None)
            values = run_spec(spec, datetime.fromtimestamp(now, UTC), params).values
            chosen = {param: values[param] for param in params}
            return run_by_hand(record, chosen, now, by or user_here(), reason)

        return self._write(judge)

    def stop(self, name: str, *, reason: str = "", by: str | None = None) -> ScheduleResult:
        """End a schedule for good; a run that goes on may end. See `command`."""
        return self.command(name, ScheduleCommand.STOP, reason=reason, by=by)

    def backfill(
        self,
        name: str,
        first: Bound,
        last: Bound | None = None,
        *,
        parallel: int = 1,
        redo: Redo = "none",
        backwards: bool = False,
        from_here: bool = False,
        reason: str = "",
        by: str | None = None,
    ) -> ScheduleResult:
        """Run the ticks of a time that is past. Coordinators do so; giving it again changes nothing.

        Args:
            first, last: times with their offset, or dates, which are days in the zone of the schedule; ends included.
                Without ``last``, up to the newest tick that has come.
            parallel: how many runs may go on at once.
            redo: of ticks that had a run before: ``none``, the ``failed``, or ``all`` are run again.
            backwards: begin with the newest tick.
            from_here: of a job whose runs build on each other: run ``first`` and all later ticks again, in order. The
                first of these runs reads the dataset as the tick before it left it.

        Returns: DONE, ALREADY or REFUSED, with a sentence.

        Raises:
            BadRequest: ``first`` or ``last`` is no time.
            NoSuchSchedule: there is no such schedule.
            Unreachable: Redis could not be asked; asking again is safe.
        """

        def judge(now: float) -> ScheduleCommanded:
            record = self._record(name)
            how: dict[str, Any] = {"parallel": parallel, "redo": "all" if from_here else redo, "backwards": backwards}
            wanted = _wanted(record, first, None if from_here else last, **how, from_here=from_here)
            ticks = self._store.ticks(name, 0.0) if record.builds_on else NO_TICKS
            reads, problem = self._state_before(record, wanted, ticks) if from_here else (None, "")
            if problem:
                return ScheduleCommanded(Answer.REFUSED, record, f"schedule {name} cannot be backfilled: {problem}")
            return begin_backfill(record, wanted, ticks, now, by or user_here(), reason, reads)

        return self._write(judge)

    def _state_before(self, record: ScheduleRecord, wanted: Wanted, ticks: Ticks) -> tuple[int | None, str]:
        """The version for the first run of ``wanted`` to read, as the tick before it left it; None: the newest.

        Returns: also why that is not known.
        """
        dataset, first, place = record.builds_on, wanted.first.timestamp(), record.warehouse
        published = [tick for tick in ticks.values() if tick.version]
        if dataset == SEQUENTIAL:
            return None, ""
        if before := [tick.version for tick in published if tick.at < first]:
            return before[-1], ""
        # Nothing was there before the schedule's first version: the log proves it, which outlives the ticks.
        oldest = min((tick.version - 1 for tick in published), default=None)
        standing = self._submitter.breaker.call(
            place,
            f"schedule {record.name} is not backfilled",
            lambda: Warehouse(place).state(oldest, removed=True).get(dataset),
        )
        if standing is None:
            return (None if oldest is None else 0), ""
        return None, (
            f"version {standing.changed} of {dataset} is not the result of a known tick before "
            f"{tick_text(first)}, so the first run cannot read it as it was then; give an earlier --from"
        )

    def skip(self, name: str, tick: Bound, *, reason: str = "", by: str | None = None) -> ScheduleResult:
        """Leave a tick out: it gets no run any more, and a backfill or retry that waits for it continues.

        Args:
            tick: a time with its offset.
            reason: why, for the event log of the schedule.

        Returns: DONE, ALREADY or REFUSED, with a sentence.

        Raises:
            BadRequest: ``tick`` is no time.
            NoSuchSchedule: there is no such schedule.
            Unreachable: Redis could not be asked; asking again is safe.
        """
        try:
            at = instant(tick).timestamp()
        except ValueError as error:
            raise BadRequest(str(error)) from None

        def judge(now: float) -> ScheduleCommanded:
            record, known = self._record(name), self._store.ticks(name, at, at)
            unnoted = [run.job_id(name) for run in record.going_on if run.tick == at and not run.job]
            stored = {job.id for job in self._queries.listed(unnoted)}
            return skip(record, known.get(at, Tick(at)), stored, now, by or user_here(), reason)

        return self._write(judge)

    def backfill_ticks(
        self, name: str, first: Bound, last: Bound | None = None, *, backwards: bool = False
    ) -> list[BackfillTick]:
        """The ticks that a backfill would have, in their order, with what their jobs get and their outcomes.

        Raises: as `backfill`, and BadRequest if there would be none or too many.
        """
        record, now = self._record(name), self._store.now()
        policy, wanted = policy_of(record.policy), _wanted(record, first, last, backwards=backwards)
        if wrong := wanted.problem(policy, now):
            raise BadRequest(f"schedule {name} cannot be backfilled: {wrong}")
        ticks = wanted.ticks(policy, now)
        params = json.loads(record.spec).get("params", {})
        known = self._store.ticks(name, *_ends(ticks))
        return [_backfill_tick(tick, tick_params(params, policy, tick), known) for tick in ticks]

    def command_backfill(
        self, name: str, given: BackfillCommand, *, reason: str = "", by: str | None = None
    ) -> ScheduleResult:
        """Pause, resume or cancel the backfill of a schedule; runs that go on may end. See `command`."""
        return self._write(lambda now: backfill_command(self._record(name), given, now, by or user_here(), reason))

    def remove(self, name: str, *, reason: str = "", by: str | None = None) -> str:
        """Forget a schedule; the jobs of its runs stay. Returns a text.

        Its event log, which says by whom and why, stays for the time of retention: `events` reads it.

        Raises:
            NoSuchSchedule: there is no such schedule.
            Refused: a run goes on, or is being submitted. Set again, the schedule would run beside it.
        """
        while True:
            now, who = self._store.now(), by or user_here()
            try:
                record = self._record(name)
            except Damaged:  # nobody can say whether a run goes on, and without this it could never be set again
                told, commit = [], self._store.last_commit(name)
            else:
                if why := goes_on(record):
                    raise Refused(why)
                told, commit = [notice.to_json() for notice in told_of_removal(record, who, now)], record.commit
            event = {"kind": "USER_REMOVE", "at": now, "by": who} | ({"text": reason} if reason else {})
            if self._store.remove(name, commit, event, self._settings.retention, told) is not CommitAnswer.CONFLICT:
                return f"schedule {name} is removed; the jobs of its runs stay"

    def goes_on(self, name: str) -> bool:
        """Whether there is such a schedule, and it has not ended."""
        record = self._store.load(name)
        return record is not None and not record.status.terminal

    def names(self) -> list[str]:
        """The names of all schedules, in order."""
        return self._store.names()

    def all(self) -> list[ScheduleView]:
        """All schedules, in the order of their names, but for those whose record cannot be read."""
        return self.all_and_unreadable()[0]

    def all_and_unreadable(self) -> tuple[list[ScheduleView], dict[str, str]]:
        """All schedules, and those whose record cannot be read, each with a sentence."""
        records, damaged = self._store.load_all(self.names())
        return self._views(records), damaged

    def unwell(self, *, overdue: float, behind: float, most: int) -> tuple[list[ScheduleView], dict[str, str]]:
        """The schedules that need a look: few of many, so only these are read.

        They are HALTED or tried again, their last run failed, or they are late or behind.

        Args:
            overdue: seconds after its time at which a schedule that nobody has decided is late.
            behind: seconds for which something may lie unread in its streams.
            most: of each kind.

        Returns: also those of them whose record cannot be read, each with a sentence.
        """
        records, unreadable = self._store.load_all(self._store.unwell(overdue, behind, most))
        return self._views(records), unreadable

    def _views(self, records: Sequence[ScheduleRecord]) -> list[ScheduleView]:
        names = [record.name for record in records]
        now, due, backlogs = self._store.now(), self._store.due_at(names), self._store.backlogs(names)
        published = self._store.published_of([(record.warehouse, record.follows) for record in records])
        runs = [run.job for record in records for run in record.going_on if run.job]
        jobs = {job.id: job.status for job in self._queries.listed(runs)}
        return [
            view_of(record, now, at, of_inputs, jobs, backlog)
            for record, at, of_inputs, backlog in zip(records, due, published, backlogs, strict=True)
        ]

    def show(self, name: str) -> ScheduleView:
        """How a schedule stands. Raises: NoSuchSchedule."""
        return self._views([self._record(name)])[0]

    def why(self, name: str) -> ScheduleExplanation:
        """Explain where a schedule stands, and what would help. Raises: NoSuchSchedule."""
        view = self.show(name)
        jobs = {run.job: self._why_job(run.job) for run in view.schedule.going_on if run.job}
        return explain_schedule(view, idle(self._queries, view.at), jobs)

    def events(self, name: str, most: int = 100) -> list[dict[str, Any]]:
        """The newest events of a schedule, also of a removed one, the oldest first. Raises: NoSuchSchedule."""
        found = self._store.events(name, most)
        if not found:
            self._record(name)
        return found

    def runs(self, name: str, most: int = 20) -> list[ListedJob]:
        """The jobs of its runs, the newest first. Raises: NoSuchSchedule."""
        self._record(name)
        return self.runs_of([name], most)[name]

    def runs_of(self, names: Sequence[str], most: int = 20) -> dict[str, list[ListedJob]]:
        """The jobs of the runs of several schedules, the newest first, at most so many of each."""
        found = dict(zip(names, self._store.runs_of(names, most), strict=True))
        listed = {job.id: job for job in self._queries.listed([job for jobs in found.values() for job in jobs])}
        return {name: [listed[job] for job in jobs if job in listed] for name, jobs in found.items()}

    def _record(self, name: str) -> ScheduleRecord:
        if (record := self._store.load(name)) is None:
            text = (
                f"no schedule {name} is in the store at {self._settings.prefix}; `unstuck schedule list` shows what is"
            )
            for event in self._store.events(name, 1):
                why = f": {event['text']}" if event.get("text") else ""
                text = f"{event.get('by', 'somebody')} removed schedule {name} at {tick_text(int(event['at']))}{why}"
            raise NoSuchSchedule(text)
        return record

    def _write(self, judge: Callable[[float], ScheduleCommanded]) -> ScheduleResult:
        """Judge and write a command until it is on record or refused, with one id for all tries."""
        command_id = secrets.token_hex(8)
        while True:
            now = self._store.now()
            result = judge(now)
            if result.answer is not Answer.DONE:
                return ScheduleResult.of(result)
            record = settled(result.record, now)
            change = ScheduleChange(command_id, record.commit, record, result.events, due=now, commanded=True)
            if self._store.commit(change) is CommitAnswer.APPLIED:
                self._submitter.make_durable(f"schedule {record.name}")
                return ScheduleResult.of(replace(result, record=record))


def _ends(ticks: Sequence[datetime]) -> tuple[float, float]:
    stamps = [tick.timestamp() for tick in ticks]
    return min(stamps), max(stamps)


def _backfill_tick(tick: datetime, params: Mapping[str, str], known: Ticks) -> BackfillTick:
    found = known.get(tick.timestamp(), Tick(tick.timestamp()))
    return BackfillTick(tick, params, found.job, found.outcome)


def _wanted(record: ScheduleRecord, first: Bound, last: Bound | None, **more: Any) -> Wanted:
    """Raises: BadRequest."""
    try:
        return Wanted.between(policy_of(record.policy), first, last, **more)
    except ValueError as error:
        raise BadRequest(f"{error}; or a date such as 2026-12-31, which is a day in the zone of the schedule") from None
