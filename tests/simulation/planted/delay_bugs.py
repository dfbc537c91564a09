"""Planted bugs that delay jobs. Nothing is lost, but a wait exceeds its bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from tests.simulation.actors.coordinators import StoreAtHand, StreamAtHand
from tests.simulation.model.store import ModelStore
from tests.simulation.planted.planted_bug import Patch, PlantedBugs
from tests.simulation.rules import broken
from tests.simulation.stage.history import simulate
from tests.simulation.stage.stage import Turn
from unstuck.coordinator.decide import decide, dispatch, failures, intent, live_attempts, publishing
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.timers import deadlines
from unstuck.coordinator.decide.timers.leases import lease_end
from unstuck.coordinator.model.decision import Environment, PublishResult
from unstuck.coordinator.model.records import AttemptRecord, GroupRecord, Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.reconcile.reconciler import Reconciler
from unstuck.coordinator.reconcile.sweep import Sweep
from unstuck.coordinator.store.answers import EndAnswer
from unstuck.coordinator.store.reports import StreamEntry
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.spec.retry import RetryPolicy

DELAY_BUGS = PlantedBugs(simulate)


@DELAY_BUGS.plant(broken.LOST_OFFER, seed=36)
def lost_offer_is_not_made_again() -> list[Patch]:
    """A coordinator never makes an offer again."""
    return [(decide, "offer_again", lambda draft, *, at_once=False: None)]


@DELAY_BUGS.plant(broken.LOST_WAKE_UP, seed=2)
def sweep_wakes_no_runner() -> list[Patch]:
    """The sweep decides jobs, but sends no wake-ups."""
    return [(Sweep, "_wake", lambda self, now: None)]


@DELAY_BUGS.plant(broken.MANY_WAKE_UPS, seed=20)
def wake_ups_in_the_broker_are_not_counted() -> list[Patch]:
    """A coordinator sends wake-ups as if the queues of the broker were empty."""
    original = ModelStore.wake_ups

    def wake_ups(
        self: ModelStore,
        lanes: Sequence[str],
        listening: Mapping[str, Sequence[RunnerInfo]],
        waiting: Callable[[str], int],
    ) -> dict[str, int]:
        return original(self, lanes, listening, lambda queue: 0)

    return [(ModelStore, "wake_ups", wake_ups)]


@DELAY_BUGS.plant(broken.LOST_SLOT, seed=36)
def slot_of_a_lost_attempt_stays_taken() -> list[Patch]:
    """The sweep does not release pool slots of attempts that have ended."""
    return [(ModelStore, "free_slots", lambda self: None)]


@DELAY_BUGS.plant(broken.LOST_REPORT, seed=2)
def claims_and_outcomes_wake_no_coordinator() -> list[Patch]:
    """A claim or an outcome sends no report and does not make its job due."""
    no_report = (ModelStore, "_report", lambda self, event, token, kind, **more: None)
    return [no_report, (ModelStore, "_due_earlier", lambda self, job_id, at: None)]


@DELAY_BUGS.plant(broken.LOST_WORKER, seed=52)
def lease_lasts_twice_its_time() -> list[Patch]:
    """A coordinator waits for a second lease after the lease of a worker has expired."""
    original = live_attempts.lapsed

    def lapsed(record: GroupRecord, attempt: AttemptRecord, env: Environment) -> bool:
        second_end = lease_end(record, attempt, env) + env.lease_ttl
        return original(record, attempt, env) and env.now > second_end

    return [(live_attempts, "lapsed", lapsed)]


@DELAY_BUGS.plant(broken.LOST_CONSUMER, seed=11)
def reports_of_a_dead_coordinator_stay_pending() -> list[Patch]:
    """No coordinator claims the reports that a dead coordinator has read."""

    def claim_idle(self: StreamAtHand, idle: float, count: int) -> list[StreamEntry]:
        return []

    return [(StreamAtHand, "claim_idle", claim_idle)]


@DELAY_BUGS.plant(broken.LOST_BEAT, seed=20)
def nobody_sweeps_without_beat() -> list[Patch]:
    """Consumers do not run the sweep when beat does not fire it."""
    return [(Sweep, "run_if_overdue", lambda self, after_each: None)]


@DELAY_BUGS.plant(broken.MISSED_LOCK, seed=19)
def busy_lock_is_not_noticed() -> list[Patch]:
    """The holder of a lock does not notice that another pass met the lock busy.

    Two sweeps meet the same lock more often if the store answers late.
    """
    end, due, load = ModelStore.end, StoreAtHand.due, StoreAtHand.load

    def end_without_notice(self: ModelStore, job_id: str, *owner: str, **more: bool) -> EndAnswer:
        if job_id in self.jobs:
            self.jobs[job_id].dirty_until = 0.0
        return end(self, job_id, *owner, **more)

    def answer_due_late(self: StoreAtHand, now: float, limit: int) -> list[str]:
        jobs = due(self, now, limit)
        Turn.current().pause(0.2)
        return jobs

    def load_late(self: StoreAtHand, *arguments: Any, **more: Any) -> JobState | None:
        Turn.current().pause(0.1)
        return load(self, *arguments, **more)

    return [
        (ModelStore, "end", end_without_notice),
        (StoreAtHand, "due", answer_due_late),
        (StoreAtHand, "load", load_late),
    ]


@DELAY_BUGS.plant(broken.MISSED_DUE, seed=9)
def sweep_skips_jobs_that_became_due_just_now() -> list[Patch]:
    """A sweep decides only jobs that have been due for five seconds."""
    original = StoreAtHand.due

    def due(self: StoreAtHand, now: float, limit: int) -> list[str]:
        return original(self, now - 5.0, limit)

    return [(StoreAtHand, "due", due)]


@DELAY_BUGS.plant(broken.LATE_ANSWER, seed=6)
def result_of_publishing_is_dropped() -> list[Patch]:
    """A publisher does not record its result, so the job is published again later."""

    def decide_published(self: Reconciler, job: str, result: PublishResult) -> bool:
        return True

    return [(Reconciler, "_decide_published", decide_published)]


@DELAY_BUGS.plant(broken.LATE_COMMAND, seed=40)
def runner_gets_no_instruction() -> list[Patch]:
    """A cancel or ``pause --now`` sends no instruction to running attempts."""
    return [(Draft, "instruct", lambda self, group_id, instruction: None)]


@DELAY_BUGS.plant(broken.LATE_CANCEL, seed=20)
def cancel_has_no_deadline() -> list[Patch]:
    """A cancel waits without limit until the runner confirms it."""
    return [(intent, "cancel_at", lambda job, env: inf)]


@DELAY_BUGS.plant(broken.LATE_START, seed=10)
def max_parallel_is_one_too_low() -> list[Patch]:
    """A job runs one group fewer in parallel than ``max_parallel`` allows."""
    original = dispatch.Room.for_

    def for_(self: dispatch.Room, lane: str) -> bool:
        return self._parallel > 1 and original(self, lane)

    return [(dispatch.Room, "for_", for_)]


@DELAY_BUGS.plant(broken.LATE_RETRY, seed=32)
def end_of_a_backoff_does_not_make_its_job_due() -> list[Patch]:
    """The due time of a job ignores the backoffs of its groups."""
    return [(deadlines, "retry_at", lambda record, policy, env: inf)]


@DELAY_BUGS.plant(broken.LONG_BACKOFF, seed=32)
def backoff_is_ten_times_too_long() -> list[Patch]:
    """A retry waits ten times as long as the policy says."""
    original = failures.backoff

    def backoff(policy: RetryPolicy, count: int, seed: str) -> float:
        return 10 * original(policy, count, seed)

    return [(failures, "backoff", backoff)]


@DELAY_BUGS.plant(broken.LATE_TIMEOUT, seed=45)
def timeout_of_a_job_is_ignored() -> list[Patch]:
    """A job continues after its timeout has expired."""
    return [(decide, "check_job_timeout", lambda draft: None)]


@DELAY_BUGS.plant(broken.LATE_END, seed=39)
def failure_does_not_cancel_other_groups() -> list[Patch]:
    """A job with ``on_failure: cancel_others`` continues after a group has failed."""
    return [(decide, "fail_fast", lambda draft: None)]


@DELAY_BUGS.plant(broken.LATE_PUBLISH, seed=28)
def first_retry_of_publishing_waits_a_minute() -> list[Patch]:
    """Publishing waits a minute after the first failure of the warehouse."""
    original = publishing.trouble

    def trouble(draft: Draft, why: Reason) -> None:
        original(draft, why)
        draft.job = replace(draft.job, publish_next=draft.env.now + 60.0)

    return [(publishing, "trouble", trouble)]


@DELAY_BUGS.plant(broken.WAIT, seed=6)
def paused_job_has_no_due_time() -> list[Patch]:
    """A pass removes a paused job from the due index."""
    original = decide.due_at

    def due_at(state: JobState, env: Environment, more: bool) -> float | None:
        return None if state.job.status is Status.PAUSED else original(state, env, more)

    return [(decide, "due_at", due_at)]


@DELAY_BUGS.plant(broken.FORGOTTEN)
def pass_overwrites_an_earlier_due_time() -> list[Patch]:
    """A pass sets the due time of its job even if an event has moved it to an earlier time."""

    def set_due(self: ModelStore, job_id: str, due: float | None, due_seen: str) -> None:
        if due is None:
            self.due.pop(job_id, None)
        else:
            self.due[job_id] = due

    return [(ModelStore, "_set_due", set_due)]
