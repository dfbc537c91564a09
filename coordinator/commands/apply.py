"""Giving: how a command gets onto a job's record. Judged by what stands, and written if nobody has committed since.

What a command means is decided in ``commands``, ``asking`` and ``alter``; this only repeats it until it is on record or
refused (docs/decisions/0012-a-command-is-a-commit.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from unstuck.coordinator.commands.job import taken_in
from unstuck.coordinator.model.commanded import Answer, Commanded
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.store.jobs import CommitAnswer

TAKEN_IN = 3.0  # seconds that a command is given to be taken in before the next one is refused because of it
TRY_EVERY = 0.02

Judge = Callable[[], tuple[JobRecord, Commanded]]  # the record as it stands, and what a command makes of it


class Records(Protocol):
    """As much of the store as commands need."""

    def command(
        self,
        commanded: JobRecord,
        old: JobRecord,
        command_id: str,
        event: Mapping[str, Any],
        *,
        plans: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> CommitAnswer: ...


class Giving:
    """Gives commands to jobs, one after the other."""

    def __init__(
        self,
        records: Records,
        ids: Callable[[], str],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """
        Args:
            ids: mints fresh random words; one becomes the command's id, for all tries.
            clock: monotonic seconds.
        """
        self._records = records
        self.mint = ids
        self._clock = clock
        self._sleep = sleep

    def once_taken_in(self, load: Callable[[], JobState], judge: Callable[[JobState], Commanded]) -> Judge:
        """Judge by the whole state. Who was just asked for a pause is given a moment to become PAUSED before a no."""

        def whole() -> tuple[JobRecord, Commanded]:
            until = self._clock() + TAKEN_IN
            while True:
                state = load()
                result = judge(state)
                if result.answer is not Answer.REFUSED or state.damage or taken_in(state.job) or self._clock() > until:
                    return state.job, result
                self._sleep(TRY_EVERY)

        return whole

    def give(self, word: str, judge: Judge, reason: str, by: str, group: str = "") -> Commanded:
        """Give the command until it is on record or refused.

        Args:
            word: the command, and the ``group`` that it is about; with ``reason`` and ``by`` for the event log.

        Raises:
            redis.RedisError: the store could not be asked; giving it again is safe.
        """
        command_id = self.mint()
        while True:
            old, result = judge()
            if result.answer is not Answer.DONE:
                return result
            kind = f"USER_{word.upper().replace('-', '_')}"
            event: dict[str, Any] = {"kind": kind, "by": by, "was": old.status, "text": reason, "group": group}
            if result.job.revision != old.revision:
                event["changes"] = [asdict(change) for change in result.job.alterations[-1].changes]
            said = {name: value for name, value in event.items() if value}
            answer = self._records.command(result.job, old, command_id, said, plans=result.plans, params=result.params)
            if answer is CommitAnswer.APPLIED:
                return result
            # Somebody committed in between, or the record has just expired: judge it anew by what stands now.
