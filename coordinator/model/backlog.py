"""The backlog of a schedule: the unread input of its streams when a coordinator last checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, TypeAdapter, computed_field

from unstuck.coordinator.model.size import megabytes
from unstuck.coordinator.model.stored import stored_fields
from unstuck.coordinator.spec.problems import counted
from unstuck.tasks.duration import format_duration
from unstuck.tasks.json_fields import DEFERRED, Time, Word

MAX_PARTITIONS_SHOWN = 8  # of a topic, in a line


@dataclass(frozen=True, slots=True)
class StreamBacklog:
    """The unread part of one stream.

    Attributes:
        new: number of unread files; for a topic, of unread offsets.
        bytes: size of the unread files.
        looked: number of files or partitions of the stream.
        since: when the oldest unread file was written or, if unknown, when a check first saw it; 0
            if nothing is unread.
        lag: for a topic, unread offsets by partition.
        next: for a topic, the offset by partition at which the next run starts.
        trouble: why a run would fail; empty if it would not.
        reachable: whether a coordinator can read the stream; if not, only a worker can.
        changed: files whose content changed after they were read.
        ignored: number and some names of files whose names do not match; empty if there are none.
        seen_to: partition → the position that was unread since ``since``.
    """

    new: int = 0
    bytes: int = 0
    looked: int = 0
    since: Time = 0.0
    lag: dict[int, int] = field(default_factory=dict)
    next: dict[int, int] = field(default_factory=dict)
    trouble: Word = ""
    reachable: bool = True
    changed: int = 0
    ignored: Word = ""
    seen_to: Annotated[dict[int, int], Field(exclude=True)] = field(default_factory=dict)

    def describe(self, at: float) -> str:
        """Describe the backlog; ``at`` is when it was read."""
        ignored = f"; ignored by their names: {self.ignored}" if self.ignored else ""
        if not self.reachable:
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
        """Whether a run would read or report something."""
        return bool(self.new or self.changed or self.trouble or not self.reachable)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def position(self) -> Word:
        """The position up to which the stream was read, in words; empty if unknown."""
        if self.next:
            return _by_partition(self.next, " at offset")
        if self.trouble or not self.reachable:
            return ""
        return f"{self.looked - self.new:,} of {self.looked:,} files are read"


@dataclass(frozen=True, slots=True)
class Backlog:
    """The unread input of the streams of one schedule at the last check.

    Attributes:
        at: when a coordinator checked.
        streams: the backlog of each stream, by address.
    """

    __pydantic_config__ = DEFERRED

    at: Time
    streams: dict[str, StreamBacklog]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def since(self) -> Time:
        """Since when the oldest unread input waits; 0 if nothing is unread."""
        return min((stream.since for stream in self.streams.values() if stream.since), default=0.0)

    def to_json(self) -> str:
        return json.dumps(stored_fields(self), separators=(",", ":"))

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
