"""Define a Kafka topic as an input: its address, its message format, and client options."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import Field, StrictStr, field_validator, model_validator

from unstuck.tasks.settings import without_user
from unstuck.tasks.spec.fields import MAX_COUNT, Listed, Strict
from unstuck.tasks.spec.schemas import Fields
from unstuck.tasks.spec.streams.avro_schema import avro_columns
from unstuck.tasks.spec.streams.stream_columns import declared
from unstuck.tasks.spec.types import field, parse_type

KAFKA = "kafka://"
_PORT = 9092
_BROKER = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
MetadataColumn = Literal["key", "headers", "timestamp", "partition", "offset", "topic"]
_TYPES: dict[MetadataColumn, str] = {
    "key": "binary",
    "headers": "array<struct<key: string, value: binary>>",
    "timestamp": "timestamp",
    "partition": "int",
    "offset": "bigint",
    "topic": "string",
}
# Of librdkafka: how a broker is reached and how much is fetched. What decides which messages are
# read is ours; what loads code or runs a command is no one's.
_OPTIONS = re.compile(
    r"client\.(id|rack)|broker\.(address\.family|address\.ttl)|security\.protocol"
    r"|enable\.ssl\.certificate\.verification"
    r"|socket\.(timeout\.ms|keepalive\.enable|receive\.buffer\.bytes"
    r"|connection\.setup\.timeout\.ms)"
    r"|reconnect\.backoff(\.max)?\.ms"
    r"|fetch\.(min|max|message\.max|error\.backoff|wait\.max)\.(bytes|ms)"
    r"|max\.partition\.fetch\.bytes|receive\.message\.max\.bytes"
    r"|queued\.(min\.messages|max\.messages\.kbytes)|check\.crcs"
    r"|ssl\.(ca|certificate|key|keystore|crl)\.(location|pem|password)"
    r"|ssl\.endpoint\.identification\.algorithm"
    r"|ssl\.(cipher\.suites|curves\.list|sigalgs\.list)"
    r"|sasl\.(mechanism|mechanisms|username|password)"
    r"|sasl\.kerberos\.(service\.name|principal|keytab)"
    r"|sasl\.oauthbearer\.(method|client\.id|client\.secret|scope|extensions|token\.endpoint\.url)"
)
_SECRET = re.compile(r".*\.(password|client\.secret)|ssl\.key\.pem")
_OURS = {
    "group.id": "positions are part of the package, and no consumer group is used",
    "auto.offset.reset": (
        "a stream begins at the first message, and on_lost: says what happens "
        "when messages are gone"
    ),
    "isolation.level": "messages of open and aborted transactions are never read",
    "bootstrap.servers": "the brokers stand in stream:",
    "metadata.broker.list": "the brokers stand in stream:",
}


class KafkaInput(Strict):
    """A Kafka topic; a job reads the messages that no job before it has published."""

    state: ClassVar[bool] = False
    kind: ClassVar[Literal["kafka"]] = "kafka"  # of its position

    stream: str = Field(
        strict=True,
        min_length=1,
        max_length=2000,
        description="kafka://broker:port,broker:port/topic; port 9092.",
    )
    format: Literal["json", "avro", "text", "raw"] = Field(
        description=(
            "What the value of a message is: a JSON object, an Avro record, text in "
            "UTF-8, "
            "or bytes."
        )
    )
    columns: str | None = Field(
        default=None,
        alias="schema",
        strict=True,
        min_length=1,
        max_length=100_000,
        description="For json: the columns and their types in SQL, such as id BIGINT, at STRING; "
        "for avro: the Avro schema of the records, in JSON.",
    )
    metadata: Listed[MetadataColumn] | None = Field(
        default=None,
        description="Columns beside: key, headers, timestamp, partition, offset, topic. Left out: "
        "all, or none with a schema.",
    )
    options: dict[StrictStr, StrictStr] = Field(
        default_factory=dict,
        description="Options of librdkafka, such as security.protocol or sasl.username.",
    )
    generation: int = Field(
        default=1,
        ge=1,
        le=MAX_COUNT,
        strict=True,
        description="Another number reads all messages again.",
    )
    max_offsets_per_run: int = Field(
        default=1_000_000,
        ge=1,
        le=MAX_COUNT,
        strict=True,
        description="At most so many offsets are read by one job.",
    )
    on_other_columns: Literal["fail", "allow"] = Field(
        default="fail",
        description=(
            "For a message that lacks columns of the schema (null if allowed), or has more."
        ),
    )
    on_bad_record: Literal["fail", "skip"] = Field(
        default="fail", description="For a message that is no row."
    )
    on_lost: Literal["fail", "skip"] = Field(
        default="fail", description="When the broker has removed messages that no job has read."
    )

    @property
    def skips(self) -> bool:
        """Whether unreadable files or messages are put aside."""
        return self.on_bad_record == "skip"

    @field_validator("stream")
    @classmethod
    def _is_address(cls, value: str) -> str:
        without_user(value)
        brokers, slash, topic = value.removeprefix(KAFKA).partition("/")
        if not (
            slash and all(map(_BROKER.fullmatch, brokers.split(","))) and _TOPIC.fullmatch(topic)
        ):
            raise ValueError(
                f"{value!r} must be kafka://broker:port,broker:port/topic, with at least one broker"
            )
        return value

    @field_validator("options")
    @classmethod
    def _are_options(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if why := _OURS.get(name):
                raise ValueError(f"the option {name} cannot be set: {why}")
            if _OPTIONS.fullmatch(name) is None:
                raise ValueError(
                    f"{name} is none of the options of librdkafka that may be set here"
                )
            if _SECRET.fullmatch(name) and re.fullmatch(r"\$\{secret:\w+\}", text) is None:
                raise ValueError(
                    f"the option {name} is stored and shown; write ${{secret:NAME}}, the name of a "
                    "variable"
                )
        return value

    @model_validator(mode="after")
    def _has_columns(self) -> KafkaInput:
        if (self.format in ("json", "avro")) != (self.columns is not None):
            raise ValueError("format: json or avro wants a schema:, and no other format has one")
        names = [column["name"].lower() for column in self.fields]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"the column {twice} is there twice; it is named by metadata:, too")
        return self

    @property
    def fields(self) -> Fields:
        """The columns of the rows.

        Raises: ValueError: a type of the schema is not known to all readers.
        """
        metadata = self.metadata
        if metadata is None:
            metadata = () if self.columns else tuple(_TYPES)
        beside = [field(name, parse_type(_TYPES[name])) for name in metadata]
        return [*self.value_fields, *beside]

    @property
    def value_fields(self) -> Fields:
        """The columns that the value of a message becomes. Raises: as `fields`."""
        if self.columns is not None:
            return avro_columns(self.columns) if self.format == "avro" else declared(self.columns)
        return [field("value", "string" if self.format == "text" else "binary")]

    @property
    def brokers(self) -> str:
        """The brokers to begin with, as librdkafka takes them."""
        brokers = self.stream.removeprefix(KAFKA).partition("/")[0].split(",")
        return ",".join(
            broker if re.search(r":\d+$", broker) else f"{broker}:{_PORT}" for broker in brokers
        )

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self.stream.rpartition("/")[2]

    @property
    def identity(self) -> str:
        """The identity of a stream. Brokers may change; the topic id is part of a position."""
        return f"{KAFKA}…/{self.topic}"
