"""Find the offsets of a Kafka topic that a job reads; needs no Arrow.

A job reads from its position to the end of the topic at this moment.

No consumer group is used: where a stream goes on is part of the package, and a broker is told
nothing of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unstuck.tasks.errors import OffsetsOutOfRange, SourceReplaced, SourceUnavailable, Unrecoverable
from unstuck.tasks.spec.streams.kafka_input import KafkaInput
from unstuck.tasks.streams.arrived.fork_share import WHOLE, Share
from unstuck.tasks.streams.arrived.position import KafkaPosition

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError

# Seconds without a word of a broker, unless the option socket.timeout.ms says another number.
SILENT_AFTER = 30.0
_GATHER = 0.01  # seconds for which messages are gathered that come after the first
_FIRST, _END = -2, -1  # instants that stand for the first offset of a partition, and for its end


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic at one moment: for each partition, its first offset and the one after its last.

    The last is that of the last message before any open transaction.
    """

    id: str
    first: Mapping[int, int]
    end: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Reach:
    """The part of a topic that one job reads: for each partition, a half-open range of offsets."""

    topic_id: str
    begin: Mapping[int, int]
    end: Mapping[int, int]
    lost: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    left: int = 0  # offsets that stay for the next job

    @property
    def open(self) -> dict[int, tuple[int, int]]:
        """The partitions that have something to read."""
        return {
            partition: (begin, self.end[partition])
            for partition, begin in self.begin.items()
            if begin < self.end[partition]
        }

    @property
    def position(self) -> KafkaPosition:
        """The position of the stream after all of it is read."""
        return KafkaPosition(dict(self.end), dict(self.begin), self.topic_id, dict(self.lost))


