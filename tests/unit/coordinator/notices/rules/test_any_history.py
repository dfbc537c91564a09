"""Random histories of the outbox on a real store: senders die and freeze, replies are lost, targets
fail, time goes.
"""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
import redis

from tests.support.network.receivers import notice
from unstuck.coordinator.notices.outbox import Outbox, TakenNotice, TryEnd
from unstuck.tasks.protocol.keys import Keys

KEYS = Keys()
TARGETS = ("ops", "team")
HOLD = 15.0


class History:
    """What senders did by one clock, and what arrived where."""

    def __init__(self, client: redis.Redis, seed: int) -> None:
        self.client, self.random = client, random.Random(seed)
        self.now = 1_388_534_500.0
        self.outbox = Outbox(client, KEYS, lambda: self.now)
        self.told: dict[str, list[str]] = defaultdict(
            list
        )  # target → ids, in the order in which they were written
        self.arrived: dict[str, list[str]] = defaultdict(
            list
        )  # target → ids, in the order of their first arrival
        self.problems: dict[str, str] = {}  # id → problem
        self.holding: list[
            tuple[TakenNotice, str, float]
        ] = []  # taken and not noted: with the sender, and until when
        self.number = 0

    def step(self) -> None:
        self.random.choice(
            (self.tell, self.spread, self.take, self.take, self.note_try, self.note_try, self.wait)
        )()

    def tell(self) -> None:
        self.number += 1
        to = tuple(self.random.sample(TARGETS, self.random.randint(1, 2)))
        told = notice(self.number, problem=f"p{self.random.randint(1, 4)}", to=to)
        self.problems[told.id] = told.problem
        for _ in range(
            self.random.choice((1, 1, 1, 2))
        ):  # twice: a store that was rolled back, or a lost reply
            self.client.xadd(KEYS.outbox, {"notice": told.to_json()})
        for target in to:
            self.told[target].append(told.id)
        self.outbox.spread()

    def spread(self) -> None:
        for target in self.outbox.spread():
            assert target in TARGETS

    def take(self) -> None:
        target, sender = self.random.choice(TARGETS), f"s{self.random.random()}"
        taken = self.outbox.take(target, sender, HOLD)
        if self.random.random() < 0.1 and taken is not None:
            assert self.outbox.take(target, sender, HOLD) == taken, (
                "a repeat is answered with the same"
            )
        alive = [one for one, _, until in self.holding if one.target == target and until > self.now]
        assert not (taken and alive), "two senders have one target"
        if taken is None:
            return
        # It is sent now; the receiver may take it although the sender never hears of it.
        if self.random.random() < 0.7 and taken.id not in self.arrived[target]:
            self.arrived[target].append(taken.id)
        if self.random.random() < 0.8:
            self.holding.append((taken, sender, self.now + HOLD))  # else the sender has died

    def note_try(self) -> None:
        if not self.holding:
            return
        taken, sender, until = self.holding.pop(self.random.randrange(len(self.holding)))
        arrived = taken.id in self.arrived[taken.target]
        outcome = "sent" if arrived and self.random.random() < 0.8 else "failed"
        wait, rest = self.random.uniform(0, 60), self.random.uniform(0, 30)
        ended = self.outbox.note_try(taken, sender, outcome, outcome, wait=wait, rest=rest)
        if until > self.now:
            assert ended is (TryEnd.SENT if outcome == "sent" else TryEnd.AGAIN), ended
        if self.random.random() < 0.2:
            assert self.outbox.note_try(taken, sender, outcome, outcome) is TryEnd.LOST, (
                "a repeat counts once"
            )

    def wait(self) -> None:
        self.now += self.random.choice((0.1, 1.0, 10.0, 30.0))

    def end(self) -> None:
        """Everybody is well from now on: all that waits is sent."""
        self.holding.clear()
        for _ in range(10_000):
            due = self.outbox.spread()
            if not due:
                if not self.outbox.waiting():
                    return
                self.now += 1
            for target in due:
                taken = self.outbox.take(target, "last", HOLD)
                if taken is not None:
                    if taken.id not in self.arrived[target]:
                        self.arrived[target].append(taken.id)
                    assert self.outbox.note_try(taken, "last", "sent", "ok") is TryEnd.SENT
        raise AssertionError(f"something waits for ever: {self.outbox.waiting()}")


@pytest.mark.parametrize("seed", range(12))
def test_in_any_history_each_target_gets_its_notices_in_order(
    client: redis.Redis, seed: int
) -> None:
    history = History(client, seed)
    for _ in range(300):
        history.step()
    history.end()
    assert client.xlen(KEYS.dead) == 0
    assert client.hget(KEYS.counters, "NOTICE_SENT") == str(sum(map(len, history.told.values()))), (
        "each counts once"
    )
    for target in TARGETS:
        assert set(history.arrived[target]) == set(history.told[target])
        for problem in set(history.problems.values()):
            of_problem = [id_ for id_ in history.told[target] if history.problems[id_] == problem]
            assert [id_ for id_ in history.arrived[target] if id_ in of_problem] == of_problem
    left = set(client.keys("*"))
    assert left <= {KEYS.outbox, KEYS.notices_sent, KEYS.counters}, (
        "nothing of what was sent is left in a queue"
    )
