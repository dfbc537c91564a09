"""A plain consumer of confluent-kafka that writes the messages of a topic into one Parquet file.

Run where Unstuck runs. It reads one JSON command a line and answers with the seconds it took.
"""

from __future__ import annotations

import json
import os
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition


def run(brokers: str, rows: int) -> None:
    topic = f"events-{rows}"
    consumer = Consumer(
        {"bootstrap.servers": brokers, "group.id": "peer", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(4)])
    values: list[dict] = []
    while len(values) < rows:
        values += [
            json.loads(one.value())
            for one in consumer.consume(10_000, timeout=0.1)
            if one.error() is None
        ]
    consumer.close()
    pq.write_table(pa.Table.from_pylist(values), "kafka_peer.parquet")
    with open("kafka_peer.parquet", "rb") as written:
        os.fsync(written.fileno())


def main() -> None:
    brokers = os.environ["BENCH_KAFKA"]
    run(brokers, int(os.environ["BENCH_ROWS"]))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        run(brokers, json.loads(line)["n"])
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


if __name__ == "__main__":
    main()
