"""The fleet: runners and their watchdogs, as small state machines that speak to the model of the
store.

A runner dies and freezes at every boundary of an attempt; its watchdog dies with it (a lost host)
or tells of its death. A frozen runner that thaws goes on as if nothing had happened: it is the
zombie that the fences are for.
"""

# What a watchdog decides is the real thing (``policy``). Most runners leave when they are told to;
# one that ignores instructions is killed after the grace; some hang where no kill reaches them,
# while their watchdog renews the lease.

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeVar

from tests.simulation.actors.broker import Broker
from tests.simulation.actors.warehouse import Depot, ModelMarker
from tests.simulation.model.store import ModelStore
from tests.simulation.stage.jobs import SimulatedJob
from tests.simulation.stage.stage import Actor, Killed, Life, Routine, Stage
from tests.simulation.stage.trouble import Fault, Trouble
from unstuck.tasks.process.tree import ProcessState
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.report import Done, Failure, Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Token, split_member
from unstuck.tasks.settings import Settings
from unstuck.tasks.spec.work_order import FrozenInputs, WorkOrder
from unstuck.tasks.transport.lease import Claim, RenewAnswer
from unstuck.tasks.watchdog import policy
from unstuck.tasks.watchdog.policy import Instruction, Observation, WatchState

T = TypeVar("T")
Told = Generator[float, None, T]
RENEW = 3.0
LINGER = 0.05  # seconds, as in ``tasks.runner.take``
LIGHT = "heavy"  # the queue whose groups count as such without Spark
# How an attempt ends that was told to, as in ``tasks.runner.attempt``; None: it is somebody else's
# by now.
_AS_ORDERED = {
    Instruction.STALE: None,
    Instruction.CANCEL: Outcome(OutcomeKind.CANCELED),
    Instruction.DRAIN: Outcome(OutcomeKind.RELEASED),
}


