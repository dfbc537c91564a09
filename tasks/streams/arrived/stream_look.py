"""Check what has arrived for a stream, without Spark.

The check is cheap if nothing has arrived, since coordinators repeat it often.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unstuck.tasks.errors import SourceUnavailable, Unrecoverable, WarehouseUnsupported
from unstuck.tasks.protocol.secrets import Secrets
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.spec.streams.kafka_input import KafkaInput
from unstuck.tasks.streams.arrived.kafka import TopicClient, lag, reach_of
from unstuck.tasks.streams.arrived.listing import (
    FolderListing,
    compare,
    found_as,
    listing,
    some_names,
)
from unstuck.tasks.streams.arrived.position import (
    FilesPosition,
    KafkaPosition,
    checkpoint_of,
    goes_on,
    read_position,
)
from unstuck.tasks.streams.arrived.skipped import skipped
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log_entry import DatasetState

BROKER_TIMEOUT_MS = 5000
MAX_IDLE_STREAMS = 64
FILES_PER_LOOK = 500


@dataclass(frozen=True, slots=True)
class Look:
    """The files, or the messages of a topic, that a run would find.

    Attributes:
        new: how many are new; of a topic, how many offsets, some of which may hold no message.
        changed: those that were read and have other content now, unless the stream passes them
            over.
        bytes: of the new files.
        oldest: when the oldest new file was written, in seconds since the epoch; None if that is
            not known.
        looked: at how many files, or partitions.
        ignored: how many files do not count by their names, and some of these names; empty if there
            are none.
        lag: of a topic: partition → how many of its offsets are new; ``next``: the offset at which
            a run goes on.
        trouble: why a run would fail; empty if it would not.
        reachable: False for a place that only a worker can read: options hold references, or a
            package is not here.
    """

    new: int = 0
    changed: int = 0
    bytes: int = 0
    oldest: float | None = None
    looked: int = 0
    ignored: str = ""
    lag: Mapping[int, int] = field(default_factory=dict)
    next: Mapping[int, int] = field(default_factory=dict)
    trouble: str = ""
    reachable: bool = True

    @property
    def arrived(self) -> bool:
        """Whether a run would read something, or has something to tell."""
        return bool(self.new or self.changed or self.trouble or not self.reachable)


class Looks:
    """Looks at streams.

    Of a stream for which nothing is new it keeps the names, so that the next look asks no more.
    """

    def __init__(
        self,
        max_idle: int = MAX_IDLE_STREAMS,
        files_per_look: int = FILES_PER_LOOK,
        broker_timeout_ms: int = BROKER_TIMEOUT_MS,
    ) -> None:
        """Create an empty cache of idle streams.

        Args:
            max_idle: idle streams whose names are kept.
            files_per_look: files of an idle stream that one look compares with what was read; the
                next look goes on.
        """
        self._max_idle, self._files_per_look = max_idle, files_per_look
        self._broker_timeout_ms = broker_timeout_ms
        self._idle: dict[tuple[object, ...], _Idle] = {}

    def look(
        self,
        stream: StreamInput | KafkaInput,
        datasets: Mapping[str, DatasetState | None],
        files: Files,
    ) -> Look:
        """Look at what has arrived since what is published.

        Args:
            datasets: as they are published; those that the group of the stream appends to.
            files: of their warehouse.

        Raises: OSError: the position cannot be read.
        """
        if isinstance(stream, KafkaInput):
            return _look_at_topic(stream, datasets, files, self._broker_timeout_ms)
        try:
            before = _published_path(stream, datasets)
            key = (stream.model_dump_json(), before)
            idle = self._idle.pop(key, None)
            if idle is not None and idle.stands(self._files_per_look):
                self._keep(key, idle)  # the last one now
                return idle.look
            listed = listing(stream)
            already_read = _already_read(files, datasets, before)
        except (Unrecoverable, SourceUnavailable, FileNotFoundError) as error:
            return Look(trouble=str(error))
        except (ValueError, WarehouseUnsupported):
            # This process lacks what it takes to ask the store; a worker may have it.
            return Look(reachable=False)
        outcome = _outcome(stream, listed, already_read)
        if listed.folders and not outcome.arrived:
            self._keep(key, _Idle(outcome, listed.folders, [*listed.files.items()]))
        return outcome

    def _keep(self, key: tuple[object, ...], idle: _Idle) -> None:
        """Keep the names of an idle stream, and forget those that were looked at longest ago."""
        self._idle[key] = idle
        for oldest in [*self._idle][: -self._max_idle]:
            del self._idle[oldest]


def _outcome(stream: StreamInput, listed: FolderListing, already_read: Mapping[str, str]) -> Look:
    new, changed = compare(listed, already_read)
    ages = [file.written for file in new if file.written is not None]
    return Look(
        len(new),
        len(changed) * (stream.changed != "ignore"),
        sum(file.size for file in new),
        min(ages, default=None),
        len(listed.files),
        some_names(listed.ignored) if listed.ignored else "",
    )


def _published_path(stream: StreamInput, datasets: Mapping[str, DatasetState | None]) -> str:
    """Return the path of the published position; empty if the stream begins.

    Raises: as `checkpoint_of`, `goes_on`.
    """
    published = checkpoint_of(datasets, stream.stream, stream.generation)
    goes = goes_on(published, stream.stream, stream.generation, stream.state)
    return published.path if published is not None and goes else ""


def _already_read(
    files: Files, datasets: Mapping[str, DatasetState | None], position_path: str
) -> Mapping[str, str]:
    """Return path → content of the files that count as read."""
    if not position_path:
        return {file.path: file.content for file in skipped(files, datasets)}
    position = read_position(files, position_path)
    return position.contents if isinstance(position, FilesPosition) else {}


def _look_at_topic(
    stream: KafkaInput, datasets: Mapping[str, DatasetState | None], files: Files, timeout_ms: int
) -> Look:
    try:
        # In a worker alone: a coordinator would send what is secret here to a broker of the
        # author's choice.
        options = Secrets({}).resolve(stream.options)
        import confluent_kafka  # noqa: F401
    except (Unrecoverable, ImportError):
        return Look(reachable=False)
    position = None
    try:
        checkpoint = checkpoint_of(datasets, stream.identity, stream.generation)
        if checkpoint is not None and goes_on(
            checkpoint, stream.identity, stream.generation, stream.state
        ):
            read = read_position(files, checkpoint.path)
            position = read if isinstance(read, KafkaPosition) else None
        with TopicClient(stream, {**options, "socket.timeout.ms": str(timeout_ms)}) as client:
            topic = client.topic()
        reach_of(stream, topic, position)
    except (Unrecoverable, SourceUnavailable) as error:
        return Look(trouble=str(error))
    unread = lag(topic, position)
    begins = {partition: topic.end[partition] - count for partition, count in unread.items()}
    return Look(sum(unread.values()), looked=len(unread), lag=unread, next=begins)


@dataclass(slots=True)
class _Idle:
    """Local folders without new files: their names, and the files as they were listed."""

    look: Look
    folders: Mapping[str, set[str]]
    files: Sequence[tuple[str, str]]
    turn: int = 0

    def stands(self, compared: int) -> bool:
        """Return whether no name is new and the next ``compared`` files are unchanged."""
        try:
            if not all(
                names.issuperset(os.listdir(folder)) for folder, names in self.folders.items()
            ):
                return False
            some = self.files[self.turn : self.turn + compared]
            self.turn = self.turn + compared if len(some) == compared else 0
            return all(found_as(path) == content for path, content in some)
        except (OSError, SourceUnavailable):
            return False  # the listing tells why
