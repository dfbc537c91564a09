"""The model of the store and the scripts on a real Valkey answer the same, and hold the same afterwards."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from head import HandsOfTheTest

from coordinator.alter import alter
from coordinator.asking import rerun, skip
from coordinator.commands import Answer, Command, Commanded, command
from coordinator.decide import decide
from coordinator.decision import World
from coordinator.job import GroupRecord, JobRecord, Reason
from coordinator.plan import plan_of
from coordinator.spec import JobSpec
from coordinator.state import JobState
from coordinator.status import GroupState, Status
from coordinator.store import Acks, Begun, CommitAnswer, Store, Submission
from coordinator.summary import summary_of
from tasks.filesystem import Files
from tasks.keys import Keys
from tasks.lease import ClaimAnswer, Lease
from tasks.marker import DataFile, Marker, StagedOutput, write_marker
from tasks.report import Failure, Outcome, OutcomeKind
from tasks.token import Hint, Token
from tasks.warehouse import Warehouse

from .broker import Broker
from .calm import CalmLine
from .depot import Depot, ModelMarker
from .hands import HandsAtHand
from .model import ModelStore

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


def _time(client: redis.Redis) -> float:
    seconds, micros = client.time()
    return float(seconds + micros / 1e6)


def _submit(store: Store) -> None:
    plan = plan_of(SPEC)
    plans = plan.group_plans(JOB.warehouse, JOB.warehouse_id)
    store.submit(Submission(JOB, plans, plan.params, "f"), summary_of(JobState(plan, JOB, {}, {}, {})))


def _plain(value: Any) -> Any:
    """A record without its times."""
    timeless = {"since", "next_at", "hinted_at", "started_at", "submitted_at", "ended_at", "publish_next"}
    timeless |= {"claimed_at", "lease", "outcome_at", "intent_at", "paused_at", "counted_from"}
    plain = replace(value, **{name: 0.0 for name in timeless if hasattr(value, name)})
    if isinstance(plain, JobRecord):
        # Whose attempts an alter ends comes in the order in which the store lists groups, and means nothing.
        asks = sorted(plain.asks, key=lambda ask: ask.group if ask.do == "renew" else "")
        plain = replace(plain, asks=tuple(asks))
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


class _Both:
    """The same calls on both. Each answers what a caller would see."""

    def __init__(self, client: redis.Redis, lease_ttl: float) -> None:
        self.client = client
        self.real = Store(client, KEYS)
        self.lease = Lease(client, KEYS, lease_ttl)
        self.model = ModelStore(lambda: _time(client), _NoStream(), lock_ttl=5.0, lease_ttl=lease_ttl)
        self.begun: tuple[Begun, Begun] | None = None
        self.held: list[tuple[Any, Any]] = []
        self.seen: list[tuple[JobRecord, JobRecord]] = []
        self.seen_whole: list[tuple[JobState, JobState]] = []
        _submit(self.real)
        self.model.submit(JOB)

    def begin(self, owner: str) -> tuple[Any, Any]:
        real, model = self.real.begin("both", owner), self.model.begin("both", owner)
        if real.due_seen and model.due_seen:
            self.begun = (real, model)
        return real.answer, model.answer

    def end(self, owner: str) -> tuple[Any, Any]:
        return self.real.end("both", owner), self.model.end("both", owner)

    def claim(self, hint: Hint, claimant: str) -> tuple[Any, Any]:
        real, model = self.lease.claim(hint, claimant, "w", "e"), self.model.claim(hint, claimant, "w", "e")
        if real.order is not None and model.answer is ClaimAnswer.CLAIMED:
            assert real.order == model.order
            assert real.order.fingerprint == model.order.fingerprint
        return real.answer, model.answer

    def renew(self, token: Token) -> tuple[Any, Any]:
        return self.lease.renew(token, "w"), self.model.renew(token, "w")

    def finish(self, token: Token, outcome: Outcome, event: str) -> tuple[Any, Any]:
        return self.lease.finish(token, outcome, event), self.model.finish(token, outcome, event)

    def tick(self) -> None:
        self.real.tick(1.0, 0.0)
        self.model.tick(1.0, 0.0)

    def decided(self, nonce: str) -> None:
        """Load and decide on each, and keep both decisions, to be committed later."""
        world = World(now=_time(self.client), nonce=nonce, base=0)
        states = self.real.load("both"), self.model.load("both")
        assert states[0] is not None
        assert states[1] is not None
        self.held.append(tuple((decide(state, None, world), summary_of(state)) for state in states))  # type: ignore[arg-type]

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

    def ask(self, which: int, word: str, judge: Callable[[JobState], Commanded], command_id: str) -> tuple[Any, Any]:
        answers: list[Any] = []
        stores: tuple[Any, Any] = self.real, self.model
        for store, state in zip(stores, self.seen_whole[which], strict=True):
            result = judge(state)
            event = {"kind": f"USER_{word.upper()}", "by": "ada"}
            more = {"plans": result.plans, "params": result.params}
            done = result.answer is Answer.DONE
            answers.append(store.command(result.job, state.job, command_id, event, **more) if done else result.answer)
        return answers[0], answers[1]

    def command(self, which: int, given: Command, now: bool, command_id: str) -> tuple[Any, Any]:
        answers: list[Any] = []
        stores: tuple[Any, Any] = self.real, self.model
        for store, old in zip(stores, self.seen[which], strict=True):
            result = command(old, given, now=now)
            event = {"kind": f"USER_{given.name}", "by": "ada", "was": old.status}
            asked = replace(result.job, intent_by="ada")
            done = result.answer is Answer.DONE
            answers.append(store.command(asked, old, command_id, event) if done else result.answer)
        return answers[0], answers[1]

    def halt(self, commit_id: str) -> None:
        for store in (self.real, self.model):
            store.halt("both", Reason("UNDECIDABLE", "no"), commit_id, _time(self.client))

    def commands_told(self) -> None:
        """The events of commands, and their wake-ups, are the same."""
        stream: Any = self.client.xrange(KEYS.of("both").events)
        told = [json.loads(fields["event"]) for _, fields in stream], self.model.jobs["both"].events
        real, model = ([{**e, "at": 0} for e in events if e["kind"].startswith("USER_")] for events in told)
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
        score = self.client.zscore(KEYS.due, "both")
        assert (score is None) == ("both" not in self.model.due)
        if score is not None:
            assert score == pytest.approx(self.model.due["both"], abs=0.5)


def _agree(client: redis.Redis, seed: int) -> set[str]:
    """A random run of calls on both. Returns the answers that came."""
    rng = random.Random(seed)
    # A lease of no time has always lapsed: the guards are asked.
    both = _Both(client, lease_ttl=0.0 if seed % 2 else 15.0)
    tokens = [Hint("both", "a", 1, "none").held_by("nobody"), Hint("nojob", "a", 1, "n").held_by("c")]
    answers: set[str] = set()

    def agreed(pair: tuple[Any, Any], what: str) -> None:
        assert pair[0] == pair[1], f"seed {seed}: {what} answers {pair[0]}, the model says {pair[1]}"
        answers.add(f"{what}: {pair[0]}")

    agreed(both.begin("o1"), "begin")
    for step in range(120):
        kind = rng.choice(_CALLS)
        current = both.model.jobs["both"].attempts
        hints = [Hint("both", group, attempt.epoch, attempt.nonce) for group, attempt in current.items()]
        if kind in ("begin", "end"):
            agreed(getattr(both, kind)(rng.choice(("o1", "o2"))), kind)
        elif kind == "tick":
            both.tick()
        elif kind == "claim" and hints:
            tokens.append(rng.choice(hints).held_by(rng.choice(("c1", "c2"))))
            agreed(both.claim(tokens[-1].hint, tokens[-1].claimant), kind)
        elif kind == "renew":
            agreed(both.renew(rng.choice(tokens)), kind)
        elif kind == "finish":
            token = rng.choice(tokens[-4:])
            agreed(both.finish(token, _outcome(rng, token), rng.choice(("f1", f"f{step}"))), kind)
        elif kind == "decide":
            both.decided(f"n{step}")
        elif kind == "commit" and both.held:
            which = rng.randrange(max(0, len(both.held) - 3), len(both.held))
            agreed(both.commit(which, f"commit{which}"), kind)
        elif kind == "look":
            both.look()
        elif kind == "command" and both.seen:
            which = rng.randrange(max(0, len(both.seen) - 2), len(both.seen))
            given = rng.choice(_GENTLE if step < 90 else tuple(Command))
            agreed(both.command(which, given, rng.random() < 0.5, f"asked{which}"), kind)
        elif kind == "look whole":
            both.look_whole()
        elif kind == "ask" and both.seen_whole:
            which = rng.randrange(max(0, len(both.seen_whole) - 2), len(both.seen_whole))
            word, judge = rng.choice(_ASKS)
            agreed(both.ask(which, word, judge, f"whole{which}"), "ask")
        elif kind == "halt" and rng.random() < 0.1:
            both.halt(f"halt{step}")
        both.compare()
    both.commands_told()
    return answers


_CALLS = (
    *("begin", "end", "claim", "claim", "renew", "finish", "finish", "tick", "decide", "decide", "commit", "commit"),
    *("look", "command", "halt", "look whole", "ask"),
)
_ASKS: tuple[tuple[str, Callable[[JobState], Commanded]], ...] = (
    ("alter", lambda state: alter(state, {"params.level": state.job.revision + 1}, 1.0, "ada", "")),
    ("alter", lambda state: alter(state, {"groups.a.steps.0.params.n": 3, "max_parallel": 3}, 1.0, "ada", "")),
    ("skip", lambda state: skip(state, "b")),
    ("skip", lambda state: skip(state, "a")),
    ("rerun", lambda state: rerun(state, "a")),
    ("rerun", lambda state: rerun(state, "b")),
)
_GENTLE = (Command.PAUSE, Command.RESUME, Command.RESUME)  # others leave little to do


def _outcome(rng: random.Random, token: Token) -> Outcome:
    failed = Outcome(OutcomeKind.FAILED, failure=Failure("BOOM", "said so"))
    succeeded = Outcome(OutcomeKind.SUCCEEDED, staging=token.staging, forks={"a.n": [1, 2]})
    return rng.choice((succeeded, failed, Outcome(OutcomeKind.LOST), Outcome(OutcomeKind.RELEASED)))


def test_the_model_and_the_scripts_agree(client: redis.Redis) -> None:
    answers: set[str] = set()
    for seed in range(24):
        client.flushall()
        answers |= _agree(client, seed)
    assert {f"commit: {answer}" for answer in ("APPLIED", "CONFLICT", "GUARDED")} <= answers
    assert {f"claim: {answer}" for answer in ("CLAIMED", "STALE", "HELD")} <= answers
    assert {f"finish: {answer}" for answer in ("APPLIED", "DUPLICATE", "STALE", "UNKNOWN_JOB")} <= answers
    assert {f"renew: {answer}" for answer in ("CONTINUE", "STALE")} <= answers
    assert {f"command: {answer}" for answer in ("APPLIED", "CONFLICT", "ALREADY", "REFUSED")} <= answers
    assert {f"ask: {answer}" for answer in ("APPLIED", "CONFLICT", "ALREADY", "REFUSED")} <= answers
    assert {f"end: {answer}" for answer in ("RELEASED", "AGAIN", "LOST")} <= answers


def test_the_model_and_the_scripts_give_the_same_orders(client: redis.Redis) -> None:
    """To an attempt that runs; not to one that has ended between load and commit."""
    both = _Both(client, lease_ttl=15.0)
    both.begin("o1")
    steps = iter(range(100))

    def act() -> Any:
        step = next(steps)
        both.decided(f"n{step}")
        real, model = both.commit(len(both.held) - 1, f"commit{step}")
        assert real == model
        both.compare()
        return real

    def ask(given: Command, now: bool) -> None:
        both.look()
        assert both.command(len(both.seen) - 1, given, now, f"asked{next(steps)}") == ("APPLIED", "APPLIED")
        both.compare()

    act()
    runs, ends = [Hint("both", group, 1, "n0").held_by("c") for group in ("a", "b[0]")]
    for token in (runs, ends):
        assert both.claim(token.hint, "c") == ("CLAIMED", "CLAIMED")
    act()
    ask(Command.PAUSE, True)
    assert both.claim(Hint("both", "b[1]", 1, "n0"), "c") == ("HELD", "HELD")
    both.decided("late")
    assert both.finish(ends, Outcome(OutcomeKind.SUCCEEDED, staging=ends.staging), "f") == ("APPLIED", "APPLIED")
    assert both.commit(len(both.held) - 1, "late") == ("APPLIED", "APPLIED")
    both.compare()
    assert both.renew(runs) == ("DRAIN", "DRAIN")
    assert both.renew(ends) == ("STALE", "STALE")
    ask(Command.CANCEL, False)
    act()
    assert both.renew(runs) == ("CANCEL", "CANCEL")
    assert both.finish(runs, Outcome(OutcomeKind.CANCELED), "g") == ("APPLIED", "APPLIED")
    act()
    assert both.model.jobs["both"].record.status is Status.CANCELED
    assert both.claim(runs.hint, "c") == ("STALE", "STALE")


def test_the_model_and_the_scripts_do_what_is_asked_of_a_group(client: redis.Redis) -> None:
    """Records and frozen inputs go, fork values are collected anew, runners get the altered plan and its parameters."""
    both = _Both(client, lease_ttl=15.0)
    both.begin("o1")
    steps = iter(range(100))
    job = both.model.jobs["both"]

    def act() -> str:
        step = next(steps)
        both.decided(f"n{step}")
        real, model = both.commit(len(both.held) - 1, f"commit{step}")
        assert real == model == "APPLIED"
        both.compare()
        return f"n{step}"

    def ran(group: str, nonce: str, epoch: int, kind: OutcomeKind, n: int = 2) -> None:
        token = Hint("both", group, epoch, nonce).held_by("c")
        assert both.claim(token.hint, "c") == ("CLAIMED", "CLAIMED")
        done = Outcome(kind, staging=token.staging, forks={"a.n": list(range(n))})
        assert both.finish(token, done, f"f{next(steps)}") == ("APPLIED", "APPLIED")

    def asked(word: str, judge: Callable[[JobState], Commanded]) -> None:
        both.look_whole()
        assert both.ask(len(both.seen_whole) - 1, word, judge, f"ask{next(steps)}") == ("APPLIED", "APPLIED")
        both.compare()

    first = act()
    ran("a", first, 1, OutcomeKind.SUCCEEDED)
    ran("b[0]", first, 1, OutcomeKind.LOST)
    second = act()
    assert job.collected == {"d": (0, 1)}
    assert job.record.status is Status.RETRYING
    asked("alter", lambda state: alter(state, {"params.level": 7, "groups.b.steps.0.params.m": 3}, 1.0, "ada", ""))
    assert both.claim(Hint("both", "b[1]", 1, first), "c") == ("CLAIMED", "CLAIMED")
    assert job.attempts["b[1]"].revision == 1
    asked("rerun", lambda state: rerun(state, "a"))
    asked("skip", lambda state: skip(state, "b[1]"))
    act()
    assert job.collected == {}
    assert {"a", "c", "d[0]", "d[1]"}.isdisjoint({*job.groups, *job.frozen})
    third = act()
    assert job.groups["b[1]"].state is GroupState.SKIPPED
    assert both.claim(Hint("both", "d[0]", 1, second), "c") == ("STALE", "STALE")
    ran("a", third, 1, OutcomeKind.SUCCEEDED, n=1)
    act()
    assert job.collected == {"d": (0,)}
    assert json.loads(job.plans["a"])["reruns"] == 1


def test_the_model_of_the_slot_and_the_warehouse_log_agree(tmp_path: Path) -> None:
    """Packages and aborts of three jobs in any order: each answer, and what stands in the log at the end."""
    seen: set[tuple[Any, ...]] = set()
    for seed in range(20):
        seen |= _agree_on_the_slot(str(tmp_path / str(seed)), random.Random(seed))
    assert {code for _, code in seen} == {"", "USER_CANCELED", "OUTPUT_MISSING"}
    assert {version for version, _ in seen} >= {0, 1, 2, 3}


def _agree_on_the_slot(root: str, rng: random.Random) -> set[tuple[Any, ...]]:
    """Returns what was answered: version, and the code where there is none."""
    depot, files, warehouse = Depot(), Files(root), Warehouse(root)
    model, real = HandsAtHand(CalmLine(), cast(Broker, None), depot, lambda entry: None), HandsOfTheTest()
    spec = {"name": "slot", "groups": [{"name": "make", "steps": STEP}]}
    states = []
    for job, publish in (("j1", "data"), ("j2", "data"), ("j3", "missing")):
        text = JobSpec.model_validate({**spec, "publish": [publish]}).to_json()
        token = Hint(job, "make", 1, "n").held_by("c")
        file = DataFile(f"{token.staging}/data/part-0.parquet", 3, 8)
        files.write_durable(file.path, b"x" * 8)
        output = StagedOutput([file], 3, '{"type": "struct", "fields": []}')
        write_marker(files, token.staging, Marker(str(token), "f", {"data": output}, {}, {}, 1.0))
        depot.markers[token.staging] = ModelMarker(token, "f", {"data": 3})
        record = JobRecord(job, "slot", text, "c", warehouse=root, warehouse_id=warehouse.ensure_id(), base=0)
        made = {"make": GroupRecord(GroupState.SUCCEEDED, staging=token.staging)}
        states.append(JobState(plan_of(text), record, made, {}, {}))
    answers = set()
    for _ in range(10):
        state, why = rng.choice(states), Reason("USER_CANCELED", "the user canceled the job")
        found = [
            hands.publish(state) if publishes else hands.abort(state, why)
            for publishes in [rng.random() < 0.5]
            for hands in (model, real)
        ]
        shown = [(one.version, dict(one.rows), one.failed and one.failed.code, one.trouble) for one in found]
        assert shown[0] == shown[1]
        answers.add((found[0].version, found[0].failed.code if found[0].failed else ""))
    entries = [entry for n in range(1, warehouse.head() + 1) if (entry := warehouse.entry(n)) is not None]
    assert [(e.publish_id, e.kind, e.code) for e in entries] == [(e.publish_id, e.kind, e.code) for e in depot.log]
    return answers


def test_a_pass_that_outlives_its_lock_cannot_swallow_a_wakeup(client: redis.Redis) -> None:
    """Whoever finishes after the term finds the job due already and leaves it so; the late pass must leave it too."""
    store = Store(client, KEYS, lock_ttl=0.001)
    lease = Lease(client, KEYS, 15.0)
    _submit(store)
    store.tick(1.0, 0.0)

    def decided(nonce: str) -> tuple[Any, str]:
        state = store.load("both")
        assert state is not None
        return decide(state, None, World(now=_time(client), nonce=nonce, base=0)), summary_of(state)

    begun = store.begin("both", "first")
    decision, summary = decided("n1")
    assert store.commit(decision, "c1", begun.due_seen, Acks(), summary) is CommitAnswer.APPLIED
    store.end("both", "first")
    token = Hint("both", "a", 1, "n1").held_by("c")

    begun = store.begin("both", "slow")
    decision, summary = decided("n2")
    while _time(client) <= float(begun.due_seen):
        pass  # a millisecond of the server's own clock
    lease.claim(token.hint, "c", "w", "e")
    lease.finish(token, Outcome(OutcomeKind.SUCCEEDED, staging=token.staging), "f")
    store.settle("both", _time(client) + 60, begun.due_seen, Acks())
    assert "both" in store.due(_time(client), 10)
    assert store.commit(decision, "c2", begun.due_seen, Acks(), summary) is CommitAnswer.APPLIED
    assert "both" in store.due(_time(client), 10)


@pytest.mark.parametrize("status", [Status.FINISHED, Status.FAILED, Status.CANCELED, Status.STOPPED])
def test_a_job_that_has_ended_is_not_halted(client: redis.Redis, status: Status) -> None:
    """A coordinator that could not decide it was frozen meanwhile, and another one brought it to its end."""
    store = Store(client, KEYS)
    _submit(store)
    client.hset(KEYS.of("both").job, "status", status)
    store.halt("both", Reason("UNDECIDABLE", "no"), "late", _time(client))
    state = store.load("both")
    assert state is not None
    assert (state.job.status, state.job.halted, state.job.commit) == (status, None, "new")


def test_a_job_that_cannot_be_decided_is_halted(client: redis.Redis) -> None:
    store = Store(client, KEYS)
    _submit(store)
    store.halt("both", Reason("UNDECIDABLE", "no"), "late", _time(client))
    state = store.load("both")
    assert state is not None
    assert (state.job.status, state.job.halted) == (Status.PAUSED, Reason("UNDECIDABLE", "no"))
