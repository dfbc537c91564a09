"""The outbox in Redis: a commit writes notices, which wait per target until they are sent.

A target gets the notices of one problem in order; those of other problems do not wait for them.
Only one sender of the fleet sends to a target at a time, so a notice is sent twice only if a sender
died or froze. A notice that cannot be sent becomes a dead letter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, cast

import redis

from unstuck.coordinator.model.notice import Notice
from unstuck.coordinator.store.reports import DEAD_KEPT
from unstuck.tasks.json_fields import Time, Word
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.lua import Script

MOVED_AT_ONCE = 100
SENT_KEPT = 1000  # notices that were sent, about
TRIED_FOR = 3600.0  # seconds for which a notice is tried
DIGEST_WINDOW_S = 60.0


class TryEnd(StrEnum):
    """The result of a try to send a notice."""

    SENT = "SENT"
    AGAIN = "AGAIN"
    DEAD = "DEAD"
    LOST = "LOST"  # another sender has taken it meanwhile, or it is noted already


@dataclass(frozen=True, slots=True)
class TakenNotice:
    """A notice to send now, with the other notices of its digest.

    ``tries``: number of failed tries; ``failed``: consecutive failures of the target.
    """

    target: str
    problem: str
    id: str
    text: str
    tries: int
    failed: int
    others: tuple[TakenNotice, ...] = ()

    @property
    def notice(self) -> Notice:
        """Return the notice. Raises: ValueError: another release wrote it."""
        return Notice.from_json(self.text)


@dataclass(frozen=True, slots=True)
class WaitingNotice:
    """A notice that waits for its target. Times are Unix seconds.

    Attributes:
        to: name of the target.
        notice: the notice.
        since: since when it waits.
        next_at: when it is tried next.
        tries: number of failed tries.
        reply: result of the last try to send to the target.
    """

    to: str
    notice: Notice
    since: Time
    next_at: Time
    tries: int
    reply: Word


@dataclass(frozen=True, slots=True)
class SentNotice:
    """A notice that was sent.

    Attributes:
        to: name of the target.
        notice: the notice.
        at: when it was sent.
        tries: number of the try that succeeded.
        reply: answer of the receiver.
    """

    to: str
    notice: Notice
    at: Time
    tries: int
    reply: Word


class Notices:
    """Reads the notices of one Redis. ``client`` must decode responses."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._redis, self._keys = client, keys

    def waiting(self, most: int = 1000) -> list[WaitingNotice]:
        """Return the waiting notices, oldest first, and at most ``most`` for each target."""
        notices = []
        for target in cast(list[str], self._redis.zrange(self._keys.notices_due, 0, -1)):
            state = json.loads(
                cast(str | None, self._redis.hget(self._keys.notices, target)) or "{}"
            )
            queue = cast(
                Any,
                self._redis.zrange(self._keys.notices_for(target), 0, most - 1, withscores=True),
            )
            with self._redis.pipeline(transaction=False) as pipe:
                for problem, _ in queue:
                    pipe.lrange(self._keys.notices_of(target, problem), 0, -1)
                entries = pipe.execute()
            for (problem, next_at), lines in zip(queue, entries, strict=True):
                for number, line in enumerate(lines):
                    since, _, text = line.split(" ", 2)
                    if (notice := _read(text)) is None:
                        continue
                    tries = 0 if number else int(state.get("tries", {}).get(problem, 0))
                    at = max(next_at, state.get("next", 0.0))
                    notices.append(
                        WaitingNotice(
                            target, notice, float(since), at, tries, state.get("reply", "")
                        )
                    )
        return sorted(notices, key=lambda queued: queued.since)

    def sent(self, most: int = 100) -> list[SentNotice]:
        """Return the sent notices, newest first."""
        entries = cast(
            list[tuple[str, Mapping[str, str]]],
            self._redis.xrevrange(self._keys.notices_sent, count=most),
        )
        return [
            SentNotice(
                fields["to"], notice, float(fields["at"]), int(fields["tries"]), fields["reply"]
            )
            for _, fields in entries
            if (notice := _read(fields["notice"])) is not None
        ]


