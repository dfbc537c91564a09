"""Promise 4: pools and priorities.

Who waits for a slot gets it, and no job keeps another from its turn.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.support import fleet
from tests.support.coordinator import SUCCEEDED, Coordinator, group
from tests.support.servers import RedisServer, wait_until
from unstuck import BadRequest, Refused, Status
from unstuck.coordinator.store import job_store
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.transport.lease import Claim


class Runners:
    """Runners of queue ``light``, each with a name of its own."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self._taken = 0

    def take(self) -> Token | None:
        """Take what is next, by a runner that has taken nothing yet."""
        self._taken += 1
        name = f"runner{self._taken}"
        claim: Claim | None = self.coordinator.lease_of(name).take(
            ["light"], name, "w", f"event-{name}"
        )
        return None if claim is None else claim.token

    def take_all(self) -> list[Token]:
        return list(iter(self.take, None))


@pytest.fixture
def runners(coordinator: Coordinator) -> Runners:
    return Runners(coordinator)


def members(count: int, **more: object) -> dict[str, object]:
    return group("g", for_each={"n": list(range(count))}, **more)


@pytest.mark.claim("Pools never exceed their slots, and no priority starves.")
def test_running_attempts_never_exceed_the_slots_of_their_pool(
    coordinator: Coordinator, runners: Runners
) -> None:
    coordinator.client.pools.set("jdbc", 3)
    jobs = [coordinator.submit(members(4, pool="jdbc"), name=name) for name in ("a", "b")]
    coordinator.read()
    held = runners.take_all()
    assert len(held) == 3
    while held:
        coordinator.finish(held.pop(0))
        coordinator.read()
        held += runners.take_all()
        assert len(held) <= 3
    assert [coordinator.status(job) for job in jobs] == [Status.FINISHED] * 2


def test_groups_that_wait_for_a_slot_do_not_delay_other_groups(
    coordinator: Coordinator, runners: Runners
) -> None:
    coordinator.client.pools.set("jdbc", 1)
    narrow = coordinator.submit(members(200, pool="jdbc"), group("free"), name="narrow")
    coordinator.read()
    other = coordinator.submit(group("only"), name="other")
    coordinator.read()
    assert sorted((token.job, token.group) for token in runners.take_all()) == sorted(
        [(narrow, "g[0]"), (narrow, "free"), (other, "only")]
    )


def test_an_undefined_pool_has_one_slot(coordinator: Coordinator, runners: Runners) -> None:
    coordinator.submit(members(3, pool="new"))
    coordinator.read()
    assert len(runners.take_all()) == 1
    (pool,) = coordinator.client.pools.all()
    assert (pool.name, pool.slots, pool.used, pool.waiting) == ("new", 1, 1, 2)


def test_resizing_a_pool_takes_effect_immediately_and_running_attempts_continue(
    coordinator: Coordinator, runners: Runners
) -> None:
    coordinator.client.pools.set("p", 1)
    coordinator.submit(members(6, pool="p"))
    coordinator.read()
    held = runners.take_all()
    coordinator.client.pools.set("p", 4)
    held += runners.take_all()
    assert len(held) == 4
    coordinator.client.pools.set("p", 2)
    for token in held[:2]:
        assert coordinator.finish(token) == "APPLIED"
    coordinator.read()
    assert not runners.take_all(), "two are in use, of two"
    coordinator.finish(held[2])
    coordinator.read()
    assert len(runners.take_all()) == 1


def test_a_renewal_takes_the_pool_slot_back_after_a_rollback_lost_the_claim(
    coordinator: Coordinator, runners: Runners
) -> None:
    job = coordinator.submit(members(2, pool="p"))
    coordinator.read()
    attempts = coordinator.keys.of(job).attempts
    before = coordinator.redis.hgetall(attempts)
    held = runners.take()
    assert held is not None
    coordinator.redis.hset(attempts, mapping=before)  # type: ignore[arg-type]
    coordinator.redis.delete(coordinator.keys.pool_slots)

    assert coordinator.lease.renew(held, "w") == "CONTINUE"
    assert runners.take() is None
    (pool,) = coordinator.client.pools.all()
    assert (pool.used, pool.waiting) == (1, 1)
    assert coordinator.finish(held) == "APPLIED"
    coordinator.read()
    assert runners.take() is not None, "the slot that it gave back is free"


