"""What a spec says of Kafka topics: their address, their columns, and which options of the client
may be set.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.jobs.specs import told
from unstuck.coordinator.spec.model import JobSpec
from unstuck.tasks.spec.streams.kafka_input import KafkaInput

EVENTS = {
    "stream": "kafka://one:9093,two/events",
    "format": "json",
    "schema": "id BIGINT, at STRING",
}


def text_of(**change: Any) -> str:
    steps = [{"sql": "SELECT id FROM events", "output": "loads"}]
    load = {"name": "load", "inputs": {"events": {**EVENTS, **change}}, "steps": steps}
    return json.dumps({"name": "x", "groups": [load], "outputs": {"loads": {"mode": "append"}}})


def read(**change: Any) -> KafkaInput:
    (group,) = JobSpec.from_text(text_of(**change)).groups
    found = group.streams["events"]
    assert isinstance(found, KafkaInput)
    return found


def test_a_topic_has_brokers_a_name_and_columns() -> None:
    found = read(metadata=["key", "offset"])
    assert (found.brokers, found.topic) == ("one:9093,two:9092", "events")
    assert [one["name"] for one in found.fields] == ["id", "at", "key", "offset"]
    raw = read(format="raw", schema=None)
    assert [one["name"] for one in raw.fields] == [
        *("value", "key", "headers", "timestamp", "partition", "offset", "topic")
    ]
    assert read(stream="kafka://[::1]/a.b-c_1").brokers == "[::1]:9092"


def avro(name: str, kind: Any) -> str:
    return json.dumps({"type": "record", "name": "event", "fields": [{"name": name, "type": kind}]})


def test_a_topic_is_recognized_under_other_broker_addresses() -> None:
    assert read().identity == read(stream="kafka://three/events").identity


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"stream": "kafka://one"},
            "stream: 'kafka://one' must be kafka://broker:port,broker:port/topic",
        ),
        ({"stream": "kafka:///events"}, "must be kafka://broker:port"),
        ({"stream": "kafka://one,/events"}, "must be kafka://broker:port"),
        ({"stream": "kafka://one/a/b"}, "must be kafka://broker:port"),
        ({"stream": "kafka://one/.."}, "must be kafka://broker:port"),
        ({"stream": "kafka://user:word@one/events"}, "holds a user or a key"),
        ({"format": "csv"}, "format: expected json, avro, text or raw, not 'csv'"),
        ({"format": "raw"}, "format: json or avro wants a schema:, and no other format has one"),
        ({"schema": None}, "format: json or avro wants a schema:"),
        (
            {"format": "avro"},
            "format: avro wants an Avro schema in JSON as schema:, and this is none",
        ),
        ({"format": "avro", "schema": '"long"'}, "the Avro schema must be that of a record"),
        (
            {"format": "avro", "schema": avro("a", ["int", "string"])},
            "a union of Avro wants one type beside null",
        ),
        (
            {"format": "avro", "schema": avro("a", "node")},
            "'node' is no type of Avro that becomes a column",
        ),
        (
            {"format": "avro", "schema": avro("a", {"type": "int", "logicalType": "time-millis"})},
            "values of Avro's time-millis are not read",
        ),
        ({"schema": "id BIGNT"}, "'BIGNT' is no type of a column"),
        ({"schema": "id INTERVAL"}, "no type of a column"),
        ({"schema": "id BIGINT, Key STRING", "metadata": ["key"]}, "the column key is there twice"),
        (
            {"metadata": ["key", "lag"]},
            "metadata[1]: expected key, headers, timestamp, partition, offset or topic",
        ),
        ({"max_offsets_per_run": 0}, "max_offsets_per_run: expected 1 or more"),
        ({"ignore": ["*.tmp"]}, "unknown field 'ignore'"),
        (
            {"options": {"group.id": "x"}},
            "the option group.id cannot be set: positions are part of the package",
        ),
        (
            {"options": {"auto.offset.reset": "latest"}},
            "the option auto.offset.reset cannot be set",
        ),
        (
            {"options": {"ssl.engine.location": "/x.so"}},
            "ssl.engine.location is none of the options of librdkafka",
        ),
        (
            {"options": {"sasl.kerberos.kinit.cmd": "rm"}},
            "sasl.kerberos.kinit.cmd is none of the options",
        ),
        (
            {"options": {"sasl.password": "${env:WORD}"}},
            "the option sasl.password is stored and shown",
        ),
        ({"options": {"ssl.key.pem": "-----BEGIN"}}, "the option ssl.key.pem is stored and shown"),
        (
            {"options": {"sasl.username": "${vault:user}"}},
            "expected a reference such as ${env:NAME}",
        ),
    ],
)
def test_an_invalid_topic_is_reported_with_the_expected_form(
    change: dict[str, Any], message: str
) -> None:
    lines = told(text_of(**change))
    assert message in "\n".join(lines)
    assert all("groups[0].inputs.events" in line for line in lines)


def test_options_may_contain_references_that_a_worker_resolves() -> None:
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.username": "${env:USER}",
        "sasl.password": "${secret:WORD}",
    }
    assert read(options=options).options == options
