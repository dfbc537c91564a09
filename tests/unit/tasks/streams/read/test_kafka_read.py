"""Messages become rows, each once, up to where the topic stood; the broker is a mock cluster of
librdkafka.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.streams.kafka import KafkaBroker, mock_broker
from unstuck.tasks.errors import BadRecord, OffsetsOutOfRange, SourceUnavailable, Unrecoverable
from unstuck.tasks.formats.arrived import PutAsideEntry
from unstuck.tasks.spec.streams.kafka_input import KafkaInput
from unstuck.tasks.streams.arrived.kafka import TopicClient
from unstuck.tasks.streams.arrived.position import KafkaPosition, write_position
from unstuck.tasks.streams.arrived.stream_look import Look, Looks
from unstuck.tasks.streams.read.group_stream import Reader
from unstuck.tasks.streams.read.kafka_read import ReadMessages, read_messages
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log_entry import DatasetState
from unstuck.tasks.warehouse.marker import Checkpoint


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with mock_broker() as broker:
        yield broker


@pytest.fixture
def topic(broker: KafkaBroker, request: pytest.FixtureRequest) -> str:
    """The address of a topic of this test's own."""
    return broker.stream(f"t{abs(hash(request.node.name))}")


def name_of(topic: str) -> str:
    return topic.rpartition("/")[2]


def read(
    topic: str, position: KafkaPosition | None = None, format: str = "raw", **change: Any
) -> ReadMessages:
    options = {"socket.timeout.ms": "5000", **change.pop("options", {})}
    stream = KafkaInput.model_validate(
        {"stream": topic, "format": format, "options": options, **change}
    )
    return read_messages(Reader(None, Files("/"), "unused"), stream, options, position)


def values(found: ReadMessages, column: str = "value") -> list[Any]:
    return sorted(found.frame.column(column).to_pylist())


def test_each_message_of_any_partition_is_read_once(broker: KafkaBroker, topic: str) -> None:
    for partition in range(3):
        broker.produce(
            name_of(topic), *(b"%d-%d" % (partition, n) for n in range(10)), partition=partition
        )
    first = read(topic)
    assert values(first) == [b"%d-%d" % (partition, n) for partition in range(3) for n in range(10)]
    assert first.position.next == {0: 10, 1: 10, 2: 10, 3: 0}
    broker.produce(name_of(topic), b"new", partition=3)
    second = read(topic, first.position)
    assert values(second) == [b"new"]
    third = read(topic, second.position)
    assert (third.rows, third.position.next) == (0, {0: 10, 1: 10, 2: 10, 3: 1})


def test_messages_that_arrive_during_a_read_are_left_to_the_next_read(
    broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.produce(name_of(topic), b"1", b"2")
    messages = TopicClient.messages

    def later(client: TopicClient, *given: Any) -> Any:
        broker.produce(name_of(topic), b"3")
        return messages(client, *given)

    monkeypatch.setattr(TopicClient, "messages", later)
    first = read(topic)
    assert values(first) == [b"1", b"2"]
    monkeypatch.undo()
    assert values(read(topic, first.position)) == [b"3"]


@pytest.mark.parametrize("at_once", [1, 4, 100])
def test_exactly_the_offset_range_of_each_partition_is_read(
    broker: KafkaBroker, topic: str, at_once: int
) -> None:
    for partition in range(3):
        broker.produce(name_of(topic), *range(10), partition=partition)
    ranges = {0: (1, 3), 1: (0, 5), 2: (9, 10)}
    stream = KafkaInput.model_validate({"stream": topic, "format": "raw"})
    with TopicClient(stream, {}) as client:
        batches = list(client.messages(ranges, at_once))
    assert max(map(len, batches)) <= at_once
    found = [(message.partition(), message.offset()) for batch in batches for message in batch]
    assert sorted(found) == [
        (partition, offset) for partition, within in ranges.items() for offset in range(*within)
    ]


def test_a_job_reads_at_most_max_offsets_per_run_and_the_next_job_the_rest(
    broker: KafkaBroker, topic: str
) -> None:
    broker.produce(name_of(topic), *map(str, range(25)))
    position, read_of = None, []
    for _ in range(3):
        found = read(
            topic,
            position,
            format="json",
            schema="a STRING",
            max_offsets_per_run=10,
            on_bad_record="skip",
        )
        read_of.append(len(found.put_aside))
        position = found.position
    assert read_of == [10, 10, 5]


def test_metadata_columns_describe_the_message(broker: KafkaBroker, topic: str) -> None:
    headers = [("a", b"1"), ("a", None)]
    broker.produce(name_of(topic), b"\xff", key=b"k", headers=headers, timestamp=1_700_000_000_123)
    broker.produce(name_of(topic), None)
    first, second = sorted(read(topic).frame.to_pylist(), key=lambda row: row["offset"])
    assert first.pop("timestamp").isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert first == {
        "value": b"\xff",
        "key": b"k",
        "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        "partition": 0,
        "offset": 0,
        "topic": name_of(topic),
    }
    assert (second["value"], second["key"], second["headers"]) == (None, None, None)


def test_a_message_that_is_not_avro_is_reported_with_partition_and_offset(
    broker: KafkaBroker, topic: str
) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}]
    schema = json.dumps({"type": "record", "name": "event", "fields": fields})
    broker.produce(name_of(topic), b"\x02\x02\x02a", b"\x04\x00", b"junk!", partition=2)
    with pytest.raises(
        BadRecord, match=r"offset 2 of partition 2 is no row: it is no Avro of this schema"
    ):
        read(topic, format="avro", schema=schema)
    found = read(topic, format="avro", schema=schema, on_bad_record="skip", metadata=["offset"])
    assert found.frame.to_pylist() == [
        {"id": 1, "name": "a", "offset": 0},
        {"id": 2, "name": None, "offset": 1},
    ]
    assert [(one.path.rpartition("/")[2], one.line) for one in found.put_aside] == [("2", 2)]


