"""A look at what has arrived for a stream: without Spark, and cheap where nothing has, so a coordinator looks often."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from unstuck.tasks.errors import SourceUnavailable, Unrecoverable, WarehouseUnsupported
from unstuck.tasks.protocol.secrets import Secrets
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.spec.streams.kafka_input import KafkaInput
from unstuck.tasks.streams.arrived.kafka import TopicClient, lag, reach_of
from unstuck.tasks.streams.arrived.listing import Listing, Seen, compare, found_as, listing
from unstuck.tasks.streams.arrived.position import FilesPosition, KafkaPosition, checkpoint_of, goes_on, read_position
from unstuck.tasks.streams.arrived.skipped import skipped
from unstuck.tasks.warehouse.checkpoint import files_read
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log_entry import DatasetState
from unstuck.tasks.warehouse.marker import Checkpoint

_BROKER_WITHIN = "5000"  # milliseconds, for a look
_REMEMBERED = 64  # streams
_COMPARED = 500  # files that each look compares with what was read, in turn, so that all are in some looks


@dataclass(frozen=True, slots=True)
class Look:
    """The files, or the messages of a topic, that a run would find.

    Attributes:
        new: how many are new; of a topic, how many offsets, some of which may hold no message.
        changed: those that were read and have other content now, unless the stream passes them over.
        bytes: of the new files.
        oldest: when the oldest new file was written, in seconds since the epoch; None if that is not known.
        looked: at how many files, or partitions.
        lag: of a topic: partition → how many of its offsets are new; ``next``: the offset at which a run goes on.
        trouble: why a run would fail; empty if it would not.
        known: False for a place that only a worker can ask: options hold references, or a package is not here.
    """

    new: int = 0
    changed: int = 0
    bytes: int = 0
    oldest: float | None = None
    looked: int = 0
    lag: Mapping[int, int] = field(default_factory=dict)
    next: Mapping[int, int] = field(default_factory=dict)
    trouble: str = ""
    known: bool = True

    @property
    def arrived(self) -> bool:
        """Whether a run would read something, or has something to tell."""
        return bool(self.new or self.changed or self.trouble or not self.known)


class Looks:
    """Looks at streams. Of a stream for which nothing is new it keeps the names, so that the next look asks no more."""

    def __init__(self) -> None:
        self._idle: dict[tuple[object, ...], _Idle] = {}

    def look(self, stream: StreamInput | KafkaInput, datasets: Mapping[str, DatasetState | None], files: Files) -> Look:
        """Look at what has arrived since what is published.

        Args:
            datasets: as they are published; those that the group of the stream appends to.
            files: of their warehouse.

        Raises: OSError: the position cannot be read.
        """
        if isinstance(stream, KafkaInput):
            return _look_at_topic(stream, datasets, files)
        try:
            checkpoints = _checkpoints(stream, datasets)
            where = (stream.stream, stream.state, stream.generation, stream.changed, *stream.ignore)
            key = (*where, *(one.path for one in checkpoints))
            if (idle := self._idle.pop(key, None)) is not None and idle.stands():
                self._idle[key] = idle  # the last one now
                return Look(looked=len(idle.files))
            found = _as_spark_lists(stream) if stream.state else listing(stream)
            seen = _seen(checkpoints, found, files)
            if not checkpoints and not stream.state:
                seen = {one.path: one.content for one in skipped(files, datasets)}
        except (Unrecoverable, SourceUnavailable, FileNotFoundError) as error:
            return Look(trouble=str(error))
        except (ValueError, WarehouseUnsupported):
            return Look(known=False)  # this process lacks what it takes to ask the store; a worker may have it
        new, changed = compare(found, seen)
        told = Look(
            len(new),
            0 if stream.changed == "ignore" else len(changed),
            sum(file.size for file in new),
            min((written for file in new if (written := file.written) is not None), default=None),
            len(found.files),
        )
        if found.folders and not told.arrived:
            self._idle[key] = _Idle(found.folders, [*found.files.items()])
            for longest_ago in [*self._idle][:-_REMEMBERED]:
                del self._idle[longest_ago]
        return told


def _checkpoints(stream: StreamInput, datasets: Mapping[str, DatasetState | None]) -> list[Checkpoint]:
    """The positions from which a run would go on; several with state, where each output has its own.

    Raises: Unrecoverable: a run could not.
    """
    if stream.state:
        kind, found = "spark", [one.checkpoint for one in datasets.values() if one is not None]
    else:
        kind, found = "files", [checkpoint_of(datasets, stream.stream, stream.generation)]
    own = [one for one in found if one is not None and one.stream == stream.stream]
    return [one for one in own if goes_on(one, stream.stream, stream.generation, kind)]


def _seen(checkpoints: Sequence[Checkpoint], found: Listing, files: Files) -> Seen:
    """The files that all of ``checkpoints`` know. Spark knows them by their paths alone."""
    seen: Seen | None = None
    for one in checkpoints:
        if one.kind == "spark":
            known: Seen = {path: found.files[path] for path in files_read(files, one.path) if path in found.files}
        else:
            position = read_position(files, one.path)
            known = position.seen if isinstance(position, FilesPosition) else {}
        seen = known if seen is None else {path: about for path, about in seen.items() if path in known}
    return seen or {}


def _as_spark_lists(stream: StreamInput) -> Listing:
    """The files that Spark would find: no name is ignored."""
    found = listing(stream.model_copy(update={"ignore": []}))
    if not any(
        name.lower() == "recursivefilelookup" and value.lower() == "false" for name, value in stream.options.items()
    ):
        return found
    # Then those of partitions are the only folders below that count.
    level = stream.stream.count("/") + 1
    files = {path: about for path, about in found.files.items() if all("=" in one for one in path.split("/")[level:-1])}
    return replace(found, files=files)


def _look_at_topic(stream: KafkaInput, datasets: Mapping[str, DatasetState | None], files: Files) -> Look:
    try:
        # In a worker alone: a coordinator would send what is secret here to a broker of the author's choice.
        options = Secrets({}).resolve(stream.options)
        import confluent_kafka  # noqa: F401
    except (Unrecoverable, ImportError):
        return Look(known=False)
    position = None
    try:
        checkpoint = checkpoint_of(datasets, stream.identity, stream.generation)
        if checkpoint is not None and goes_on(checkpoint, stream.identity, stream.generation, "kafka"):
            read = read_position(files, checkpoint.path)
            position = read if isinstance(read, KafkaPosition) else None
        with TopicClient(stream, {**options, "socket.timeout.ms": _BROKER_WITHIN}) as client:
            topic = client.topic()
        reach_of(stream, topic, position)
    except (Unrecoverable, SourceUnavailable) as error:
        return Look(trouble=str(error))
    found = lag(topic, position)
    begins = {one: topic.end[one] - count for one, count in found.items()}
    return Look(sum(found.values()), looked=len(found), lag=found, next=begins)


@dataclass(slots=True)
class _Idle:
    """Folders of this machine in which nothing is new: the names in each, and the files as they were listed."""

    folders: Mapping[str, set[str]]
    files: Sequence[tuple[str, str]]
    turn: int = 0

    def stands(self) -> bool:
        """Whether no name is new, and those files whose turn it is have the content that they had."""
        try:
            if not all(names.issuperset(os.listdir(folder)) for folder, names in self.folders.items()):
                return False
            some = self.files[self.turn : self.turn + _COMPARED]
            self.turn = self.turn + _COMPARED if len(some) == _COMPARED else 0
            return all(found_as(path) == content for path, content in some)
        except (OSError, SourceUnavailable):
            return False  # the listing tells why