def test_one_pass_frees_the_slots_of_all_ended_attempts(
    coordinator: Coordinator, runners: Runners, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_store, "SLOTS_LOOKED_AT", 3)  # in one call
    coordinator.client.pools.set("p", 20)
    coordinator.submit(members(4, pool="p"), name="goes-on")
    coordinator.read()
    assert len(runners.take_all()) == 4
    gone = {
        f"p/{job}/g/1/n": 0.0 for job in ("a", "b", "c", "d", "x", "y", "z")
    }  # on both sides of those that hold one
    coordinator.redis.zadd(coordinator.keys.pool_slots, gone)
    assert coordinator.store.free_slots() == 7
    (pool,) = coordinator.client.pools.all()
    assert pool.used == 4


def test_a_pool_counts_all_slot_holders_and_names_the_first(
    coordinator: Coordinator, runners: Runners
) -> None:
    coordinator.client.pools.set("p", 30)
    job = coordinator.submit(members(34, pool="p"))
    coordinator.read()
    assert len(runners.take_all()) == 30
    (pool,) = coordinator.client.pools.all()
    assert (pool.used, pool.waiting, len(pool.holders)) == (30, 4, 20)
    assert set(pool.holders) < {f"{job}/g[{n}]" for n in range(34)}


def test_an_outdated_turn_does_not_delay_a_queue(
    coordinator: Coordinator, runners: Runners
) -> None:
    """An offer that waited long for its slot has an early turn; later jobs must not get one before
    the others.
    """
    coordinator.client.pools.set("p", 0)
    coordinator.submit(members(1, pool="p"), name="pooled")
    coordinator.read()
    coordinator.submit(members(30), name="others")
    coordinator.read()
    for _ in range(20):
        assert runners.take() is not None
    turn = coordinator.redis.hget(coordinator.keys.turn, "light")
    coordinator.client.pools.set("p", 1)
    late = runners.take()
    assert late is not None
    assert late.group == "g[0]"
    assert coordinator.redis.hget(coordinator.keys.turn, "light") == turn


@pytest.mark.claim("Pools never exceed their slots, and no priority starves.")
def test_the_slot_of_a_lost_runner_is_freed_when_the_loss_is_known(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(lease_ttl=0.5, sweep_every=0.1)
    runners = Runners(coordinator)
    coordinator.submit(members(2, pool="p"))
    coordinator.read()
    lost = runners.take()
    assert lost is not None
    assert runners.take() is None

    def another() -> Token | None:
        coordinator.sweep.run()
        coordinator.read()
        return runners.take()

    assert wait_until(another, 20, "the slot to be free").group in {"g[0]", "g[1]"}


def test_the_slots_of_a_force_ended_job_are_freed_by_a_sweep(
    coordinator: Coordinator, runners: Runners
) -> None:
    job = coordinator.submit(members(2, pool="p"))
    coordinator.read()
    assert runners.take() is not None
    coordinator.client.force_stop(job)
    coordinator.read()
    coordinator.submit(members(1, pool="p"), name="next")
    coordinator.read()
    assert coordinator.status(job) is Status.CANCELED
    coordinator.sweep.run()
    assert runners.take() is not None


def test_why_names_the_full_pool_and_its_slot_holders(
    coordinator: Coordinator, runners: Runners, redis_server: RedisServer, tmp_path: Path
) -> None:
    coordinator.note_runner("r", heard=-3600)
    first = coordinator.submit(group("first", pool="jdbc"), name="one")
    coordinator.read()
    assert runners.take() is not None
    waits = coordinator.submit(group("second", pool="jdbc"), name="two")
    coordinator.read()
    cli = Cli(redis_server.url, tmp_path)
    said = " ".join(cli("why", waits).stdout.split())
    assert f"waits for a slot of pool jdbc, whose one slot is in use, by {first}/first" in said
    assert "never by itself: a slot may become free, or be added, at any time" in said
    assert "unstuck pool set jdbc N" in said
    assert "2 slots" in cli("pool", "set", "jdbc", "2").stdout
    assert json.loads(cli("pool", "list", "--json").stdout) == [
        {"name": "jdbc", "slots": 2, "used": 1, "waiting": 1, "holders": [f"{first}/first"]}
    ]
    assert f"{first}/first" in cli("pool", "list").stdout
    assert "slot of pool" not in cli("why", waits).stdout
    assert cli("pool", "remove", "jdbc").returncode == 4
    assert cli("pool", "set", "unused", "1").returncode == 0
    assert cli("pool", "remove", "unused").returncode == 0
    assert "there is no pool unused" in cli("pool", "remove", "unused").stdout


@pytest.mark.parametrize("slots", [-1, True, "4", 1.5])
def test_a_pool_size_that_is_not_a_number_is_refused(
    coordinator: Coordinator, slots: object
) -> None:
    with pytest.raises(BadRequest, match="expected a number of slots"):
        coordinator.client.pools.set("p", slots)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="a pool wants a name"):
        coordinator.client.pools.set("a/b", 1)
    assert coordinator.client.pools.all() == []


