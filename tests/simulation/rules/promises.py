"""The promises, checked after every write against what really happened, and named when one is
broken.

What really happened is known here and nowhere else: who wrote which marker, whose lease had run
out, what stood in the log when a status was shown. The rules are written down a second time, as
plainly as can be, so that a mistake in ``decide`` does not hide behind itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, NoReturn

from tests.simulation.actors.warehouse import Depot, LogEntry
from tests.simulation.model.locks import Locks
from tests.simulation.model.store import ModelStore
from tests.simulation.model.stored import StoredJob
from tests.simulation.rules import ends
from tests.simulation.rules.broken import (
    FORGOTTEN,
    LATE_PUBLISH,
    ONE,
    SHOWN,
    UNTOLD,
    WAIT,
    WHOLE,
    WORD,
    Broken,
)
from tests.simulation.rules.budgets import Budgets
from tests.simulation.rules.clocks import Clocks
from tests.simulation.rules.joins import can_never_go, condition_says, rule_holds, untold
from tests.simulation.rules.lateness import Lateness
from tests.simulation.rules.notices import Notices
from tests.simulation.rules.packages import Packages
from tests.simulation.rules.pools import over_full
from tests.simulation.rules.said import Said, unheard
from tests.simulation.rules.user import word
from tests.simulation.rules.user.adopted import Adopted
from tests.simulation.rules.user.asked import RERUN, GroupRequestRules, asked_for
from tests.simulation.stage.stage import Stage
from unstuck.coordinator.model.decision import Decision, Environment
from unstuck.coordinator.model.records import AttemptRecord, GroupRecord, JobRecord, Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState, Intent, Status
from unstuck.coordinator.reconcile.reconciler import NEWER_LOOK
from unstuck.coordinator.spec.plan import PlannedGroup, plan_of
from unstuck.coordinator.store.reports import StreamEntry
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Token, split_member
from unstuck.tasks.settings import Settings
from unstuck.tasks.spec.work_order import FrozenInputs, WorkOrder

S = GroupState
_CONDITIONS: dict[Any, bool | None] = {"CONDITION_FALSE": False, "WHEN_FAILED": None}
_NEVER_GO_BACK = (
    "_meant",
    "_ended",
    "_nonces",
    "_claimed_at",
    "_outcomes",
    "_ever_claimed",
    "_handed_out",
)


class Promises:
    """Watches every write to the store and to the warehouse log."""

    def __init__(
        self,
        stage: Stage,
        core: ModelStore,
        depot: Depot,
        settings: Settings,
        slots: Callable[[], dict[str, int]],
        lateness: Callable[[Clocks, Locks], Lateness],
    ) -> None:
        self._stage, self._core, self._depot, self._settings, self._slots = (
            stage,
            core,
            depot,
            settings,
            slots,
        )
        self._events: set[tuple[str, str, int, str]] = set()
        self._nonces: dict[tuple[str, str, str], str] = {}  # and the commit that each came with
        self._budgets, self._asked, self._clocks = (
            Budgets(core),
            GroupRequestRules(core, depot),
            Clocks(),
        )
        self._locks = Locks(core)
        self.lateness = lateness(self._clocks, self._locks)
        self._packages = Packages(depot)
        self._adopted = Adopted(core, depot)
        self._said = Said()
        self._notices = Notices(core, self._clocks.ran_until)
        self._commanded_at: dict[
            str, float
        ] = {}  # when the intent was last written, by the clock of the stage
        self.claims = 0
        self.commits = 0
        self.commands = 0
        self.happened: Callable[[str, str], None] = lambda moment, job: (
            None
        )  # for the user, who strikes at moments

    def broken(self, promise: str, text: str) -> NoReturn:
        raise Broken(promise, text)

    def _hold(self, promise: str, lie: str) -> None:
        """``lie``: what is wrong with it, if anything."""
        if lie:
            self.broken(promise, lie)

    def _hold_lies(self, lies: Iterator[tuple[str, str]]) -> None:
        for promise, lie in lies:
            self.broken(promise, lie)

    # ---- every step
    # ----------------------------------------------------------------------------------

    def every_job_is_due(self) -> None:
        for job_id, job in self._core.jobs.items():
            if not job.record.terminal and job_id not in self._core.due:
                self.broken(
                    WAIT,
                    (
                        f"{job_id} is {job.record.status} and has no due time: nobody will look at "
                        "it again"
                    ),
                )

    def nothing_lies_about(self) -> None:
        """When all is well again: what has ended or lapsed is taken in within a few sweeps."""
        settings, now = self._settings, self._core.now
        within = settings.lock_term + 4 * settings.sweep_every
        for job_id, job in self._core.jobs.items():
            if self._stage.now <= self._locks.free_at(job) + within:
                continue
            for group, attempt in job.attempts.items():
                where = f"{job_id}/{group} attempt {attempt.epoch}"
                if attempt.outcome is not None and now - attempt.outcome_at > within:
                    self.broken(
                        FORGOTTEN,
                        f"{where} ended {now - attempt.outcome_at:.1f}s ago, nobody took it in",
                    )
                if attempt.claimant and not attempt.outcome and now - attempt.lease > within:
                    self.broken(
                        FORGOTTEN,
                        f"{where}: the lease lapsed {now - attempt.lease:.1f}s ago, no new attempt",
                    )

    def what_is_ended_ends(self, fault_free_since: float) -> None:
        """When all is well again: whose time is over has ended, and what was asked was brought
        about.

        A job that the user canceled has ended by the deadline, a forced one at once.
        """
        for job in self._core.jobs.values():
            if job.record.terminal:
                continue
            now, skew, deadline = self._stage.now, self._core.skew, self._settings.cancel_deadline
            asked_at, free_at = (
                self._commanded_at.get(job.record.id, 0.0),
                max(fault_free_since, self._locks.free_at(job)),
            )
            self._hold(
                WAIT,
                word.overdue(job, now, deadline, free_at, asked_at, set_back=self._core.set_back),
            )
            self._hold(WAIT, self._asked.overdue(job, now, free_at))
            # While a grace runs nobody is given up.
            fault_free = max(fault_free_since + skew, self._core.grace_until)
            if not self._core.set_back:
                self._hold(WAIT, self._clocks.overdue(job, now + skew, fault_free))
                if not self.lateness.undecidable(job.record):
                    within = self._settings.lock_term + 2 * self._settings.sweep_every
                    looked_at = max(fault_free, free_at + skew, asked_at + skew)
                    self._hold(UNTOLD, self._notices.overdue(job, now + skew, within, looked_at))

    def waits_for_a_person(self, job_id: str) -> bool:
        """It is paused, and nothing of it is on its way."""
        job = self._core.jobs[job_id]
        record = job.record
        return (
            record.intent is Intent.PAUSE and record.status is Status.PAUSED and not record.requests
        )

    # ---- the store itself
    # ----------------------------------------------------------------------------

    def remember(self) -> Callable[[], None]:
        """A snapshot of what was seen; answers how to go back to it with the store.

        The warehouse does not go back.
        """
        kept: list[tuple[Any, str, Any]] = []
        for watcher in (
            self,
            self._budgets,
            self._asked,
            self._adopted,
            self._clocks,
            self._said,
            self._notices,
        ):
            for name, value in vars(watcher).items():
                if isinstance(value, dict | set) and name not in _NEVER_GO_BACK:
                    kept.append((watcher, name, copy(value)))

        def restore() -> None:
            self._packages.store_went_back()
            for watcher, name, value in kept:
                setattr(watcher, name, value)
            if self._core.set_back:
                self._clocks.set_back(
                    self._core.now
                )  # the clock does not go back with what was counted by it

        return restore

    def set_back(self, now: float) -> None:
        self._clocks.set_back(now)

    # ---- the user's writes
    # ---------------------------------------------------------------------------

    def submitted(self, record: JobRecord) -> None:
        self._hold(WORD, self._adopted.submitted(record))

    def commanded(self, before: JobRecord, after: JobRecord, event: Mapping[str, Any]) -> None:
        self.commands += 1
        if after.intent is not before.intent:
            self._commanded_at[before.id] = self._stage.now
        if before.terminal:
            self.broken(SHOWN, f"{before.id} was {before.status}, and {event['kind']} changed it")
        self._hold(WORD, word.wrongly_commanded(before, after, event["kind"]))
        self._hold(WORD, self._asked.commanded(before, event))
        self._clocks.commanded(before.id, self._core.now)
        if event["kind"] == word.RESUMED:
            self._budgets.resumed(before.id)
        self.told_why(before.id)

    def told_why(self, job_id: str) -> None:
        """Everything that is not done can be explained, and what is explained is so."""
        state, settings = self._state(self._core.jobs[job_id]), self._settings
        env = Environment(
            now=self._core.now,
            nonce="",
            runners=self._slots(),
            dispatch_timeout=settings.dispatch_timeout,
            dispatch_window=settings.dispatch_window,
            lease_ttl=settings.lease_ttl,
            cancel_deadline=settings.cancel_deadline,
        )
        if lie := untold(state, env, self._core.due.get(job_id)):
            self.broken(WAIT, lie)

    # ---- the worker's writes
    # -------------------------------------------------------------------------

    def claimed(self, token: Token) -> None:
        self.claims += 1
        intent = self._core.jobs[token.job].record.intent
        if intent is not Intent.RUN:
            self.broken(WORD, f"{token} was claimed after the user had asked for {intent}")
        self._hold(ONE, self._said.claimed(token, self._core))
        self._hold(ONE, over_full(self._core, token))
        self._asked.claimed(token)
        self.happened("claimed", token.job)

    def heard(self, claimant: str, token: Token | None) -> None:
        """The runner has the answer to its take, after as many repeats as it took."""
        self._hold(ONE, unheard(self._core, claimant, token))

    def handed_out(self, token: Token, work_order: WorkOrder) -> None:
        self._adopted.handed_out(token, work_order)

    def finished(self, token: Token, outcome: Outcome) -> None:
        record = self._core.jobs[token.job].groups.get(token.group)
        if record is None or (record.epoch, record.nonce) != (token.epoch, token.nonce):
            self.broken(
                ONE,
                f"{token} put its outcome on the record, and is not the group's current attempt",
            )
        if outcome.kind is OutcomeKind.SUCCEEDED and outcome.staging not in self._depot.markers:
            self.broken(WHOLE, f"{token} succeeded, and {outcome.staging} has no marker")
        self._hold(WHOLE, self._adopted.finished(token, outcome))
        self._said.finished(token, outcome)
        self.happened("ended", token.job)

    # ---- the warehouse log
    # ---------------------------------------------------------------------------

    def wrote(self, entry: LogEntry) -> None:
        job = self._core.jobs[entry.publish_id]
        self._hold(WHOLE, self._packages.wrote(entry, self._state(job)))
        for staging in entry.stagings if entry.publish_id not in self._packages.outlasted else ():
            self._hold(WORD, self._asked.counts(job.record.id, staging))

    # ---- the lock of a job
    # ---------------------------------------------------------------------------

    def met_busy(self, job: str) -> None:
        self.lateness.met_busy(job)

    def begun(self, job: str) -> None:
        self.lateness.begun(job)

    # ---- wake-ups
    # ------------------------------------------------------------------------------------

    def rang(self, sent: Mapping[str, int], listening: Mapping[str, Sequence[RunnerInfo]]) -> None:
        self.lateness.rang(sent, listening)

    # ---- commits
    # -------------------------------------------------------------------------------------

    def halted(self, before: StoredJob, reason: Reason) -> None:
        self.broken(WAIT, f"{before.record.id} was given up: {reason.text}")

    def due_set(self, job_id: str) -> None:
        """A wake-up is never swallowed: what has ended is due at the latest when the term of the
        last pass ends.

        A job that is left to a newer coordinator is due for it, too.
        """
        self.lateness.due_set(job_id)
        job, due = self._core.jobs[job_id], self._core.due.get(job_id)
        if job.record.terminal:
            return
        for group, attempt in job.attempts.items():
            latest = (
                max(attempt.outcome_at, job.begun_at)
                + max(self._settings.lock_term, NEWER_LOOK)
                + 0.01
            )
            if attempt.outcome is not None and (due is None or due > latest):
                when = "never" if due is None else f"in {due - self._stage.now:.1f}s"
                self.broken(
                    FORGOTTEN,
                    f"{job_id}/{group} has ended, but the job is due {when}: its wake-up was lost",
                )

    def dropped(self, entry: StreamEntry) -> None:
        """A wake-up may go when it has woken; a report goes with the commit that takes it in, or is
        a dead letter.
        """
        if entry.fields["kind"] != "due":
            self.broken(
                FORGOTTEN, f"the report {entry.fields} was acked, and nobody has taken it in"
            )

    def committed(self, before: StoredJob, after: StoredJob, decision: Decision) -> None:
        self.commits += 1
        job = before.record
        if job.terminal:
            self.broken(
                SHOWN,
                (
                    f"{job.id} was {job.status}, and was changed: "
                    f"{[e['kind'] for e in decision.events]}"
                ),
            )
        if after.record.intent != job.intent:
            self.broken(WORD, f"{job.id}: intent {job.intent} became {after.record.intent}")
        if len([e for e in decision.events if "group" in e]) > 500:
            self.broken(FORGOTTEN, f"{job.id}: a commit with {len(decision.events)} transitions")
        self._hold(WAIT, self._clocks.committed(before, after, decision, self._core.now))
        self._budgets.forget((job.id, group) for group in decision.forgotten)
        self._forget_events(job.id, decision)
        self._moved(before, after, decision)
        self._forget_events(job.id, decision)
        self._hold(WORD, self._asked.committed(before, after, decision))
        self._froze(before, after, decision)
        self._hold_lies(self._notices.committed(before, after, decision))
        self._hold_lies(ends.limits(after, decision))
        self._hold_lies(ends.status(after))
        if job.reset_budgets and not after.record.reset_budgets:
            self._budgets.renewed(before, after)
        if after.record.terminal:
            self._hold_lies(
                ends.ended(after, self._state(after), self._depot, self._packages.outlasted)
            )
            if after.record.status is not Status.FINISHED:
                self.happened("over", job.id)
        if self.commits % 4 == 0:
            self.told_why(job.id)
        self._hold(LATE_PUBLISH, ends.next_try(job, after))
        if after.record.phase and not job.phase:
            self._packages.publishing(self._state(after))
            self.happened("publishing", job.id)
        if any(event["kind"] == S.BACKOFF for event in decision.events):
            self.happened("recovering", job.id)

    def _forget_events(self, job_id: str, decision: Decision) -> None:
        """Attempts of what was forgotten are counted from the first again; before its moves, and
        after them.
        """
        self._events = {
            key for key in self._events if key[0] != job_id or key[1] not in decision.forgotten
        }

    def _moved(self, before: StoredJob, after: StoredJob, decision: Decision) -> None:
        job_id = before.record.id
        paths: dict[str, list[dict[str, Any]]] = {group: [] for group in decision.groups}
        for event in decision.events:
            group = event.get("group")
            if group is None:
                continue
            if asked_for(event) == RERUN:
                if group not in decision.groups:  # all of it, as if it had never begun
                    self._hold(WORD, self._asked.made_to_wait(after, group))
                    continue
                self._events = {key for key in self._events if key[:2] != (job_id, group)}
                self._budgets.forget([(job_id, group)])
            key = (job_id, group, int(event.get("epoch", 0)), event["kind"])
            if key in self._events:
                self.broken(
                    SHOWN, f"{job_id}/{group}: a second event {event['kind']} of attempt {key[2]}"
                )
            self._events.add(key)
            paths.setdefault(group, []).append(event)
        for group, events in paths.items():
            old, new = (
                before.groups.get(group, GroupRecord()),
                after.groups.get(group, GroupRecord()),
            )
            state, epoch = old.state, old.epoch
            for event in events:
                target = S(event["kind"])
                self._hold(SHOWN, self._asked.moved(job_id, group, state, event))
                if asked_for(event):
                    pass
                elif target is S.QUEUED:
                    epoch += 1
                    if before.record.intent is not Intent.RUN:
                        self.broken(
                            WORD, f"{job_id}/{group} was queued under {before.record.intent}"
                        )
                    self._may_start(before, after, group, state)
                elif state in (S.QUEUED, S.RUNNING, S.CANCELING):
                    self._may_end(before, after, group, state, event)
                elif state is S.WAITING:
                    self._may_end_unstarted(after, group, event)
                state = target
            if group in decision.forgotten:
                continue
            if (state, epoch) != (new.state, new.epoch):
                self.broken(
                    SHOWN,
                    f"{job_id}/{group} is {new.state} {new.epoch}; its events say {state} {epoch}",
                )
            if new.epoch != old.epoch:
                # A commit that is repeated over a rollback, its reply being lost, is applied again,
                # with its nonces.
                key, commit = (job_id, group, new.nonce), after.record.commit
                if key in self._nonces and not (
                    self._packages.went_back and self._nonces[key] == commit
                ):
                    self.broken(ONE, f"{job_id}/{group}: the nonce {new.nonce} was used before")
                self._nonces[key] = commit

    def _may_start(
        self, before: StoredJob, after: StoredJob, group: str, state: GroupState
    ) -> None:
        where, now = f"{before.record.id}/{group}", self._core.now
        if state is S.WAITING and not rule_holds(self._state(after), group):
            self.broken(SHOWN, f"{where} was started, and its join rule does not hold")
        first = split_member(group)[0] not in before.frozen
        if first and condition_says(self._state(after), group) is not True:
            self.broken(SHOWN, f"{where} was started, and its condition does not hold")
        old = before.groups.get(group)
        waited = (
            old is None
            or old.state is not S.BACKOFF
            or before.record.reset_budgets
            or old.next_at <= now + 0.001
        )
        waited = waited or self._core.set_back  # what lies ahead may have been written before
        if old is not None and state is S.BACKOFF and not waited:
            self.broken(
                SHOWN,
                f"{where} was to start again in {old.next_at - now:.1f}s, and was started now",
            )

    def _may_end(
        self,
        before: StoredJob,
        after: StoredJob,
        group: str,
        state: GroupState,
        event: Mapping[str, Any],
    ) -> None:
        """An attempt ended: was that so, and was it charged to the right budget?"""
        where, key = f"{before.record.id}/{group}", (before.record.id, group)
        attempt, target = before.attempts.get(group), S(event["kind"])
        if target is not S.WAITING:
            attempt = self._said.truly(*key, attempt, event)
        planned = self._plan(before, group)
        if state is S.QUEUED and target is S.FAILED:
            self._hold(
                WAIT, self._clocks.left_queue(before, group, event.get("code"), after.decided_at)
            )
        elif target is S.RUNNING:
            believed = (
                attempt is not None
                and self._packages.went_back
                and self._said.was_claimed(*key, attempt)
            )
            if not believed and (attempt is None or not attempt.claimant):
                self.broken(SHOWN, f"{where} is shown RUNNING, and nobody has claimed it")
        elif target is S.SUCCEEDED:
            self._may_succeed(before.record.id, group, attempt)
            self._hold(WORD, self._asked.reads(before, group))
            self._budgets.forget([key])
        elif target is S.WAITING:
            if before.record.intent is not Intent.PAUSE or (
                attempt is not None and attempt.claimant
            ):
                self.broken(
                    WORD, f"{where} was taken back, under {before.record.intent}, from {attempt}"
                )
        elif target in (S.CANCELING, S.CANCELED):
            self._may_be_canceled(where, group, before, attempt, target)
        elif target in (S.BACKOFF, S.FAILED):
            if not self._core.set_back:
                self._hold(ONE, self._said.taken_early(*key, attempt, self._core))
            self._budgets.charge(key, attempt, planned, target)
            self._budgets.backoff(key, attempt, planned, event, self._core.jobs[key[0]].decided_at)

    def _may_be_canceled(
        self,
        where: str,
        group: str,
        before: StoredJob,
        attempt: AttemptRecord | None,
        target: GroupState,
    ) -> None:
        """What nobody holds is canceled at once; what runs, when its runner let go, or at the
        deadline, or by force.
        """
        core, after = self._core, self._core.jobs[before.record.id]
        job, fails_fast = after.record, self._fails_fast(after)
        deadline = self._settings.cancel_deadline
        lie = word.wrongly_canceled(
            job, attempt, target, core.now, deadline, fails_fast, lease_ttl=core.lease_ttl
        )
        if lie:
            self.broken(WORD, f"{where} {lie}")

    def _may_succeed(self, job: str, group: str, attempt: AttemptRecord | None) -> None:
        where = f"{job}/{group}"
        outcome = None if attempt is None else attempt.outcome
        if attempt is None or outcome is None or outcome.kind is not OutcomeKind.SUCCEEDED:
            self.broken(ONE, f"{where} is shown SUCCEEDED, and no attempt on record says so")
        marker = self._depot.markers.get(outcome.staging)
        if marker is None or marker.token.group != group:
            self.broken(
                WHOLE,
                (
                    f"{where} is shown SUCCEEDED with {outcome.staging}, which has no marker of "
                    "this group"
                ),
            )
        self._hold(WORD, self._asked.counts(job, outcome.staging))
        mine = (attempt.epoch, attempt.nonce, attempt.claimant)
        token = marker.token
        if not outcome.adopted and (token.epoch, token.nonce, token.claimant) != mine:
            self.broken(
                ONE, f"{where}: the output of {token} was believed, and the attempt was {mine}"
            )

    def _may_end_unstarted(self, after: StoredJob, group: str, event: Mapping[str, Any]) -> None:
        where, target, code = f"{after.record.id}/{group}", S(event["kind"]), event.get("code")
        if code in _CONDITIONS or (target is S.SUCCEEDED):
            holds, says = (
                rule_holds(self._state(after), group),
                condition_says(self._state(after), group),
            )
            if not holds or says is not _CONDITIONS.get(code, True):
                self.broken(
                    SHOWN,
                    (
                        f"{where} is {target} ({code}); its join rule holds: {holds}, its "
                        f"condition: {says}"
                    ),
                )
            return
        wanted = after.record.intent in word.ENDED_BY_USER
        if target is S.CANCELED and not wanted and not self._fails_fast(after):
            self.broken(SHOWN, f"{where} was canceled, and nothing has failed")
        if target is S.FAILED and not can_never_go(self._state(after), group):
            self.broken(SHOWN, f"{where} failed before it began, and could still have gone")

    def _state(self, job: StoredJob) -> JobState:
        state = self._core.load(job.record.id)
        assert state is not None
        return state

    def _plan(self, job: StoredJob, group: str) -> PlannedGroup:
        return plan_of(job.record.spec).groups[split_member(group)[0]]

    def _froze(self, before: StoredJob, after: StoredJob, decision: Decision) -> None:
        for name, text in decision.frozen.items():
            where = f"{before.record.id}/{name}"
            if name in before.frozen:
                self.broken(ONE, f"{where}: its inputs were fixed before, and were fixed again")
            for need, folders in FrozenInputs.model_validate_json(text).inputs.items():
                state = self._state(before)
                ended = [
                    r
                    for m in state.members(need)
                    if (r := state.record(m)).state is S.SUCCEEDED and r.staging
                ]
                made = [r.marked for r in ended]
                if list(folders) != made:
                    self.broken(WHOLE, f"{where} is to read {folders} of {need}, which made {made}")

    def _fails_fast(self, job: StoredJob) -> bool:
        """What is not done is canceled: a group failed that the job cannot live with, or its time
        is over.
        """
        return job.record.timed_out is not None or any(
            record.state is S.FAILED and not self._plan(job, group).absorbed
            for group, record in job.groups.items()
        )
