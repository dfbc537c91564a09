"""A small world: one job, and everything that anybody may do to it, step by step, for tests that
explore.
"""

# The job is decided by the real deciding code. The store, the runners, the warehouse log and the
# clock are as small as can be; what they answer is what the scripts and ``publish`` would. Every
# step happens at once and is noted in ``history``; ``play`` of the same steps leads to the same
# world. Every decision is judged (``support.invariants``).
#
# To add a step: yield it in ``steps``, under the condition that it can happen, and do it in the
# method of its name.

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from tests.support.jobs.invariants import BrokenInvariant, Seen, judge
from tests.support.jobs.job_in_memory import LEASE
from tests.support.jobs.sample_jobs import FOR_HISTORIES, OUTCOMES, RARE, SPECS, VALUES
from unstuck import JobSpec, Status
from unstuck.coordinator.command_table import Answer, Order
from unstuck.coordinator.commands.alter import alter
from unstuck.coordinator.commands.group_commands import rerun, skip
from unstuck.coordinator.commands.job_commands import INTENTS, Commanded, command
from unstuck.coordinator.decide.decide import decide
from unstuck.coordinator.model.decision import CommitGuard, Decision, Environment, PublishResult
from unstuck.coordinator.model.records import AttemptRecord, GroupRecord, JobRecord, Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import JOB_MOVES, GroupState, Intent
from unstuck.coordinator.spec.plan import Plan, plan_of
from unstuck.coordinator.store.job_store import HALTED_LOOK
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Offer, split_member
from unstuck.tasks.spec.group import GroupSpec

S = GroupState
# By when a try of publishing that does not answer is told of, and that it counts as hanging.
LOOKS_AT_SILENCE = 5
FOREVER = 200  # rounds in which any job of these sizes has come to rest


class Step(NamedTuple):
    """One thing that happens: ``do`` it, ``to`` which group, ``how``."""

    do: str
    to: str = ""
    how: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in self if part)


LOOK = Step("look")
WAIT = Step("wait")
HALT = Step("halt")
COMMANDS = (
    *(Step("command", each) for each in INTENTS),
    Step("command", "pause", "now"),
)


def _heard(outcome: Outcome | None) -> tuple[str, bool]:
    """What deciding goes by in an outcome."""
    if outcome is None:
        return ("", False)
    return (outcome.kind, outcome.failure is not None and outcome.failure.recoverable)