class TopicClient:
    """The connection of one process to the brokers of a topic, for the length of a block."""

    def __init__(self, stream: KafkaInput, options: Mapping[str, str]) -> None:
        """``options``: those of ``stream``, with their references resolved."""
        self.stream = stream
        self._conf: dict[str, Any] = {
            "socket.timeout.ms": str(int(SILENT_AFTER * 1000)),
            **options,
            "bootstrap.servers": stream.brokers,
            "log_level": 2,  # what it would say of errors is in our own
        }
        self.silent_after = float(self._conf["socket.timeout.ms"]) / 1000
        self._errors: list[str] = []  # of the brokers, as the client told them

    def __enter__(self) -> TopicClient:
        try:
            from confluent_kafka import Consumer, KafkaException
        except ImportError as error:
            raise SourceUnavailable(
                f"{self.stream.stream} is read by confluent-kafka, which this process does not "
                "have: install unstuck[kafka]"
            ) from error
        settings: dict[str, Any] = {
            "group.id": "unstuck",  # the client wants one, and asks no broker for it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "error_cb": lambda error: self._errors.append(str(error.str())),
        }
        try:
            conf: dict[str, Any] = {**self._conf, **settings}
            self.consumer: Consumer = Consumer(conf)
        except KafkaException as error:
            raise Unrecoverable(
                f"{self.stream.stream} cannot be read with these options: {error.args[0].str()}"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()

    def topic(self) -> Topic:
        """Return the current offsets of the topic. Raises: SourceUnavailable."""
        from confluent_kafka import TopicPartition

        name = self.stream.topic
        with self._client_errors():
            cluster = self.consumer.list_topics(name, timeout=self.silent_after)
        metadata = cluster.topics[name]
        if metadata.error is not None:
            raise self.unavailable(metadata.error)
        partitions = sorted(metadata.partitions)

        def offsets(which: int) -> dict[int, int]:
            requests = [TopicPartition(name, partition, which) for partition in partitions]
            with self._client_errors():
                answers = self.consumer.offsets_for_times(requests, timeout=self.silent_after)
            for answer in answers:
                if answer.error is not None:
                    raise self.unavailable(answer.error, f"partition {answer.partition}")
            return {answer.partition: answer.offset for answer in answers}

        return Topic(self.topic_id(cluster), offsets(_FIRST), offsets(_END))

    def topic_id(self, cluster: Any = None) -> str:
        """The id of the topic; empty if its brokers give none. Raises: SourceUnavailable."""
        from confluent_kafka import TopicCollection
        from confluent_kafka.admin import AdminClient

        with self._client_errors():
            cluster = cluster or self.consumer.list_topics(
                self.stream.topic, timeout=self.silent_after
            )
            if cluster.controller_id not in cluster.brokers:
                return ""  # only a controller could say it
            conf: dict[str, Any] = {**self._conf, "error_cb": lambda error: None}
            admin = AdminClient(conf)
            futures = admin.describe_topics(
                TopicCollection([self.stream.topic]), request_timeout=self.silent_after
            )
            found_id = futures[self.stream.topic].result().topic_id
            # A broker before 2.8 returns a zero id.
            return str(found_id) if found_id.get_most_significant_bits() else ""

    def messages(self, ranges: Mapping[int, tuple[int, int]], at_once: int) -> Iterator[list[Any]]:
        """Yield the messages of ``ranges``.

        A range is, by partition, the first offset and the one after the last.

        Between them may be offsets without a message: compacted ones, marks of transactions, and
        aborted messages.

        Raises: OffsetsOutOfRange; SourceUnavailable: also if nothing comes for as long as the
        client waits.
        """
        from confluent_kafka import TopicPartition

        topic, ends = self.stream.topic, {partition: end for partition, (_, end) in ranges.items()}
        left = sum(end - begin for begin, end in ranges.values())
        self.consumer.assign(
            [TopicPartition(topic, partition, begin) for partition, (begin, _) in ranges.items()]
        )
        heard = time.monotonic()
        while ends:
            polled = self._polled(min(at_once, left))
            if not polled and time.monotonic() - heard > self.silent_after:
                raise self.unavailable(None, f"no message came for {self.silent_after:g} s")
            batch, done = self._within(polled, ranges, ends)
            left -= len(batch)
            if batch:
                yield batch
            if polled:
                heard = time.monotonic()  # after the caller, which may take its time
            for partition in done:
                self.consumer.pause([TopicPartition(topic, partition)])
                del ends[partition]

    def _polled(self, most: int) -> list[Any]:
        """Return at most ``most`` messages; none if no message comes within half a second."""
        first = self.consumer.poll(0.5)
        if first is None:
            return []
        if most <= 1:
            return [first]
        # Unlike poll, consume waits until it has as many messages.
        return [first, *self.consumer.consume(most - 1, timeout=_GATHER)]

    def _within(
        self,
        messages: Iterable[Any],
        ranges: Mapping[int, tuple[int, int]],
        ends: Mapping[int, int],
    ) -> tuple[list[Any], set[int]]:
        """Return the messages before the end of their partition, and the partitions read to it.

        Args:
            ends: of the partitions that are not read to their end yet.

        Raises: OffsetsOutOfRange, SourceUnavailable.
        """
        batch, done = list[Any](), set[int]()
        for message in messages:
            partition, next_offset = message.partition(), message.offset()
            end = ends.get(partition)
            if end is None:
                continue
            self._check_error(message, ranges)
            if message.error() is None and next_offset < end:
                batch.append(message)
                next_offset += 1
            # The end that a replica reports may be before `end`, if the replica is behind.
            if next_offset >= end:
                done.add(partition)
        return batch, done

    def _check_error(self, message: Any, ranges: Mapping[int, tuple[int, int]]) -> None:
        """Check a message.

        Raises: OffsetsOutOfRange, SourceUnavailable: the message is an error of the client.
        """
        from confluent_kafka import KafkaError

        error, partition = message.error(), message.partition()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            return
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION):
            at = max(message.offset(), ranges[partition][0])
            raise out_of_range(self.stream, {partition: at}, self.topic())
        raise self.unavailable(error, f"partition {partition}")

    @contextmanager
    def _client_errors(self) -> Iterator[None]:
        """Translate errors of the client. Raises: SourceUnavailable."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            raise self.unavailable(error.args[0]) from error

    def unavailable(self, error: KafkaError | None, where: str = "") -> SourceUnavailable:
        """``error`` of the client, with what the client has said of the brokers meanwhile."""
        self.consumer.poll(0)  # so that it says it
        parts = [where, error.str() if error is not None else "", *self._errors[-1:]]
        why = ", ".join(filter(None, dict.fromkeys(parts)))
        return SourceUnavailable(
            f"{self.stream.stream} cannot be read: {why}. A later try may read it"
        )


def reach_of(
    stream: KafkaInput, topic: Topic, position: KafkaPosition | None, share: Share = WHOLE
) -> Reach:
    """Return the part of ``topic`` that a job reads.

    Args:
        position: the position to continue from; None if the stream begins.

    A partition that is new begins at 0.

    Raises: SourceReplaced, OffsetsOutOfRange.
    """
    if position is not None and (why := _replaced(topic, position)):
        raise SourceReplaced(
            f"the topic of {stream.stream} was deleted and made again since the stream was read "
            f"from it: {why}. Its messages are not those that the stream goes on with. To read the "
            f"new topic from its beginning, say generation: {stream.generation + 1}"
        )
    begin = (
        dict(topic.first)
        if position is None
        else {partition: position.next.get(partition, 0) for partition in topic.first}
    )
    begin = {partition: at for partition, at in begin.items() if share.has(partition)}
    lost = _lost(stream, topic, begin)
    begin |= {partition: first for partition, (_, first) in lost.items()}
    lengths = {partition: topic.end[partition] - at for partition, at in begin.items()}
    shares = _shares(lengths, stream.max_offsets_per_run)
    left = sum(lengths.values()) - sum(shares.values())
    return Reach(
        topic.id,
        begin,
        {partition: at + shares[partition] for partition, at in begin.items()},
        lost,
        left,
    )


def _lost(stream: KafkaInput, topic: Topic, begin: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Return the offsets that the broker has removed: partition → from and up to where.

    Raises: OffsetsOutOfRange: the stream does not skip them, or a partition ends before ``begin``.
    """
    gone = {
        partition: at
        for partition, at in begin.items()
        if not topic.first[partition] <= at <= topic.end[partition]
    }
    is_shorter = any(at > topic.end[partition] for partition, at in gone.items())
    if gone and (stream.on_lost == "fail" or is_shorter):
        raise out_of_range(stream, gone, topic)
    return {partition: (at, topic.first[partition]) for partition, at in gone.items()}


