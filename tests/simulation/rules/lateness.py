"""Lateness: each kind of wait has a bound of its own, from the table of what a loss costs
(docs/internals/how-it-works.md).
"""

# A wait is *ripe* from the moment when a coordinator has something to do about it. Its bound counts
# from that moment, or from the last fault of a coordinator, of its connections or of the store, if
# that was later: such a fault costs the term of a lock on top. Lost and late messages and lost
# workers are no such faults: what they cost is in the table.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

from tests.simulation.actors.broker import Broker
from tests.simulation.actors.fleet import Host
from tests.simulation.model.locks import Locks
from tests.simulation.model.store import ModelStore
from tests.simulation.model.stored import StoredJob
from tests.simulation.model.stream import ReportStream
from tests.simulation.rules import broken
from tests.simulation.rules.broken import Broken
from tests.simulation.rules.clocks import Clocks
from tests.simulation.rules.joins import can_never_go, rule_holds
from tests.simulation.rules.pools import kept_after_the_end
from tests.simulation.stage.stage import Stage
from tests.simulation.stage.trouble import Trouble
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState, Intent
from unstuck.coordinator.spec.plan import plan_of
from unstuck.coordinator.store.runner_wake_ups import idle_runner
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.token import split_member
from unstuck.tasks.settings import Settings

S = GroupState
SLACK = 0.5  # seconds that passes over a few jobs take
CLOCK_SLACK = 1.0  # seconds by which two readings of the clock may differ
PUBLISH_WAIT = 60.0  # seconds between two tries at most
ENDED_BY_USER = (Intent.STOP, Intent.CANCEL, Intent.FORCE_STOP)
ACTIVE = (S.QUEUED, S.RUNNING, S.CANCELING)
AFTER_FAILURES = ("all_done", "any_failed", "all_failed")

# A promise of ``broken.COSTS``, what is late (the same thing has the same words), and how late it
# may be, in seconds.
Wait = tuple[str, str, float]


