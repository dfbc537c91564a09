"""The model of the store beside the scripts on a real Valkey: the same calls on both, and what both
hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis

from tests.simulation.model.store import ModelStore
from unstuck.coordinator.command_table import Answer
from unstuck.coordinator.commands.job_commands import Commanded, command
from unstuck.coordinator.decide.decide import decide
from unstuck.coordinator.model.decision import Acks, Environment
from unstuck.coordinator.model.records import JobRecord, Reason
from unstuck.coordinator.model.state import JobState, summary_of
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.plan import plan_of
from unstuck.coordinator.store.answers import Begun, Submission
from unstuck.coordinator.store.job_store import Store
from unstuck.coordinator.store.submissions import Submissions
from unstuck.in_process.worker_scripts import by_turn
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.report import Outcome
from unstuck.tasks.protocol.token import Offer, Token
from unstuck.tasks.settings import Settings
from unstuck.tasks.transport.lease import Lease

KEYS = Keys("model")
STEP = [{"python": "model:run"}]
TRIED: dict[str, Any] = {"worker_losses": 50, "retry": {"max": 50, "backoff": 0}}
SPEC = JobSpec.model_validate(
    {
        "name": "both",
        "groups": [
            {**TRIED, "name": "a", "steps": [{**STEP[0], "output": "a"}]},
            {"name": "b", "steps": STEP, "for_each": {"n": [1, 2]}, "worker_losses": 50},
            {"name": "c", "steps": STEP, "needs": ["a", "b"], "join": "any_succeeded"},
            {"name": "d", "steps": STEP, "needs": ["a"], "for_each": {"n": {"from": "a.n"}}},
        ],
        "params": {"level": 0},
    }
).to_json()
JOB = JobRecord("both", "both", SPEC, "new", warehouse="/nowhere", warehouse_id="w")


class _NoStream:
    def add(self, fields: dict[str, str]) -> None: ...

    def ack(self, ids: Any) -> list[str]:
        return list(ids)

    def count(self, counts: Any) -> None: ...


def server_time(client: redis.Redis) -> float:
    seconds, micros = client.time()
    return float(seconds + micros / 1e6)


def submit(client: redis.Redis) -> None:
    plan = plan_of(SPEC)
    plans = plan.group_plans(JOB.warehouse, JOB.warehouse_id)
    Submissions(client, KEYS).submit(
        Submission(JOB, plans, plan.params, "f"), summary_of(JobState(plan, JOB, {}, {}, {}))
    )


def _plain(value: Any) -> Any:
    """A record without its times."""
    timeless = {"since", "next_at", "started_at", "submitted_at", "ended_at"}
    timeless |= {"publish_next", "publish_heard"}
    timeless |= {"claimed_at", "lease", "outcome_at", "intent_at", "paused_at", "counted_from"}
    plain = replace(value, **{name: 0.0 for name in timeless if hasattr(value, name)})
    if isinstance(plain, JobRecord):
        # Whose attempts an alter ends comes in the order in which the store lists groups, and means
        # nothing.
        asks = sorted(plain.requests, key=lambda ask: ask.group if ask.do == "restart" else "")
        plain = replace(plain, requests=tuple(asks))
    return plain


def _shown(state: JobState | None) -> Any:
    assert state is not None
    return (
        _plain(state.job),
        {name: _plain(record) for name, record in state.groups.items()},
        {name: _plain(attempt) for name, attempt in state.attempts.items()},
        state.collected,
        state.frozen,
    )


class Both:
    """The same calls on both. Each answers what a caller would see."""

    def __init__(self, client: redis.Redis, lease_ttl: float) -> None:
        self.client = client
        self.real = Store(Settings(prefix="model"), client)
        self.model = ModelStore(
            lambda: server_time(client), _NoStream(), lock_term=2.5, lease_ttl=lease_ttl
        )
        self.begun: tuple[Begun, Begun] | None = None
        self.held: list[tuple[Any, Any]] = []
        self.seen: list[tuple[JobRecord, JobRecord]] = []
        self.seen_whole: list[tuple[JobState, JobState]] = []
        submit(client)
        self.model.submit(JOB)

    def begin(self, owner: str) -> tuple[Any, Any]:
        real, model = self.real.begin("both", owner), self.model.begin("both", owner)
        if real.due_seen and model.due_seen:
            self.begun = (real, model)
        return real.answer, model.answer

    def end(self, owner: str) -> tuple[Any, Any]:
        return self.real.end("both", owner), self.model.end("both", owner)

    def lease_of(self, caller: str) -> Lease:
        return Lease(self.client, KEYS, self.model.lease_ttl, caller)

    def claim(self, offer: Offer, claimant: str) -> tuple[Any, Any]:
        """Take this very offer, from a queue on which nothing else stands."""
        self.client.delete(KEYS.ready("only"))
        self.client.zadd(KEYS.ready("only"), {str(offer): 0})
        self.model.ready["only"] = {offer: 0.0}
        caller = f"{claimant}/{offer}"
        real = self.lease_of(caller).take(["only"], claimant, "w", "e")
        model = self.model.take(["only"], caller, claimant, "w", "e")
        if real is not None and model is not None:
            assert (real.token, real.work_order) == (model.token, model.work_order)
            assert real.work_order.fingerprint == model.work_order.fingerprint
        return "REFUSED" if real is None else "CLAIMED", "REFUSED" if model is None else "CLAIMED"

    def ready(self) -> tuple[list[str], list[str]]:
        """The offers that stand on both, in order: what a store lists in its own order is offered
        in that order.
        """
        standing: Any = self.client.zrange(KEYS.ready("spark"), 0, -1)
        return standing, [
            str(one) for one, _ in sorted(self.model.ready.get("spark", {}).items(), key=by_turn)
        ]

    def take(self, caller: str, claimant: str) -> tuple[Any, Any]:
        """Take what is next."""
        real = self.lease_of(caller).take(["spark"], claimant, "w", "e")
        model = self.model.take(["spark"], caller, claimant, "w", "e")
        return real and str(real.token), model and str(model.token)

    def renew(self, token: Token) -> tuple[Any, Any]:
        return self.lease_of("").renew(token, "w"), self.model.renew(token, "w")

    def finish(self, token: Token, outcome: Outcome, event: str) -> tuple[Any, Any]:
        caller = token.claimant
        return self.lease_of(caller).finish(token, outcome, event), self.model.finish(
            token, outcome, event, caller
        )

    def tick(self) -> None:
        self.real.tick(1.0, 0.0)
        self.model.tick(1.0, 0.0)

    def decided(self, nonce: str) -> None:
        """Load and decide on each, and keep both decisions, to be committed later."""
        env = Environment(now=server_time(self.client), nonce=nonce)
        states = self.real.load("both"), self.model.load("both")
        assert states[0] is not None
        assert states[1] is not None
        self.held.append(tuple((decide(state, None, env), summary_of(state)) for state in states))  # type: ignore[arg-type]

    def commit(self, which: int, commit_id: str) -> tuple[Any, Any]:
        assert self.begun is not None
        real, model = self.held[which]
        return (
            self.real.commit(real[0], commit_id, self.begun[0].due_seen, Acks(), real[1]),
            self.model.commit(model[0], commit_id, self.begun[1].due_seen, Acks()),
        )

    def look(self) -> None:
        """What a command will be judged by, perhaps long after."""
        real, model = self.real.job("both"), self.model.job("both")
        assert real is not None
        assert model is not None
        assert bool(real.intent_at) == bool(model.intent_at)
        self.seen.append((real, model))

    def look_whole(self) -> None:
        """The same for a command that is judged by the groups too."""
        real, model = self.real.load("both"), self.model.load("both")
        assert real is not None
        assert model is not None
        self.seen_whole.append((real, model))

    def ask(
        self, which: int, word: str, judge: Callable[[JobState], Commanded], command_id: str
    ) -> tuple[Any, Any]:
        answers: list[Any] = []
        stores: tuple[Any, Any] = self.real, self.model
        for store, state in zip(stores, self.seen_whole[which], strict=True):
            result = judge(state)
            event = {"kind": f"USER_{word.upper()}", "by": "ada"}
            more = {"plans": result.plans, "params": result.params}
            done = result.answer is Answer.DONE
            answers.append(
                store.command(result.job, state.job, command_id, event, **more)
                if done
                else result.answer
            )
        return answers[0], answers[1]

    def command(self, which: int, given: str, now: bool, command_id: str) -> tuple[Any, Any]:
        answers: list[Any] = []
        stores: tuple[Any, Any] = self.real, self.model
        for store, old in zip(stores, self.seen[which], strict=True):
            result = command(old, given, now=now)
            event = {
                "kind": f"USER_{given.upper().replace('-', '_')}",
                "by": "ada",
                "was": old.status,
            }
            asked = replace(result.job, intent_by="ada")
            done = result.answer is Answer.DONE
            answers.append(store.command(asked, old, command_id, event) if done else result.answer)
        return answers[0], answers[1]

    def halt(self, commit_id: str) -> None:
        for store in (self.real, self.model):
            store.halt("both", Reason("UNDECIDABLE", "no"), commit_id, server_time(self.client))

    def commands_told(self) -> None:
        """The events of commands, and their wake-ups, are the same."""
        stream: Any = self.client.xrange(KEYS.of("both").events)
        told = [json.loads(fields["event"]) for _, fields in stream], self.model.jobs["both"].events
        real, model = (
            [{**e, "at": 0} for e in events if e["kind"].startswith("USER_")] for events in told
        )
        assert real == model
        reports: Any = self.client.xrange(KEYS.reports)
        woken = [fields["job"] for _, fields in reports if fields.get("kind") == "due"]
        assert len(woken) == 1 + len(real), "once for the submission, and once for every command"

    def compare(self) -> None:
        real, model = self.real.load("both"), self.model.load("both")
        assert _shown(real) == _shown(model)
        keys, job = KEYS.of("both"), self.model.jobs["both"]
        assert self.client.hgetall(keys.plans) == job.plans
        assert json.loads(str(self.client.hget(keys.job, "params") or "{}")) == job.params
        real_order, model_order = self.ready()
        assert set(real_order) == set(model_order)
        score = self.client.zscore(KEYS.due, "both")
        assert (score is None) == ("both" not in self.model.due)
        if score is not None:
            assert score == pytest.approx(self.model.due["both"], abs=2.0)
