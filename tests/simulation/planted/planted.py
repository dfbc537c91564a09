"""Bugs put in on purpose. Each is one that a real system had, or that this one nearly had; each must be found.

A simulator that finds nothing proves nothing until it has shown what it can find.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tests.simulation.actors.dispatch import WarehousesAtHand
from tests.simulation.actors.fleet import Host
from tests.simulation.actors.warehouse import Depot
from tests.simulation.model.store import ModelStore
from tests.simulation.model.stored import StoredJob
from tests.simulation.planted.mutants import MUTANTS
from tests.simulation.planted.planting import Patches, Planted
from tests.simulation.rules.broken import FORGOTTEN, LATE_CANCEL, MISSED_DUE, ONE, SHOWN, TOLD, WHOLE, WORD
from unstuck.coordinator.client import client, client_commands
from unstuck.coordinator.commands.alter import alter
from unstuck.coordinator.commands.job_commands import Answer, Commanded
from unstuck.coordinator.decide import decide, intent, joins, live_attempts, requests
from unstuck.coordinator.decide.dispatch import queue_runnable
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.joins import JoinResult, judge
from unstuck.coordinator.model.decision import Decision, Guard, PublishResult
from unstuck.coordinator.model.records import AttemptRecord, GroupRecord, GroupRequest, JobRecord, Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState, Intent, Status
from unstuck.coordinator.reconcile.consumer import Consumer
from unstuck.coordinator.reconcile.reconciler import Pass
from unstuck.coordinator.store.answers import BeginAnswer, Begun, CommitAnswer
from unstuck.coordinator.store.reports import StreamEntry
from unstuck.tasks.protocol.report import Outcome
from unstuck.tasks.protocol.token import Token, split_member
from unstuck.tasks.spec.work_order import WorkOrder
from unstuck.tasks.transport.lease import Claim, FinishAnswer


class LocksForever(ModelStore):
    """A lock is free when its expiry has come, by a clock that somebody has set back."""

    def _outlived(self, until: float) -> bool:
        return False


class ClaimedTwice(ModelStore):
    """Doris: a retry starts twice. Whoever finds the offer gets the attempt."""

    def _anothers(self, attempt: AttemptRecord, claimant: str) -> bool:
        return False


class CommitsBlindly(ModelStore):
    """The last writer wins."""

    def _conflicts(self, job: StoredJob, decision: Decision) -> bool:
        return False


class TakesWithoutALease(ModelStore):
    """Whoever ends an attempt takes the next one on trust: a lease comes with the first renewal."""

    def finish_and_take(self, *arguments: Any) -> tuple[FinishAnswer, Claim | None]:
        answer, claim = super().finish_and_take(*arguments)
        if claim is not None:
            attempts = self.jobs[claim.token.job].attempts
            attempts[claim.token.group] = replace(attempts[claim.token.group], lease=0.0)
        return answer, claim


class NoFence(ModelStore):
    """Whoever finishes is believed."""

    def _holds(self, attempt: AttemptRecord, token: Token) -> bool:
        return True


class NoGuards(ModelStore):
    """What was concluded from absence is not looked at again."""

    def _stands(self, job: StoredJob, guard: Guard) -> bool:
        return True


class TellsWhatWasRefused(ModelStore):
    """A notice goes out before the change that it tells of is written, and stays where that is refused."""

    def _conflicts(self, job: StoredJob, decision: Decision) -> bool:
        conflicts = super()._conflicts(job, decision)
        if conflicts:
            self.outbox += decision.notices
        return conflicts


class DueBlindly(ModelStore):
    """A pass sets the due to what it thinks right, whoever has moved it meanwhile."""

    def _set_due(self, job_id: str, due: float | None, due_seen: str) -> None:
        if due is None:
            self.due.pop(job_id, None)
        else:
            self.due[job_id] = due


class ReportIsAll(ModelStore):
    """Conductor's lost join: the report is the only wake-up, and a missed lock is forgotten."""

    def _due_earlier(self, job_id: str, at: float) -> None:
        pass

    def begin(self, job_id: str, owner: str) -> Begun:
        begun = super().begin(job_id, owner)
        if begun.answer is BeginAnswer.BUSY:
            self.jobs[job_id].dirty_until = 0.0
        return begun


class KeysForgotten(ModelStore):
    """Whoever did not hear the answer, and asks again, gets a second job."""

    def submit(self, record: JobRecord, fingerprint: str = "f", reason: str = "") -> tuple[str, bool]:
        return super().submit(replace(record, key=""), fingerprint, reason)


def _adopts_by_name() -> Patches:
    """A retry that takes over whatever stands under the name of a group, though it now is to do something else."""
    return [(WorkOrder, "fingerprint", property(lambda work_order: work_order.group.name))]


