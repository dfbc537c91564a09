"""The position of a stream that Spark does not keep: one JSON document by kind, packed, which the package names."""

from __future__ import annotations

import zlib
from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from unstuck.tasks.streams.arrived import ArrivedFile
from unstuck.tasks.warehouse.files import Files


@dataclass(frozen=True, slots=True)
class FilesPosition:
    """The files that were read.

    Attributes:
        seen: path → size and version of each file that counts as read, since the stream or its generation began.
        read: of them, those that the job which published this position has read.
        put_aside: path → why the job has read no row of the file.
    """

    seen: dict[str, tuple[int, str]] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)
    put_aside: dict[str, str] = field(default_factory=dict)
    kind: Literal["files"] = "files"

    def of(self, file: ArrivedFile) -> tuple[int, str] | None:
        """Size and version of the file when it was read; None if it was not."""
        return self.seen.get(file.path)


@dataclass(frozen=True, slots=True)
class KafkaPosition:
    """The next offset of each partition, and where the job which published this position began: it read up to the next.

    Attributes:
        topic_id: of the topic, if the broker gives one; a topic that was deleted and made again has another.
        lost: partition → from and up to where the broker had removed messages, which ``on_lost: skip`` has passed over.
    """

    next: dict[int, int] = field(default_factory=dict)
    began: dict[int, int] = field(default_factory=dict)
    topic_id: str = ""
    lost: dict[int, tuple[int, int]] = field(default_factory=dict)
    kind: Literal["kafka"] = "kafka"


Position = Annotated[FilesPosition | KafkaPosition, Field(discriminator="kind")]
_POSITION: TypeAdapter[FilesPosition | KafkaPosition] = TypeAdapter(Position)


def write_position(files: Files, path: str, position: FilesPosition | KafkaPosition) -> int:
    """Write ``position`` into the file ``path``, durably. Returns its bytes. Raises: OSError; as ``Files.check``."""
    data = zlib.compress(_POSITION.dump_json(position), level=1)
    files.write_durable(path, data)
    return len(data)


def read_position(files: Files, path: str) -> FilesPosition | KafkaPosition:
    """The position in the file ``path``.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: the store failed, or the file is cut short.
    """
    data = files.read(path)
    try:
        return _POSITION.validate_json(zlib.decompress(data))
    except (zlib.error, ValidationError) as error:
        raise OSError(f"{files.uri(path)} is no position of a stream: {str(error)[:200]}") from error
