"""Pools: how many attempts held a slot at once, at every moment.

It is read from the server's append-only file.
"""

# An attempt counts from its claim to its end on the record, whatever the store's own index of slots
# says. A process whose attempt was ended without it may run on for a moment and does not count: no
# more than that is promised.

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.chaos.driver.judging.reports import Transaction
from unstuck import Status
from unstuck.tasks.protocol.keys import Keys

TERMINAL = {status.encode() for status in Status if status.terminal}


@dataclass(slots=True)
class Use:
    """What became of the slots.

    Attributes:
        slots: of each pool, as it was last set.
        most: of each pool, how many attempts held a slot at once.
        claims: attempts that held one, in all.
        over: a sentence for each moment at which more attempts were held than slots.
    """

    slots: dict[str, int] = field(default_factory=dict)
    most: Counter[str] = field(default_factory=Counter)
    claims: int = 0
    over: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        fullest = ", ".join(
            f"{pool} {self.most[pool]} of {slots}" for pool, slots in sorted(self.slots.items())
        )
        return f"{self.claims} attempts held a slot; at the fullest: {fullest}"


def use_of(written: Iterable[Transaction], keys: Keys, jobs: Iterable[str]) -> Use:
    """The use of all pools by these jobs. Pure."""
    use, held = Use(), dict[tuple[str, str], tuple[str, str]]()  # job, group → pool, claimant
    pools = keys.pools.encode()
    attempts = {keys.of(job).attempts.encode(): job for job in jobs}
    records = {keys.of(job).job.encode(): job for job in attempts.values()}
    for transaction in written:
        before = dict(held)
        for name, key, *rest in transaction:
            fields = zip(rest[::2], rest[1::2], strict=False)
            match name.upper():
                case b"HSET" if key == pools:
                    use.slots |= {pool.decode(): int(slots) for pool, slots in fields}
                case b"HSET" if key in attempts:
                    for group, text in fields:
                        _set(held, (attempts[key], group.decode()), text)
                case b"HDEL" if key in attempts:
                    for group in rest:
                        held.pop((attempts[key], group.decode()), None)
                case b"HSET" if key in records and dict(fields).get(b"status") in TERMINAL:
                    held = {one: at for one, at in held.items() if one[0] != records[key]}
        new = {one: at for one, at in held.items() if before.get(one) != at}
        use.claims += len(new)
        for pool in {pool for pool, _ in new.values()}:
            holders = [f"{job}/{group}" for (job, group), (of, _) in held.items() if of == pool]
            use.most[pool] = max(use.most[pool], len(holders))
            if len(holders) > use.slots.get(pool, 1):
                use.over.append(
                    f"pool {pool} has {use.slots.get(pool, 1)} slots, and {', '.join(holders)} "
                    "held one"
                )
    return use


def _set(held: dict[tuple[str, str], tuple[str, str]], one: tuple[str, str], text: bytes) -> None:
    attempt = json.loads(text)
    if attempt.get("pool") and attempt.get("claimant") and not attempt.get("outcome"):
        held[one] = attempt["pool"], attempt["claimant"]
    else:
        held.pop(one, None)