class RetriesWhatRuns(ModelStore):
    """A retry that does not ask whether its job has ended: the same work runs twice at once."""

    def _ended_badly(self, record: JobRecord) -> bool:
        return True


def _retries_all() -> Patches:
    """The other half of it, where the record is read."""
    return [(client, "RETRY_LEGAL", frozenset(Status))]


def _not_found_is_success() -> Patches:
    """SeaTunnel: a report meets a master that has not reloaded its job; "not found" is taken for success."""
    hand_over = Consumer._apply_to

    def from_memory(self: Consumer, job: str, entries: list[StreamEntry], tries: int) -> None:
        if job in self._reconciler.cache:
            hand_over(self, job, entries, tries)
        else:
            self._stream.ack(entries)

    return [(Consumer, "_apply_to", from_memory)]


def _acked_when_busy() -> Patches:
    hand_over = Consumer._apply_to

    def forgetful(self: Consumer, job: str, entries: list[StreamEntry], tries: int) -> None:
        hand_over(self, job, entries, tries)
        if job in self._busy:
            self._stream.ack(self._busy.pop(job).entries)

    return [(Consumer, "_apply_to", forgetful)]


def _joins_by_counter() -> Patches:
    """A join goes when as many needs have ended as it has needs, counted one by one as they end."""
    ended: Counter[tuple[int, str, str]] = Counter()
    move, judge_one = Draft.move, joins.judge_one

    def counting(self: Any, group_id: str, record: GroupRecord, **event: Any) -> None:
        move(self, group_id, record, **event)
        if record.state.terminal:
            for successor in self.plan.groups[split_member(group_id)[0]].successors:
                ended[id(self.plan), self.job.id, successor] += 1

    def counted(draft: Any, name: str) -> None:
        spec, needs = draft.plan.groups[name].spec, draft.state.needs[name]
        if spec.needs and judge(spec.join, needs)[0] in (JoinResult.GO, JoinResult.WAIT):
            if ended[id(draft.plan), draft.job.id, name] < needs.total():
                return
            with patch.object(joins, "judge", lambda rule, needs: decide_go):
                judge_one(draft, name)
            return
        judge_one(draft, name)

    decide_go = (JoinResult.GO, Reason("READY", "the counter says so"))
    return [(Draft, "move", counting), (joins, "judge_one", counted)]


def _takes_over_on_sight() -> Patches:
    def lapsed(record: GroupRecord, attempt: AttemptRecord, env: Any) -> bool:
        return bool(attempt.lease < env.now)

    return [(live_attempts, "lapsed", lapsed)]


def _publishes_without_looking() -> Patches:
    return [(Depot, "find", lambda self, publish_id, after: None)]


def _looks_only_at_reports() -> Patches:
    """What this simulator found on its first day: a pass for one report pushed away the wake-up of another."""
    return [(Pass, "_round", _partial(Pass._round))]


def _partial(whole: Any) -> Any:
    def round_(self: Pass) -> CommitAnswer:
        states = self._reconciler.cache
        if self.job in states:
            _, state = states[self.job]
            state.looked_at = self._begun.now + 3600.0
        return whole(self)  # type: ignore[no-any-return]

    return round_


class ClaimsWhateverIsWanted(ModelStore):
    """A take that does not ask what the user wants: offers that still stand start after the pause."""

    def _held(self, record: JobRecord) -> bool:
        return False


def _failure_writes_the_intent() -> Patches:
    """Doris: the user paused, and a late failure scheduled the job again, over the pause."""
    apply_outcome = live_attempts.apply_outcome

    def scheduled(draft: Draft, group_id: str, outcome: Outcome) -> None:
        apply_outcome(draft, group_id, outcome)
        if draft.state.record(group_id).state is GroupState.BACKOFF and draft.job.intent is Intent.PAUSE:
            draft.job = replace(draft.job, intent=Intent.RUN)

    return [(live_attempts, "apply_outcome", scheduled)]


def _retries_under_a_pause() -> Patches:
    """The same in a quieter way: the intent stands, and what is to be retried is queued in spite of it."""
    obey = intent.apply_intent

    def obeyed_but_for_retries(draft: Draft) -> None:
        obey(draft)
        if draft.job.intent is Intent.PAUSE and draft.state.by_state[GroupState.BACKOFF]:
            queue_runnable(draft)

    return [(decide, "apply_intent", obeyed_but_for_retries)]


def _waits_for_confirmation() -> Patches:
    """SeaTunnel: a job is CANCELING until its worker says so, and the worker is gone."""
    read_attempt = live_attempts.read_attempt

    def patient(draft: Draft, group_id: str) -> None:
        attempt = draft.state.attempts.get(group_id)
        canceling = draft.state.record(group_id).state is GroupState.CANCELING
        if not (canceling and attempt is not None and attempt.outcome is None):
            read_attempt(draft, group_id)

    return [(decide, "read_attempt", patient), *_never_past_the_deadline()]


