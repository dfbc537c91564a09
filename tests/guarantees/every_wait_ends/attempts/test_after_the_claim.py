"""What goes wrong between the claim and the first step is told as what it is, and never as a lost
worker.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support import fleet
from tests.support.coordinator import Coordinator, group
from tests.support.programs.runner import single_runner
from tests.support.servers import RedisServer
from unstuck import Status
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Offer

GONE = "import os; os.mkdir('here'); os.chdir('here'); os.rmdir(os.getcwd())"


def make_offer(store: redis.Redis, folder: Path, step: str = "my_pid", job: str = "job") -> Offer:
    spec = {"name": "g", "spark": False, "steps": [{"python": f"fleet_steps:{step}"}]}
    return fleet.make_offer(store, folder / "warehouse", job, spec, send=False)


def rewritten(store: redis.Redis, offer: Offer, **fields: Any) -> None:
    """The plan of the offer's group as another release might have stored it."""
    plans = fleet.KEYS.of(offer.job).plans
    store.hset(
        plans, offer.group, json.dumps({**json.loads(store.hget(plans, offer.group)), **fields})
    )


def ended(
    store: redis.Redis, server: RedisServer, folder: Path, *offers: Offer, prepared: str = ""
) -> list[Outcome]:
    """The outcomes that one runner put on the record, while it lived."""
    with single_runner(server.url, folder, *offers, prepared=prepared) as runner:
        said = runner.said()
    assert [one.rpartition(" ")[2] for one in said] == ["APPLIED"] * len(offers), said
    return [fleet.outcome(store, offer, 0) for offer in offers]


