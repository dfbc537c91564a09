"""The age of each queue: since when its oldest message has lain there (pure).

One look at a queue cannot tell a queue that filled this second from one that nobody empties. A coordinator looks every
few seconds and remembers, so that whoever asks ``unstuck doctor`` or ``unstuck why`` need not wait and look twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class QueueAges:
    """What one coordinator has seen so far: queue → the oldest message (its hash), and when it was first seen so."""

    seen: Mapping[str, tuple[int, float]] = field(default_factory=dict)

    def after(self, oldest: Mapping[str, str], at: float) -> QueueAges:
        """What is known after a look.

        Args:
            oldest: queue → its oldest message; queues that are empty are left out.
            at: the time by the clock of Redis, in seconds.
        """
        now = {}
        for queue, message in oldest.items():
            known = self.seen.get(queue)
            # A clock that was set back must not make a message look younger than this look.
            since = min(known[1], at) if known is not None and known[0] == hash(message) else at
            now[queue] = (hash(message), since)
        return QueueAges(now)

    @property
    def since(self) -> dict[str, float]:
        """Queue → since when its oldest message has lain there, as far as was seen."""
        return {queue: since for queue, (_, since) in self.seen.items()}
