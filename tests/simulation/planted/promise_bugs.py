"""Planted bugs that break a promise to users. Some are bugs of other systems."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.actors.dispatch import WarehousesAtHand
from tests.simulation.actors.fleet import Host
from tests.simulation.actors.warehouse import Depot, LogEntry
from tests.simulation.model.store import ModelStore
from tests.simulation.planted.planted_bug import Patch, PlantedBugs
from tests.simulation.rules.broken import FORGOTTEN, ONE, SHOWN, TOLD, UNTOLD, WHOLE, WORD
from tests.simulation.stage.history import simulate
from unstuck.coordinator.decide import joins, live_attempts
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.joins import JoinResult
from unstuck.coordinator.model.decision import Environment
from unstuck.coordinator.model.records import AttemptRecord, GroupRecord, Reason
from unstuck.coordinator.model.state import Census, JobState
from unstuck.coordinator.model.status import GroupState, Intent
from unstuck.coordinator.notices.rules import job_rules
from unstuck.coordinator.reconcile.consumer import Consumer
from unstuck.coordinator.store.reports import StreamEntry
from unstuck.tasks.protocol.report import Outcome
from unstuck.tasks.spec.join import JoinRule
from unstuck.tasks.spec.work_order import WorkOrder

PROMISE_BUGS = PlantedBugs(simulate)


@PROMISE_BUGS.plant(FORGOTTEN, seed=11)
def report_of_an_unloaded_job_is_acked() -> list[Patch]:
    """A coordinator acks reports of jobs that it has not loaded yet (SeaTunnel)."""
    original = Consumer._apply_to

    def apply_to(self: Consumer, job: str, entries: list[StreamEntry], tries: int) -> None:
        if job in self._reconciler.cache:
            original(self, job, entries, tries)
        else:
            self._stream.ack(entries)

    return [(Consumer, "_apply_to", apply_to)]


@PROMISE_BUGS.plant(ONE)
def outcome_of_a_stale_attempt_is_accepted() -> list[Patch]:
    """The store accepts an outcome without checking the epoch, the nonce and the claimant."""
    return [(ModelStore, "_holds", lambda self, attempt, token: True)]


@PROMISE_BUGS.plant(ONE)
def two_runners_claim_one_attempt() -> list[Patch]:
    """A runner can claim an attempt that another runner holds (Doris)."""
    return [(ModelStore, "_anothers", lambda self, attempt, claimant: False)]


@PROMISE_BUGS.plant(ONE, seed=11)
def expired_lease_is_taken_over_without_grace() -> list[Patch]:
    """A coordinator takes an attempt over after an outage before its runner can renew the lease."""

    def lapsed(record: GroupRecord, attempt: AttemptRecord, env: Environment) -> bool:
        return attempt.lease < env.now

    no_guard = (ModelStore, "_stands", lambda self, job, guard: True)
    return [no_guard, (live_attempts, "lapsed", lapsed)]


@PROMISE_BUGS.plant(ONE)
def pool_has_one_slot_too_many() -> list[Patch]:
    """A pool accepts one attempt more than it has slots."""

    def has_slot(self: ModelStore, pool: str) -> bool:
        return sum(holder == pool for holder, _ in self.held) <= self.pools.get(pool, 1)

    return [(ModelStore, "has_slot", has_slot)]


@PROMISE_BUGS.plant(WORD)
def late_failure_resumes_a_paused_job() -> list[Patch]:
    """A failure that arrives after a pause schedules the job again (Doris)."""
    original = live_attempts.apply_outcome

    def apply_outcome(draft: Draft, group_id: str, outcome: Outcome) -> None:
        original(draft, group_id, outcome)
        is_retried = draft.state.record(group_id).state is GroupState.BACKOFF
        if is_retried and draft.job.intent is Intent.PAUSE:
            draft.job = replace(draft.job, intent=Intent.RUN)

    return [(live_attempts, "apply_outcome", apply_outcome)]


@PROMISE_BUGS.plant(WORD, seed=30)
def offer_of_a_paused_job_is_claimed() -> list[Patch]:
    """A runner can claim an offer after the user has paused or canceled the job."""
    return [(ModelStore, "_held", lambda self, record: False)]


@PROMISE_BUGS.plant(WORD)
def rerun_reads_the_previous_outputs() -> list[Patch]:
    """The groups after a rerun group keep the inputs that were fixed before the rerun."""
    return [(Draft, "unfreeze", lambda self, name, *, collected: None)]


@PROMISE_BUGS.plant(SHOWN)
def last_commit_wins() -> list[Patch]:
    """A commit overwrites a commit that was made after its load."""
    return [(ModelStore, "_conflicts", lambda self, job, decision: False)]


@PROMISE_BUGS.plant(SHOWN, seed=28)
def join_starts_after_its_first_need() -> list[Patch]:
    """A group with several needs starts when the first of them has succeeded."""
    original = joins.judge

    def judge(rule: JoinRule, needs: Census) -> tuple[JoinResult, Reason]:
        result, reason = original(rule, needs)
        if result is JoinResult.WAIT and needs[GroupState.SUCCEEDED]:
            return JoinResult.GO, reason
        return result, reason

    return [(joins, "judge", judge)]


@PROMISE_BUGS.plant(WHOLE)
def package_is_published_twice() -> list[Patch]:
    """A coordinator does not read the log before it publishes again after a lost reply."""
    original = WarehousesAtHand._append

    def lose_first_reply(self: WarehousesAtHand, state: JobState, entry: LogEntry) -> int:
        number = original(self, state, entry)
        entries = [entry for entry in self._depot.log if entry.publish_id == state.job.id]
        if len(entries) == 1:
            raise OSError("the reply is lost")
        return number

    no_entry = (Depot, "find", lambda self, *_: None)
    return [no_entry, (WarehousesAtHand, "_append", lose_first_reply)]


@PROMISE_BUGS.plant(WHOLE)
def retry_adopts_different_work() -> list[Patch]:
    """A retry adopts the output of a group that did different work under the same name."""
    return [(WorkOrder, "fingerprint", property(lambda work_order: work_order.group.name))]


@PROMISE_BUGS.plant(WHOLE, seed=11)
def outcome_is_reported_before_the_marker() -> list[Patch]:
    """A runner reports success before it writes the marker of its output (dlt)."""
    return [(Host, "marker_first", False)]


@PROMISE_BUGS.plant(UNTOLD, seed=26)
def end_by_a_user_is_not_notified() -> list[Patch]:
    """A job that a user cancels or stops sends no notice of its end."""
    original = job_rules._JobAlerts.end

    def end(self: job_rules._JobAlerts) -> None:
        if self._job.intent is Intent.RUN:
            original(self)

    return [(job_rules._JobAlerts, "end", end)]


@PROMISE_BUGS.plant(TOLD, seed=1)
def condition_with_a_duration_is_notified_at_once() -> list[Patch]:
    """A notice of a condition such as ``running_for`` is sent before its duration is over."""
    return [(job_rules._JobAlerts, "_limit", lambda self, condition: 0.001)]
