"""Reads the offers that wait for runners, by queue and pool. Read-only."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import redis

from unstuck.coordinator.model.status import GroupState
from unstuck.tasks.protocol.keys import Keys, pool_of, queue_of

MOST_LANES = 200  # whose offers are looked at
HEADS = 10  # offers of a lane that are looked at: those whose turn is next


@dataclass(frozen=True, slots=True)
class WaitingOffers:
    """The offers for the runners of one queue that take a slot of one pool (empty: of none).

    Attributes:
        oldest_since: since when the oldest stands of those whose turn is next; None if that is not
            known.
    """

    queue: str
    pool: str
    count: int
    oldest_since: float | None


def record_of(keys: Keys, offer: str) -> tuple[str, str]:
    """Return the hash and the field of the record of the offered group."""
    job, _, rest = offer.partition("/")
    return keys.of(job).groups, rest.partition("/")[0]


def queued_since(record: str | None) -> float | None:
    """Return since when the group of this record is QUEUED; None if it is not.

    Raises: ValueError, …: the record is damaged.
    """
    fields = json.loads(record or "{}")
    return float(fields["since"]) if fields.get("state") == GroupState.QUEUED else None


def waiting_offers(client: redis.Redis, keys: Keys) -> list[WaitingOffers]:
    """Return the offers of all queues, oldest first.

    Args:
        client: must decode responses.
    """
    lanes = cast(list[str], client.zrange(keys.lanes, 0, MOST_LANES - 1))
    pipe = client.pipeline(transaction=False)
    for lane in lanes:
        pipe.zcard(keys.ready(lane))
        pipe.zrange(keys.ready(lane), 0, HEADS - 1)
    answers = pipe.execute()
    heads = [
        (lane, offer) for lane, offers in zip(lanes, answers[1::2], strict=True) for offer in offers
    ]
    for _, offer in heads:
        pipe.hget(*record_of(keys, offer))
    counts: dict[tuple[str, str], int] = {}
    for lane, count in zip(lanes, answers[::2], strict=True):
        place = queue_of(lane), pool_of(lane)
        counts[place] = counts.get(place, 0) + int(count)
    oldest: dict[tuple[str, str], float] = {}
    for (lane, _), text in zip(heads, pipe.execute(), strict=True):
        place = queue_of(lane), pool_of(lane)
        # A damaged record, which `why` reports for its job.
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            if (since := queued_since(text)) is not None:
                oldest[place] = min(since, oldest.get(place, float("inf")))
    waiting = [
        WaitingOffers(*place, count, oldest.get(place)) for place, count in counts.items() if count
    ]
    return sorted(
        waiting, key=lambda entry: (entry.oldest_since or float("inf"), entry.queue, entry.pool)
    )