def test_json_messages_have_the_columns_of_the_schema_and_of_the_metadata(
    broker: KafkaBroker, topic: str
) -> None:
    broker.produce(name_of(topic), {"id": 1, "at": "x"}, None, key=b"k")
    found = read(topic, format="json", schema="id BIGINT, at STRING", metadata=["key", "offset"])
    assert found.frame.to_pylist() == [
        {"id": 1, "at": "x", "key": b"k", "offset": 0},
        {"id": None, "at": None, "key": b"k", "offset": 1},
    ]


def test_an_undecodable_message_fails_the_group_with_its_place_or_is_quarantined(
    broker: KafkaBroker, topic: str
) -> None:
    broker.produce(name_of(topic), {"id": 1}, {"id": "x"}, b"\xff", {"id": 2}, partition=2)
    with pytest.raises(BadRecord) as told:
        read(topic, format="json", schema="id BIGINT")
    assert (
        "the message at offset 1 of partition 2 is no row: the column id (bigint) cannot hold 'x'"
        in str(told.value)
    )
    assert r'It begins "{\"id\": \"x\"}"' in str(told.value)
    found = read(
        topic, format="json", schema="id BIGINT", on_bad_record="skip", metadata=["offset"]
    )
    assert found.frame.to_pylist() == [{"id": 1, "offset": 0}, {"id": 2, "offset": 3}]
    assert [(one.path, one.line, one.text) for one in found.put_aside] == [
        (f"{topic}/2", 1, '{"id": "x"}'),
        (f"{topic}/2", 2, "\ufffd"),
    ]
    with pytest.raises(BadRecord, match="no text in UTF-8"):
        read(topic, format="text")
    assert [type(one) for one in read(topic, format="text", on_bad_record="skip").put_aside] == [
        PutAsideEntry
    ]


def test_a_missing_offset_is_reported_with_the_existing_ones(
    broker: KafkaBroker, topic: str
) -> None:
    broker.produce(name_of(topic), b"1", b"2")
    with pytest.raises(
        OffsetsOutOfRange, match="partition 0 goes on at offset 9, and has the offsets 0 to 2"
    ):
        read(topic, KafkaPosition({0: 9}))


def test_an_absent_broker_is_reported_with_the_client_error(broker: KafkaBroker) -> None:
    with pytest.raises(
        SourceUnavailable, match=r"kafka://127\.0\.0\.1:1/t cannot be read: .*[Cc]onnect"
    ):
        read("kafka://127.0.0.1:1/t", options={"socket.timeout.ms": "1000"})


def test_a_missing_topic_is_reported(broker: KafkaBroker) -> None:
    with pytest.raises(SourceUnavailable, match="Unknown topic or partition"):
        read(broker.stream("nowhere"))


def test_options_refused_by_the_client_are_reported_immediately(
    broker: KafkaBroker, topic: str
) -> None:
    with pytest.raises(
        Unrecoverable, match=r"cannot be read with these options: .*fetch\.min\.bytes"
    ):
        read(topic, options={"fetch.min.bytes": "many"})


def test_a_check_reports_the_lag_by_partition_and_the_error_of_a_run(
    broker: KafkaBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(broker_timeout_ms=500)
    broker.produce(name_of(topic), b"1", b"2", b"3", partition=1)
    files = Files(str(tmp_path))

    def look(position: KafkaPosition | None = None, **change: Any) -> Look:
        stream = KafkaInput.model_validate({"stream": topic, "format": "raw", **change})
        if position is None:
            return looks.look(stream, {"loads": None}, files)
        size = write_position(files, "position", position)
        checkpoint = Checkpoint("position", size, stream.identity, 1, "", "kafka")
        state = DatasetState([], "{}", 1, 1.0, "job", "x", checkpoint=checkpoint)
        return looks.look(stream, {"loads": state}, files)

    lag, begins = {0: 0, 1: 3, 2: 0, 3: 0}, dict.fromkeys(range(4), 0)
    assert look() == Look(new=3, looked=4, lag=lag, next=begins)
    read = KafkaPosition({0: 0, 1: 1, 2: 0, 3: 0})
    assert look(read) == Look(new=2, looked=4, lag=lag | {1: 2}, next=begins | {1: 1})
    assert not look(KafkaPosition({0: 0, 1: 3, 2: 0, 3: 0})).arrived
    assert look(KafkaPosition({1: 3}), generation=2).new == 3
    assert "goes on at offset 9" in look(KafkaPosition({1: 9})).trouble
    assert "cannot be read" in look(stream="kafka://127.0.0.1:1/t").trouble
    monkeypatch.setenv("WORD", "what the coordinator keeps")
    for reference in ("${secret:WORD}", "${env:WORD}"):
        assert look(options={"sasl.username": reference}) == Look(reachable=False), (
            "it goes to no broker from here"
        )


def test_messages_of_several_batches_are_all_read(
    broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    broker.produce(name_of(topic), *(b"%d" % n for n in range(25_000)))
    stream = KafkaInput.model_validate({"stream": topic, "format": "text", "metadata": ["offset"]})
    found = read_messages(Reader(None, Files(str(tmp_path)), "unused"), stream, {}, None)
    assert found.frame.column("value").to_pylist() == [str(n) for n in range(25_000)]
    assert found.rows == 25_000