class Host:
    """One machine with one runner and its watchdog. A runner that dies is replaced."""

    marker_first = True  # False in a planted bug

    def __init__(
        self,
        stage: Stage,
        trouble: Trouble,
        store: ModelStore,
        broker: Broker,
        depot: Depot,
        jobs: dict[str, SimulatedJob],
        settings: Settings,
        name: str,
        queues: tuple[str, ...],
        *,
        newer: bool = False,
    ) -> None:
        self._newer = newer
        self._stage, self._trouble, self._store = stage, trouble, store
        self._broker, self._depot, self._jobs, self._settings = broker, depot, jobs, settings
        self.name, self.worker = name, f"{name}:1"
        self.queues = queues
        self._held: Token | None = None
        self._state = WatchState()
        self._told: Instruction | None = None  # by a watchdog that lives no more
        self._terminated = False  # the worker was told to stop
        self._ignores_instructions = False
        self._out_of_reach = 0.0  # until when no kill ends it
        self._idle = False
        self._lingers = False
        self._lives = 0
        self._runner: Actor
        self._watchdog: Actor
        self._start(0.0)

    # ---- the processes
    # -------------------------------------------------------------------------------

    def _start(self, delay: float) -> None:
        self._hold(None)
        self._idle = self._lingers = False
        self._lives += 1
        self.id = f"{self.name}.{self._lives}"
        self._note()
        self._runner = Routine(self._stage, self.name, self._run(), delay)
        self._watchdog = Routine(self._stage, f"{self.name}/dog", self._watch(), delay + RENEW / 2)

    def _hold(self, token: Token | None) -> None:
        self._held, self._state, self._terminated, self._out_of_reach = (
            token,
            WatchState(),
            False,
            0.0,
        )
        self._told = None
        self._ignores_instructions = token is not None and self._trouble.chance(
            self._trouble.ignores_instructions
        )

    @property
    def _instruction(self) -> Instruction | None:
        """What the runner was told, by its watchdog or by its worker."""
        return (
            self._state.instruction
            or self._told
            or (Instruction.DRAIN if self._terminated else None)
        )

    @property
    def listening(self) -> bool:
        return not self._runner.dead and self._runner.frozen_until <= self._stage.now

    @property
    def idle(self) -> bool:
        """It waits for a wake-up, and would hear it."""
        return self._idle and self.listening

    def _note(self) -> None:
        """The watchdog describes its runner in the registry."""
        now = self._store.now
        idle = None if self._held else now
        self.status = RunnerInfo(
            id=self.id,
            host=self.name,
            pid=1,
            worker_pid=1,
            queues=self.queues,
            heard_at=now,
            idle_since=idle,
        )

    def pushed(self, queue: str, at: float) -> None:
        """A wake-up came in: the broker wakes who blocks on it."""
        if queue in self.queues and self._idle:
            self._runner.wake(at + self._stage.rng.uniform(0.0, 0.01))

    def notified(self, queue: str) -> None:
        """An offer was added, and its queue notified."""
        if queue in self.queues and self._lingers:
            self._runner.wake(self._stage.now)

    def _die(self, why: str) -> None:
        """The runner's process is gone; its watchdog says so, or is gone with it."""
        rng, token = self._stage.rng, self._held
        self._stage.log(self.name, f"DIES {why}" + (f" holding {token}" if token else ""))
        self._watchdog.kill()
        if token is not None and rng.random() < 0.5:
            last = policy.decide(
                self._state,
                Observation(self._stage.now, ProcessState.GONE),
                grace=0.0,
                who=self.name,
            ).outcome
            if last is not None:
                Routine(
                    self._stage,
                    f"{self.name}/dog",
                    self._obituary(token, last),
                    rng.uniform(0.05, 1.0),
                )
        self._start(rng.uniform(0.5, 5.0))

    def _boundary(self, where: str) -> Life:
        """A place where the runner may die, or stop for a while and go on none the wiser."""
        trouble = self._trouble
        if trouble.chance(trouble.runner_dies):
            self._die(where)
            raise Killed
        if trouble.chance(trouble.runner_freezes):
            until = trouble.freeze_until()
            # A stopped machine; a partition, in which the runner works on; a long call, in which
            # only the dog lives.
            what = self._stage.rng.choice(("host", "host", "dog", "runner"))
            self._stage.log(
                self.name, f"FREEZES ({what}) {where} for {until - self._stage.now:.1f}s"
            )
            if what != "runner":
                self._watchdog.freeze(until)
            if what != "dog":
                self._runner.freeze(until)
        yield self._stage.rng.uniform(0.0, 0.005)

    def _call(self, what: str, effect: Callable[[], T]) -> Told[T]:
        """One script, repeated until its reply comes (always with the same arguments)."""
        while True:
            yield from self._boundary(f"before {what}")
            fault = self._trouble.of_call()
            if fault is Fault.REQUEST_LOST or self._trouble.away:
                yield self._stage.rng.uniform(0.1, 2.0)
                continue
            answer = effect()
            self._stage.log(self.name, f"{what}: {getattr(answer, 'token', answer)}")
            if fault in (Fault.REPLY_LOST, Fault.REPEATED):
                self._stage.log(self.name, f"{what}: reply lost, asks again")
                yield self._stage.rng.uniform(0.1, 2.0)
                continue
            yield from self._boundary(f"after {what}")
            return answer

    # ---- the watchdog
    # --------------------------------------------------------------------------------

    def _watch(self) -> Life:
        while True:
            token = self._held
            if self._trouble.chance_of_more(self._trouble.watchdog_dies):
                yield from self._another_watchdog()
                continue
            if not self._trouble.away:
                self._note()
            if (
                token is not None
                and self._trouble.of_call() is not Fault.REQUEST_LOST
                and not self._trouble.away
            ):
                ended = self._look_at_runner(token, self._store.renew(token, self.worker))
                if ended:
                    return
            if token is not None and self._trouble.chance(self._trouble.drains):
                self._terminated = True
            yield RENEW

    def _another_watchdog(self) -> Life:
        """The watchdog dies, and its runner starts another, which knows of the attempt alone; not
        of what was told.
        """
        self._stage.log(f"{self.name}/dog", "DIES; its runner starts another")
        self._told = self._state.instruction or self._told
        self._state = WatchState()
        yield self._stage.rng.uniform(0.3, 3.0)

    def _look_at_runner(self, token: Token, answer: RenewAnswer) -> bool:
        """Tell the runner to leave, or kill it; whether the watch is over."""
        observation = Observation(self._stage.now, ProcessState.ALIVE, answer=answer)
        action = policy.decide(
            self._state, observation, grace=self._settings.cancel_grace, who=self.name
        )
        self._state = action.state
        if action.instruction is not None:
            self._stage.log(f"{self.name}/dog", f"tells {token}: {action.instruction}")
        if not action.kill_reason or self._stage.now < self._out_of_reach:
            return False
        self._stage.log(
            f"{self.name}/dog", f"KILLS the runner under {token} ({action.state.instruction})"
        )
        self._runner.kill()
        if action.outcome is not None:
            Routine(self._stage, f"{self.name}/dog", self._obituary(token, action.outcome), 0.01)
        self._start(self._stage.rng.uniform(0.5, 5.0))
        return True

    def _obituary(self, token: Token, outcome: Outcome) -> Life:
        while self._trouble.away:
            yield 1.0
        answer = self._store.finish(token, outcome, self._stage.mint(), f"{token}/dog")
        self._stage.log(f"{self.name}/dog", f"finish {token} {outcome.kind}: {answer}")

    # ---- the runner
    # ----------------------------------------------------------------------------------

    def _run(self) -> Life:
        while True:
            if self._trouble.away:
                yield self._trouble.away_until - self._stage.now + self._stage.rng.uniform(0.0, 1.0)
                continue
            if not self._broker.pop(self.queues):
                self._idle = True
                at = self._broker.next_at(self.queues)
                yield 3600.0 if at is None else max(0.0, at - self._stage.now)
                self._idle = False
                continue
            yield from self._run_ready()

    def _run_ready(self) -> Life:
        """As ``tasks.runner.take``: what stands ready until nothing does, then a moment for what
        that set free.
        """
        lingered, queues = False, deque(self.queues)
        ahead: Claim | None = None
        while True:
            claim = ahead
            if claim is None:
                taking = self._taking()
                take = partial(self._store.take, list(queues), self.id, *taking, leaves=lingered)
                claim = yield from self._call("take", take)
                self._heard(taking[0], claim)
            queues.rotate(-1)
            if claim is not None:
                ahead = yield from self._attempt(claim, list(queues))
                lingered = False
            elif lingered:
                return
            else:
                self._lingers = lingered = True
                yield LINGER
                self._lingers = False

    def _taking(self) -> tuple[str, str, str]:
        """The claimant, the worker and the event of a take."""
        claimant, event = self._stage.mint(), self._stage.mint()
        if self._newer:
            self._store.newer.add(claimant)
        return claimant, self.worker, event

    def _heard(self, claimant: str, claim: Claim | None) -> None:
        if self._store.watching:
            self._store.watching.heard(claimant, None if claim is None else claim.token)

    def _attempt(self, claim: Claim, queues: list[str]) -> Told[Claim | None]:
        """Run it.

        Returns what was taken with its outcome, where the group counts as one without Spark.
        """
        token, following = claim.token, None
        self._hold(token)
        outcome = yield from self._work(token, claim.work_order)
        if outcome is not None:
            said = self._stage.mint()
            arguments, what = (token, outcome, said, self.id), f"{token} {outcome.kind}"
            if claim.work_order.group.queue_name == LIGHT and outcome.kind is OutcomeKind.SUCCEEDED:
                taking = self._taking()
                both = partial(self._store.finish_and_take, *arguments, queues, *taking)
                _, following = yield from self._call(f"finish and take {what}", both)
                self._heard(taking[0], following)
            else:
                yield from self._call(f"finish {what}", partial(self._store.finish, *arguments))
        self._hold(None)
        return following

    def _work(self, token: Token, work_order: WorkOrder) -> Told[Outcome | None]:
        """Run the steps, or find that they were run before; then the marker."""
        stage, job = self._stage, self._jobs[token.job]
        name, _ = split_member(token.group)
        yield from self._boundary("at the start")
        for maker in (token.job, *work_order.plan.adopts):
            standing = self._depot.standing(maker, token.group, work_order.fingerprint)
            if standing is None and maker != token.job:
                standing = self._on_record(maker, token.group, work_order.fingerprint)
            if standing is not None:
                whose = f" of {maker}" if maker != token.job else ""
                stage.log(self.name, f"{token} takes over {standing}{whose}")
                return _success(standing, self._depot.markers[standing], adopted=True)
        self._read(token, work_order.frozen)
        behaviour = job.behaviour(name).with_params(work_order.params)
        runs = job.runs.get(token.group, 0)
        job.runs[token.group] = runs + 1
        for _ in range(3):
            yield behaviour.seconds / 3 * stage.rng.uniform(0.8, 1.2)
            yield from self._boundary("in a step")
            if self._instruction is not None:
                return (yield from self._leave(token))
        if behaviour.kind == "kills":
            self._die("of its step")
            raise Killed
        if behaviour.fails(runs):
            fatal = behaviour.kind == "fatal"
            return Outcome(
                OutcomeKind.FAILED,
                failure=Failure("BOOM", f"run {runs + 1}", recoverable=not fatal),
            )
        marker = self._marker(token, work_order, behaviour.silent)
        yield from self._boundary("before the marker")
        if (
            self._instruction is not None
        ):  # the last look: from here on the work counts as done, whatever it is told
            return (yield from self._leave(token))
        if self.marker_first:
            self._depot.markers[token.staging] = marker
            stage.log(self.name, f"marker of {token}")
        yield from self._boundary("after the marker")
        return _success(token.staging, marker)

    def _leave(self, token: Token) -> Told[Outcome | None]:
        """The attempt was told to end: how it ends is read from the instruction."""
        if self._ignores_instructions:
            self._ignores_instructions = False
            stage, seconds = self._stage, self._trouble.hang()
            if stage.rng.random() < 0.5:
                self._out_of_reach = stage.now + seconds
            stage.log(
                self.name,
                f"IGNORES instructions under {token} for {seconds:.0f}s"
                + " and out of reach" * bool(self._out_of_reach),
            )
            yield seconds
        assert self._instruction is not None
        return _AS_ORDERED[self._instruction]

    def _read(self, token: Token, frozen: FrozenInputs) -> None:
        for need, folders in frozen.inputs.items():
            for folder in filter(None, folders):  # empty: it made nothing
                assert folder in self._depot.markers, (
                    f"{token} is to read {folder} of {need}, which has no marker"
                )

    def _on_record(self, job: str, group: str, fingerprint: str) -> str | None:
        """The staging of a group of a job that this one retries, if it did this very work and made
        nothing.
        """
        found = self._store.jobs[job].groups.get(group) if job in self._store.jobs else None
        fits = (
            found is not None and found.done is not None and found.done.fingerprint == fingerprint
        )
        return found.staging if found is not None and fits else None

    def _marker(self, token: Token, work_order: WorkOrder, silent: bool) -> ModelMarker:
        # Other values at every run: what was frozen or adopted must not be mixed with them.
        values: list[Any] = list(range(self._stage.rng.randint(0, 3)))
        forks = {} if silent else {wanted.key: values for wanted in work_order.plan.collect}
        outputs = {}
        if self._jobs[token.job].makes_outputs(work_order.group.name, work_order.params):
            outputs[work_order.group.name] = self._stage.rng.randint(0, 9)
        return ModelMarker(token, work_order.fingerprint, outputs, forks)


def _success(staging: str, marker: ModelMarker, *, adopted: bool = False) -> Outcome:
    return Outcome(
        OutcomeKind.SUCCEEDED,
        staging=staging,
        adopted=adopted,
        rows=marker.outputs,
        forks=dict(marker.forks),
        results={} if marker.made_nothing else {"rows": sum(marker.outputs.values())},
        done=Done(marker.fingerprint) if marker.made_nothing else None,
    )