class Lateness:
    """Finds what is ripe for longer than its bound."""

    def __init__(
        self,
        stage: Stage,
        trouble: Trouble,
        core: ModelStore,
        stream: ReportStream,
        broker: Broker,
        settings: Settings,
        clocks: Clocks,
        locks: Locks,
        hosts: Sequence[Host],
    ) -> None:
        self._stage, self._trouble, self._core, self._stream = stage, trouble, core, stream
        self._broker, self._settings, self._clocks, self._locks = broker, settings, clocks, locks
        self._hosts = hosts
        self.beaten = False  # beat fires the sweep
        self.undecidable: Callable[[JobRecord], bool] = lambda job: (
            False
        )  # by some coordinator (a rolling upgrade)
        self._since: dict[tuple[str, str], float] = {}
        self._busy: dict[
            str, float
        ] = {}  # job → since when somebody who met its lock busy waits for a pass
        self._decided: set[str] = set()  # jobs whose last pass has set the due
        self._answers: dict[str, float] = {}  # job → since when a publisher knows what came of it
        self._startable: dict[
            str, tuple[str, list[str]]
        ] = {}  # job → the commit by which it was derived

    @property
    def sweep(self) -> float:
        """How late a sweep may be: beat fires it every period; without beat, a coordinator sees
        that after two.
        """
        return self._settings.sweep_every * (1.0 if self.beaten else 2.5) + SLACK

    @property
    def _takeover(self) -> bool:
        """The sweep is alive and no grace runs: what is silent may be given up."""
        now, core = self._core.now, self._core
        return now > core.grace_until and 0 <= now - core.alive_at <= 3 * self._settings.sweep_every

    # ---- what is told
    # ----------------------------------------------------------------------------------

    def met_busy(self, job: str) -> None:
        # A pass that has set the due has looked at all that stood there, and what comes later makes
        # the job due itself.
        if job not in self._decided:
            self._busy.setdefault(job, self._stage.now)

    def begun(self, job: str) -> None:
        self._busy.pop(job, None)
        self._decided.discard(job)

    def due_set(self, job: str) -> None:
        self._decided.add(job)

    def answered(self, job: str) -> None:
        """A publisher that lives knows what came of publishing."""
        self._answers[job] = self._stage.now

    def rang(self, sent: Mapping[str, int], listening: Mapping[str, Sequence[RunnerInfo]]) -> None:
        """Raises: Broken: with the wake-ups that wait there are more than idle runners, on some of
        these queues.
        """
        heard = [queue for queue in sent if listening.get(queue)]
        for some in (c for size in range(1, len(heard) + 1) for c in combinations(heard, size)):
            there = {one.id: one for queue in some for one in listening[queue]}
            idle = [
                one.id
                for one in there.values()
                if idle_runner(one, self._core.polled.get(one.id, 0.0), self._core.now)
            ]
            waiting = {queue: self._broker.length(queue) for queue in some}
            if sum(waiting.values()) + sum(sent[queue] for queue in some) > len(idle):
                text = (
                    f"wake-ups are sent: {dict(sent)}; these wait already: {waiting}; idle is "
                    f"who is in {idle}"
                )
                raise Broken(broken.MANY_WAKE_UPS, text)

    # ---- looking
    # ---------------------------------------------------------------------------------------

    def look(self) -> None:
        """Raises: Broken."""
        now = self._stage.now
        before, self._since = self._since, {}
        quiet = self._trouble.quiet_since + self._settings.lock_term
        for promise, what, bound in self._ripe():
            since = self._since[promise, what] = before.get((promise, what), now)
            late = now - max(since, quiet)
            if late > bound:
                raise Broken(promise, f"{what}, for {late:.1f}s; the bound is {bound:.1f}s")

    def _ripe(self) -> Iterator[Wait]:
        core, now = self._core, self._core.now
        every = self._settings.sweep_every
        if not 0 <= now - core.alive_at <= 2 * every:
            yield broken.LOST_BEAT, f"nobody has swept since {core.alive_at:.3f}", every + SLACK
        yield from self._reports()
        for pool, offer in kept_after_the_end(core):
            yield (
                broken.LOST_SLOT,
                f"{offer} has ended, and holds a slot of pool {pool}",
                self.sweep,
            )
        for job_id, job in core.jobs.items():
            record = job.record
            if record.terminal or self.undecidable(record) or self._locked(job):
                continue
            if core.due.get(job_id, now + 1.0) <= now:
                yield broken.MISSED_DUE, f"{job_id} is due since {core.due[job_id]:.3f}", self.sweep
            if job_id in self._busy:
                at = self._busy[job_id]
                yield (
                    broken.MISSED_LOCK,
                    f"{job_id} was met busy at {at:.3f}, and nobody has looked since",
                    self.sweep,
                )
            yield from self._attempts(job)
            yield from self._commands(job)
            yield from self._publishing(job)
            if record.intent is Intent.RUN and not record.requests and not record.phase:
                yield from self._groups(job)

    def _locked(self, job: StoredJob) -> bool:
        """A lock outlives its term, since the clock was set back."""
        return self._stage.now <= self._locks.free_at(job) + self._settings.lock_term

    def _reports(self) -> Iterator[Wait]:
        """Entries that were read and are not acked; whoever read them lives, or died since."""
        settings, disturbed = self._settings, self._trouble.quiet_since
        for entry, item in self._stream.pending.items():
            job = self._core.jobs.get(
                item.entry.fields.get("job") or item.entry.fields["token"].split("/")[0]
            )
            if job is not None and self._locked(job):
                continue
            alone = (
                item.first_read <= disturbed
            )  # by somebody who may be dead, or have forgotten it
            bound = settings.report_idle * 1.2 + SLACK if alone else SLACK * 2
            yield broken.LOST_CONSUMER, f"report {entry} was read at {item.first_read:.3f}", bound
        if (at := self._stream.next_at()) is not None and at <= self._stage.now:
            yield (
                broken.LOST_CONSUMER,
                f"a report stands in the stream since {at:.3f}, unread",
                SLACK * 2,
            )

    def _attempts(self, job: StoredJob) -> Iterator[Wait]:
        core, now, record = self._core, self._core.now, job.record
        # A pass for the report of another group looks at that one alone; the job is due a period
        # later for the rest.
        report = self._settings.sweep_every + self.sweep
        for group, attempt in job.attempts.items():
            where = f"{record.id}/{group} attempt {attempt.epoch} {attempt.nonce}"
            state = job.groups[group].state if group in job.groups else S.WAITING
            if attempt.outcome is not None:
                yield (
                    broken.LOST_REPORT,
                    f"{where} has ended ({attempt.outcome.kind}) and is {state}",
                    report,
                )
            elif attempt.claimant and state is S.QUEUED:
                yield broken.LOST_REPORT, f"{where} was claimed and is shown QUEUED", report
            elif state in (S.RUNNING, S.CANCELING):
                lease = (
                    attempt.lease if attempt.claimant else job.groups[group].since + core.lease_ttl
                )
                ahead = (
                    lease > now + core.lease_ttl + CLOCK_SLACK
                )  # given before the clock was set back
                if (ahead or lease < now) and self._takeover:
                    bound = self.sweep + (core.lease_ttl if ahead else 0.0)
                    yield broken.LOST_WORKER, f"the lease of {where} lapsed at {lease:.3f}", bound
            elif state is S.QUEUED and record.intent is Intent.RUN and not record.timed_out:
                yield from self._offer(job, group)

    def _offer(self, job: StoredJob, group: str) -> Iterator[Wait]:
        """Nobody has claimed it: its offer stands in the ready set of its queue, and whoever is
        idle is woken.
        """
        offer, plan = job.groups[group].offer(job.record.id, group), plan_of(job.record.spec)
        spec = plan.groups[split_member(group)[0]].spec
        queue = spec.queue_name
        if offer not in self._core.ready.get(spec.lane, ()):
            yield (
                broken.LOST_OFFER,
                f"{offer} is lost",
                self._settings.dispatch_timeout + self.sweep,
            )
        elif spec.pool is None or self._core.has_slot(spec.pool):
            attempt = job.attempts[group]
            for host in self._hosts:
                if host.name == attempt.avoid and self._core.now < attempt.avoid_until:
                    continue  # others are asked first
                # Who is woken by a wake-up of any of its queues takes the offers of all of them.
                if (
                    host.idle
                    and queue in host.queues
                    and not any(map(self._broker.length, host.queues))
                ):
                    woken_at = self._broker.woken_at.get(queue, 0.0)
                    text = (
                        f"{offer} stands ready and {host.id} is idle; last wake-up at "
                        f"{woken_at:.3f}"
                    )
                    yield broken.LOST_WAKE_UP, text, self.sweep

    def _commands(self, job: StoredJob) -> Iterator[Wait]:
        record, settings = job.record, self._settings
        if record.requests:
            yield (
                broken.LATE_COMMAND,
                f"{record.id}: {record.requests[0]} is to be brought about",
                self.sweep,
            )
        if record.intent is Intent.RUN or record.requests:
            return
        if record.intent in ENDED_BY_USER and record.phase and not record.phase.aborts:
            yield (
                broken.LATE_COMMAND,
                f"{record.id} is publishing under {record.intent}",
                self.sweep,
            )
        if record.phase:
            return
        at_rest = (S.QUEUED,) if record.intent is Intent.PAUSE else (S.QUEUED, S.WAITING, S.BACKOFF)
        told = {Intent.PAUSE: "DRAIN" if record.pause_now else "", Intent.CANCEL: "CANCEL"}.get(
            record.intent, ""
        )
        for group, one in job.groups.items():
            attempt = job.attempts.get(group)
            held = attempt is not None and attempt.claimant
            wrong = one.state in at_rest and not held
            wrong |= one.state in ACTIVE and record.intent is Intent.FORCE_STOP
            wrong |= one.state is S.RUNNING and record.intent is Intent.CANCEL
            if (
                attempt is not None
                and held
                and attempt.outcome is None
                and told
                and one.state is not S.QUEUED
            ):
                wrong |= attempt.instruction != told
            if wrong:
                text = f"{record.id}/{group} is {one.state} under {record.intent}"
                yield broken.LATE_COMMAND, f"{text} since {record.intent_at:.3f}", self.sweep
            elif (
                one.state is S.CANCELING
                and self._core.now >= record.intent_at + settings.cancel_deadline
            ):
                yield broken.LATE_CANCEL, f"{record.id}/{group} is {one.state}", self.sweep
        if record.intent in ENDED_BY_USER and not any(
            one.state in ACTIVE for one in job.groups.values()
        ):
            yield (
                broken.LATE_COMMAND,
                f"{record.id} is {record.status} under {record.intent}",
                self.sweep,
            )

    def _publishing(self, job: StoredJob) -> Iterator[Wait]:
        record = job.record
        if not record.phase:
            self._answers.pop(record.id, None)
            return
        answered = self._answers.get(record.id, 0.0)
        if answered > self._trouble.lost_since:
            text = (
                f"what came of publishing {record.id} is known since {answered:.3f}, and it is "
                f"{record.status}"
            )
            yield broken.LATE_ANSWER, text, SLACK * 2
        if not 0 < record.publish_next - self._core.now <= PUBLISH_WAIT + CLOCK_SLACK:
            yield (
                broken.LATE_PUBLISH,
                f"{record.id} is to be published since {record.publish_next:.3f}",
                self.sweep,
            )

    def _groups(self, job: StoredJob) -> Iterator[Wait]:
        """Of a job that the user wants to run, and that is not publishing."""
        record, now = job.record, self._core.now
        derived = self._startable.get(record.id)
        if derived is None or derived[0] != record.commit:
            derived = self._startable[record.id] = (record.commit, list(self._to_start(job)))
        for what in derived[1]:
            yield (
                broken.LATE_END if what.startswith("!") else broken.LATE_START,
                what.lstrip("!"),
                self.sweep,
            )
        if derived[1]:
            return
        room = self._room(job)
        for group, one in job.groups.items():
            queue = plan_of(record.spec).groups[split_member(group)[0]].spec.queue_name
            if one.state is S.BACKOFF and one.next_at <= now and room(queue):
                text = f"{record.id}/{group} is in BACKOFF, which was over at {one.next_at:.3f}"
                yield broken.LATE_RETRY, text, self.sweep
        if not self._core.set_back:
            for text, graced in self._clocks.over(job, now):
                late = self.sweep + (self._settings.dispatch_timeout if graced else 0.0)
                if not graced or self._takeover:
                    yield broken.LATE_TIMEOUT, text, late

    def _to_start(self, job: StoredJob) -> Iterator[str]:
        """What of the job could go on by this commit and does not."""
        state = self._core.load(job.record.id)
        assert state is not None
        plan, record = state.plan, job.record
        left = [
            m
            for name in plan.groups
            for m in state.members(name)
            if not state.record(m).state.terminal
        ]
        if not left:
            yield f"!{record.id} is {record.status}, and all of its groups are done"
            return
        if record.timed_out is not None:
            stay: set[str] = set()
        elif plan.cancel_others and state.fatal:
            stay = {
                name for name, one in plan.groups.items() if one.spec.join.rule in AFTER_FAILURES
            }
        else:
            stay = set(plan.groups)
        if canceled := [member for member in left if split_member(member)[0] not in stay]:
            yield f"!{record.id} is {record.status}, and {canceled} are to be canceled"
        else:
            room = self._room(job)
            for name, planned in plan.groups.items():
                if _left_behind(state, name, room(planned.spec.queue_name)):
                    yield f"{record.id}/{name} may start and is WAITING"

    def _room(self, job: StoredJob) -> Callable[[str], bool]:
        """Whether ``max_parallel`` and the dispatch window leave room on a queue."""
        plan, active = (
            plan_of(job.record.spec),
            [g for g, one in job.groups.items() if one.state in ACTIVE],
        )
        full = plan.max_parallel is not None and len(active) >= plan.max_parallel
        window = self._settings.dispatch_window or 64

        def room(queue: str) -> bool:
            queued = [
                group
                for group in active
                if job.groups[group].state is S.QUEUED
                and plan.groups[split_member(group)[0]].spec.queue_name == queue
            ]
            return not full and len(queued) < window

        return room


def _left_behind(state: JobState, name: str, room: bool) -> bool:
    """A group that waits although its join rule holds, or can never hold, or all that it needs is
    done.
    """
    spec, census = state.plan.groups[name].spec, state.census[name]
    if state.ended_whole(name) or state.done(name):
        return False
    count = state.plan.member_count(name, state.collected)
    begun = bool(census.total())
    if begun:  # returned by a pause or a rerun, or a fork of which some are queued
        return room and (bool(census[S.WAITING]) or census.total() < (count or 0))
    done = all(state.done(need) for need in spec.needs)
    # What comes after a fork without members waits until the fork is skipped as a whole.
    unknown = any(not state.fulls[need] and not state.ended_whole(need) for need in spec.needs)
    quorum = spec.join.rule in ("any_succeeded", "at_least")
    if unknown and not (quorum and rule_holds(state, name)):
        return False
    if not (rule_holds(state, name) or done or can_never_go(state, name)):
        return False
    if spec.is_join or not count:
        return count is not None or done
    return room