def _never_past_the_deadline() -> Patches:
    """The worker is there, renews, and does not let go."""
    cancel = intent.cancel

    def endless(draft: Draft) -> None:
        draft.env = replace(draft.env, cancel_deadline=1e9)
        cancel(draft)

    return [(intent, "cancel", endless)]


def _aborts_without_the_slot() -> Patches:
    """A cancel that meets a job in publishing takes its word for it that nothing stands."""
    return [(WarehousesAtHand, "abort", lambda self, state, why, answered: PublishResult(failed=why))]


def _restarts_what_runs_well() -> Patches:
    """An alter that wants everybody to have the new values at once, and throws away the work of hours."""

    def eager(state: JobState, *how: Any) -> Commanded:
        said = alter(state, *how)
        if said.answer is not Answer.DONE:
            return said
        running = tuple(GroupRequest("restart", group_id) for group_id in state.active)
        return replace(said, job=replace(said.job, requests=(*said.job.requests, *running)))

    renew = requests._restart

    def anyway(draft: Draft, group_id: str) -> None:
        record = draft.state.record(group_id)
        if record.state is GroupState.RUNNING:
            draft.state.put(group_id, replace(record, losses=max(1, record.losses)))  # so that it recovers
        renew(draft, group_id)

    return [(client_commands, "alter", eager), (requests, "_restart", anyway)]


def _keeps_what_was_frozen() -> Patches:
    """A rerun after which the groups that come later read what they read before."""
    return [(Draft, "unfreeze", lambda self, name, *, collected: None)]


def _outcome_before_the_marker() -> Patches:
    """dlt: done is published before the marker that makes it durable."""
    return [(Host, "marker_first", False)]


SYSTEMS = (
    Planted("commit without compare-and-set", SHOWN, 111, CommitsBlindly),
    Planted("join fired by a counter", SHOWN, 78, patches=_joins_by_counter),
    Planted("finish without a fence", ONE, 49, NoFence),
    Planted("what is taken with an outcome has no lease", ONE, 8, TakesWithoutALease),
    Planted("takeover without guard or grace", ONE, 2, NoGuards, _takes_over_on_sight),
    Planted("a notice of a commit that was refused", TOLD, 118, TellsWhatWasRefused, commands=True),
    Planted("due moved later blindly", FORGOTTEN, 140, DueBlindly),
    Planted("report acked on a busy lock, and nothing else wakes", FORGOTTEN, 0, ReportIsAll, _acked_when_busy),
    Planted("publish without reading the log first", WHOLE, 276, patches=_publishes_without_looking),
    Planted("a late failure writes the intent", WORD, 24, patches=_failure_writes_the_intent, commands=True),
    Planted("a retry is queued under a pause", WORD, 24, patches=_retries_under_a_pause, commands=True),
    Planted("claim ignores what the user wants", WORD, 30, ClaimsWhateverIsWanted, commands=True),
    Planted(
        "canceling until a worker that is gone confirms",
        LATE_CANCEL,
        155,
        patches=_waits_for_confirmation,
        commands=True,
    ),
    Planted(
        "no deadline for a worker that never lets go", LATE_CANCEL, 196, patches=_never_past_the_deadline, commands=True
    ),
    Planted("abort without asking the slot", WHOLE, 447, patches=_aborts_without_the_slot, commands=True),
    Planted("an alter restarts healthy attempts", SHOWN, 52, patches=_restarts_what_runs_well, commands=True),
    Planted(
        "a rerun keeps frozen inputs of what comes after", WORD, 111, patches=_keeps_what_was_frozen, commands=True
    ),
    Planted("passes that look only at what reports speak of", FORGOTTEN, 108, patches=_looks_only_at_reports),
    Planted("not found is taken for success", FORGOTTEN, 0, patches=_not_found_is_success),
    Planted("the outcome before the marker", WHOLE, 0, patches=_outcome_before_the_marker),
    Planted("a retry starts twice", ONE, 17, ClaimedTwice),
    Planted("a lock that outlives a clock set back", MISSED_DUE, 523, LocksForever, commands=True),
    Planted("a job that is retried twice becomes two", WORD, 34, KeysForgotten, commands=True),
    Planted("a retry takes over what is not its work", WHOLE, 175, patches=_adopts_by_name, commands=True),
    Planted("a retry of a job that has not ended", WORD, 9, RetriesWhatRuns, patches=_retries_all, commands=True),
)
PLANTED = (*SYSTEMS, *MUTANTS)
