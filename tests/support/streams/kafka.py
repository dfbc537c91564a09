"""Kafka for tests: the mock cluster of librdkafka, which other processes reach too, and what
produces into a topic.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer


@dataclass
class KafkaBroker:
    """A cluster to begin with at ``address``."""

    address: str
    producer: Producer

    def stream(self, topic: str) -> str:
        return f"kafka://{self.address}/{topic}"

    def produce(
        self, topic: str, *values: Any, partition: int = 0, key: bytes | None = None, **rest: Any
    ) -> None:
        """One message for each of ``values``, which is written as JSON if it is not bytes or
        None.
        """
        failed: list[object] = []
        for value in values:
            data = (
                value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
            )
            self.producer.produce(
                topic,
                data,
                key,
                partition,
                on_delivery=lambda error, _: failed.append(error) if error is not None else None,
                **rest,
            )
            self.producer.poll(0)
        assert self.producer.flush(60) == 0
        assert not failed


@contextmanager
def mock_broker() -> Iterator[KafkaBroker]:
    """A cluster of one broker in this process, whose topics come to be with 4 partitions; it knows
    no topic ids, transactions or retention."""
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    found = producer.list_topics(timeout=10).brokers.values()
    yield KafkaBroker(",".join(f"{one.host}:{one.port}" for one in found), producer)
    del producer
