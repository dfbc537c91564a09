"""Case l: a job that loads a Kafka topic into a dataset, against a plain consumer that writes the
same Parquet.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from bench.case import Case, Stage
from bench.measure import Sample
from unstuck.tasks.warehouse.log import Warehouse

ROWS = {"tiny": (100,), "quick": (10_000,), "full": (10_000, 200_000)}


def run(stage: Stage) -> Case:
    from confluent_kafka import Producer

    # The mock cluster of the client library: a broker in this process, which keeps 5 MB of a
    # partition.
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0, "linger.ms": 20})
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    os.environ["BENCH_KAFKA"] = f"{broker.host}:{broker.port}"
    case = Case("l", "messages of a Kafka topic, as rows", "rows/s")
    for rows in ROWS[stage.size]:
        for n in range(rows):
            message = json.dumps({"id": n, "at": f"at {n}", "amount": n / 8})
            producer.produce(f"events-{rows}", message, partition=n % 4)
            producer.poll(0)
        producer.flush()
        os.environ["BENCH_ROWS"] = str(rows)
        for warm in range(6):  # both runners have loaded what reads and writes them
            _load(stage, rows, f"warm_{warm}")
        jobs = iter(range(1_000))
        stage.compare(
            case,
            f"{rows:,} rows",
            lambda rows=rows, jobs=jobs: _load(stage, rows, next(jobs)),
            {("kafka", "rows"): rows},
        )
    return case


def _load(stage: Stage, rows: int, number: Any) -> Sample:
    """Load the topic of so many messages into a new dataset."""
    dataset = f"loads_{rows}_{number}"
    stream = f"kafka://{os.environ['BENCH_KAFKA']}/events-{rows}"
    events = {"stream": stream, "format": "json", "schema": "id BIGINT, at STRING, amount DOUBLE"}
    step = {"python": "stream_steps:load", "output": dataset}
    load: dict[str, Any] = {
        "name": "load",
        "queue": "light",
        "spark": False,
        "inputs": {"events": events},
        "steps": [step],
    }
    sample = stage.ours(
        {"name": "load", "groups": [load], "outputs": {dataset: {"mode": "append"}}}, rows
    )
    published = Warehouse(str(Path(stage.fleet.folder) / "warehouse")).dataset(dataset).rows
    assert published == rows, f"{published:,} rows are published"
    return sample
