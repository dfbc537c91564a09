"""Define inputs from outside a job: published datasets, streams of files, and Kafka topics."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    StrictStr,
    Tag,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from unstuck.tasks.settings import plain_path, without_user
from unstuck.tasks.spec.fields import MAX_COUNT, DatasetName, Strict, check_choice
from unstuck.tasks.spec.streams.file_format import file_formats
from unstuck.tasks.spec.streams.kafka_input import KAFKA, KafkaInput
from unstuck.tasks.spec.streams.stream_columns import declared
from unstuck.tasks.spec.streams.stream_options import check_columns, file_options


def _option_text(value: Any) -> Any:
    """Return the text that Spark expects for the booleans of YAML and Python."""
    return str(value).lower() if isinstance(value, bool) else value


_OptionValue = Annotated[
    StrictStr, BeforeValidator(_option_text), WithJsonSchema({"type": ["string", "boolean"]})
]


class DatasetInput(Strict):
    """A published dataset that a group reads, as it stood at one version of the warehouse."""

    dataset: DatasetName = Field(description="The name under which it is published.")
    version: int | None = Field(
        default=None,
        ge=0,
        le=MAX_COUNT,
        strict=True,
        description="The version of the warehouse, 0 for before anything was published; left out: "
        "the newest one when the job was submitted.",
    )
    if_absent: str | None = Field(
        default=None,
        strict=True,
        min_length=1,
        max_length=100_000,
        description="Columns and their types in SQL, such as id BIGINT, at STRING: where the "
        "dataset is not published yet, steps find these columns without rows; left "
        "out: the group fails.",
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        dataset, _, version = value.partition("@")
        if version in ("", "latest") and not value.endswith("@"):
            return {"dataset": dataset}
        if not re.fullmatch(r"[1-9][0-9]{0,9}", version):
            raise ValueError(
                "expected a dataset and perhaps its version, as flights, flights@latest or "
                "flights@7"
            )
        return {"dataset": dataset, "version": int(version)}

    @field_validator("if_absent")
    @classmethod
    def _are_columns(cls, value: str | None) -> str | None:
        if value is not None:
            declared(value)
        return value


_PLACES = ("/", "file:///", "s3://")
# Names that programs give to a file while they write it.
_UNFINISHED = (
    "*.part",
    "*.partial",
    "*.filepart",
    "*.tmp",
    "*.inprogress",
    "*._COPYING_",
    "*.crdownload",
    "*.swp",
    "*~",
)


ArrivedFormat = Annotated[
    str,
    Field(json_schema_extra=lambda schema: schema.update(enum=[*file_formats()])),
    BeforeValidator(lambda name: check_choice(name, file_formats())),
]
_NamePattern = Annotated[str, Field(strict=True, min_length=1, max_length=255)]


class StreamInput(Strict):
    """A folder in which files arrive; a job reads those that no job before it has published."""

    kind: ClassVar[Literal["files"]] = "files"  # of its position

    stream: str = Field(
        strict=True,
        min_length=1,
        max_length=2000,
        description=(
            "The folder: an absolute path, file:///… or s3://…; Spark's patterns, such as "
            "*, may stand in it."
        ),
    )
    format: ArrivedFormat = Field(description="The format of the files.")
    columns: str = Field(
        alias="schema",
        strict=True,
        min_length=1,
        max_length=100_000,
        description=(
            "The columns of the files and their types in SQL, such as id BIGINT, at STRING."
        ),
    )
    options: dict[StrictStr, _OptionValue] = Field(
        default_factory=dict, description="Options of the format, such as header."
    )
    generation: int = Field(
        default=1,
        ge=1,
        le=MAX_COUNT,
        strict=True,
        description="Another number reads all files again.",
    )
    state: bool = Field(
        default=False,
        strict=True,
        description=(
            "True if the query needs state or a watermark: the input is a frame of Spark "
            "Structured Streaming."
        ),
    )
    files: list[_NamePattern] | None = Field(
        default=None,
        min_length=1,
        max_length=20,
        description="Patterns of the names of the files that count; left out: the names with an "
        "ending of the format, such as .csv or .csv.gz.",
    )
    ignore: list[_NamePattern] = Field(
        default=[*_UNFINISHED],
        max_length=20,
        description="Patterns of names that do not count until renamed.",
    )
    max_files_per_run: int | None = Field(
        default=None,
        ge=1,
        le=MAX_COUNT,
        strict=True,
        description="At most so many files are read by one job.",
    )
    max_bytes_per_run: int | None = Field(
        default=None,
        ge=1,
        le=2**53 - 1,
        strict=True,
        description="A job reads files of at most so many bytes, and one file in any case; left "
        "out: with spark: false 268435456, else no bound.",
    )
    max_file_bytes: int | None = Field(
        default=None,
        ge=1,
        le=2**53 - 1,
        strict=True,
        description="At most so many bytes of a file, once it is unpacked and decoded; left out: "
        "1073741824 with spark: false, else 68719476736.",
    )
    max_row_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=1,
        le=2**31 - 1,
        strict=True,
        description="At most so many bytes of a line, a record or a row.",
    )
    changed: Literal["fail", "again", "ignore"] = Field(
        default="fail", description="For a file that was read and has other content now."
    )
    known_by: Literal["path", "content"] = Field(
        default="path",
        alias="identity",
        description="By what a file is known again: its path, or the hash of its bytes, by which a "
        "copy under another name is not read.",
    )
    on_bad_file: Literal["fail", "skip"] = Field(
        default="fail", description="For a file that cannot be read."
    )
    on_other_columns: Literal["fail", "allow"] = Field(
        default="fail",
        description="For a file that lacks columns of the schema (null if allowed), or has more.",
    )

    @property
    def identity(self) -> str:
        """The identity of the stream."""
        return self.stream

    @property
    def skips(self) -> bool:
        """Whether unreadable files or messages are put aside."""
        return self.on_bad_file == "skip"

    @model_validator(mode="after")
    def _can_be_read(self) -> StreamInput:
        file_options(self.format, self.options)
        check_columns(self.format, declared(self.columns))
        return self

    @field_validator("stream")
    @classmethod
    def _is_place(cls, value: str) -> str:
        if not value.startswith(_PLACES) or ".." in value.split("/"):
            raise ValueError(f"{value!r} must be an absolute path without .., file:///… or s3://…")
        without_user(value)
        # One place has one name, since a position belongs to the name.
        plain = plain_path(value)
        scheme, _, path = ("", "", plain) if plain.startswith("/") else plain.partition("://")
        parts = [part for part in path.split("/") if part not in ("", ".")]
        return f"{scheme}://{'/'.join(parts)}" if scheme else f"/{'/'.join(parts)}"

    @field_validator("columns")
    @classmethod
    def _are_columns(cls, value: str) -> str:
        declared(value)
        return value


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        stream = value.get("stream")
        if isinstance(stream, str) and stream.startswith(KAFKA):
            return "KafkaInput"
        return "StreamInput" if "stream" in value else "DatasetInput"
    return type(value).__name__ if isinstance(value, StreamInput | KafkaInput) else "DatasetInput"


GroupInput = Annotated[
    Annotated[DatasetInput, Tag("DatasetInput")]
    | Annotated[StreamInput, Tag("StreamInput")]
    | Annotated[KafkaInput, Tag("KafkaInput")],
    Discriminator(_kind),
]
