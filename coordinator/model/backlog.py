"""The backlog of a schedule: what its streams had unread when a coordinator looked last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from unstuck.coordinator.model.size import megabytes
from unstuck.coordinator.spec.problems import counted
from unstuck.tasks.duration import format_duration

MAX_PARTITIONS_SHOWN = 8  # of a topic, in a line


@dataclass(frozen=True, slots=True)
class StreamBacklog:
    """The unread part of one stream.

    Attributes:
        new: unread files; of a topic, unread offsets. ``bytes``: of the files. ``changed``: files
            that were read and have other content now.
        looked: files, or partitions, that were there.
        since: when the oldest unread file was written; where that is not known, since when looks
            have seen what is unread. 0 if nothing is.
        lag: of a topic: partition → its unread offsets; ``next``: the offset at which the next run
            goes on.
        trouble: why a run would fail; ``known``: False if only a worker can ask.
        ignored: how many files do not count by their names, with some of these names; empty if
            there are none.
        seen_to: partition → up to where ``since`` is of; what lies behind came later.
    """

    new: int = 0
    bytes: int = 0
    looked: int = 0
    since: float = 0.0
    lag: dict[int, int] = field(default_factory=dict)
    next: dict[int, int] = field(default_factory=dict)
    trouble: str = ""
    known: bool = True
    changed: int = 0
    ignored: str = ""
    seen_to: dict[int, int] = field(default_factory=dict)

    def told(self, at: float) -> str:
        """In words; ``at``: when it was looked at."""
        ignored = f"; ignored by their names: {self.ignored}" if self.ignored else ""
        if not self.known:
            return "only a worker can ask it"
        if self.trouble:
            return self.trouble
        if not self.new:
            return f"nothing is unread{ignored}"
        what = f"{counted(self.new, 'unread file')}, {megabytes(self.bytes)}"
        if self.lag:
            what = f"{self.new:,} unread offsets, {_by_partition(self.lag)}"
        if self.since:
            what += f", the oldest for {format_duration(max(0.0, at - self.since))}"
        return f"{what}{ignored}"

    @property
    def arrived(self) -> bool:
        """Whether a run would read something, or has something to tell."""
        return bool(self.new or self.changed or self.trouble or not self.known)

    @property
    def position(self) -> str:
        """How far it was read, in words; empty if that is not known."""
        if self.next:
            return _by_partition(self.next, " at offset")
        if self.trouble or not self.known:
            return ""
        return f"{self.looked - self.new:,} of {self.looked:,} files are read"


@dataclass(frozen=True, slots=True)
class Backlog:
    """The unread part of the streams of one schedule, by address, when a coordinator looked at
    it.
    """

    at: float
    streams: dict[str, StreamBacklog]

    @property
    def since(self) -> float:
        """Since when the oldest of what is unread waits; 0 if nothing does."""
        return min((stream.since for stream in self.streams.values() if stream.since), default=0.0)

    def to_json(self) -> str:
        return _BACKLOG.dump_json(self, exclude_defaults=True).decode()

    @classmethod
    def from_json(cls, text: str) -> Backlog:
        return _BACKLOG.validate_json(text)


def _by_partition(numbers: Mapping[int, int], word: str = "") -> str:
    parts = [
        f"partition {partition}{word or ':'} {number:,}"
        for partition, number in sorted(numbers.items())
        if number or word
    ]
    more = (
        f", and {len(parts) - MAX_PARTITIONS_SHOWN} more partitions"
        if len(parts) > MAX_PARTITIONS_SHOWN
        else ""
    )
    return f"{', '.join(parts[:MAX_PARTITIONS_SHOWN])}{more}"


_BACKLOG: TypeAdapter[Backlog] = TypeAdapter(Backlog)
