"""Read the messages of a Kafka topic as rows: an Arrow table, or files for Spark.

Spark tasks read a large number of messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any

from unstuck.tasks.errors import BadRecord, OffsetsOutOfRange, SourceReplaced, SourceUnavailable
from unstuck.tasks.formats.arrived import PutAsideEntry
from unstuck.tasks.formats.avro_records import avro_rows
from unstuck.tasks.formats.json_records import arrow_schema, json_columns
from unstuck.tasks.formats.rows import Parts, Rows
from unstuck.tasks.frames.parquet_read import read_parquet
from unstuck.tasks.spec.schemas import schema_of
from unstuck.tasks.spec.streams.kafka_input import KafkaInput
from unstuck.tasks.streams.arrived.kafka import TopicClient, reach_of
from unstuck.tasks.streams.arrived.position import FilesPosition, KafkaPosition
from unstuck.tasks.streams.read.group_stream import Reader, StreamBatch
from unstuck.tasks.streams.read.spark_tasks import in_tasks
from unstuck.tasks.warehouse.files import Files

_MESSAGES = 10_000  # that are taken from the client at once
OFFSETS_PER_TASK = 200_000  # of Spark; the driver reads as many alone
_TEXT = 300  # characters of a message that is no row


@dataclass(frozen=True, slots=True)
class ReadMessages:
    """The messages that were read.

    Attributes:
        frame: an Arrow table, or a Spark frame.
        position: up to where.
        left: offsets that stay for the next job.
    """

    frame: Any
    rows: int
    position: KafkaPosition
    put_aside: list[PutAsideEntry]
    left: int = 0


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """The topic of ``spec``, as `GroupStream` reads it.

    Attributes:
        options: those of ``spec``, with their references resolved.
    """

    spec: KafkaInput
    reader: Reader
    options: Mapping[str, str]

    def take(self, position: FilesPosition | KafkaPosition | None) -> StreamBatch:
        """Read what has arrived. Raises: as `read_messages`."""
        before = position if isinstance(position, KafkaPosition) else None
        outcome = read_messages(self.reader, self.spec, self.options, before)
        after, offsets = outcome.position, {} if before is None else before.next
        if before is None and self.reader.share.of > 1:
            moved = any(after.next.values())  # a partition without messages is known from now on
        else:
            moved = after.next != {**after.began, **offsets}
        more = {
            "left": outcome.left,
            "put_aside": len(outcome.put_aside),
            "lost": sum(end - begin for begin, end in after.lost.values()),
        }
        counts = {"messages": outcome.rows + len(outcome.put_aside)}
        counts |= {name: count for name, count in more.items() if count}
        return StreamBatch(
            outcome.frame,
            after if moved else None,
            counts,
            _summary_of(self.spec, outcome),
            outcome.put_aside,
        )


def _summary_of(spec: KafkaInput, outcome: ReadMessages) -> str:
    at = outcome.position
    read = sum(end > at.began[partition] for partition, end in at.next.items())
    clauses = [
        f"{outcome.rows:,} messages of {read} of {len(at.next)} partitions are new in {spec.stream}"
    ]
    if outcome.left:
        clauses.append(f"left for the next job, by max_offsets_per_run: {outcome.left:,} offsets")
    if outcome.put_aside:
        first = outcome.put_aside[0]
        clauses.append(
            f"{len(outcome.put_aside):,} are no rows and were put aside, first {first.path} at "
            f"{first.line}: {first.error}"
        )
    clauses += [
        f"of partition {partition} the offsets {begin:,} to {end:,} are passed over, which brokers "
        "have removed"
        for partition, (begin, end) in at.lost.items()
    ]
    return "; ".join(clauses)


def read_messages(
    reader: Reader,
    stream: KafkaInput,
    options: Mapping[str, str],
    position: KafkaPosition | None,
    per_task: int = OFFSETS_PER_TASK,
) -> ReadMessages:
    """All that has arrived in a topic since ``position``, up to where it stood when this began.

    Args:
        options: those of ``stream``, with their references resolved.
        position: None: the stream begins.
        per_task: offsets that one task of Spark reads.

    Raises:
        BadRecord: a message is no row, and ``on_bad_record`` is ``fail``.
        SourceUnavailable, SourceReplaced, OffsetsOutOfRange: the topic cannot be read, or not on
            from ``position``.
        OSError: the warehouse failed.
    """
    with TopicClient(stream, options) as client:
        reach = reach_of(stream, client.topic(), position, reader.share)
        if reader.session is None:
            rows = Rows()
            count, put_aside = _read(client, reach.open, rows)
            frame = rows.table(arrow_schema(schema_of(stream.fields)).empty_table())
        else:
            frame, count, put_aside = _for_spark(client, reader, options, reach.open, per_task)
        topic_id = client.topic_id() if reach.topic_id else reach.topic_id
        if topic_id != reach.topic_id:
            raise SourceReplaced(
                f"the topic of {stream.stream} was deleted and made again while it was read: its "
                f"id is {topic_id}, and was {reach.topic_id}. Nothing was published. To read the "
                f"new topic from its beginning, say generation: {stream.generation + 1}"
            )
    return ReadMessages(frame, count, reach.position, put_aside, reach.left)


def _for_spark(
    client: TopicClient,
    reader: Reader,
    options: Mapping[str, str],
    ranges: Mapping[int, tuple[int, int]],
    per_task: int,
) -> tuple[Any, int, list[PutAsideEntry]]:
    """Return a Spark frame of ``ranges``, its rows, and the messages that are no row.

    Raises: as `read_messages`.
    """
    files, folder, stream = reader.files, reader.folder, client.stream
    answers, pieces = None, _pieces(ranges, per_task)
    if len(pieces) > 1:
        task = partial(_task, stream, dict(options), files.uri(""), folder)
        parts = [partial(task, piece) for piece in pieces]
        answers = in_tasks(reader.session, parts, _ERRORS, stream.stream)
    if answers is None:
        answers = [_spooled(client, ranges, files, folder)]
    aside = chain.from_iterable(answer["put_aside"] for answer in answers)
    written = dict(chain.from_iterable(answer["written"].items() for answer in answers))
    frame = read_parquet(reader.session, [(schema_of(stream.fields), written)])
    count = sum(answer["rows"] for answer in answers)
    return frame, count, [PutAsideEntry(**entry) for entry in aside]


_ERRORS = (BadRecord, OffsetsOutOfRange, SourceUnavailable, OSError)


def _pieces(
    ranges: Mapping[int, tuple[int, int]], per_task: int
) -> list[dict[int, tuple[int, int]]]:
    """Return the parts of ``ranges`` that tasks of Spark read; a single part for few offsets."""
    if sum(end - begin for begin, end in ranges.values()) <= per_task:
        return [dict(ranges)]
    return [
        {partition: (at, min(at + per_task, end))}
        for partition, (begin, end) in ranges.items()
        for at in range(begin, end, per_task)
    ]


def _task(
    stream: KafkaInput,
    options: dict[str, str],
    warehouse: str,
    folder: str,
    ranges: dict[int, tuple[int, int]],
) -> dict[str, Any]:
    with TopicClient(stream, options) as client:
        return _spooled(client, ranges, Files(warehouse), folder)


def _spooled(
    client: TopicClient, ranges: Mapping[int, tuple[int, int]], files: Files, folder: str
) -> dict[str, Any]:
    """Write the rows of ``ranges`` into files for Spark. Raises: as `read_messages`."""
    parts = Parts(files, folder)
    rows, put_aside = _read(client, ranges, parts)
    return {
        "rows": rows,
        "put_aside": [asdict(aside) for aside in put_aside],
        "written": parts.written(),
    }


def _read(
    client: TopicClient, ranges: Mapping[int, tuple[int, int]], rows: Rows
) -> tuple[int, list[PutAsideEntry]]:
    """Add ``ranges`` to ``rows``. Return the number of rows, and the messages that are no row.

    Raises: as `read_messages`.
    """
    count, put_aside = 0, list[PutAsideEntry]()
    for table in _tables(client.stream, client.messages(ranges, _MESSAGES), put_aside):
        rows.add(table)
        rows.keep()
        count += len(table)
    return count, put_aside


def _tables(
    stream: KafkaInput, batches: Iterator[list[Any]], put_aside: list[PutAsideEntry]
) -> Iterator[Any]:
    """Yield the rows of each batch of messages. Raises: BadRecord."""
    import pyarrow as pa

    schema = arrow_schema(schema_of(stream.fields))
    beside = schema.names[len(stream.value_fields) :]
    for messages in batches:
        table, bad = _decoded(stream, [message.value() for message in messages])
        if bad:
            put_aside += _rejected(stream, messages, bad)
            messages = [message for number, message in enumerate(messages) if number not in bad]
        columns = [pa.array(_METADATA[name](messages), schema.field(name).type) for name in beside]
        yield pa.table([*table.columns, *columns], schema=schema)


def _decoded(stream: KafkaInput, values: list[bytes | None]) -> tuple[Any, dict[int, str]]:
    """Return the rows of ``values``, and by number why others are no row."""
    import pyarrow as pa

    if stream.columns is None:
        if stream.format == "text":
            return _text(values)
        return pa.table({"value": pa.array(values, pa.binary())}), {}
    if stream.format == "avro":
        return avro_rows(stream.columns, values)
    return json_columns(stream.value_fields, values, stream.on_other_columns)


def _rejected(
    stream: KafkaInput, messages: Sequence[Any], bad: Mapping[int, str]
) -> list[PutAsideEntry]:
    """Return the messages that are no row. Raises: BadRecord: the spec does not let them pass."""
    rejected = [_aside(stream, messages[number], why) for number, why in sorted(bad.items())]
    if stream.on_bad_record == "fail":
        first, text = messages[min(bad)], json.dumps(rejected[0].text, ensure_ascii=False)
        raise BadRecord(
            f"{stream.stream}: the message at offset {first.offset()} of partition "
            f"{first.partition()} is no row: {rejected[0].error}. It begins {text}. "
            "Nothing was published. Say on_bad_record: skip to put such messages aside, "
            "or mend what writes them"
        )
    return rejected


def _text(values: Sequence[bytes | None]) -> tuple[Any, dict[int, str]]:
    import pyarrow as pa

    good, bad = list[str | None](), dict[int, str]()
    for number, value in enumerate(values):
        try:
            good.append(None if value is None else value.decode())
        except UnicodeDecodeError as error:
            bad[number] = f"it is no text in UTF-8: {error.reason} at byte {error.start}"
    return pa.table({"value": pa.array(good, pa.string())}), bad


def _aside(stream: KafkaInput, message: Any, why: str) -> PutAsideEntry:
    text = (message.value() or b"")[: 4 * _TEXT].decode(errors="replace")[:_TEXT]
    return PutAsideEntry(
        f"{stream.stream}/{message.partition()}", why, False, message.offset(), text
    )


def _instants(messages: Sequence[Any]) -> list[int | None]:
    timestamps = (message.timestamp() for message in messages)
    # Microseconds; with kind 0 the message has no timestamp.
    return [at * 1000 if kind else None for kind, at in timestamps]


def _headers(messages: Sequence[Any]) -> list[list[dict[str, Any]] | None]:
    header_lists = (message.headers() for message in messages)
    return [
        headers and [{"key": key, "value": value} for key, value in headers]
        for headers in header_lists
    ]


_METADATA: dict[str, Callable[[Sequence[Any]], list[Any]]] = {
    "key": lambda messages: [message.key() for message in messages],
    "headers": _headers,
    "timestamp": _instants,
    "partition": lambda messages: [message.partition() for message in messages],
    "offset": lambda messages: [message.offset() for message in messages],
    "topic": lambda messages: [message.topic() for message in messages],
}
