"""Pools: how many attempts may use a shared resource at once, such as a database."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Annotated

import redis

from unstuck.coordinator.command_table import Answer, Arg, Command, CommandOutcome, TargetKind
from unstuck.coordinator.errors import BadRequest, Refused
from unstuck.coordinator.model.fleet import PoolInfo
from unstuck.tasks.protocol.keys import Keys, pool_of
from unstuck.tasks.spec.fields import MAX_COUNT

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
SHOWN = 20  # attempts


class Pools:
    """The pools of one Redis.

    A pool that is not set has one slot, and exists only while something uses it.
    """

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._redis = client
        self._keys = keys

    @Command("set", TargetKind.POOL, "unstuck pool set jdbc 4")
    def set(
        self,
        name: str,
        slots: Annotated[int, Arg("Attempts that may hold one at once; 0 lets nothing begin.")],
    ) -> CommandOutcome:
        """Make a pool, or change its size. Running attempts continue.

        Raises: BadRequest: no name of a pool, or no number of slots.

        >>> client.pools.set("jdbc", 4).text
        'pool jdbc has 4 slots'
        >>> [(pool.name, pool.slots, pool.used) for pool in client.pools.all()]
        [('jdbc', 4, 0)]
        """
        if _NAME.fullmatch(name) is None:
            raise BadRequest(
                f"a pool wants a name of letters, digits, _ . and - (at most 63), not {name!r}"
            )
        if isinstance(slots, bool) or not isinstance(slots, int) or not 0 <= slots <= MAX_COUNT:
            raise BadRequest(
                f"pool {name}: expected a number of slots from 0 to {MAX_COUNT:,}, not {slots!r}"
            )
        self._redis.hset(self._keys.pools, name, str(slots))
        text = f"pool {name} has {slots:,} slot{'' if slots == 1 else 's'}"
        return CommandOutcome(name, Answer.DONE, text)

    @Command("remove", TargetKind.POOL, "unstuck pool remove jdbc", ends=True)
    def remove(self, name: str) -> CommandOutcome:
        """Forget the size of a pool. A group that names it gets one slot.

        Raises: Refused: attempts hold its slots or wait for one.
        """
        pool = next((pool for pool in self.all() if pool.name == name), None)
        if pool is not None and pool.used + pool.waiting:
            raise Refused(
                f"pool {name} is in use: {pool.used:,} hold a slot, and {pool.waiting:,} wait for "
                "one"
            )
        if self._redis.hdel(self._keys.pools, name):
            return CommandOutcome(name, Answer.DONE, f"pool {name} is removed")
        return CommandOutcome(name, Answer.ALREADY, f"there is no pool {name}")

    def all(self) -> list[PoolInfo]:
        """Return the pools that are set or in use, by name."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.hgetall(self._keys.pools)
        pipe.zrange(self._keys.pool_slots, 0, -1)
        pipe.zrange(self._keys.lanes, 0, -1)
        sizes, members, listed = pipe.execute()
        lanes = [lane for lane in listed if pool_of(lane)]
        for lane in lanes:
            pipe.zcard(self._keys.ready(lane))
        waiting, holders = Counter[str](), defaultdict[str, list[str]](list)
        for lane, count in zip(lanes, pipe.execute(), strict=True):
            waiting[pool_of(lane)] += count
        for member in members:
            pool, job, group, *_ = member.split("/")
            holders[pool].append(f"{job}/{group}")
        return [
            PoolInfo(
                name,
                int(sizes.get(name, 1)),
                len(holders[name]),
                waiting[name],
                tuple(holders[name][:SHOWN]),
            )
            for name in sorted({*sizes, *holders, *+waiting})
        ]
