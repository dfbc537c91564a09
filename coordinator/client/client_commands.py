"""The commands that a client gives to jobs: each is judged by the record of its job, and on record when it returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from unstuck.coordinator.commands.alter import alter
from unstuck.coordinator.commands.apply import CommandApplier
from unstuck.coordinator.commands.group_commands import rerun, skip
from unstuck.coordinator.commands.job_commands import (
    Answer,
    Command,
    Commanded,
    against_damage,
    command,
)
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.submitter import Submitter
from unstuck.coordinator.views.jobs.job_facts import CommandResult
from unstuck.tasks.identity import user_here


class ClientCommands:
    """The commands of `Client`. It says how the state and the record of a job are read."""

    _applier: CommandApplier
    _submitter: Submitter

    def _state(self, job: str) -> tuple[JobState, float, float | None]:
        raise NotImplementedError

    def _job_record(self, job: str) -> JobRecord:
        raise NotImplementedError

    def command(
        self, job: str, given: Command, *, reason: str = "", by: str | None = None, now: bool = False
    ) -> CommandResult:
        """Pause, resume, stop, cancel or force-stop a job. Durable and idempotent: repeating it changes nothing.

        Args:
            reason: why, for the event log.
            by: who asks; the OS user by default.
            now: of a pause: interrupt what is running.

        Returns: DONE, ALREADY or REFUSED, with a sentence that says what holds and what can be done.

        Raises:
            NoSuchJob: there is no such job.
            Unreachable: Redis could not be asked; asking again is safe.
        """
        who = by or user_here()
        text = reason if not now else f"now, interrupting what runs{f': {reason}' if reason else ''}"

        def judge(record: JobRecord) -> Commanded:
            return command(record, given, now=now, by=who, why=reason)

        if given is not Command.FORCE_STOP:
            return self._apply(job, given, lambda state: judge(state.job), text, who)
        return self._write(job, given, lambda: ((record := self._job_record(job)), judge(record)), text, who)

    def alter(self, job: str, values: Mapping[str, Any], *, reason: str = "", by: str | None = None) -> CommandResult:
        """Change values of a job's spec, all or none. See `command`, and `commands.alter` for what may change when.

        Args:
            values: by path: ``{"groups.clean.timeout": "2h", "params.year": 2014}``. None takes a value out.

        Raises:
            SpecError: a path leads nowhere, or the spec would be wrong; nothing was changed.
        """
        who = by or user_here()
        return self._apply(job, "alter", lambda state: alter(state, values, time.time(), who, reason), reason, who)

    def skip(self, job: str, group: str, *, reason: str = "", by: str | None = None) -> CommandResult:
        """Skip a group, a fork or one member that has not ended; what comes after decides by its join rule.

        Raises: NoSuchGroup; see also `command`.
        """
        return self._apply(job, "skip", lambda state: skip(state, group), reason, by or user_here(), group)

    def rerun(self, job: str, group: str, *, reason: str = "", by: str | None = None) -> CommandResult:
        """Run a group, a fork or one member again, and everything after it.

        Raises: NoSuchGroup; see also `command`.
        """
        word = self._applier.mint()
        return self._apply(job, "rerun", lambda state: rerun(state, group, word), reason, by or user_here(), group)

    def _apply(
        self, job: str, word: str, judge: Callable[[JobState], Commanded], reason: str, by: str, group: str = ""
    ) -> CommandResult:
        def judge_undamaged() -> tuple[JobRecord, Commanded]:
            state = self._state(job)[0]
            return state.job, against_damage(state.job, state.damage) if state.damage else judge(state)

        return self._write(job, word, judge_undamaged, reason, by, group)

    def _write(
        self,
        job: str,
        word: str,
        judge: Callable[[], tuple[JobRecord, Commanded]],
        reason: str,
        by: str,
        group: str = "",
    ) -> CommandResult:
        result = self._applier.apply(word, judge, reason, by, group, wait=not isinstance(word, Command))
        if result.answer is Answer.DONE:
            self._submitter.make_durable(f"job {job}")
        return CommandResult.of(result)

    def pause(self, job: str, *, reason: str = "", by: str | None = None, now: bool = False) -> CommandResult:
        """Start nothing more; what runs may end (``now``: is interrupted, and charged to nobody). See `command`."""
        return self.command(job, Command.PAUSE, reason=reason, by=by, now=now)

    def resume(self, job: str, *, reason: str = "", by: str | None = None) -> CommandResult:
        """Go on with a paused job, with its full retry budget. See `command`."""
        return self.command(job, Command.RESUME, reason=reason, by=by)

    def stop(self, job: str, *, reason: str = "", by: str | None = None) -> CommandResult:
        """Start nothing more, let what runs end, and end the job. See `command`."""
        return self.command(job, Command.STOP, reason=reason, by=by)

    def cancel(self, job: str, *, reason: str = "", by: str | None = None) -> CommandResult:
        """Interrupt what runs and end the job; at the deadline it ends without its workers. See `command`."""
        return self.command(job, Command.CANCEL, reason=reason, by=by)

    def force_stop(self, job: str, *, reason: str = "", by: str | None = None) -> CommandResult:
        """End the job at once, whatever its workers do. See `command`."""
        return self.command(job, Command.FORCE_STOP, reason=reason, by=by)
