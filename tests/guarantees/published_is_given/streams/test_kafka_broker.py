"""A real Kafka: transactions, compaction, retention, topics made again, a broker that is killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from tests.support.servers import wait_until
from tests.support.streams.kafka_server import KafkaServer, kafka_server
from unstuck import SourceUnavailable
from unstuck.tasks.errors import OffsetsOutOfRange, SourceReplaced
from unstuck.tasks.spec.streams.kafka_input import KafkaInput
from unstuck.tasks.streams.arrived.kafka import TopicClient, lag
from unstuck.tasks.streams.arrived.position import KafkaPosition
from unstuck.tasks.streams.read.group_stream import Reader
from unstuck.tasks.streams.read.kafka_read import ReadMessages, read_messages
from unstuck.tasks.warehouse.files import Files

pytestmark = pytest.mark.long
READER = Reader(None, Files("/"), "unused")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with kafka_server(tmp_path_factory.mktemp("kafka")) as server:
        yield server


def source(server: KafkaServer, topic: str, **change: Any) -> KafkaInput:
    return KafkaInput.model_validate(
        {"stream": f"kafka://{server.address}/{topic}", "format": "raw", **change}
    )


def read(
    server: KafkaServer, topic: str, position: KafkaPosition | None = None, **change: Any
) -> ReadMessages:
    stream = source(server, topic, **change)
    return read_messages(READER, stream, stream.options, position)


def values(found: ReadMessages) -> list[Any]:
    return sorted(found.frame.column("value").to_pylist())


def transactional(server: KafkaServer, name: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": server.address, "transactional.id": name, "log_level": 0}
    )
    producer.init_transactions(60)
    return producer


def written(producer: Producer, topic: str, *values: bytes) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(60)


def test_all_committed_and_no_aborted_transactions_are_read(
    server: KafkaServer,
) -> None:
    server.make("txn", 1)
    one, other = transactional(server, "one"), transactional(server, "other")
    written(one, "txn", b"aborted")
    one.abort_transaction()
    written(one, "txn", b"committed")
    one.commit_transaction()
    first = read(server, "txn")
    assert values(first) == [b"committed"]
    assert first.position.next == {0: 4}, "two messages and two marks"
    written(other, "txn", b"open")
    written(one, "txn", b"later")
    one.commit_transaction()
    second = read(server, "txn", first.position)
    assert (values(second), second.position.next) == ([], {0: 4}), (
        "no further than the open transaction"
    )
    other.commit_transaction()
    third = read(server, "txn", second.position)
    assert values(third) == [b"later", b"open"]
    written(one, "txn", b"aborted again")
    one.abort_transaction()
    fourth = read(server, "txn", third.position)
    assert (values(fourth), fourth.position.next) == ([], {0: third.position.next[0] + 2}), (
        "marks alone"
    )


def test_reading_a_compacted_topic_ends_with_the_remaining_messages(server: KafkaServer) -> None:
    server.make(
        "compacted", 1, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01"
    )
    broker = server.broker()
    for round_ in range(20):
        broker.produce("compacted", b"%d" % round_, key=b"a")
        broker.produce("compacted", b"%d" % round_, key=b"b")
        time.sleep(0.02)  # so that the segments have different ages
    found = read(server, "compacted")

    def compacted() -> bool:
        nonlocal found
        broker.produce("compacted", b"last", key=b"c")  # rolls the segment
        found = read(server, "compacted")
        return found.rows < 20

    wait_until(compacted, 120, "the topic to be compacted")
    end = found.position.next[0]
    assert end > 40
    assert {b"19", b"last"} <= set(values(found))
    assert read(server, "compacted", found.position).position.next[0] >= end
    middle = read(server, "compacted", KafkaPosition({0: 3}), max_offsets_per_run=5)
    assert middle.position.next == {0: 8}, "from and to offsets that hold no message any more"


def test_removed_messages_are_out_of_range_unless_skipping_is_allowed(
    server: KafkaServer,
) -> None:
    server.make("short", 2)
    broker = server.broker()
    broker.produce("short", *(b"%d" % n for n in range(10)))
    first = read(server, "short", max_offsets_per_run=4)
    assert first.position.next == {0: 4, 1: 0}
    admin = server.admin()
    for done in admin.delete_records([TopicPartition("short", 0, 7)]).values():
        done.result(30)
    with pytest.raises(
        OffsetsOutOfRange, match="partition 0 goes on at offset 4, and has the offsets 7 to 10"
    ):
        read(server, "short", first.position)
    second = read(server, "short", first.position, on_lost="skip")
    assert (values(second), second.position.lost) == ([b"7", b"8", b"9"], {0: (4, 7)})


def test_an_added_partition_is_read_from_its_first_message(server: KafkaServer) -> None:
    server.make("grows", 1)
    broker = server.broker()
    broker.produce("grows", b"old")
    first = read(server, "grows")
    admin = server.admin()
    for done in admin.create_partitions([NewPartitions("grows", 3)]).values():
        done.result(30)
    fresh = server.broker()
    fresh.produce("grows", b"new 1", b"new 2", partition=2)
    second = read(server, "grows", first.position)
    assert values(second) == [b"new 1", b"new 2"]
    assert second.position.next == {0: 1, 1: 0, 2: 2}


def test_a_recreated_topic_is_reported_and_read_by_another_generation(
    server: KafkaServer,
) -> None:
    server.make("again", 1)
    server.broker().produce("again", b"1", b"2")
    first = read(server, "again")
    assert first.position.topic_id
    server.delete("again")
    with pytest.raises(SourceUnavailable, match="Unknown topic or partition"):
        read(server, "again", first.position)
    server.make("again", 1)
    server.broker().produce("again", *(b"new %d" % n for n in range(9)))  # beyond the position
    with pytest.raises(SourceReplaced, match=r"deleted and made again .* generation: 2"):
        read(server, "again", first.position)
    with TopicClient(source(server, "again"), {}) as client:
        assert lag(client.topic(), first.position) == {0: 9}
    assert len(values(read(server, "again"))) == 9


def test_a_topic_can_be_read_only_with_the_right_password(
    server: KafkaServer,
) -> None:
    server.make("private", 1)
    server.broker().produce("private", b"1")
    stream = KafkaInput.model_validate(
        {"stream": f"kafka://{server.sasl}/private", "format": "raw"}
    )
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "reader",
    }
    options |= {"socket.timeout.ms": "5000", "sasl.password": KafkaServer.WORD}
    assert values(read_messages(READER, stream, options, None)) == [b"1"]
    with pytest.raises(SourceUnavailable, match="Authentication failed") as told:
        read_messages(READER, stream, {**options, "sasl.password": "another word"}, None)
    assert "another word" not in str(told.value)


def test_a_read_survives_a_broker_restart(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.make("killed", 3)
    broker = server.broker(**{"delivery.timeout.ms": 120_000})
    for partition in range(3):
        broker.produce(
            "killed", *(b"%d-%06d" % (partition, n) for n in range(20_000)), partition=partition
        )
    stream = source(
        server, "killed", options={"fetch.max.bytes": "1000000", "queued.min.messages": "100"}
    )
    messages, killed = TopicClient.messages, False

    def kill(client: TopicClient, *given: Any) -> Iterator[list[Any]]:
        nonlocal killed
        for batch in messages(client, *given):
            yield batch
            if not killed:
                killed = True
                server.kill()
                server.start()

    monkeypatch.setattr(TopicClient, "messages", kill)
    found = read_messages(READER, stream, stream.options, None)
    assert killed
    assert values(found) == sorted(
        b"%d-%06d" % (partition, n) for partition in range(3) for n in range(20_000)
    )


def test_a_missing_broker_ends_the_read_and_the_next_read_is_complete(
    server: KafkaServer,
) -> None:
    server.make("away", 1)
    server.broker().produce("away", *(b"%d" % n for n in range(1_000)))
    server.kill()
    try:
        with pytest.raises(SourceUnavailable, match="cannot be read"):
            read(server, "away", options={"socket.timeout.ms": "3000"})
    finally:
        server.start()

    def again() -> bool:
        try:
            return len(values(read(server, "away"))) == 1_000
        except SourceUnavailable:  # it has no leader of the partition yet
            return False

    wait_until(again, 60, "the messages to be read")