class SmallWorld:
    """One job after the steps of ``history``.

    Attributes:
        attempts: the live attempts, as the worker scripts keep them.
        offers: every offer that was ever made.
        ready: the ready sets of all queues: offers that a runner takes next.
        doing: what a coordinator does to the warehouse at this moment: nothing, ``publish`` or
            ``abort``.
        slot: what stands in the warehouse log under the job's name: nothing, ``package`` or
            ``abort``.
        due: when somebody looks at the job, whatever happens; None once it has ended.
    """

    def __init__(self, spec: str, seen: Seen | None = None, limit: int = 500) -> None:
        """``limit``: moves that one decision may make; the caller has set it in
        ``coordinator.model.decision`` too.
        """
        self.spec, self.seen, self.limit = spec, seen or Seen(), limit
        written = {"name": spec, "params": {"x": 0}, **{**SPECS, **FOR_HISTORIES}[spec]}
        self.job = JobRecord("j-1", spec, JobSpec.model_validate(written).to_json(), "new")
        self.groups: dict[str, GroupRecord] = {}
        self.collected: dict[str, tuple[Any, ...]] = {}
        self.attempts: dict[str, AttemptRecord] = {}
        self.frozen: dict[str, str] = {}
        self.offers: dict[Offer, None] = {}
        self.ready: dict[Offer, None] = {}
        self.doing, self.why, self.slot = "", Reason("", ""), ""
        self.now, self.due = 1000.0, 1000.0
        self.history: tuple[Step, ...] = ()
        self.given = 0  # commands that were taken, and halts
        self._words = 0
        self.kept: JobState | None = None  # as a coordinator keeps the state of a busy job

    def fork(self) -> SmallWorld:
        """The same world once more, to go another way from here."""
        other = SmallWorld.__new__(SmallWorld)
        other.__dict__.update(self.__dict__)
        other.groups, other.collected, other.attempts = (
            dict(self.groups),
            dict(self.collected),
            dict(self.attempts),
        )
        other.frozen, other.offers, other.ready = (
            dict(self.frozen),
            dict(self.offers),
            dict(self.ready),
        )
        other.kept = None
        return other

    def __str__(self) -> str:
        told = " → ".join(map(str, self.history)) or "submitted"
        return (
            f"{self.spec}: {told} [{self.job.status}, {self.job.intent}, "
            f"{self.job.phase or '-'}] {self.states()}"
        )

    # ---- reading
    # -----------------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        return plan_of(self.job.spec)

    def state(self) -> JobState:
        """The job as a coordinator loads it."""
        return JobState(
            self.plan, self.job, self.groups, self.collected, dict(self.attempts), self.frozen
        )

    def states(self) -> dict[str, str]:
        state = self.state()
        return {
            each: str(state.record(each).state)
            for name in self.plan.groups
            for each in state.members(name)
        }

    def planned(self, name: str) -> GroupSpec:
        """What the spec says of a group, or of the fork of this member."""
        return self.plan.groups[split_member(name)[0]].spec

    def env(self, **more: Any) -> Environment:
        """What a decision made now may know."""
        return Environment(now=self.now, nonce=self._word(), **more)

    @property
    def may_run(self) -> bool:
        """What is on offer may be claimed."""
        return self.job.intent is Intent.RUN and self.job.halted is None

    def running(self) -> list[str]:
        """Groups whose attempt is claimed and has not ended."""
        return [
            name
            for name, attempt in self.attempts.items()
            if attempt.claimant and attempt.outcome is None
        ]

    def timed(self) -> list[str]:
        """Groups on offer whose time in the queue is bounded."""
        offered = (
            name
            for name, attempt in self.attempts.items()
            if not attempt.claimant and attempt.outcome is None
        )
        return [name for name in offered if self.planned(name).queue_timeout is not None]

    def situation(self) -> tuple[Any, ...]:
        """Where the job stands, as coarsely as a person would say it."""
        job = self.job
        states = frozenset(self.states().values())
        return (
            job.status,
            job.intent,
            job.phase,
            states,
            job.halted is not None,
            bool(job.requests),
            self.slot,
        )

    def novelty(self) -> tuple[Any, ...]:
        """Where the job stands, and what lies on its record that the next decision must take in."""
        job = self.job
        said = {
            (bool(a.claimant), _heard(a.outcome), a.lease < self.now, a.instruction)
            for a in self.attempts.values()
        }
        recovering = any(record.recovering for record in self.groups.values())
        asked = tuple(
            (ask.do, "[" in ask.group, self.state().record(ask.group).state) for ask in job.requests
        )
        return (
            self.situation(),
            frozenset(said),
            recovering,
            job.pause_now,
            job.reset_budgets,
            self.doing,
            asked,
        )

    def key(self) -> object:
        """Equal for worlds that differ in nothing but numbers: times, epochs, words."""
        job, now = self.job, self.now
        times = (job.publish_next <= now, now >= job.intent_at + 60.0)
        groups = (
            (g, r.state, r.failures, r.losses, r.next_at <= now) for g, r in self.groups.items()
        )
        return (
            self.novelty(),
            job.requests,
            times,
            tuple(self.collected.items()),
            frozenset(groups),
        )

    # ---- steps
    # -------------------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        """Everything that can happen now."""
        yield from COMMANDS
        if self.job.terminal:
            return
        yield LOOK
        yield WAIT
        for name, attempt in self.attempts.items():
            if attempt.outcome is not None:
                yield Step("look", name)
            elif attempt.claimant:
                yield from (Step("finish", name, how) for how in OUTCOMES)
                if self.plan.groups[split_member(name)[0]].feeds:
                    yield from (Step("finish", name, how) for how in VALUES)
                yield Step("lapse", name)
                yield Step("look", name)
            elif self.may_run:
                if self._offer(name) in self.ready:
                    yield Step("claim", name)
                if self.planned(name).queue_timeout is not None:
                    yield Step("unserved", name)
        if self.ready:
            yield Step("lose")
            if not self.may_run:
                yield Step("drop")
        if self.doing:
            hows = ("answers", "troubled", "hangs", "dies before", "dies after")
            yield from (Step("warehouse", how=how) for how in hows)
            if self.doing == "publish" and not self.slot:
                yield Step("warehouse", how="refuses")
        yield HALT
        for name, planned in self.plan.groups.items():
            yield from (Step(do, name) for do in ("skip", "rerun"))
            if (
                planned.spec.for_each is not None
                and (self.plan.member_count(name, self.collected) or 0) > 1
            ):
                yield from (Step(do, f"{name}[{n}]") for do in ("skip", "rerun") for n in (0, 1))
        yield Step("alter", how="code")
        yield Step("alter", how="policy")

    def play(self, *steps: Step) -> SmallWorld:
        for step in steps:
            self.history = (*self.history, step)
            getattr(self, f"_{step.do}")(*step[1:])
        return self

    # ---- the user
    # ----------------------------------------------------------------------------------------------------

    def give(self, given: str, *, now: bool = False) -> Commanded:
        """One command, as ``Client.command`` gives it."""
        self.history = (*self.history, Step("command", given, "now" if now else ""))
        return self._written(command(self.job, given, now=now, by="me"))

    def _command(self, given: str, now: str) -> None:
        self._written(command(self.job, given, now=bool(now), by="me"))

    def _skip(self, name: str, _: str) -> None:
        self._written(skip(self.state(), Order(), name))

    def _rerun(self, name: str, _: str) -> None:
        self._written(rerun(self.state(), Order(word=f"w{self.given}"), name))

    def _alter(self, _: str, how: str) -> None:
        values = (
            {"params.x": self.job.revision + 1}
            if how == "code"
            else {"max_parallel": self.job.revision + 1}
        )
        self._written(alter(self.state(), Order("me", at=self.now), values))

    def _written(self, result: Commanded) -> Commanded:
        """As ``command.lua`` writes it."""
        if result.answer is not Answer.DONE:
            if result.job != self.job:
                raise BrokenInvariant(f"{result.answer}, and the record has changed: {result.text}")
            return result
        at = self.now if result.job.intent is not self.job.intent else self.job.intent_at
        self.job = replace(result.job, intent_at=at, commit=self._word())
        self.due, self.kept = self.now, None
        self.given += 1
        return result

    # ---- runners
    # -----------------------------------------------------------------------------------------------------

    def claim(self, offer: Offer) -> str:
        """Take this offer off its ready set, and claim it if it stands, as ``take.lua``: CLAIMED or
        REFUSED.
        """
        self.ready.pop(offer, None)
        attempt = self.attempts.get(offer.group)
        if self.job.terminal or attempt is None or attempt.outcome is not None or attempt.claimant:
            return "REFUSED"
        if (attempt.epoch, attempt.nonce) != (offer.epoch, offer.nonce) or not self.may_run:
            return "REFUSED"
        if split_member(offer.group)[0] not in self.frozen and offer.group not in self.frozen:
            raise BrokenInvariant(f"{offer.group} is on offer without inputs: nobody can claim it")
        self.attempts[offer.group] = replace(
            attempt,
            claimant="c",
            worker="w",
            claimed_at=self.now,
            lease=self.now + LEASE,
            revision=self.job.revision,
        )
        self.due = min(self.due, self.now)
        return "CLAIMED"

    def _claim(self, name: str, _: str) -> None:
        assert self.claim(self._offer(name)) == "CLAIMED"

    def _drop(self, _: str, __: str) -> None:
        """A runner asks for work while the job is not to run: it takes every offer off, and claims
        none.
        """
        assert {self.claim(offer) for offer in list(self.ready)} == {"REFUSED"}

    def _lose(self, _: str, __: str) -> None:
        """The ready sets are gone."""
        self.ready.clear()

    def _offer(self, name: str) -> Offer:
        attempt = self.attempts[name]
        return Offer(self.job.id, name, attempt.epoch, attempt.nonce)

    def _finish(self, name: str, how: str) -> None:
        """As ``finish.lua`` does it: an attempt that is over is STALE, and nothing happens."""
        attempt = self.attempts.get(name)
        if (
            attempt is None
            or not attempt.claimant
            or attempt.outcome is not None
            or self.job.terminal
        ):
            return
        outcome = (OUTCOMES | RARE)["succeeded" if how in VALUES else how]
        if outcome.kind is OutcomeKind.SUCCEEDED:
            outcome = replace(outcome, staging=f"_staging/{name}/{attempt.epoch}/{attempt.nonce}")
        if how in VALUES:
            keys = {key for _, key in self.plan.groups[split_member(name)[0]].feeds}
            outcome = replace(outcome, forks=dict.fromkeys(keys, VALUES[how]))
        self.attempts[name] = replace(attempt, outcome=outcome, outcome_at=self.now)
        self.due = min(self.due, self.now)

    def _lapse(self, name: str, _: str) -> None:
        """A whole lease goes by without a word of this runner; the others are alive."""
        self._let_pass(LEASE + 0.1, silent=name)

    def _unserved(self, name: str, _: str) -> None:
        """The group's whole time in the queue goes by, and nobody claims it."""
        self._let_pass((self.planned(name).queue_timeout or 0.0) + 0.1)

    def _let_pass(self, seconds: float, silent: str = "") -> None:
        self.now += seconds
        for name in self.running():
            if (
                name != silent and self.attempts[name].lease >= self.now - seconds
            ):  # a dead one stays dead
                self.attempts[name] = replace(self.attempts[name], lease=self.now + LEASE)

    def _wait(self, _: str, __: str) -> None:
        """Time passes until the job is due."""
        self._let_pass(max(0.0, self.due - self.now))

    # ---- the warehouse
    # -----------------------------------------------------------------------------------------------

    def _warehouse(self, _: str, how: str) -> None:
        """What came of publishing, or of making sure that it never happens: the slot says which was
        first.
        """
        if how == "hangs":  # until that is told; it may answer later all the same
            for _ in range(LOOKS_AT_SILENCE):
                self._wait("", "")
                self._look("", "")
            return
        doing, self.doing = self.doing, ""
        if how == "dies before":
            return  # the coordinator, and nobody is told of anything
        if how == "troubled":
            self._decided(
                None, PublishResult(trouble=Reason("PUBLISH_TROUBLE", "the warehouse is away"))
            )
            return
        if not self.slot:
            self.slot = "abort" if doing == "abort" or how == "refuses" else "package"
        if how == "dies after":
            return
        if self.slot == "package":
            result = PublishResult(version=1, rows={"data": 1})
        else:
            result = PublishResult(
                failed=self.why if doing == "abort" else Reason("MARKER_GONE", "it can never be")
            )
        self._decided(None, result)

    # ---- the coordinator
    # ---------------------------------------------------------------------------------------------

    def _halt(self, _: str, __: str) -> None:
        """As ``Store.halt``: the job could not be decided, twice."""
        if (
            move := (self.job.status, Status.HALTED)
        ) not in JOB_MOVES and self.job.status is not Status.HALTED:
            raise BrokenInvariant(f"the job moved from {self.job.status} to HALTED")
        self.seen.jobs.add(move)
        self.job = replace(
            self.job,
            halted=Reason("UNDECIDABLE", "a bug"),
            status=Status.HALTED,
            commit=self._word(),
        )
        self.due, self.kept = self.now + HALTED_LOOK, None
        self.given += 1

    def _look(self, name: str, _: str) -> None:
        """Decide: at everything, from a fresh load; or at what a report of one group says, with the
        state at hand.
        """
        self._decided([name] if name else None, None)

    def _decided(
        self, changed: Iterable[str] | None, published: PublishResult | None
    ) -> Decision | None:
        """One round of the reconciler: load, decide, commit.

        None where there was nothing to decide.
        """
        if self.job.terminal or (
            self.job.halted is not None and self.job.intent in (Intent.RUN, Intent.PAUSE)
        ):
            self.due = math.inf if self.job.terminal else self.now + HALTED_LOOK
            return None
        state = self.kept if changed is not None else None
        if state is None:
            state, changed = self.state(), None
        for name in changed or ():
            state.attempts[name] = self.attempts[name]
        env, old = self.env(published=published), dict(self.groups)
        decision = decide(state, changed, env)
        if not all(self._stands(guard) for guard in decision.guards):
            self.kept = None
            return self._decided(None, published)
        self._commit(decision)
        self.kept = None if decision.reload else state
        judge(self.state(), decision, old, env, self.seen, self.limit)
        return decision

    def _stands(self, guard: CommitGuard) -> bool:
        attempt = self.attempts.get(guard.group)
        if (
            attempt is None
            or (attempt.epoch, attempt.nonce) != (guard.epoch, guard.nonce)
            or attempt.outcome
        ):
            return False
        return not attempt.claimant if guard.kind == "unclaimed" else attempt.lease < self.now

    def _commit(self, decision: Decision) -> None:
        """As ``commit.lua`` writes it."""
        if not decision.empty:
            self.job = decision.job = replace(decision.job, commit=self._word())
        self.groups.update(decision.groups)
        self.frozen.update(decision.frozen)
        self.collected.update(decision.collected)
        for name in decision.dropped:
            self.attempts.pop(name, None)
        for name, attempt in decision.offered.items():
            self.attempts[name] = AttemptRecord(attempt.epoch, attempt.nonce)
        for gone, records in (
            (decision.forgotten, self.groups),
            (decision.unfrozen, self.frozen),
            (decision.uncollected, self.collected),
        ):
            for name in gone:
                records.pop(name, None)  # type: ignore[attr-defined]
        for name, (epoch, nonce, instruction) in decision.instructions.items():
            attempt = self.attempts.get(name)
            if (
                attempt is not None
                and (attempt.epoch, attempt.nonce) == (epoch, nonce)
                and attempt.outcome is None
            ):
                self.attempts[name] = replace(attempt, instruction=instruction)
        self.due = math.inf if decision.due is None else decision.due
        for offer in decision.withdrawn:
            self.ready.pop(offer, None)
        self.offers.update(dict.fromkeys(decision.offers))
        self.ready.update(dict.fromkeys(decision.offers))
        for offer in self.ready:
            attempt = self.attempts.get(offer.group)
            if (
                attempt is None
                or attempt.claimant
                or (attempt.epoch, attempt.nonce) != (offer.epoch, offer.nonce)
            ):
                raise BrokenInvariant(f"{offer} stands ready, and nobody may claim it")
        if decision.abort is not None:
            self.doing, self.why = "abort", decision.abort
        elif decision.publish:
            self.doing = "publish"

    def _word(self) -> str:
        self._words += 1
        return f"x{self._words}"

    # ---- left alone
    # --------------------------------------------------------------------------------------------------

    def go_on(self, runners: str = "succeed") -> SmallWorld:
        """Nobody says anything more; runners, coordinators and the warehouse go on until nothing
        moves.

        Args:
            runners: what those that hold an attempt do. They ``succeed``; they ``obey`` when told
                to end, and succeed otherwise; they ``fail`` for good; they are ``gone`` without a
                word; or ``hang``: alive, and never done.
        """
        for _ in range(FOREVER):
            self.play(LOOK)
            if self.job.terminal or self._rests():
                return self
            for offer in list(self.ready):
                self.claim(offer)
            for name in self.running() if runners != "hang" else ():
                instruction = self.attempts[name].instruction
                how = (
                    {"CANCEL": "canceled", "DRAIN": "released"}.get(instruction, "succeeded")
                    if runners == "obey"
                    else ""
                )
                if runners == "gone":
                    self.attempts[name] = replace(
                        self.attempts[name], lease=min(self.attempts[name].lease, self.now - 0.1)
                    )
                else:
                    self.play(
                        Step(
                            "finish",
                            name,
                            how or ("failed for good" if runners == "fail" else "succeeded"),
                        )
                    )
            if self.doing:
                self.play(Step("warehouse", how="answers"))
            elif self.due > self.now:
                self.play(WAIT)
        raise BrokenInvariant(f"it does not come to rest: {self}")

    def _rests(self) -> bool:
        """PAUSED and HALTED wait for a person."""
        if self.job.halted is not None and self.job.intent in (Intent.RUN, Intent.PAUSE):
            return True
        return self.job.status is Status.PAUSED and self.due > self.now