def test_an_overfull_pool_does_not_suppress_wake_ups_of_others(
    coordinator: Coordinator, runners: Runners
) -> None:
    for number in range(4):
        coordinator.note_runner(f"idle{number}", heard=-3600, idle_since=1.0)
    coordinator.client.pools.set("p", 6)
    coordinator.submit(members(8, pool="p"))
    coordinator.read()
    assert len(runners.take_all()) == 6
    coordinator.client.pools.set("p", 1)
    coordinator.wake_ups.clear()
    coordinator.submit(members(4), name="free")
    coordinator.read()
    assert coordinator.wake_ups == {"light": 4}
    coordinator.wake_ups.clear()
    coordinator.sweep.run()
    assert coordinator.wake_ups == {"light": 4}


def test_an_unreadable_attempt_holds_no_slot_and_stops_no_sweep(
    coordinator: Coordinator, runners: Runners
) -> None:
    job = coordinator.submit(members(2, pool="p"))
    other = coordinator.submit(group("only"), name="other")
    coordinator.read()
    token = runners.take()
    while token is not None and token.job != job:
        token = runners.take()
    assert token is not None
    coordinator.redis.hset(coordinator.keys.of(job).attempts, token.group, "no JSON")
    coordinator.redis.zadd(coordinator.keys.due, {other: 0})
    coordinator.sweep.run()
    assert coordinator.client.pools.all()[0].used == 0
    assert coordinator.due_in(other) > 0, "it was decided"


def test_groups_that_wait_for_a_slot_use_no_turns_of_their_job(
    coordinator: Coordinator, runners: Runners
) -> None:
    coordinator.client.pools.set("p", 0)
    coordinator.submit(members(60), name="wide")
    job = coordinator.submit(members(60, pool="p"), group("free"), name="mixed")
    coordinator.read()
    jobs = [token.job for token in (runners.take() for _ in range(5)) if token is not None]
    assert job in jobs


def test_a_pool_in_use_cannot_be_removed(coordinator: Coordinator, runners: Runners) -> None:
    coordinator.submit(members(2, pool="p"))
    coordinator.read()
    held = runners.take_all()
    with pytest.raises(Refused, match="pool p is in use: 1 hold a slot, and 1 wait for one"):
        coordinator.client.pools.remove("p")
    while held:
        coordinator.finish(held.pop())
        coordinator.read()
        held += runners.take_all()
    assert coordinator.client.pools.all() == [], "nobody has set it"
    coordinator.client.pools.set("p", 1)
    assert coordinator.client.pools.remove("p").answer == "DONE"
    assert coordinator.client.pools.remove("p").answer == "ALREADY"


def calls_of_a_take(coordinator: Coordinator, runners: Runners, stale: int = 0) -> int:
    """The commands of Redis that one take makes that finds nothing, but drops ``stale`` offers."""
    if stale:
        offers = {f"gone/g{number}/1/n": 1e9 + number for number in range(stale)}
        coordinator.redis.zadd(coordinator.keys.ready("light"), offers)
    coordinator.redis.config_resetstat()
    assert runners.take() is None
    return sum(each["calls"] for each in coordinator.redis.info("commandstats").values())


def test_take_checks_only_pools_with_ready_offers(
    coordinator: Coordinator, runners: Runners
) -> None:
    calls_of_a_take(coordinator, runners)
    before = [
        calls_of_a_take(coordinator, runners),
        calls_of_a_take(coordinator, runners, stale=50),
    ]
    for number in range(300):
        coordinator.client.pools.set(f"set{number}", 1)
    for pool in ("ended", "canceled"):
        job = coordinator.submit(
            *(group(f"g{number}", pool=f"{pool}{number}") for number in range(20)), name=pool
        )
        coordinator.read()
        if pool == "canceled":
            coordinator.client.cancel(job)
            coordinator.read()
        for token in runners.take_all():
            coordinator.finish(token)
        coordinator.read()
        assert coordinator.status(job).terminal
    assert {one.name for one in coordinator.client.pools.all()} == {
        f"set{number}" for number in range(300)
    }
    assert [
        calls_of_a_take(coordinator, runners),
        calls_of_a_take(coordinator, runners, stale=50),
    ] == before


