"""Checks a command against the current record of its job, and stores it by compare-and-set.

If another commit came in between, the command is checked again (docs/decisions/0006).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from unstuck.coordinator.command_table import Answer
from unstuck.coordinator.commands.job_commands import Commanded, status_has_followed
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.store.answers import CommitAnswer
from unstuck.coordinator.store.job_store import Store

# Seconds that a decision has to follow an earlier command before a command is refused for its
# status.
FOLLOW_TIME = 3.0
TRY_EVERY = 0.02


class CommandApplier:
    """Applies commands to jobs, with an optimistic retry."""

    def __init__(
        self,
        store: Store,
        ids: Callable[[], str],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """Create the object.

        Args:
            ids: mints fresh random words; one becomes the command's id, for all tries.
            clock: monotonic seconds.
        """
        self._store = store
        self.mint = ids
        self._clock = clock
        self._sleep = sleep

    def apply(
        self,
        word: str,
        judge: Callable[[], tuple[JobRecord, Commanded]],
        reason: str,
        by: str,
        group: str = "",
        *,
        wait: bool = True,
    ) -> Commanded:
        """Check and store the command until it is recorded or refused.

        Args:
            word: the command, and the ``group`` that it concerns; ``reason`` and ``by`` are for the
                event log.
            judge: loads the record and decides on the command.
            wait: seconds in which a job that was just paused may become PAUSED, before the command
                is refused.

        Raises:
            redis.RedisError: the store could not be asked; applying the command again is safe.
        """
        command_id, until = self.mint(), self._clock() + FOLLOW_TIME
        while True:
            old, result = judge()
            followed = not wait or status_has_followed(old) or self._clock() > until
            if result.answer is Answer.REFUSED and not followed:
                self._sleep(TRY_EVERY)
                continue
            if result.answer is not Answer.DONE:
                return result
            kind = f"USER_{word.upper().replace('-', '_')}"
            event: dict[str, Any] = {
                "kind": kind,
                "by": by,
                "was": old.status,
                "text": ": ".join(filter(None, (result.note, reason))),
                "group": group,
            }
            if result.job.revision != old.revision:
                event["changes"] = [asdict(change) for change in result.job.alterations[-1].changes]
            filled = {name: value for name, value in event.items() if value}
            answer = self._store.command(
                result.job, old, command_id, filled, plans=result.plans, params=result.params
            )
            if answer is CommitAnswer.APPLIED:
                return result
            # Another commit came in between, or the record has just expired: the command is judged
            # again.
