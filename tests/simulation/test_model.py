"""The model of the store and the scripts on a real Valkey answer the same, and hold the same
afterwards.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.simulation.actors.dispatch import WarehousesAtHand
from tests.simulation.actors.warehouse import Depot, ModelMarker
from tests.simulation.model.both import KEYS, STEP, Both, server_time, submit
from tests.simulation.stage.fault_free import FaultFreeConnection
from tests.support.coordinator import WatchedWarehouses
from unstuck.coordinator.command_table import Order
from unstuck.coordinator.commands.alter import alter
from unstuck.coordinator.commands.group_commands import rerun, skip
from unstuck.coordinator.commands.job_commands import INTENTS, Commanded
from unstuck.coordinator.decide.decide import decide
from unstuck.coordinator.model.decision import Acks, Environment
from unstuck.coordinator.model.records import GroupRecord, JobRecord, Reason
from unstuck.coordinator.model.state import JobState, summary_of
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.plan import plan_of
from unstuck.coordinator.store.answers import CommitAnswer
from unstuck.coordinator.store.job_store import Store
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Offer, Token
from unstuck.tasks.settings import Settings
from unstuck.tasks.transport.lease import Lease
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.marker import DataFile, Marker, StagedOutput, write_marker


def _agree(client: redis.Redis, seed: int) -> set[str]:
    """A random run of calls on both. Returns the answers that came."""
    rng = random.Random(seed)
    # A lease of no time has always lapsed: the guards are asked.
    both = Both(client, lease_ttl=0.0 if seed % 2 else 15.0)
    tokens = [
        Offer("both", "a", 1, "none").held_by("nobody"),
        Offer("nojob", "a", 1, "n").held_by("c"),
    ]
    answers: set[str] = set()

    def agreed(pair: tuple[Any, Any], what: str) -> None:
        assert pair[0] == pair[1], (
            f"seed {seed}: {what} answers {pair[0]}, the model says {pair[1]}"
        )
        answers.add(f"{what}: {pair[0]}")

    agreed(both.begin("o1"), "begin")
    for step in range(120):
        kind = rng.choice(_CALLS)
        current = both.model.jobs["both"].attempts
        offers = [
            Offer("both", group, attempt.epoch, attempt.nonce) for group, attempt in current.items()
        ]
        if kind in ("begin", "end"):
            agreed(getattr(both, kind)(rng.choice(("o1", "o2"))), kind)
        elif kind == "tick":
            both.tick()
        elif kind == "claim" and offers:
            tokens.append(rng.choice(offers).held_by(rng.choice(("c1", "c2"))))
            agreed(both.claim(tokens[-1].offer, tokens[-1].claimant), kind)
        elif kind == "take" and len(set(map(tuple, both.ready()))) == 1:
            real, model = both.take(rng.choice(("r1", "r2")), rng.choice(("c1", f"c{step}")))
            assert real == model, f"seed {seed}: {real} was taken, the model says {model}"
            answers.add("take: CLAIMED" if real else "take: EMPTY")
            tokens += [Token.parse(real)] if real else []
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
            given = rng.choice(_GENTLE if step < 90 else tuple(INTENTS))
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
    for given in (
        "force-stop",
        "pause",
    ):  # a pause after a force-stop is refused, whatever came before
        both.look()
        agreed(both.command(len(both.seen) - 1, given, False, f"last {given}"), "command")
        both.compare()
    both.commands_told()
    return answers


_CALLS = (
    *(
        "begin",
        "end",
        "claim",
        "take",
        "take",
        "renew",
        "finish",
        "finish",
        "tick",
        "decide",
        "decide",
        "commit",
        "commit",
    ),
    *("look", "command", "halt", "look whole", "ask"),
)
ADA = Order("ada", at=1.0, word="w")
_ASKS: tuple[tuple[str, Callable[[JobState], Commanded]], ...] = (
    ("alter", lambda state: alter(state, ADA, {"params.level": state.job.revision + 1})),
    (
        "alter",
        lambda state: alter(state, ADA, {"groups.a.steps.0.params.n": 3, "max_parallel": 3}),
    ),
    ("skip", lambda state: skip(state, ADA, "b")),
    ("skip", lambda state: skip(state, ADA, "a")),
    ("rerun", lambda state: rerun(state, ADA, "a")),
    ("rerun", lambda state: rerun(state, ADA, "b")),
)
_GENTLE = ("pause", "resume", "resume")  # others leave little to do


def _outcome(rng: random.Random, token: Token) -> Outcome:
    failed = Outcome(OutcomeKind.FAILED, failure=Failure("BOOM", "said so"))
    succeeded = Outcome(OutcomeKind.SUCCEEDED, staging=token.staging, forks={"a.n": [1, 2]})
    return rng.choice((succeeded, failed, Outcome(OutcomeKind.LOST), Outcome(OutcomeKind.RELEASED)))


@pytest.mark.variant
def test_the_model_and_the_scripts_agree(client: redis.Redis) -> None:
    answers: set[str] = set()
    for seed in range(24):
        client.flushall()
        answers |= _agree(client, seed)
    assert {f"commit: {answer}" for answer in ("APPLIED", "CONFLICT", "GUARDED")} <= answers
    assert {f"claim: {answer}" for answer in ("CLAIMED", "REFUSED")} <= answers
    assert {"take: CLAIMED", "take: EMPTY"} <= answers
    assert {
        f"finish: {answer}" for answer in ("APPLIED", "DUPLICATE", "STALE", "UNKNOWN_JOB")
    } <= answers
    assert {f"renew: {answer}" for answer in ("CONTINUE", "STALE")} <= answers
    assert {
        f"command: {answer}" for answer in ("APPLIED", "CONFLICT", "ALREADY", "REFUSED")
    } <= answers
    assert {f"ask: {answer}" for answer in ("APPLIED", "CONFLICT", "ALREADY", "REFUSED")} <= answers
    assert {f"end: {answer}" for answer in ("RELEASED", "AGAIN", "LOST")} <= answers


@pytest.mark.variant
def test_the_model_and_the_scripts_return_the_same_orders(client: redis.Redis) -> None:
    """To an attempt that runs; not to one that has ended between load and commit."""
    both = Both(client, lease_ttl=15.0)
    both.begin("o1")
    steps = iter(range(100))

    def act() -> Any:
        step = next(steps)
        both.decided(f"n{step}")
        real, model = both.commit(len(both.held) - 1, f"commit{step}")
        assert real == model
        both.compare()
        return real

    def ask(given: str, now: bool) -> None:
        both.look()
        assert both.command(len(both.seen) - 1, given, now, f"asked{next(steps)}") == (
            "APPLIED",
            "APPLIED",
        )
        both.compare()

    act()
    runs, ends = [Offer("both", group, 1, "n0").held_by("c") for group in ("a", "b[0]")]
    for token in (runs, ends):
        assert both.claim(token.offer, "c") == ("CLAIMED", "CLAIMED")
    act()
    ask("pause", True)
    assert both.claim(Offer("both", "b[1]", 1, "n0"), "c") == ("REFUSED", "REFUSED")
    both.decided("late")
    assert both.finish(ends, Outcome(OutcomeKind.SUCCEEDED, staging=ends.staging), "f") == (
        "APPLIED",
        "APPLIED",
    )
    assert both.commit(len(both.held) - 1, "late") == ("APPLIED", "APPLIED")
    both.compare()
    assert both.renew(runs) == ("DRAIN", "DRAIN")
    assert both.renew(ends) == ("STALE", "STALE")
    ask("cancel", False)
    act()
    assert both.renew(runs) == ("CANCEL", "CANCEL")
    assert both.finish(runs, Outcome(OutcomeKind.CANCELED), "g") == ("APPLIED", "APPLIED")
    act()
    assert both.model.jobs["both"].record.status is Status.CANCELED
    assert both.claim(runs.offer, "c") == ("REFUSED", "REFUSED")


@pytest.mark.variant
def test_the_model_and_the_scripts_apply_group_requests_equally(client: redis.Redis) -> None:
    """Records and frozen inputs go, fork values are collected again, runners get the altered plan
    and parameters.
    """
    both = Both(client, lease_ttl=15.0)
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
        token = Offer("both", group, epoch, nonce).held_by("c")
        assert both.claim(token.offer, "c") == ("CLAIMED", "CLAIMED")
        done = Outcome(kind, staging=token.staging, forks={"a.n": list(range(n))})
        assert both.finish(token, done, f"f{next(steps)}") == ("APPLIED", "APPLIED")

    def asked(word: str, judge: Callable[[JobState], Commanded]) -> None:
        both.look_whole()
        assert both.ask(len(both.seen_whole) - 1, word, judge, f"ask{next(steps)}") == (
            "APPLIED",
            "APPLIED",
        )
        both.compare()

    first = act()
    ran("a", first, 1, OutcomeKind.SUCCEEDED)
    ran("b[0]", first, 1, OutcomeKind.LOST)
    second = act()
    assert job.collected == {"d": (0, 1)}
    assert job.record.status is Status.RETRYING
    asked(
        "alter",
        lambda state: alter(state, ADA, {"params.level": 7, "groups.b.steps.0.params.m": 3}),
    )
    assert both.claim(Offer("both", "b[1]", 1, first), "c") == ("CLAIMED", "CLAIMED")
    assert job.attempts["b[1]"].revision == 1
    asked("rerun", lambda state: rerun(state, ADA, "a"))
    asked("skip", lambda state: skip(state, ADA, "b[1]"))
    act()
    assert job.collected == {}
    assert {"a", "c", "d[0]", "d[1]"}.isdisjoint({*job.groups, *job.frozen})
    third = act()
    assert job.groups["b[1]"].state is GroupState.SKIPPED
    assert both.claim(Offer("both", "d[0]", 1, second), "c") == ("REFUSED", "REFUSED")
    ran("a", third, 1, OutcomeKind.SUCCEEDED, n=1)
    act()
    assert job.collected == {"d": (0,)}
    assert json.loads(job.plans["a"])["rerun"] == "w"


@pytest.mark.variant
def test_the_model_of_the_log_entry_and_the_warehouse_log_agree(tmp_path: Path) -> None:
    """Packages and aborts of three jobs in any order: each answer, and what stands in the log at
    the end.
    """
    seen: set[tuple[Any, ...]] = set()
    for seed in range(20):
        seen |= _agree_on_the_slot(str(tmp_path / str(seed)), random.Random(seed))
    assert {code for _, code in seen} == {"", "USER_CANCELED", "OUTPUT_MISSING"}
    assert {version for version, _ in seen} >= {0, 1, 2, 3}


def _agree_on_the_slot(root: str, rng: random.Random) -> set[tuple[Any, ...]]:
    """Returns what was answered: version, and the code where there is none."""
    depot, files, warehouse = Depot(), Files(root), Warehouse(root)
    model, real = (
        WarehousesAtHand(FaultFreeConnection(), depot, lambda entry: None),
        WatchedWarehouses(),
    )
    spec = {"name": "slot", "groups": [{"name": "make", "steps": STEP}]}
    states = []
    for job, publish in (("j1", "data"), ("j2", "data"), ("j3", "missing")):
        text = JobSpec.model_validate({**spec, "publish": [publish]}).to_json()
        token = Offer(job, "make", 1, "n").held_by("c")
        file = DataFile(f"{token.staging}/data/part-0.parquet", 3, 8)
        files.write_durable(file.path, b"x" * 8)
        output = StagedOutput([file], 3, '{"type": "struct", "fields": []}')
        write_marker(files, token.staging, Marker(str(token), "f", {"data": output}, {}, {}, 1.0))
        depot.markers[token.staging] = ModelMarker(token, "f", {"data": 3})
        record = JobRecord(
            job, "slot", text, "c", warehouse=root, warehouse_id=warehouse.ensure_id(), base=0
        )
        made = {"make": GroupRecord(GroupState.SUCCEEDED, staging=token.staging)}
        states.append(JobState(plan_of(text), record, made, {}, {}))
    answers = set()

    def nobody() -> None: ...

    for _ in range(10):
        state, why = rng.choice(states), Reason("USER_CANCELED", "the user canceled the job")
        found = [
            warehouses.publish(state, nobody) if publishes else warehouses.abort(state, why, nobody)
            for publishes in [rng.random() < 0.5]
            for warehouses in (model, real)
        ]
        shown = [
            (one.version, dict(one.rows), one.failed and one.failed.code, one.trouble)
            for one in found
        ]
        assert shown[0] == shown[1]
        answers.add((found[0].version, found[0].failed.code if found[0].failed else ""))
    entries = [
        entry for n in range(1, warehouse.head() + 1) if (entry := warehouse.entry(n)) is not None
    ]
    assert [(e.publish_id, e.kind, e.code) for e in entries] == [
        (e.publish_id, e.kind, e.code) for e in depot.log
    ]
    return answers


def test_a_pass_that_outlives_its_lock_cannot_lose_a_wake_up(client: redis.Redis) -> None:
    """Whoever finishes after the term finds the job due already and leaves it so; the late pass
    must leave it too.
    """
    store = Store(Settings(prefix="model", lock_ttl=0.002), client)
    lease = Lease(client, KEYS, 15.0, "c")
    submit(client)
    store.tick(1.0, 0.0)

    def decided(nonce: str) -> tuple[Any, str]:
        state = store.load("both")
        assert state is not None
        return decide(state, None, Environment(now=server_time(client), nonce=nonce)), summary_of(
            state
        )

    begun = store.begin("both", "first")
    decision, summary = decided("n1")
    assert store.commit(decision, "c1", begun.due_seen, Acks(), summary) is CommitAnswer.APPLIED
    store.end("both", "first")
    token = Offer("both", "a", 1, "n1").held_by("c")

    begun = store.begin("both", "slow")
    decision, summary = decided("n2")
    while server_time(client) <= float(begun.due_seen):
        pass  # a millisecond of the server's own clock
    assert lease.take(["spark"], "c", "w", "e") is not None
    lease.finish(token, Outcome(OutcomeKind.SUCCEEDED, staging=token.staging), "f")
    store.acknowledge("both", server_time(client) + 60, begun.due_seen, Acks())
    assert "both" in store.due(server_time(client), 10)
    assert store.commit(decision, "c2", begun.due_seen, Acks(), summary) is CommitAnswer.APPLIED
    assert "both" in store.due(server_time(client), 10)


@pytest.mark.parametrize(
    "status", [Status.FINISHED, Status.FAILED, Status.CANCELED, Status.STOPPED]
)
def test_an_ended_job_is_not_halted(client: redis.Redis, status: Status) -> None:
    """A coordinator that could not decide it was frozen meanwhile, and another one brought it to
    its end.
    """
    store = Store(Settings(prefix="model"), client)
    submit(client)
    client.hset(KEYS.of("both").job, "status", status)
    store.halt("both", Reason("UNDECIDABLE", "no"), "late", server_time(client))
    state = store.load("both")
    assert state is not None
    assert (state.job.status, state.job.halted, state.job.commit) == (status, None, "new")


def test_a_job_that_cannot_be_decided_is_halted(client: redis.Redis) -> None:
    store = Store(Settings(prefix="model"), client)
    submit(client)
    store.halt("both", Reason("UNDECIDABLE", "no"), "late", server_time(client))
    state = store.load("both")
    assert state is not None
    assert (state.job.status, state.job.halted) == (Status.HALTED, Reason("UNDECIDABLE", "no"))