def lag(topic: Topic, position: KafkaPosition | None) -> dict[int, int]:
    """Return the number of unread offsets of each partition.

    All offsets of a topic that was deleted and created again are unread.
    """
    next_offsets = position.next if position is not None and not _replaced(topic, position) else {}
    return {
        partition: end - max(next_offsets.get(partition, 0), topic.first[partition])
        for partition, end in topic.end.items()
    }


def out_of_range(stream: KafkaInput, at: Mapping[int, int], topic: Topic) -> OffsetsOutOfRange:
    """Partitions that go ``at`` an offset that the broker does not have."""
    details = "; ".join(
        (
            f"partition {partition} goes on at offset {offset:,}, and has the offsets "
            f"{topic.first[partition]:,} to {topic.end[partition]:,}"
        )
        for partition, offset in sorted(at.items())[:5]
    )
    if any(offset > topic.end[partition] for partition, offset in at.items()):
        cause = (
            "The partition is shorter than what was read of it: its topic was made again, or "
            "its leader lost messages"
        )
        advice = "after you have looked for its cause"
    else:
        cause = "The broker has removed messages that no job has read, as its retention says"
        advice = "or on_lost: skip to go on at the first message that is left"
    return OffsetsOutOfRange(
        f"{stream.stream} cannot be read on: {details}{'; …' if len(at) > 5 else ''}. {cause}. "
        f"Nothing was published. Say generation: {stream.generation + 1} to read again all that is "
        f"there, {advice}"
    )


def _replaced(topic: Topic, position: KafkaPosition) -> str:
    """Why ``topic`` is not the one of ``position``; empty if it may be."""
    if topic.id and position.topic_id and topic.id != position.topic_id:
        return f"its id is {topic.id}, and was {position.topic_id}"
    if gone := position.next.keys() - topic.end.keys():
        return f"it has {len(topic.end)} partitions, and partition {min(gone)} was read"
    return ""


def _shares(lengths: Mapping[int, int], room: int) -> dict[int, int]:
    """Return how much of each length fits into ``room``.

    Each gets the same share. What a short one does not need goes to the others.
    """
    shares = {}
    for left, (partition, length) in zip(
        range(len(lengths), 0, -1), _shortest_first(lengths), strict=True
    ):
        shares[partition] = min(length, room // left)
        room -= shares[partition]
    return shares


def _shortest_first(lengths: Mapping[int, int]) -> Iterable[tuple[int, int]]:
    return sorted(lengths.items(), key=lambda entry: entry[1])
