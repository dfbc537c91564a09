"""Decide: from the record of a job, what changes and what must be done. Pure: no I/O, no clock, no randomness.

Level-triggered: everything follows from the states as they stand, whoever woke us and however often. Fold what the
attempts say, meet what is overdue, derive joins anew, queue what may go, and see whether the job has ended.

``decide`` moves the given state forward; if the commit is refused the caller throws that state away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from coordinator.attempts import Folded, fold, lapsed
from coordinator.decision import MAX_TRANSITIONS, Decision, Guard, PublishResult, World
from coordinator.job import Attempt, GroupRecord, Reason
from coordinator.join import Verdict, judge
from coordinator.state import JobState
from coordinator.status import GroupState, Intent, Status, check_move, derive
from tasks.group import FrozenInputs
from tasks.report import Failure, Outcome, OutcomeKind
from tasks.token import fork_member, split_member

S = GroupState
PUBLISHING = "publishing"


def decide(state: JobState, changed: Iterable[str] | None, world: World) -> Decision:
    """What is next for one job.

    Args:
        state: the job as loaded, with the attempts of ``changed`` fresh; moved forward by this call.
        changed: groups that a report spoke of; None to look at everything that could be due.
        world: time, randomness and what is known of the fleet.
    """
    step = _Deciding(state, world)
    if not state.job.terminal:
        step.run(changed)
    return step.decision


class _Deciding:
    """One decision in the making."""

    def __init__(self, state: JobState, world: World) -> None:
        self.state = state
        self.plan = state.plan
        self.world = world
        self.job = state.job
        self.decision = Decision(job=state.job, old=state.job)
        self.touched: deque[str] = deque()  # planned groups whose join must be judged

    def run(self, changed: Iterable[str] | None) -> None:
        state = self.state
        if self.job.base is None and self.world.base is not None:
            self.job = replace(self.job, base=self.world.base)
        if changed is None or state.ready is None:
            state.ready = {}
            self.touched.extend(self.plan.groups)
        active = state.active
        for group_id in active if changed is None else [g for g in changed if g in state.groups]:
            self.look_at(group_id)
        if not self.doomed:
            self.judge_joins()  # which may find a quorum that can no longer be reached
        if self.doomed:
            self.cancel_rest()
        elif self.job.intent is Intent.RUN and self.job.halted is None:
            self.queue_ready()
        self.resend_hints()
        if not state.open_groups:
            self.end()
        self.conclude()

    @property
    def doomed(self) -> bool:
        """A group failed for good, nothing after it lives with that, and the others are not to go on."""
        return bool(self.state.fatal) and self.plan.cancel_others

    # ---- one group -----------------------------------------------------------------------------------

    def move(self, group_id: str, record: GroupRecord, **event: Any) -> None:
        """Change one group, checked against the table of legal moves, with its event."""
        old = self.state.record(group_id)
        check_move(group_id, old.state, record.state)
        record = replace(record, since=self.world.now)
        self.state.put(group_id, record)
        self.decision.groups[group_id] = record
        self.decision.moves += 1
        entry: dict[str, Any] = {"kind": str(record.state), "group": group_id, **event}
        if record.epoch:
            entry["epoch"] = record.epoch
        if record.reason is not None and record.state is not S.RUNNING:
            entry["code"], entry["text"] = record.reason.code, record.reason.text
        self.decision.events.append(entry)
        if record.state.terminal:
            self.touched.extend(self.plan.groups[split_member(group_id)[0]].successors)

    def look_at(self, group_id: str) -> None:
        """Take in what the attempt of a group says, or that it says nothing any more."""
        record = self.state.record(group_id)
        attempt = self.state.attempts.get(group_id)
        if record.state not in (S.QUEUED, S.RUNNING, S.CANCELING):
            return
        if self.decision.moves > MAX_TRANSITIONS - 2:  # claimed and ended since we last looked: two moves
            self.decision.more = True
            return
        if attempt is None or (attempt.epoch, attempt.nonce) != (record.epoch, record.nonce):
            self.mend(group_id, record)
            return
        if record.state is S.QUEUED and attempt.claimant:
            self.start(group_id, record, attempt)
            record = self.state.record(group_id)
        if attempt.outcome is not None:
            planned = self.plan.groups[split_member(group_id)[0]]
            self.settle(group_id, fold(planned, group_id, record, attempt.outcome, self.world))
        elif attempt.claimant and lapsed(attempt, self.world):
            self.decision.guards.append(Guard(group_id, record.epoch, record.nonce, "lapsed"))
            planned = self.plan.groups[split_member(group_id)[0]]
            self.settle(group_id, fold(planned, group_id, record, None, self.world))

    def mend(self, group_id: str, record: GroupRecord) -> None:
        """The attempt's record is gone (a store restored in part): nobody could ever claim or finish it."""
        if record.state is S.QUEUED:
            offered = Attempt(epoch=record.epoch, nonce=record.nonce)
            self.state.attempts[group_id] = offered
            self.decision.offered[group_id] = offered
            return
        planned = self.plan.groups[split_member(group_id)[0]]
        gone = Outcome(OutcomeKind.LOST, failure=Failure("ATTEMPT_GONE", "the record of the running attempt is gone"))
        self.settle(group_id, fold(planned, group_id, record, gone, self.world))

    def start(self, group_id: str, record: GroupRecord, attempt: Attempt) -> None:
        if not self.job.started_at:
            self.job = replace(self.job, started_at=self.world.now)
        running = replace(record, state=S.RUNNING, worker=attempt.worker, started_at=attempt.claimed_at)
        self.move(group_id, running, worker=attempt.worker)

    def settle(self, group_id: str, folded: Folded) -> None:
        """An attempt has ended: its record goes, its outcome stands on the group."""
        self.drop_attempt(group_id)
        for key, values in folded.collected.items():
            if key not in self.state.collected:
                self.decision.collected[key] = values
                self.state.collect(key, values)
                self.touched.extend(self.plan.groups)
        self.move(group_id, folded.record, **folded.event)

    def drop_attempt(self, group_id: str) -> None:
        self.decision.dropped[group_id] = None
        self.decision.offered.pop(group_id, None)
        self.state.attempts.pop(group_id, None)

    # ---- joins ---------------------------------------------------------------------------------------

    def judge_joins(self) -> None:
        """Judge every group whose needs have changed, and those after it, until nothing moves."""
        while self.touched and not self.decision.full:
            name = self.touched.popleft()
            if self.unstarted(name):
                self.judge_one(name)
        self.decision.more |= bool(self.touched)

    def unstarted(self, name: str) -> bool:
        """No member of the group has ever been queued or ended, and it is not known to be ready."""
        assert self.state.ready is not None
        return name not in self.state.ready and self.waiting_members(name) > 0

    def waiting_members(self, name: str) -> int:
        """Members that stand WAITING, with or without a record; 1 for a fork that is not expanded."""
        if self.state.ended_whole(name):
            return 0
        count = self.plan.member_count(name, self.state.collected)
        census = self.state.census[name]
        return max(1, count or 1) - census.total() + census[S.WAITING]

    def judge_one(self, name: str) -> None:
        planned = self.plan.groups[name]
        found = judge(planned.spec.join, self.state.needs[name])
        if found.verdict is Verdict.WAIT:
            return
        if found.verdict is Verdict.GO:
            if planned.spec.is_join:
                self.move(name, GroupRecord(state=S.SUCCEEDED, reason=found.reason))
                return
            count = self.plan.member_count(name, self.state.collected)
            if count is None and not all(self.state.done(need) for need in planned.spec.needs):
                return  # a rule that needs not all of them holds already, and the maker of the values is still at work
            if count is None:
                source = planned.spec.fork_from
                text = f"no group that was needed made the output {source.output if source else '?'!r} with that column"
                self.move(name, GroupRecord(state=S.FAILED, reason=Reason("FORK_SOURCE_MISSING", text)))
            elif count == 0:
                reason = Reason("EMPTY_FORK", "the fork has no values, so there is nothing to run")
                self.move(name, GroupRecord(state=S.SKIPPED, reason=reason))
            else:
                assert self.state.ready is not None
                self.state.ready[name] = None
            return
        state = S.SKIPPED if found.verdict is Verdict.SKIP else S.FAILED
        self.move(name, GroupRecord(state=state, reason=found.reason))

    # ---- queueing ------------------------------------------------------------------------------------

    def queue_ready(self) -> None:
        """Mint attempts for what may go: retries whose time has come, then waiting members, within the limits."""
        state, now = self.state, self.world.now
        assert state.ready is not None
        room = self.parallel_room()
        windows: dict[str, int] = {}
        for group_id in state.by_state[S.QUEUED]:
            queue = self.plan.groups[split_member(group_id)[0]].spec.queue_name
            windows[queue] = windows.get(queue, self.world.window(queue)) - 1

        def fits(name: str) -> bool:
            queue = self.plan.groups[name].spec.queue_name
            return room > 0 and windows.setdefault(queue, self.world.window(queue)) > 0

        retries = [g for g in state.by_state[S.BACKOFF] if state.groups[g].next_at <= now]
        returned = [g for g in state.by_state[S.WAITING] if split_member(g)[0] in state.ready]
        for group_id in sorted(retries, key=lambda g: state.groups[g].next_at) + returned:
            name = split_member(group_id)[0]
            if self.decision.full:
                self.decision.more = True
                return
            if fits(name):
                self.queue(group_id)
                room -= 1
                windows[self.plan.groups[name].spec.queue_name] -= 1
        for name in list(state.ready):
            planned = self.plan.groups[name]
            count = self.plan.member_count(name, state.collected) or 0
            while (ordinal := state.census[name].total()) < count and fits(name):
                if self.decision.full:
                    self.decision.more = True
                    return
                self.queue(fork_member(name, ordinal) if planned.spec.for_each else name)
                room -= 1
                windows[planned.spec.queue_name] -= 1
            if not self.waiting_members(name):
                del state.ready[name]
            if room <= 0:
                return

    def parallel_room(self) -> int:
        """How many more groups ``max_parallel`` lets run."""
        limit = self.plan.max_parallel
        return 1_000_000 if limit is None else limit - len(self.state.active)

    def queue(self, group_id: str) -> None:
        """WAITING or BACKOFF → QUEUED: a new epoch, and inputs frozen the first time."""
        record = self.state.record(group_id)
        name, ordinal = split_member(group_id)
        planned = self.plan.groups[name]
        self.freeze(name, group_id, ordinal)
        epoch = record.epoch + 1
        queued = replace(
            record,
            state=S.QUEUED,
            epoch=epoch,
            nonce=self.world.nonce,
            hinted_at=self.world.now,
            hints=1,
            next_at=0.0,
            worker="",
            started_at=0.0,
        )
        self.move(group_id, queued, queue=planned.spec.queue_name)
        offered = Attempt(epoch=epoch, nonce=self.world.nonce)
        self.state.attempts[group_id] = offered
        self.decision.offered[group_id] = offered
        self.decision.dropped.pop(group_id, None)
        self.decision.hints.append((planned.spec.queue_name, queued.hint(self.job.id, group_id)))

    def freeze(self, name: str, group_id: str, ordinal: int | None) -> None:
        """Fix what every attempt of this group reads: the outputs of its needs as they stand now (rule 12).

        A fork's members share one entry under the fork's name, or a fork after a fork would store N x N folders.
        """
        if name not in self.state.frozen:
            inputs = {
                need: tuple(
                    record.staging
                    for member in self.state.members(need)
                    if (record := self.state.record(member)).state is S.SUCCEEDED and record.staging
                )
                for need in self.plan.groups[name].reads
            }
            self.decision.frozen[name] = FrozenInputs(inputs=inputs).model_dump_json()
            self.state.frozen.add(name)
        if ordinal is not None and group_id not in self.state.frozen:
            value = self.plan.member_value(name, ordinal, self.state.collected)
            self.decision.frozen[group_id] = FrozenInputs(value=value).model_dump_json()
            self.state.frozen.add(group_id)

    def resend_hints(self) -> None:
        """A hint that nobody claimed in time is sent again, the oldest first, within the queue's allowance (rule 6)."""
        now, limit = self.world.now, self.world.dispatch_timeout
        overdue = [
            (record.hinted_at, group_id, record)
            for group_id in self.state.by_state[S.QUEUED]
            if (record := self.state.groups[group_id]).hinted_at + limit <= now and group_id in self.state.attempts
        ]
        for _, group_id, record in sorted(overdue, key=lambda item: item[:2]):
            queue = self.plan.groups[split_member(group_id)[0]].spec.queue_name
            used = self.decision.resent.get(queue, 0)
            if used >= self.world.resend.get(queue, 0) or self.decision.full:
                continue
            again = replace(record, hinted_at=now, hints=record.hints + 1)
            self.state.put(group_id, again)
            self.decision.groups[group_id] = again
            self.decision.resent[queue] = used + 1
            self.decision.hints.append((queue, again.hint(self.job.id, group_id)))

    # ---- the end -------------------------------------------------------------------------------------

    def cancel_rest(self) -> None:
        """A group failed for good and nothing after it can live with that: everything else is canceled.

        Running attempts become stale at once: they can publish and change nothing, and their watchdogs end them.
        """
        culprit = next(iter(self.state.fatal))
        reason = Reason("SIBLING_FAILED", f"group {culprit} failed, and on_failure is cancel_others")
        for group_id in [
            *self.state.active,
            *self.state.by_state[S.BACKOFF],
            *self.state.by_state[S.WAITING],
        ]:
            if self.decision.full:
                self.decision.more = True
                return
            self.drop_attempt(group_id)
            self.move(group_id, replace(self.state.record(group_id), state=S.CANCELED, reason=reason))
        for name, planned in self.plan.groups.items():
            if not self.waiting_members(name):
                continue
            if self.decision.full:
                self.decision.more = True
                return
            count = self.plan.member_count(name, self.state.collected) or 0
            started = self.state.census[name].total()
            if planned.spec.for_each is None or not started:
                self.move(name, GroupRecord(state=S.CANCELED, reason=reason))
                continue
            for ordinal in range(started, count):
                if self.decision.full:
                    self.decision.more = True
                    return
                self.move(fork_member(name, ordinal), GroupRecord(state=S.CANCELED, reason=reason))
        assert self.state.ready is not None
        self.state.ready.clear()

    def end(self) -> None:
        """All groups are done: fail, or publish; and only what has been published is FINISHED."""
        if self.state.fatal:
            group_id = next(iter(self.state.fatal))
            record = self.state.groups[group_id]
            error = record.first_error
            said = f"{error.code}: {error.text}" if error else record.reason.text if record.reason else "no reason"
            others = len(self.state.fatal) - 1
            more = f" (and {others} more groups failed)" if others else ""
            self.finish(Status.FAILED, Reason("GROUP_FAILED", f"group {group_id} failed: {said}{more}"))
            return
        result = self.world.published
        if result is None:
            if self.job.phase != PUBLISHING:
                self.job = replace(self.job, phase=PUBLISHING)
                self.decision.events.append({"kind": "PUBLISHING"})
            if self.job.publish_next <= self.world.now:
                # Before the action, so that a coordinator that dies in it is followed by another.
                self.job = replace(self.job, publish_next=self.world.now + self.world.publish_timeout)
                self.decision.publish = True
            return
        self.published(result)

    def published(self, result: PublishResult) -> None:
        if result.failed is not None:
            self.finish(Status.FAILED, result.failed)
        elif result.trouble is not None:
            tries = self.job.publish_tries + 1
            wait = min(60.0, 2.0 ** min(tries, 6))
            self.job = replace(self.job, publish_tries=tries, publish_next=self.world.now + wait, reason=result.trouble)
            self.decision.events.append(
                {"kind": "PUBLISH_TROUBLE", "code": result.trouble.code, "text": result.trouble.text}
            )
        else:
            self.job = replace(self.job, version=result.version, published=dict(result.rows))
            where = f"as version {result.version}" if result.version else "(nothing to publish)"
            self.finish(Status.FINISHED, Reason("DONE", f"all groups are done and published {where}"))

    def finish(self, status: Status, reason: Reason) -> None:
        self.job = replace(self.job, status=status, reason=reason, ended_at=self.world.now, phase="")
        self.decision.events.append({"kind": str(status), "code": reason.code, "text": reason.text})

    def conclude(self) -> None:
        """Status and due follow from what stands now."""
        outcome = self.job.status if self.job.terminal else None
        status = derive(
            intent=self.job.intent,
            outcome=outcome,
            halted=self.job.halted is not None,
            started=bool(self.job.started_at),
            active=bool(self.state.active),
            recovering=bool(self.state.recovering),
        )
        self.job = replace(self.job, status=status)
        self.decision.job = self.job
        self.state.job = self.job
        self.decision.due = None if outcome is not None else due_at(self.state, self.world, self.decision.more)
        for event in self.decision.events:
            event["at"] = self.world.now


def due_at(state: JobState, world: World, more: bool = False) -> float:
    """When this job must be decided again even if nobody says anything. Every non-terminal job has such a time."""
    now = world.now
    if more:
        return now
    times = [now + world.dispatch_timeout]
    if state.job.phase == PUBLISHING:
        times = [state.job.publish_next]
    for group_id in state.active:
        record = state.groups[group_id]
        attempt = state.attempts.get(group_id)
        if record.state is S.QUEUED:
            times.append(record.hinted_at + world.dispatch_timeout)
        elif attempt is not None:
            times.append(min(attempt.lease, now + world.lease_ttl))
    times.extend(state.groups[group_id].next_at for group_id in state.by_state[S.BACKOFF])
    # Not earlier than a moment from now: what is overdue and still stands (no room, no allowance, a grace that
    # runs) is looked at again soon, not in a loop.
    return max(min(times), now + 0.25)