def test_a_worker_whose_working_folder_was_removed_still_works(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    offers = [
        make_offer(client, tmp_path, step, job)
        for step, job in [("my_pid", "a"), ("not_there", "b"), ("boom", "c")]
    ]
    done, failed, raised = ended(client, redis_server, tmp_path, *offers, prepared=GONE)
    assert done.kind is OutcomeKind.SUCCEEDED, done.failure
    assert failed.failure is not None
    assert (failed.failure.code, failed.failure.recoverable) == ("WORKER_FOLDER_GONE", True), (
        "another may have it"
    )
    assert "fleet_steps:not_there" in failed.failure.text
    assert raised.failure is not None
    assert raised.failure.code == "STEP_FAILED"


def test_an_order_with_unknown_fields_is_refused_unless_they_are_empty(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    orders: list[dict[str, Any]] = [
        {"reruns": 0, "offers": {}, "budget": None},
        {"reruns": 2},
        {"warehouse": None},
        {"group": {"name": "g", "spark": False, "steps": [{"python": "m:f", "pool": "big"}]}},
    ]
    offers = [make_offer(client, tmp_path, job=f"job{n}") for n in range(len(orders))]
    for offer, fields in zip(offers, orders, strict=True):
        rewritten(client, offer, **fields)
    done, *refused = ended(client, redis_server, tmp_path, *offers)
    assert done.kind is OutcomeKind.SUCCEEDED, done.failure
    for outcome, names in zip(refused, ["reruns", "warehouse", "group.steps.0.pool"], strict=True):
        assert outcome.failure is not None
        assert (outcome.failure.code, outcome.failure.recoverable) == (
            "WORK_ORDER_UNREADABLE",
            True,
        ), "another may read it"
        assert f"({names}: " in outcome.failure.text


def test_a_claim_with_an_unreadable_reply_is_ended_by_its_runner(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    offer = make_offer(client, tmp_path)
    client.hset(fleet.KEYS.of(offer.job).plans, offer.group, b'{"warehouse": "\xff"}')
    failure = ended(client, redis_server, tmp_path, offer)[0].failure
    assert failure is not None
    assert (failure.code, failure.recoverable) == ("WORK_ORDER_UNREADABLE", True)


# The memory that it shares with its watchdog is gone on this side, so the watchdog cannot be told
# what is held.
CANNOT_BEGIN = """
take = runner.lease.take
def take_and_break(*arguments, **more):
    claim = take(*arguments, **more)
    runner.watchdog._shared._memory.close()
    return claim
runner.lease.take = take_and_break
runner.replace = lambda: print("replaced")
"""


def test_a_runner_that_cannot_start_an_attempt_is_replaced_without_using_a_retry(
    coordinator: Coordinator, redis_server: RedisServer, tmp_path: Path
) -> None:
    job = coordinator.submit(group("g", retry={"max": 0}))
    coordinator.read()
    (offer,) = coordinator.offers(job)
    with single_runner(redis_server.url, tmp_path, offer, prepared=CANNOT_BEGIN) as runner:
        assert runner.said() == ["replaced", "lost APPLIED"]
    coordinator.read()
    assert coordinator.status(job) is Status.RETRYING
    record = coordinator.show(job).groups[0].members[0]
    assert (record.failures, record.losses) == (0, 1)
    for told in (record.first_error, record.last_error, record.reason):
        assert told is not None
        assert told.code == "NOT_BEGUN"
        assert "ValueError" in told.text


def test_an_order_unreadable_to_all_runners_uses_retries_and_is_not_poison(
    coordinator: Coordinator, redis_server: RedisServer, tmp_path: Path
) -> None:
    job = coordinator.submit(group("g", retry={"max": 1, "backoff": 0}))
    coordinator.redis.hset(coordinator.keys.of(job).plans, "g", "{}")
    for _ in range(2):
        coordinator.read()
        coordinator.reconciler.reconcile(job)
        (offer,) = coordinator.offers(job)
        ended(coordinator.redis, redis_server, tmp_path, offer)
    coordinator.read()
    assert coordinator.status(job) is Status.FAILED
    (member,) = coordinator.show(job).groups[0].members
    assert member.reason is not None
    assert (member.reason.code, member.losses) == ("WORK_ORDER_UNREADABLE", 0)
    assert "all 1 retries are used up" in member.reason.text


# The end of an attempt fails after its outcome was recorded, and the next one was taken with it.
ENDS_BADLY = """
import contextlib
from unstuck.tasks.runner.attempt import Attempt
run = Attempt.run
def run_and_fail(attempt):
    run(attempt)
    raise RuntimeError("what closes the attempt has failed")
Attempt.run = run_and_fail
runner.replace = lambda: print("replaced")
"""


def test_a_stopping_runner_hands_back_an_attempt_taken_with_an_outcome(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
) -> None:
    first, second = (
        make_offer(client, tmp_path, job="first"),
        make_offer(client, tmp_path, job="second"),
    )
    fleet.stand(client, second, "light")
    with single_runner(redis_server.url, tmp_path, first, prepared=ENDS_BADLY) as runner:
        assert runner.process.wait() != 0
    assert fleet.outcome(client, first).kind is OutcomeKind.SUCCEEDED
    released = fleet.outcome(client, second)
    assert released.kind is OutcomeKind.RELEASED
    assert released.failure is not None
    assert "had to end before it could begin" in released.failure.text


# A runner that may run Spark. "asked True": it asked its JVM while it held an attempt.
MAY_RUN_SPARK = """
runner.queues = ("light", "spark")
type(runner.driver).running = property(lambda driver: print("asked", bool(runner.held)) or False)
finish_and_take = runner.lease.finish_and_take
runner.lease.finish_and_take = lambda *most, **rest: print("one round trip") or finish_and_take(*most, **rest)
"""
SESSION_IS_UP = "type(runner.driver).unused = False"


@pytest.mark.parametrize(("session", "round_trips"), [("", True), (SESSION_IS_UP, False)])
def test_a_spark_runner_does_not_query_the_jvm_before_the_outcome_is_recorded(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path, session: str, round_trips: bool
) -> None:
    first, second = (
        make_offer(client, tmp_path, job="first"),
        make_offer(client, tmp_path, job="second"),
    )
    fleet.stand(client, second, "light")
    with single_runner(
        redis_server.url, tmp_path, first, prepared=MAY_RUN_SPARK + session
    ) as runner:
        said = runner.said()
    assert "asked False" in said, "between two attempts"
    assert "asked True" not in said
    assert ("one round trip" in said) is round_trips, "only before its first session"
    for offer in (first, second):
        assert fleet.outcome(client, offer).kind is OutcomeKind.SUCCEEDED
