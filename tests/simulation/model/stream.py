"""The report stream and its consumer group: read once, pending until acked, claimed by another when
idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tests.simulation.stage.stage import Stage
from tests.simulation.stage.trouble import Trouble
from unstuck.coordinator.store.reports import StreamEntry


@dataclass(slots=True)
class _Pending:
    entry: StreamEntry
    consumer: str
    since: float
    first_read: float  # for the promises


class ReportStream:
    """What XADD, XREADGROUP, XAUTOCLAIM and XACK do to one stream with one group."""

    def __init__(self, stage: Stage, trouble: Trouble) -> None:
        self._stage = stage
        self._trouble = trouble
        self.seq = 0
        self._waiting: list[tuple[float, StreamEntry]] = []
        self.pending: dict[str, _Pending] = {}
        self.dead_letters: list[tuple[StreamEntry, str]] = []
        self.counters: dict[str, int] = {}
        self.added: Callable[[float], None] = lambda at: None
        self.dropped: Callable[[StreamEntry], None] = lambda entry: None

    def add(self, fields: dict[str, str]) -> None:
        """A report comes in; on the way to us it may be lost, doubled, delayed or overtaken."""
        trouble, rng = self._trouble, self._stage.rng
        if trouble.chance(trouble.lose_report):
            self._stage.log("stream", f"loses {fields.get('kind')} {fields.get('token', '')}")
            return
        for _ in range(2 if trouble.chance(trouble.double) else 1):
            self.seq += 1
            at = trouble.late()
            index = (
                rng.randint(0, len(self._waiting))
                if trouble.chance(trouble.reorder)
                else len(self._waiting)
            )
            self._waiting.insert(index, (at, StreamEntry(f"{self.seq}-0", dict(fields))))
            self.added(at)

    def remember(self) -> Callable[[], None]:
        """A snapshot; answers how to go back to it. Ids are times: none comes twice."""
        waiting, dead, counters = list(self._waiting), list(self.dead_letters), dict(self.counters)
        pending = {entry: replace(item) for entry, item in self.pending.items()}

        def restore() -> None:
            self._waiting, self.dead_letters, self.counters, self.pending = (
                waiting,
                dead,
                counters,
                pending,
            )
            self.added(self._stage.now)

        return restore

    def read(self, consumer: str, count: int) -> list[StreamEntry]:
        now = self._stage.now
        taken = [entry for at, entry in self._waiting if at <= now][:count]
        ids = {entry.id for entry in taken}
        self._waiting = [item for item in self._waiting if item[1].id not in ids]
        for entry in taken:
            self.pending[entry.id] = _Pending(entry, consumer, now, now)
        return taken

    def next_at(self) -> float | None:
        return min((at for at, _ in self._waiting), default=None)

    def claim_idle(self, consumer: str, idle: float, count: int) -> list[StreamEntry]:
        now = self._stage.now
        found = [item for item in self.pending.values() if now - item.since >= idle][:count]
        for item in found:
            item.consumer, item.since = consumer, now
        return [item.entry for item in found]

    def ack(self, ids: Iterable[str]) -> list[str]:
        """Those that were pending until now."""
        return [entry_id for entry_id in ids if self.pending.pop(entry_id, None) is not None]

    def drop(self, entries: Iterable[StreamEntry]) -> None:
        """Ack by itself, not with the commit that took them in."""
        for entry in entries:
            if self.ack([entry.id]):
                self.dropped(entry)

    def dead_letter(self, entries: Iterable[StreamEntry], reason: str) -> int:
        moved = 0
        for entry in entries:
            if self.pending.pop(entry.id, None) is not None:
                self.dead_letters.append((entry, reason))
                moved += 1
        return moved

    def count(self, counts: Iterable[tuple[str, int]]) -> None:
        for name, number in counts:
            self.counters[name] = self.counters.get(name, 0) + number
