"""Bugs of one line, each at a place where a promise depends on the line. Most make something late that is not lost.

Each is the line of the product, or of the model of its scripts, with the change that a hasty hand could make to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.simulation.actors.coordinators import StoreAtHand
from tests.simulation.model.store import ModelStore
from tests.simulation.planted.planting import Patches, Planted, edited
from tests.simulation.rules import broken
from tests.simulation.rules.broken import FORGOTTEN, ONE, SHOWN, WAIT, WORD
from unstuck.coordinator.decide import dispatch, failures, intent, joins, publishing
from unstuck.coordinator.decide.draft import Draft
from unstuck.coordinator.decide.timers import backoff, clock, deadlines, leases, timeouts
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.notices.rules.job_rules import _Telling
from unstuck.coordinator.publishing.background_tries import Publisher
from unstuck.coordinator.reconcile.consumer import Consumer
from unstuck.coordinator.reconcile.reconciler import Pass
from unstuck.coordinator.reconcile.sweep import Sweep
from unstuck.coordinator.store.answers import Begun
from unstuck.in_process.store import ReferenceStore


def line(function: object, old: str, new: str) -> partial[Patches]:
    return partial(edited, function, old, new)


def mutant(
    name: str, breaks: str, start: int, patches: Callable[[], Patches], *, commands: bool = False, within: int = 400
) -> Planted:
    return Planted(name, breaks, start, patches=patches, commands=commands, within=within)


def _no_grace() -> Patches:
    """Neither the pass nor the guard in the commit waits for the end of a grace."""
    return [
        *edited(Begun.takeover, "self.now > self.grace_until and ", ""),
        *edited(ModelStore._stands, "now > self.grace_until and ", ""),
    ]


MUTANTS = (
    mutant(
        "a lost offer is not made again",
        broken.LOST_OFFER,
        27,
        line(dispatch.offer_again, "at_once or offer_again_at(record, draft.env) <= draft.env.now", "at_once"),
    ),
    mutant(
        "an offer that is lost is looked for much later",
        broken.LOST_OFFER,
        77,
        line(deadlines.offer_again_at, "+ env.dispatch_timeout", "+ 3 * env.dispatch_timeout"),
    ),
    mutant(
        "the sweep wakes nobody",
        broken.LOST_WAKE_UP,
        42,
        line(
            Sweep.run,
            "self._wake(now)\n    decided",
            "decided",
        ),
    ),
    mutant(
        "a pool is over-full",
        broken.ONE,
        24,
        line(ModelStore.has_slot, "< self.pools.get(pool, 1)", "<= self.pools.get(pool, 1)"),
    ),
    mutant(
        "a finish and take that is repeated takes another offer",
        broken.ONE,
        1024,
        line(
            ModelStore.finish_and_take,
            "return self.finish(",
            "self.taken.pop(caller, None)\n    return self.finish(",
        ),
        within=1000,
    ),
    mutant(
        "a take that is repeated is told that nothing stands",
        broken.ONE,
        7,
        line(
            ModelStore.take,
            "return self._claim(offer, claimant, worker, event) if offer is not None else None",
            "return None",
        ),
    ),
    mutant(
        "the slot of a lost attempt is never free",
        broken.LOST_SLOT,
        6,
        line(ModelStore.free_slots, "self.held.discard((pool, offer))", "pass"),
    ),
    mutant(
        "a runner that sleeps counts as one that polls",
        broken.LOST_WAKE_UP,
        166,
        line(ModelStore.take, "self.polled[caller] = -self.now", "pass"),
    ),
    mutant(
        "what a runner says itself does not count",
        broken.LOST_WAKE_UP,
        223,
        line(ReferenceStore.wake_ups, "if self._idle(one)", "if one.idle_since is not None"),
    ),
    mutant(
        "wake-ups that wait are not counted: they double",
        broken.MANY_WAKE_UPS,
        0,
        line(StoreAtHand.wake_ups, "self._broker.length", "lambda queue: 0"),
    ),
    mutant(
        "an idle runner is sent a wake-up for each offer",
        broken.MANY_WAKE_UPS,
        4,
        line(ReferenceStore.wake_ups, "idle.pop(min(there)[1])", "idle[min(there)[1]]"),
    ),
    mutant(
        "a claim does not ask for the epoch and the nonce",
        broken.ONE,
        7,
        line(ReferenceStore._claim, "(attempt.epoch, attempt.nonce) != (offer.epoch, offer.nonce) or ", ""),
    ),
    mutant(
        "an offer is put back only where no other stands",
        broken.LOST_OFFER,
        65,
        line(
            ReferenceStore.acknowledge,
            "self._add_offers(self.jobs[job_id], offers)",
            "any(map(self.ready.get, offers.values())) or self._add_offers(self.jobs[job_id], offers)",
        ),
    ),
    mutant(
        "no due for the end of a lease",
        broken.LOST_WORKER,
        0,
        line(deadlines.due_at, "times.append(lease + 0.01 if lease > now else now + 0.5)", "times.append(later)"),
    ),
    mutant(
        "a lease is believed for twice its term",
        broken.LOST_WORKER,
        19,
        line(leases.lapsed, "not env.now <=", "not env.now - env.lease_ttl <="),
    ),
    mutant("a takeover without the grace after an outage", ONE, 2, _no_grace),
    mutant(
        "no due for the end of a backoff",
        broken.LATE_RETRY,
        18,
        line(
            deadlines.due_at,
            "times.append(retry_at(state.groups[group_id], state.planned(group_id).retry, env))",
            "pass",
        ),
    ),
    mutant("a backoff grows tenfold", broken.LONG_BACKOFF, 8, line(backoff.doubled, "2.0 **", "10.0 **")),
    mutant(
        "a lost worker makes the backoff of a failure longer",
        broken.LONG_BACKOFF,
        143,
        line(failures.fail, "backoff(policy, failures,", "backoff(policy, failures + record.losses,"),
    ),
    mutant(
        "a failure does not set the count of lost workers back",
        broken.LONG_BACKOFF,
        480,
        line(failures.fail, "replace(charged, losses=0)", "charged"),
    ),
    mutant(
        "a resume does not set the count of lost workers back",
        WORD,
        25,
        line(intent.reset_budgets, "failures=0, losses=0", "failures=0"),
        commands=True,
    ),
    mutant(
        "no due for the deadline of a cancel",
        broken.LATE_CANCEL,
        531,
        line(deadlines.due_at, "times.append(max(cancel_at(state.job, env), soon))", "pass"),
        commands=True,
    ),
    mutant(
        "no due for the timeout of a job",
        broken.LATE_TIMEOUT,
        166,
        line(deadlines.due_at, "job_timeout_at(state.job, state.plan.timeout, env) or 0.0", "0.0"),
    ),
    mutant(
        "the time of a pause counts against the timeout of a job",
        WAIT,
        60,
        line(timeouts.count_job_time, "counted_from += max(0.0, now - paused_at)", "pass"),
        commands=True,
    ),
    mutant(
        "a cancel that tells no runner",
        broken.LATE_COMMAND,
        33,
        line(intent.cancel, 'draft.instruct(group_id, "CANCEL")', "pass"),
        commands=True,
    ),
    mutant(
        "a pause that does not wait tells no runner",
        broken.LATE_COMMAND,
        64,
        line(intent.pause, 'draft.instruct(group_id, "DRAIN")', "pass"),
        commands=True,
    ),
    mutant(
        "a cancel leaves what waits for a retry",
        broken.LATE_END,
        75,
        line(intent.cancel_waiting, "*draft.state.by_state[S.BACKOFF], ", ""),
    ),
    mutant(
        "a command does not make its job due",
        broken.LATE_COMMAND,
        460,
        line(ReferenceStore.command, "self.due[old.id] = min(now, self.due.get(old.id, now))", "pass"),
        commands=True,
    ),
    mutant(
        "a claim does not make its job due",
        broken.LOST_REPORT,
        19,
        line(ReferenceStore._claim, "self._due_earlier(offer.job, now)", "pass"),
    ),
    mutant(
        "an outcome does not make its job due",
        broken.LOST_REPORT,
        124,
        line(ReferenceStore._finish, "self._due_earlier(token.job, now)", "pass"),
    ),
    mutant(
        "a pass for one report forgets when all was looked at",
        FORGOTTEN,
        108,
        line(Pass._decide, "min(decision.due, state.looked_at + self._sweep_every)", "decision.due"),
    ),
    mutant(
        "a lock that was met busy is not noticed at its end",
        broken.MISSED_LOCK,
        2875,
        line(ModelStore.end, "if job.dirty_until > now:", "if job.dirty_until > now and anyway:"),
    ),
    mutant(
        "reports of a lost coordinator are taken over much later",
        broken.LOST_CONSUMER,
        41,
        line(Consumer.step, "self._settings.report_idle / 5", "self._settings.report_idle * 5"),
    ),
    mutant(
        "a report that met a busy lock waits for half a minute",
        broken.LOST_CONSUMER,
        24,
        line(Consumer._apply_to, "random_wait(BUSY_WAIT, tries, self._uniform))", "30.0)"),
    ),
    mutant(
        "without beat nobody sweeps for twenty periods",
        broken.LOST_BEAT,
        0,
        line(Sweep.run_if_overdue, "<= 2 * self", "<= 20 * self"),
    ),
    mutant(
        "a quorum needs one more", broken.LATE_START, 0, line(joins.judge, "succeeded >= wanted", "succeeded > wanted")
    ),
    mutant(
        "a quorum is given up while it can be reached",
        SHOWN,
        2,
        line(joins.judge, "succeeded + left < wanted", "succeeded + left <= wanted"),
    ),
    mutant(
        "what a pause took back is not queued by the resume",
        broken.LATE_START,
        4,
        line(dispatch.queue_runnable, "for g in state.by_state[S.WAITING]", "for g in ()"),
        commands=True,
    ),
    mutant(
        "what is active counts twice in max_parallel",
        broken.LATE_START,
        14,
        line(
            dispatch.Room.__init__,
            "len(draft.state.active)",
            "len(draft.state.active) - len(draft.state.by_state[S.QUEUED])",
        ),
    ),
    mutant(
        "what came of publishing is dropped when the lock is busy",
        broken.LATE_ANSWER,
        1343,
        line(Publisher._try_it, "if self._decide(job, result):", "if self._decide(job, result) or True:"),
        commands=True,
        within=1000,
    ),
    mutant(
        "the first trouble of a warehouse costs a minute",
        broken.LATE_PUBLISH,
        103,
        line(publishing.trouble, "min(MAX_PUBLISH_WAIT, 2.0 ** min(tries, 6))", "MAX_PUBLISH_WAIT"),
    ),
    mutant(
        "a sweep decides what was due five seconds ago",
        broken.MISSED_DUE,
        3,
        line(Sweep.run, "self._store.due(now, ", "self._store.due(now - 5.0, "),
    ),
    mutant(
        "a takeover that the commit does not look at again",
        ONE,
        211,
        line(leases.end_lapsed, "draft.decision.guards.append(Guard(", "(lambda guard: None)(Guard("),
        commands=True,
    ),
    mutant(
        "a backoff is over as soon as anybody looks",
        SHOWN,
        82,
        line(dispatch.queue_runnable, "<= draft.env.now", "<= draft.env.now + 5.0"),
    ),
    mutant(
        "a fork that is half queued counts as done",
        SHOWN,
        13,
        line(JobState.done, "ended == count", "ended == self.census[name].total()"),
    ),
    mutant(
        "a coordinator that starts waits before it takes reports over",
        broken.LOST_CONSUMER,
        8,
        line(Consumer.__init__, "self._next_claim = 0.0", "self._next_claim = clock() + 30.0"),
    ),
    mutant(
        "a report that was doubled is acked and its twin forgotten",
        broken.LOST_CONSUMER,
        65,
        line(Consumer.apply, "waiting.add(batch)", "pass"),
    ),
    mutant(
        "a cancel has its deadline from when it was obeyed",
        broken.LATE_CANCEL,
        253,
        line(intent.cancel_at, "+ env.cancel_deadline\n", "+ 2 * env.cancel_deadline\n"),
        commands=True,
    ),
    mutant(
        "a time that lies ahead since the clock was set back is waited for",
        broken.LATE_PUBLISH,
        372,
        line(clock.come_if_beyond, "return at if at <= limit + CLOCK_SLACK else 0.0", "return at"),
        commands=True,
    ),
    mutant(
        "after an outage nobody looks at what is due later",
        broken.LATE_START,
        139,
        line(ModelStore.tick, "self.due = {job: min(at, now) for job, at in self.due.items()}", "pass"),
        commands=True,
    ),
    mutant(
        "a job that a person ends is told to nobody",
        broken.UNTOLD,
        6,
        line(_Telling.end, "if not self._job.schedule:", "if self._job.intent is Intent.RUN:"),
        commands=True,
    ),
    mutant(
        "a condition with a time does not make its job due",
        broken.UNTOLD,
        31,
        line(Pass._tell, "decision.due = min(decision.due, told.look_at)", "pass"),
    ),
    mutant(
        "each failure begins anew the time for which a group is tried again",
        broken.TOLD,
        8,
        line(Draft.put, "if record.recovering != bool(record.troubled_since):", "if record.recovering:"),
    ),
    mutant(
        "what was told is not on the record",
        broken.TOLD,
        6,
        line(Pass._tell, "if told.told != job.told:", "if False:"),
    ),
    mutant(
        "a condition with a time is told at once",
        broken.TOLD,
        1,
        line(_Telling.look, "at = since + limit", "at = since"),
    ),
    mutant(
        "a notice that is made again after a rollback has another id",
        broken.TOLD,
        298,
        line(
            _Telling._tell, "id=notice_id(job.id, event, key, mark)", "id=notice_id(job.id, event, key, self._env.now)"
        ),
        within=1000,
    ),
)
