"""Which offsets of a topic a job reads (pure)."""

from __future__ import annotations

from typing import Any

import pytest

from unstuck.tasks.errors import OffsetsOutOfRange, SourceReplaced
from unstuck.tasks.spec.streams.kafka_input import KafkaInput
from unstuck.tasks.streams.arrived.kafka import Topic, lag, reach_of
from unstuck.tasks.streams.arrived.position import KafkaPosition


def source(**change: Any) -> KafkaInput:
    return KafkaInput.model_validate({"stream": "kafka://b/events", "format": "raw", **change})


def topic(*partitions: tuple[int, int], id: str = "A") -> Topic:
    """Of these first and end offsets."""
    return Topic(
        id,
        {n: one for n, (one, _) in enumerate(partitions)},
        {n: end for n, (_, end) in enumerate(partitions)},
    )


def at(*offsets: int, id: str = "A") -> KafkaPosition:
    return KafkaPosition(dict(enumerate(offsets)), {}, id)


def test_a_stream_starts_at_the_first_message_and_continues_at_its_position() -> None:
    assert reach_of(source(), topic((3, 9), (0, 0)), None).open == {0: (3, 9)}
    reach = reach_of(source(), topic((3, 9), (0, 4)), at(7, 4))
    assert reach.open == {0: (7, 9)}
    assert reach.position == KafkaPosition({0: 9, 1: 4}, {0: 7, 1: 4}, "A")


def test_a_new_partition_is_read_from_its_start_or_its_removed_messages_are_reported() -> None:
    assert reach_of(source(), topic((0, 5), (0, 3)), at(5)).open == {1: (0, 3)}
    with pytest.raises(
        OffsetsOutOfRange, match="partition 1 goes on at offset 0, and has the offsets 2 to 3"
    ):
        reach_of(source(), topic((0, 5), (2, 3)), at(5))


@pytest.mark.parametrize(
    ("room", "expected"),
    [(100, {0: 10, 1: 2, 2: 30}), (12, {0: 5, 1: 2, 2: 5}), (1, {2: 1}), (7, {0: 2, 1: 2, 2: 3})],
)
def test_a_job_reads_a_limited_number_of_messages_evenly_per_partition(
    room: int, expected: dict[int, int]
) -> None:
    reach = reach_of(source(max_offsets_per_run=room), topic((0, 10), (0, 2), (0, 30)), None)
    assert sum(end for _, end in reach.open.values()) <= room
    assert sum(end for _, end in reach.open.values()) == sum(expected.values())
    assert {one: end for one, (_, end) in reach.open.items()} == expected
    assert reach.position.next == {one: reach.open.get(one, (0, 0))[1] for one in range(3)}


def test_messages_removed_by_the_broker_are_reported_or_skipped_as_configured() -> None:
    with pytest.raises(OffsetsOutOfRange) as told:
        reach_of(source(), topic((1_000, 2_000), (0, 5)), at(400, 5))
    assert "partition 0 goes on at offset 400, and has the offsets 1,000 to 2,000" in str(
        told.value
    )
    assert "its retention" in str(told.value)
    assert "on_lost: skip" in str(told.value)
    reach = reach_of(source(on_lost="skip"), topic((1_000, 2_000), (0, 5)), at(400, 5))
    assert reach.open == {0: (1_000, 2_000)}
    assert reach.position.lost == {0: (400, 1_000)}


@pytest.mark.parametrize("on_lost", ["fail", "skip"])
def test_a_partition_shorter_than_its_read_position_is_never_skipped(
    on_lost: str,
) -> None:
    with pytest.raises(OffsetsOutOfRange, match="shorter than what was read of it") as told:
        reach_of(source(on_lost=on_lost), topic((0, 3)), at(400))
    assert "generation: 2" in str(told.value)


def test_a_recreated_topic_is_detected_by_its_id_or_its_partitions() -> None:
    with pytest.raises(SourceReplaced, match="its id is B, and was A"):
        reach_of(source(), topic((0, 500), id="B"), at(400))
    with pytest.raises(SourceReplaced, match="it has 1 partitions, and partition 1 was read"):
        reach_of(source(), topic((0, 500), id=""), at(400, 5, id=""))
    assert reach_of(source(), topic((0, 500), id=""), at(400)).open == {0: (400, 500)}


def test_the_lag_is_the_number_of_unread_messages_by_partition() -> None:
    assert lag(topic((0, 10), (5, 9), (0, 3)), at(4, 0)) == {0: 6, 1: 4, 2: 3}
    assert lag(topic((0, 10)), None) == {0: 10}
    assert lag(topic((2, 10), id="B"), at(9)) == {0: 8}
