"""The time of jobs and of places in queues, counted a second time: a timeout comes neither too
early nor never.

Times are those of passes: a decision knows no later one than when its pass began.
Each function answers what is wrong, in words; empty if nothing is.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.model.stored import StoredJob
from unstuck.coordinator.model.decision import Decision
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.status import HELD, GroupState, Intent
from unstuck.coordinator.spec.plan import plan_of
from unstuck.tasks.protocol.token import split_member

S = GroupState
SLACK = 0.01  # seconds
MOST_LATE = 15.0  # seconds without trouble by which a timeout may be late


class Clocks:
    """How long each job has run, PAUSED and HALTED not counted; and since when each group stands in
    its queue.
    """

    def __init__(self) -> None:
        self._ran: dict[str, float] = {}
        self._counted_at: dict[str, float] = {}
        self._queued_at: dict[tuple[str, str], float] = {}
        self._asked_at: dict[str, float] = {}

    def commanded(self, job_id: str, now: float) -> None:
        """A resume or an alter may have changed what time there is."""
        self._asked_at[job_id] = now

    def set_back(self, now: float) -> None:
        """What lies ahead now was before: it counts from here."""
        for job in self._counted_at:
            self._counted_at[job] = min(self._counted_at[job], now)
        for key in self._queued_at:
            self._queued_at[key] = min(self._queued_at[key], now)

    def committed(
        self, before: StoredJob, after: StoredJob, decision: Decision, written_at: float
    ) -> str:
        """``written_at``: by the clock of the store.

        A pass that stood still while it was set back began after that.
        """
        job, now = before.record, after.decided_at
        self._ran[job.id] = self.ran_until(job, now)
        if after.record.started_at:
            self._counted_at[job.id] = min(max(now, self._counted_at.get(job.id, now)), written_at)
        for event in decision.events:
            if event["kind"] == S.QUEUED:
                self._queued_at[job.id, event["group"]] = min(now, written_at)
            elif event["kind"] == "JOB_TIMEOUT" and (lie := self._over(job, after.record)):
                return lie
        if job.reset_budgets and not after.record.reset_budgets:
            # A resume gives everybody their time in the queue again.
            self._queued_at.update({key: now for key in self._queued_at if key[0] == job.id})
        return ""

    def ran_until(self, job: JobRecord, now: float) -> float:
        counts = job.started_at and job.status not in HELD
        return self._ran.get(job.id, 0.0) + (
            max(0.0, now - self._counted_at.get(job.id, now)) if counts else 0.0
        )

    def _over(self, before: JobRecord, after: JobRecord) -> str:
        timeout, ran = plan_of(before.spec).timeout, self._ran[before.id]
        if timeout is None or ran < timeout - SLACK:
            return f"{before.id} has run {ran:.1f}s, and was given up for its timeout of {timeout}"
        if (
            before.intent not in (Intent.RUN, Intent.STOP)
            or before.phase
            or after.timed_out is None
        ):
            return (
                f"{before.id} was given up for its timeout under {before.intent}, "
                f"{before.phase or 'not publishing'}"
            )
        return ""

    def left_queue(self, before: StoredJob, group: str, code: str | None, now: float) -> str:
        """QUEUED became FAILED: nobody held the attempt, and the time of the queue was over."""
        job, attempt = before.record, before.attempts.get(group)
        timeout = plan_of(job.spec).groups[split_member(group)[0]].spec.queue_timeout
        waited = now - self._queued_at[job.id, group]
        unheld = attempt is None or not attempt.claimant
        if (
            code == "QUEUE_TIMEOUT"
            and unheld
            and job.intent is Intent.RUN
            and timeout
            and waited >= timeout - SLACK
        ):
            return ""
        return (
            f"{job.id}/{group} FAILED ({code}) in its queue after {waited:.1f}s of {timeout}, "
            f"under {job.intent}, its attempt is {attempt}"
        )

    def over(self, job: StoredJob, now: float) -> Iterator[tuple[str, bool]]:
        """The timeouts of a job that have come, each with whether it waits for the end of a
        grace.
        """
        record, plan = job.record, plan_of(job.record.spec)
        ran, asked_at = self.ran_until(record, now), self._asked_at.get(record.id, 0.0)
        if record.status not in HELD and plan.timeout is not None and ran > plan.timeout:
            yield (
                f"{record.id} is {record.status}, and its timeout of {plan.timeout}s is over",
                False,
            )
        for group, attempt in job.attempts.items():
            limit = plan.groups[split_member(group)[0]].spec.queue_timeout
            since = max(self._queued_at.get((record.id, group), now), asked_at)
            if limit is not None and not attempt.claimant and now - since > limit:
                yield (
                    (
                        f"{record.id}/{group} has been in its queue since {since:.3f}, for more "
                        f"than {limit}s"
                    ),
                    True,
                )

    def overdue(self, job: StoredJob, now: float, fault_free_since: float) -> str:
        """Without trouble, whose time is over has been given up soon."""
        record, plan = job.record, plan_of(job.record.spec)
        if (
            record.terminal
            or record.intent is not Intent.RUN
            or record.phase
            or now - fault_free_since <= MOST_LATE
        ):
            return ""
        ran = self.ran_until(record, now)
        counts = record.status not in HELD and now - self._asked_at.get(record.id, 0.0) > MOST_LATE
        if counts and plan.timeout is not None and ran > plan.timeout + MOST_LATE:
            return f"{record.id} has run {ran:.1f}s of {plan.timeout}, and is {record.status}"
        for group, attempt in job.attempts.items():
            limit = plan.groups[split_member(group)[0]].spec.queue_timeout
            since = max(
                self._queued_at.get((record.id, group), now),
                self._asked_at.get(record.id, 0.0),
                fault_free_since,
            )
            if limit is not None and not attempt.claimant and now - since > limit + MOST_LATE:
                return (
                    f"{record.id}/{group} has been in its queue for {now - since:.1f}s of {limit}"
                )
        return ""