class Outbox(Notices):
    """The outbox in one Redis. ``client`` must decode responses, and wait longer than a second."""

    def __init__(
        self, client: redis.Redis, keys: Keys, clock: Callable[[], float] | None = None
    ) -> None:
        """Create the outbox. ``clock``: Unix seconds; by default, those of Redis."""
        super().__init__(client, keys)
        self._clock = clock or self._redis_time
        self._scripts = {
            name: Script(client, keys, __package__, name) for name in ("spread", "take", "note_try")
        }
        self._waiting = keys.notices_for("")

    def _redis_time(self) -> float:
        seconds, micros = self._redis.time()
        return float(seconds + micros / 1e6)

    def add(self, notice: Notice) -> None:
        """Put a notice into the outbox without a commit."""
        self._redis.xadd(self._keys.outbox, {"notice": notice.to_json()})

    def await_new(self, seconds: float) -> None:
        """Wait until the outbox has a notice, for at most ``seconds``."""
        self._redis.xread({self._keys.outbox: "0"}, count=1, block=max(1, round(seconds * 1000)))

    def spread(self) -> list[str]:
        """Move new notices into the queues of their targets.

        Return the targets to which a notice is to be sent now.
        """
        while True:
            moved, *due = self._scripts["spread"](
                time=self._time(), most=MOVED_AT_ONCE, waiting=self._waiting, dead_kept=DEAD_KEPT
            )
            if moved < MOVED_AT_ONCE:
                return cast(list[str], due)

    def take(self, target: str, sender: str, hold: float, most: int = 1) -> TakenNotice | None:
        """Take the next notice for ``target`` for ``hold`` seconds; None if none is due.

        Args:
            sender: a random word for each call, so that a late `note_try` changes nothing.
            most: maximum number of notices in one digest for a crowded target.
        """
        reply = self._scripts["take"](
            target=target,
            sender=sender,
            time=self._time(),
            hold=hold,
            waiting=self._waiting,
            most=most,
        )
        if not reply:
            return None
        failed, *fields = reply
        taken = []
        for problem, tries, entry in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
            _, id_, text = entry.split(" ", 2)
            taken.append(TakenNotice(target, problem, id_, text, tries, failed))
        # What another release wrote is taken by itself, and becomes a dead letter.
        others = tuple(each for each in taken[1:] if _read(each.text) is not None)
        return replace(taken[0], others=others)

    def note_try(
        self,
        taken: TakenNotice,
        sender: str,
        outcome: str,
        detail: str,
        *,
        wait: float = 0.0,
        rest: float = 0.0,
        crowded_at: int = 0,
    ) -> TryEnd:
        """Record the result of a try: ``sent``, ``failed`` or ``dead``. Idempotent.

        Args:
            wait: seconds until the next try; ``rest``: seconds in which nothing is sent to the
                target.
            crowded_at: number of notices within `DIGEST_WINDOW_S` after which the next ones become
                a digest; 0 for never.
        """
        word = self._scripts["note_try"](
            target=taken.target,
            sender=sender,
            time=self._time(),
            notices=json.dumps([(each.problem, each.id) for each in (taken, *taken.others)]),
            outcome=outcome,
            reply=detail,
            wait=wait,
            rest=rest,
            tried_for=TRIED_FOR,
            waiting=self._waiting,
            kept=SENT_KEPT,
            dead_kept=DEAD_KEPT,
            crowded_at=crowded_at,
            window=DIGEST_WINDOW_S,
        )
        return TryEnd(word)

    def _time(self) -> str:
        return f"{self._clock():.6f}"


def _read(text: str) -> Notice | None:
    """Return the notice; None if another release wrote it with unknown fields."""
    try:
        return Notice.from_json(text)
    except ValueError:
        return None
