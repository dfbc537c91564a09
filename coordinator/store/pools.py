"""Pools: how many attempts may use the same thing at once, such as a database, whatever job they belong to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

import redis

from unstuck.coordinator.errors import BadRequest, Refused
from unstuck.tasks.protocol.keys import Keys, members_of, pool_of
from unstuck.tasks.spec.fields import MAX_COUNT

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
SHOWN = 20  # attempts


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool.

    Attributes:
        slots: how many attempts may hold a slot at once.
        used: how many do; more than ``slots`` after it was made smaller.
        waiting: offers that stand ready, or wait for a slot.
        holders: attempts that hold a slot, as ``job/group``; the first of them.
    """

    name: str
    slots: int
    used: int
    waiting: int
    holders: tuple[str, ...]


class Pools:
    """The pools of one Redis. A pool that a job names and nobody has set has one slot."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._redis = client
        self._keys = keys

    def set(self, name: str, slots: int) -> None:
        """Make a pool, or change its size. What runs goes on.

        Raises: BadRequest: no name of a pool, or no number of slots.
        """
        if _NAME.fullmatch(name) is None:
            raise BadRequest(f"a pool wants a name of letters, digits, _ . and - (at most 63), not {name!r}")
        if isinstance(slots, bool) or not isinstance(slots, int) or not 0 <= slots <= MAX_COUNT:
            raise BadRequest(f"pool {name}: expected a number of slots from 0 to {MAX_COUNT:,}, not {slots!r}")
        self._redis.hset(self._keys.pools, name, str(slots))

    def remove(self, name: str) -> bool:
        """Forget a pool; a job that names it brings it back with one slot. False: there is none.

        Raises: Refused: attempts hold its slots or wait for one.
        """
        pool = next((pool for pool in self.all() if pool.name == name), None)
        if pool is not None and pool.used + pool.waiting:
            raise Refused(f"pool {name} is in use: {pool.used:,} hold a slot, and {pool.waiting:,} groups stand ready")
        return bool(self._redis.hdel(self._keys.pools, name))

    def all(self) -> list[PoolView]:
        """All pools, by name."""
        sizes = cast(dict[str, str], self._redis.hgetall(self._keys.pools))
        lanes = [lane for lane in cast(set[str], self._redis.smembers(self._keys.lanes)) if pool_of(lane)]
        names = sorted(sizes)
        pipe = self._redis.pipeline(transaction=False)
        for lane in lanes:
            pipe.zcard(self._keys.ready(lane))
        for name in names:
            pipe.zlexcount(self._keys.held, *members_of(name))
            pipe.zrangebylex(self._keys.held, *members_of(name), start=0, num=SHOWN)
        answers: Any = iter(pipe.execute())
        waiting: dict[str, int] = {}
        for lane in lanes:
            waiting[pool_of(lane)] = waiting.get(pool_of(lane), 0) + next(answers)
        return [
            PoolView(name, int(sizes[name]), next(answers), waiting.get(name, 0), tuple(map(_holder, next(answers))))
            for name in names
        ]


def _holder(member: str) -> str:
    return "/".join(member.split("/")[1:3])
