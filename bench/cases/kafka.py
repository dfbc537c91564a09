"""Case l: a job that loads a Kafka topic into a dataset, against a plain consumer that writes the same Parquet."""

from __future__ import annotations

import json
import os
from typing import Any

from bench.case import Case, Stage

ROWS = {"tiny": 100, "quick": 20_000, "full": 200_000}


def run(stage: Stage) -> Case:
    from confluent_kafka import Producer

    rows = ROWS[stage.size]
    # The mock cluster of the client library: a broker in this process, which keeps 5 MB of a partition.
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0, "linger.ms": 20})
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    stream = os.environ["BENCH_KAFKA"] = f"kafka://{broker.host}:{broker.port}/events"
    for n in range(rows):
        producer.produce("events", json.dumps({"id": n, "at": f"at {n}", "amount": n / 8}), partition=n % 4)
        producer.poll(0)
    producer.flush()
    case = Case("l", "messages of a Kafka topic, as rows", "rows/s")
    stage.ours(_spec(stream, "warm"), rows)  # the runner has loaded what reads and writes them
    jobs = iter(range(1_000))
    stage.compare(
        case,
        f"{rows:,} rows",
        lambda: stage.ours(_spec(stream, f"loads_{next(jobs)}"), rows),
        {("kafka", "rows"): rows},
    )
    return case


def _spec(stream: str, dataset: str) -> dict[str, Any]:
    events = {"stream": stream, "format": "json", "schema": "id BIGINT, at STRING, amount DOUBLE"}
    step = {"python": "kafka_steps:load", "output": dataset}
    load = {"name": "load", "queue": "light", "spark": False, "inputs": {"events": events}, "steps": [step]}
    return {"name": "load", "groups": [load], "outputs": {dataset: {"mode": "append"}}}
