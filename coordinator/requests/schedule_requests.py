"""Requests about schedules: set, commands, remove. Each is stored when its method returns."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

from unstuck.coordinator.command_table import (
    Answer,
    Arg,
    By,
    Command,
    Params,
    Reason,
    TargetKind,
)
from unstuck.coordinator.errors import BadRequest, Damaged, DatasetOwned, NoSuchSchedule, Refused
from unstuck.coordinator.model.schedule_record import Redo, ScheduleRecord, ScheduleStatus
from unstuck.coordinator.model.size import compile_to_store
from unstuck.coordinator.model.tick import Tick, TickOutcome, tick_text
from unstuck.coordinator.notices.known_targets import unknown_targets
from unstuck.coordinator.notices.rules.schedule_rules import notice_of_removal
from unstuck.coordinator.publishing.last_run import last_run
from unstuck.coordinator.schedules.backfill import NO_TICKS, Bound, Ticks, Wanted
from unstuck.coordinator.schedules.decide_schedule import settled
from unstuck.coordinator.schedules.schedule_commands import (
    ScheduleCommanded,
    backfill_command,
    begin_backfill,
    command,
    command_that_runs,
    goes_on,
    run_by_hand,
    set_again,
    skip,
)
from unstuck.coordinator.schedules.schedule_result import ScheduleResult
from unstuck.coordinator.schedules.steps import EMPTY_LOG, policy_of
from unstuck.coordinator.schedules.tick_params import run_spec
from unstuck.coordinator.spec.checks.sql_tables import check_tables
from unstuck.coordinator.spec.checks.unused import doubts
from unstuck.coordinator.spec.model import JobSpec, Spec
from unstuck.coordinator.spec.schedule_spec import SEQUENTIAL, instant
from unstuck.coordinator.store.answers import CommitAnswer
from unstuck.coordinator.store.job_queries import Queries
from unstuck.coordinator.store.schedule_store import ScheduleChange, ScheduleStore
from unstuck.coordinator.submitter import Submitter
from unstuck.tasks.errors import UnstuckError
from unstuck.tasks.identity import user_here
from unstuck.tasks.protocol.processes import ProcessRegistry
from unstuck.tasks.warehouse.log import Warehouse

_OPEN = frozenset(status for status in ScheduleStatus if not status.terminal)
_NOT_STOPPED = frozenset(ScheduleStatus) - {ScheduleStatus.STOPPED}
_TIME = (
    "A time with its offset, as 2026-01-01T00:00Z, or a date: a day in the zone of the schedule."
)


class ScheduleRequests:
    """Set schedules and give them commands.

    Commands are durable and idempotent: repeating them changes nothing. They answer DONE, ALREADY
    or REFUSED, with a sentence about the state and possible commands. They raise `NoSuchSchedule`,
    and `Unreachable` if Redis could not be reached; repeating the call is safe.
    """

    def __init__(
        self,
        store: ScheduleStore,
        registry: ProcessRegistry,
        submitter: Submitter,
        queries: Queries,
    ) -> None:
        """``registry``: names the targets of notices that coordinators have."""
        self._queries = queries
        self._submitter, self._settings = submitter, submitter.settings
        self._store, self._registry = store, registry

    def set(
        self, spec: Spec, *, take_over: bool = False, reason: str = "", by: str | None = None
    ) -> ScheduleResult:
        """Create a schedule from a job spec, or change the schedule of its name.

        The same spec is no change. A schedule that is not in the store continues after its last run
        in the warehouse log, because Redis may have lost it.

        Args:
            spec: a JobSpec, a Job, a mapping, or the path of a YAML or JSON file; its ``schedule:``
                says when it runs.
            take_over: publish also datasets that another job owns. The job owns them once a run has
                published them.
            reason: why, for the event log of the schedule.
            by: who asks; the OS user by default.

        Returns: DONE; ALREADY: it is unchanged; REFUSED: the schedule has ended. ``warnings``: as
        of a submit.

        Raises:
            SpecError: the spec is wrong; nothing was stored.
            DatasetOwned: another job owns a dataset that the job publishes; nothing was stored.
            Unreachable: Redis could not be reached; repeating the call is safe.

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
        versions = self._store.published(new.warehouse, new.follows)
        new = replace(new, followed={name: version for name, (version, _) in versions.items()})
        trouble, old = "", self._store.load(new.name)
        if not (take_over or (old is not None and old.take_over)):
            self._check_owners(job_spec, new.warehouse)
        if old is None:
            new, trouble = self._after_its_last_run(new)
        result = self._write(lambda now: set_again(self._store.load(new.name), new, now, reason))
        warnings = (*doubts(job_spec), *doubtful, *unknown_targets(job_spec.notify, self._registry))
        return replace(result, text=result.text + trouble, warnings=tuple(map(str, warnings)))

    def _check_owners(self, job_spec: JobSpec, place: str) -> None:
        """Check that no other job owns a dataset of the job, if the warehouse answers.

        Raises: DatasetOwned.
        """
        try:
            self._submitter.check_owners(job_spec, place, f"schedule {job_spec.name} is not set")
        except DatasetOwned:
            raise
        except (UnstuckError, OSError):
            return  # the submit of each run looks again

    def _after_its_last_run(self, new: ScheduleRecord) -> tuple[ScheduleRecord, str]:
        """Return ``new`` with its last run in the warehouse log: Redis may have lost the schedule.

        Returns: also a sentence about that run, or about an unreachable warehouse.
        """
        place = new.warehouse
        try:
            newest_run = self._submitter.breaker.call(
                place, "it", lambda: last_run(Warehouse(place), new.name)
            )
        except (UnstuckError, OSError) as error:
            return new, f"; its ticks count from now, whatever it ran before: {error}"
        if newest_run is None:
            return new, ""
        text = (
            f"; it goes on from its last run, job {newest_run.job}, which has published version "
            f"{newest_run.version} of {place}. If another fleet made it, remove this one and "
            "choose another name: no two may have one name in a warehouse"
        )
        return replace(new, last_success=newest_run), text

    @Command(
        "pause",
        TargetKind.SCHEDULE,
        "unstuck schedule pause nightly",
        legal=_OPEN - {ScheduleStatus.PAUSED},
    )
    def pause(self, name: str, *, reason: Reason = "", by: By = None) -> ScheduleResult:
        """Start no runs until it is resumed. A started run may end."""
        return self._command(name, "pause", reason, by)

    @Command(
        "resume",
        TargetKind.SCHEDULE,
        "unstuck schedule resume nightly",
        legal={ScheduleStatus.PAUSED, ScheduleStatus.HALTED},
    )
    def resume(self, name: str, *, reason: Reason = "", by: By = None) -> ScheduleResult:
        """Continue a PAUSED or HALTED schedule from now on, with its full retry budget.

        Refused in RETRYING, because the schedule retries by itself.
        """
        return self._resume(name, reason, by or user_here())

    @Command(
        "run",
        TargetKind.SCHEDULE,
        "unstuck schedule run nightly --param day=2026-01-02",
        legal=_OPEN,
    )
    def run(
        self, name: str, *, params: Params = None, reason: Reason = "", by: By = None
    ) -> ScheduleResult:
        """Run now: retry what has failed, or start a run without a tick.

        With parameters, make such a run always.

        Raises: SpecError: the parameters are wrong; nothing was stored.
        """
        if params is None:
            return self._command(name, "run", reason, by)

        def judge(now: float) -> ScheduleCommanded:
            record = self._record(name)
            spec = JobSpec.from_values(json.loads(record.spec), None)
            values = run_spec(spec, datetime.fromtimestamp(now, UTC), params).values
            chosen = {param: values[param] for param in params}
            return run_by_hand(record, chosen, now, by or user_here(), reason)

        return self._write(judge)

    @Command("stop", TargetKind.SCHEDULE, "unstuck schedule stop nightly", legal=_OPEN, ends=True)
    def stop(self, name: str, *, reason: Reason = "", by: By = None) -> ScheduleResult:
        """End the schedule for good. A started run may end."""
        return self._command(name, "stop", reason, by)

    def _command(self, name: str, word: str, reason: str, by: str | None) -> ScheduleResult:
        return self._write(
            lambda now: command(self._record(name), word, now, by or user_here(), reason)
        )

    def _resume(self, name: str, reason: str, by: str) -> ScheduleResult:
        """Resume a schedule.

        Ticks with a package in the warehouse log count as done, not as skipped.
        """
        record, log, trouble = self._record(name), EMPTY_LOG, ""
        try:
            log = self._submitter.log_seen(record, record.cursor, self._store)
        except (UnstuckError, OSError) as error:
            trouble = (
                "; its past ticks are reported as skipped without a look at the warehouse "
                f"log: {error}"
            )
        result = self._write(
            lambda now: command(self._record(name), "resume", now, by, reason, log)
        )
        return replace(result, text=result.text + trouble)

    @Command(
        "backfill",
        TargetKind.SCHEDULE,
        "unstuck schedule backfill nightly --from 2026-01-01 --to 2026-01-31",
        legal=_NOT_STOPPED,
    )
    def backfill(
        self,
        name: str,
        first: Annotated[Bound, Arg(_TIME, "from", "--from", "TIME", wire=str)],
        last: Annotated[
            Bound | None,
            Arg(
                "Likewise; included. Left out: the newest tick that has come.",
                "to",
                metavar="TIME",
                wire=str | None,
            ),
        ] = None,
        *,
        parallel: Annotated[int, Arg("The number of runs at once.")] = 1,
        redo: Annotated[
            Redo, Arg("Of ticks that had a run before: run none, the failed, or all again.")
        ] = "none",
        backwards: Annotated[bool, Arg("Begin with the newest tick.")] = False,
        from_here: Annotated[
            bool, Arg("Of runs that build on each other: run --from and all later ticks again.")
        ] = False,
        reason: Reason = "",
        by: By = None,
    ) -> ScheduleResult:
        """Run past ticks at low priority. Coordinators run them, whatever happens to this process.

        A repeated command continues with missing ticks. A tick that had a run is left as it is,
        unless `redo` says otherwise. If the runs of a job build on each other, the first run reads
        the dataset as the tick before it left it.

        Raises: BadRequest: ``first`` or ``last`` is no time.
        """

        def judge(now: float) -> ScheduleCommanded:
            record = self._record(name)
            how: dict[str, Any] = {
                "parallel": parallel,
                "redo": "all" if from_here else redo,
                "backwards": backwards,
            }
            requested = wanted_ticks(
                record, first, None if from_here else last, **how, from_here=from_here
            )
            ticks = self._store.ticks(name, 0.0) if record.builds_on else NO_TICKS
            reads, problem = (
                self._state_before(record, requested, ticks) if from_here else (None, "")
            )
            if problem:
                return ScheduleCommanded(
                    Answer.REFUSED, record, f"schedule {name} cannot be backfilled: {problem}"
                )
            return begin_backfill(record, requested, ticks, now, by or user_here(), reason, reads)

        return self._write(judge)

    def _state_before(
        self, record: ScheduleRecord, requested: Wanted, ticks: Ticks
    ) -> tuple[int | None, str]:
        """Return the version that the first run of ``requested`` reads; None: the newest.

        It is the version that the tick before it left.

        Returns: also why that is not known.
        """
        dataset, first, place = record.builds_on, requested.first.timestamp(), record.warehouse
        published = [tick for tick in ticks.values() if tick.version]
        if dataset == SEQUENTIAL:
            return None, ""
        if before := [tick.version for tick in published if tick.at < first]:
            return before[-1], ""
        # Nothing was there before the schedule's first version: the log proves it, which outlives
        # the ticks.
        oldest = min((tick.version - 1 for tick in published), default=None)
        dataset_state = self._submitter.breaker.call(
            place,
            f"schedule {record.name} is not backfilled",
            lambda: Warehouse(place).state(oldest, removed=True).get(dataset),
        )
        if dataset_state is None:
            return (None if oldest is None else 0), ""
        return None, (
            f"version {dataset_state.changed} of {dataset} is not the result of a known tick "
            f"before {tick_text(first)}, so the first run cannot read it as it was then; give an "
            "earlier --from"
        )

    @Command(
        "skip",
        TargetKind.SCHEDULE,
        "unstuck schedule skip nightly 2026-01-02T01:30:00Z --reason 'no source'",
        legal=_NOT_STOPPED,
    )
    def skip(
        self,
        name: str,
        tick: Annotated[Bound, Arg("A time with its offset, as `show` prints it.", wire=str)],
        *,
        reason: Reason = "",
        by: By = None,
    ) -> ScheduleResult:
        """Skip a tick: it gets no run, and a backfill or retry that waits for it continues.

        Raises: BadRequest: ``tick`` is no time.
        """
        try:
            at = instant(tick).timestamp()
        except ValueError as error:
            raise BadRequest(str(error)) from None

        def judge(now: float) -> ScheduleCommanded:
            record, ticks = self._record(name), self._store.ticks(name, at, at)
            unnoted = [
                run.job_id(name) for run in record.going_on if run.tick == at and not run.job
            ]
            stored = {json.loads(line)["id"] for line in self._queries.summaries(unnoted)}
            return skip(record, ticks.get(at, Tick(at)), stored, now, by or user_here(), reason)

        return self._write(judge)

    @Command(
        "pause-backfill",
        TargetKind.BACKFILL,
        "unstuck schedule pause-backfill nightly",
        legal={"RUNNING", "FAILED"},
    )
    def pause_backfill(self, name: str, *, reason: Reason = "", by: By = None) -> ScheduleResult:
        """Start no runs of the backfill until it is resumed. Started runs may end."""
        return self._command_backfill(name, "pause", reason, by)

    @Command(
        "resume-backfill",
        TargetKind.BACKFILL,
        "unstuck schedule resume-backfill nightly",
        legal={"PAUSED", "FAILED"},
    )
    def resume_backfill(self, name: str, *, reason: Reason = "", by: By = None) -> ScheduleResult:
        """Continue a PAUSED or FAILED backfill. Failed ticks run again."""
        return self._command_backfill(name, "resume", reason, by)

    @Command(
        "cancel-backfill",
        TargetKind.BACKFILL,
        "unstuck schedule cancel-backfill nightly",
        legal={"RUNNING", "PAUSED", "FAILED"},
        ends=True,
    )
    def cancel_backfill(self, name: str, *, reason: Reason = "", by: By = None) -> ScheduleResult:
        """Start no more runs of the backfill, and acknowledge its failed ticks."""
        return self._command_backfill(name, "cancel", reason, by)

    def _command_backfill(
        self, name: str, word: str, reason: str, by: str | None
    ) -> ScheduleResult:
        return self._write(
            lambda now: backfill_command(self._record(name), word, now, by or user_here(), reason)
        )

    @Command(
        "remove",
        TargetKind.SCHEDULE,
        "unstuck schedule remove nightly",
        legal=frozenset(ScheduleStatus),
        ends=True,
    )
    def remove(self, name: str, *, reason: Reason = "", by: By = None) -> ScheduleResult:
        """Remove a schedule. Its jobs stay, and its event log stays for the retention.

        Raises:
            Refused: a run is active, or is being submitted. Set again, the schedule would start a
                second one.
        """
        while True:
            now, who = self._store.now(), by or user_here()
            try:
                record = self._record(name)
            except Damaged:
                # It is unknown whether a run is active. If this failed, the schedule could never be
                # set again.
                notices, commit = [], self._store.last_commit(name)
            else:
                if why := goes_on(record):
                    raise Refused(why)
                notices, commit = (
                    [notice.to_json() for notice in notice_of_removal(record, who, now)],
                    record.commit,
                )
            event = {"kind": "USER_REMOVE", "at": now, "by": who} | (
                {"text": reason} if reason else {}
            )
            if (
                self._store.remove(name, commit, event, self._settings.retention, notices)
                is not CommitAnswer.CONFLICT
            ):
                text = f"schedule {name} is removed; the jobs of its runs stay"
                return ScheduleResult(name, Answer.DONE, text)

    def commands_that_run(self, name: str, tick: float) -> tuple[str, ...]:
        """Return the command that runs a tick again; none if it is done or skipped.

        Raises: NoSuchSchedule.
        """
        record = self._record(name)
        ticks = self._store.ticks(name, *((0.0,) if record.builds_on else (tick, tick)))
        current = ticks.get(tick, Tick(tick))
        if current.outcome in (TickOutcome.DONE, TickOutcome.SKIPPED):
            return ()
        if current.outcome is TickOutcome.RUNNING:
            return (f"unstuck schedule why {name}",)
        return (command_that_runs(record, current, ticks, self._store.now()),)

    def goes_on(self, name: str) -> bool:
        """Return whether the schedule exists and is not over."""
        record = self._store.load(name)
        return record is not None and not record.status.terminal

    def _record(self, name: str) -> ScheduleRecord:
        if (record := self._store.load(name)) is None:
            text = (
                f"no schedule {name} is in the store at {self._settings.prefix}; `unstuck "
                "schedule list` shows what is"
            )
            for event in self._store.events(name, 1):
                why = f": {event['text']}" if event.get("text") else ""
                text = (
                    f"{event.get('by', 'somebody')} removed schedule {name} at "
                    f"{tick_text(int(event['at']))}{why}"
                )
            raise NoSuchSchedule(text)
        return record

    def _write(self, judge: Callable[[float], ScheduleCommanded]) -> ScheduleResult:
        """Judge and write a command until it is recorded or refused, with one id for all tries."""
        command_id = secrets.token_hex(8)
        while True:
            now = self._store.now()
            result = judge(now)
            if result.answer is not Answer.DONE:
                return ScheduleResult.of(result)
            record = settled(result.record, now)
            change = ScheduleChange(
                command_id, record.commit, record, result.events, due=now, commanded=True
            )
            if self._store.commit(change) is CommitAnswer.APPLIED:
                self._submitter.make_durable(f"schedule {record.name}")
                return ScheduleResult.of(replace(result, record=record))


def wanted_ticks(record: ScheduleRecord, first: Bound, last: Bound | None, **more: Any) -> Wanted:
    """Return the ticks that a backfill from ``first`` to ``last`` is to run.

    Raises: BadRequest: one of them is no time.
    """
    try:
        return Wanted.between(policy_of(record.policy), first, last, **more)
    except ValueError as error:
        raise BadRequest(
            f"{error}; or a date such as 2026-12-31, which is a day in the zone of the schedule"
        ) from None