def test_the_cost_of_dropping_an_offer_does_not_grow_with_full_pools(
    coordinator: Coordinator, runners: Runners
) -> None:
    def each() -> float:
        few, many = (calls_of_a_take(coordinator, runners, stale) for stale in (10, 60))
        return (many - few) / 50

    before = each()
    coordinator.submit(
        *(members(2, pool=f"full{number}") | {"name": f"g{number}"} for number in range(30))
    )
    coordinator.read()
    assert len(runners.take_all()) == 30
    assert each() == before
    assert sum(one.waiting for one in coordinator.client.pools.all()) == 30


def test_an_offer_in_a_wrong_lane_takes_no_occupied_slot(
    coordinator: Coordinator, runners: Runners
) -> None:
    """The ready sets are an index, and nobody believes them."""
    coordinator.submit(members(2, pool="p"))
    coordinator.read()
    assert runners.take() is not None
    (waiting,) = coordinator.sent
    coordinator.redis.zadd(coordinator.keys.ready("light"), {str(waiting): 0})
    assert runners.take() is None


@pytest.mark.claim("Pools never exceed their slots, and no priority starves.")
@pytest.mark.variant
def test_low_normal_and_high_jobs_get_their_shares_and_none_starves(
    coordinator: Coordinator, runners: Runners
) -> None:
    jobs = {
        coordinator.submit(members(400), name=priority, priority=priority): priority
        for priority in ("low", "normal", "high")
    }
    taken: Counter[str] = Counter()
    for _ in range(105):
        coordinator.read()
        token = runners.take()
        assert token is not None
        taken[jobs[token.job]] += 1
        coordinator.finish(token, SUCCEEDED)
    assert taken["high"] == pytest.approx(80, abs=4)
    assert taken["normal"] == pytest.approx(20, abs=3)
    assert taken["low"] == pytest.approx(5, abs=2)


@pytest.mark.claim("Pools never exceed their slots, and no priority starves.")
@pytest.mark.parametrize("pools", [("", "p"), ("p", ""), ("", ""), ("p", "q")])
def test_a_new_job_shares_turns_with_a_job_that_has_had_many(
    coordinator: Coordinator, runners: Runners, pools: tuple[str, str]
) -> None:
    """It is neither served before the other until it has caught up, nor after all of it."""
    for pool in filter(None, pools):
        coordinator.client.pools.set(pool, 100)
    first, later = ({"pool": pool} if pool else {} for pool in pools)
    coordinator.submit(members(30, **first), name="first")
    coordinator.read()
    assert len([runners.take() for _ in range(20)]) == 20
    second = coordinator.submit(members(30, **later), name="later")
    coordinator.read()
    tokens = [runners.take() for _ in range(12)]
    assert 5 <= sum(token is not None and token.job == second for token in tokens) <= 7


@pytest.mark.variant
def test_a_job_with_raised_priority_gets_more_of_the_next_turns(
    coordinator: Coordinator, runners: Runners
) -> None:
    jobs = [coordinator.submit(members(400), name=name) for name in ("a", "b")]
    coordinator.read()
    coordinator.client.alter(jobs[1], {"priority": "high"})
    taken: Counter[str] = Counter()
    for turn in range(300):
        coordinator.read()
        token = runners.take()
        assert token is not None
        taken[token.job] += turn >= 200  # what stood ready before keeps its turns
        coordinator.finish(token, SUCCEEDED)
    assert taken[jobs[1]] > 3 * taken[jobs[0]]


def test_real_runners_share_a_pool_and_finish_all_work(
    coordinator: Coordinator, redis_server: RedisServer, tmp_path: Path
) -> None:
    coordinator.client.pools.set("p", 1)
    steps = [{"python": "fleet_steps:slots_in_use", "params": {"pool": "p"}}]
    job = coordinator.submit(
        {
            "name": "pooled",
            "spark": False,
            "pool": "p",
            "steps": steps,
            "for_each": {"n": list(range(12))},
        },
        {"name": "free", "spark": False, "steps": steps, "for_each": {"n": list(range(12))}},
    )

    def finished() -> bool:
        coordinator.read()
        coordinator.sweep.run()
        while +coordinator.wake_ups:
            fleet.wake(coordinator.redis, "light")
            coordinator.wake_ups["light"] -= 1
        return coordinator.status(job).terminal

    with fleet.worker(redis_server.url, tmp_path, concurrency=2):
        wait_until(finished, 90, "the job to end")
    assert coordinator.status(job) is Status.FINISHED
    pooled, free = coordinator.show(job).groups
    assert [member.results["used"] for member in pooled.members] == [1] * 12
    assert {member.results["used"] for member in free.members} <= {0, 1}
