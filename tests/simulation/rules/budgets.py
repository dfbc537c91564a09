"""The two budgets of every group, counted a second time: failures of the user's code, and workers
lost in a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tests.simulation.model.store import ModelStore
from tests.simulation.model.stored import StoredJob
from tests.simulation.rules.broken import FORGOTTEN, LONG_BACKOFF, ONE, WORD, Broken
from unstuck.coordinator.model.records import AttemptRecord, GroupRecord
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.spec.plan import PlannedGroup
from unstuck.tasks.protocol.report import OutcomeKind

S = GroupState
Key = tuple[str, str]  # a job, and a group of it


class Budgets:
    """What is charged to whom. Each method raises Broken if the record says otherwise."""

    def __init__(self, core: ModelStore) -> None:
        self._core = core
        self._failures: Counter[Key] = Counter()
        self._losses: Counter[Key] = Counter()

    def resumed(self, job_id: str) -> None:
        """From here on every group has its whole budget again."""
        self.forget(
            [
                key
                for counter in (self._failures, self._losses)
                for key in counter
                if key[0] == job_id
            ]
        )

    def forget(self, keys: Iterable[Key]) -> None:
        """Nothing is charged to these any more."""
        for key in list(keys):
            self._failures.pop(key, None)
            self._losses.pop(key, None)

    def renewed(self, before: StoredJob, after: StoredJob) -> None:
        """A resume gave the budgets back: what is charged now was charged since."""
        job_id = before.record.id
        for group, record in after.groups.items():
            old, key = before.groups.get(group, GroupRecord()), (job_id, group)
            if record.state.terminal:
                continue
            if (record.failures, record.losses) != (self._failures[key], self._losses[key]):
                said = f"{self._failures[key]} failures and {self._losses[key]} losses"
                raise Broken(
                    WORD, f"{job_id}/{group} had {said} since the resume; its record says {record}"
                )
            if (
                old.state is record.state is S.BACKOFF
                and old.epoch == record.epoch
                and record.next_at > self._core.now
            ):
                raise Broken(
                    WORD, f"{job_id}/{group} waits out a backoff although the job was resumed"
                )

    def backoff(
        self,
        key: Key,
        attempt: AttemptRecord | None,
        planned: PlannedGroup,
        event: Mapping[str, Any],
        now: float,
    ) -> None:
        """The next attempt waits as the policy says, less its share of jitter; after lost workers
        for 0, 2, 10 s.
        """
        if event["kind"] != S.BACKOFF:
            return
        kind, policy = (
            attempt.outcome.kind if attempt and attempt.outcome else OutcomeKind.LOST,
            planned.retry,
        )
        least = most = 0.0
        if kind is OutcomeKind.FAILED:
            most = min(policy.max_backoff, policy.backoff * 2.0 ** (self._failures[key] - 1))
            least = most * (1 - policy.jitter)
        elif kind is OutcomeKind.LOST:
            least = most = (0.0, 2.0, 10.0)[min(self._losses[key], 3) - 1]
        waits = event["next_at"] - now
        if not least - 0.001 <= waits <= most + 0.001:
            charged = f"{self._failures[key]} failures and {self._losses[key]} losses"
            said = f"{key[0]}/{key[1]} waits {waits:.1f}s after {charged}"
            raise Broken(LONG_BACKOFF, f"{said}; its policy says {least:.1f}s to {most:.1f}s")

    def charge(
        self, key: Key, attempt: AttemptRecord | None, planned: PlannedGroup, target: GroupState
    ) -> None:
        """An attempt ended in BACKOFF or FAILED: was that so, and was it charged to the right
        budget?
        """
        core, failed, where = self._core, target is S.FAILED, f"{key[0]}/{key[1]}"
        outcome = None if attempt is None else attempt.outcome
        if outcome is not None and outcome.kind in (OutcomeKind.RELEASED, OutcomeKind.CANCELED):
            if failed:
                raise Broken(FORGOTTEN, f"{where} failed for being handed back")
        elif outcome is not None and outcome.kind is OutcomeKind.FAILED:
            self._failures[key] += 1
            self._losses[key] = 0
            unrecoverable = outcome.failure is not None and not outcome.failure.recoverable
            spent = unrecoverable or self._failures[key] > planned.retry.max
            if spent != failed:
                raise Broken(
                    FORGOTTEN,
                    f"{where} is {target} at failure {self._failures[key]} of {planned.retry}",
                )
        elif outcome is not None and outcome.kind is not OutcomeKind.LOST:
            raise Broken(ONE, f"{where} became {target} although its attempt says {outcome.kind}")
        else:
            alive = core.now - core.alive_at <= 3 * core.period and core.now > core.grace_until
            # A lease that reads as longer than a term was given before the clock was set back.
            holds = (
                attempt is not None and core.now <= attempt.lease <= core.now + core.lease_ttl + 1.0
            )
            if outcome is None and (attempt is None or holds or not alive):
                text = (
                    "none on record"
                    if attempt is None
                    else f"its lease runs for {attempt.lease - core.now:.1f}s"
                )
                raise Broken(
                    ONE,
                    (
                        f"{where} was taken from its worker without a reason ({text}, sweep alive: "
                        f"{alive})"
                    ),
                )
            self._losses[key] += 1
            if (self._losses[key] >= planned.spec.worker_losses) != failed:
                raise Broken(FORGOTTEN, f"{where} is {target} at loss {self._losses[key]} in a row")
