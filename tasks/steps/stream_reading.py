"""Read the stream of a group in one attempt, and let one of its outputs hold the position."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any

from unstuck.tasks.errors import OutputInvalid, Unrecoverable
from unstuck.tasks.protocol.secrets import Secrets
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.spec.streams.kafka_input import KafkaInput
from unstuck.tasks.streams.read.arriving_files import ArrivingFiles
from unstuck.tasks.streams.read.group_stream import (
    GroupStream,
    PublishedCheckpoints,
    Reader,
    Source,
)
from unstuck.tasks.streams.read.kafka_read import KafkaTopic
from unstuck.tasks.streams.read.structured import is_remote, stage_stream
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import StagedOutput

log = logging.getLogger(__name__)


class StreamReading:
    """The stream of a group, which is read when a step first asks for it.

    A step may read and write in threads of its own.

    Attributes:
        streams: by name; a group has one at most.
    """

    def __init__(
        self,
        reader: Reader,
        token: Token,
        secrets: Secrets,
        published: PublishedCheckpoints,
        streams: Mapping[str, StreamInput | KafkaInput],
        appended: Collection[str],
    ) -> None:
        """Prepare the reading.

        Args:
            reader: the session, the files and the share of this attempt.
            appended: outputs that may be written from a stream.
        """
        self.streams = streams
        self._reader, self._token, self._secrets = reader, token, secrets
        self._published, self._appended = published, appended
        self._stream: GroupStream | None = None
        self._lock = Lock()

    @property
    def skips(self) -> bool:
        """Whether bad files or messages are put aside."""
        return any(stream.skips for stream in self.streams.values())

    def frame(self, name: str, results: dict[str, Any]) -> Any:
        """Return the rows of the stream ``name``. Its counts become one of the ``results``."""
        with self._lock:
            if self._stream is None:
                spec, reader = self.streams[name], self._reader
                self._stream = GroupStream(
                    name,
                    self._source(name, spec),
                    reader.files,
                    self._token.staging,
                    self._appended,
                    self._published,
                    skips=spec.skips,
                    share=reader.share,
                )
                results[name] = dict(self._stream.batch.counts)
                log.info("the stream %s: %s", name, self._stream.batch.summary)
            return self._stream.batch.frame

    def _source(self, name: str, stream: StreamInput | KafkaInput) -> Source:
        session = self._reader.session
        if stream.state and is_remote(session):
            raise Unrecoverable(
                f"the input {name} is a stream, with state: true, which is not supported with "
                "Spark Connect yet"
            )
        folder = f"{self._token.staging}/{name}.arrived"
        reader = Reader(session, self._reader.files, folder, self._reader.share)
        if isinstance(stream, StreamInput):
            return ArrivingFiles(stream, reader)
        return KafkaTopic(stream, reader, self._secrets.resolve(stream.options))

    def noted(
        self, folder: str, outputs: dict[str, StagedOutput], partition_by: Sequence[str]
    ) -> dict[str, StagedOutput]:
        """Return the output in ``folder`` and its rejected rows, with the position."""
        if self._stream is None:
            return outputs
        with self._lock:
            return self._stream.noted(folder, outputs, partition_by)

    def arriving(
        self, name: str, frame: Any
    ) -> Callable[[Files, str, Any, Sequence[str]], StagedOutput]:
        """Return the function that stages a streaming ``frame`` as the output ``name``.

        Raises: OutputInvalid.
        """
        if self._stream is None or not self._stream.is_read_by(frame):
            raise unknown_stream(name)
        if name not in self._appended:
            raise OutputInvalid(
                f"the output {name} reads a stream, and is not published by appending to a dataset "
                f"of the warehouse. Say outputs: {{{name}: {{mode: append}}}}, and name it under "
                "publish: if other groups need this one"
            )
        with self._lock:
            return partial(stage_stream, resume=self._stream.resume(name, self._token.job))

    def end(self, outputs: Collection[str]) -> None:
        """Check that an output holds the position, and remove the rows that only steps read.

        Raises: OutputInvalid; OSError.
        """
        if self._stream is not None:
            self._stream.check(outputs)
            self._stream.close()


def unknown_stream(name: str) -> OutputInvalid:
    """Return the error for an output of a streaming frame that is no input of its group."""
    return OutputInvalid(
        f"the output {name} reads a stream that is no input of the group; name it in "
        "inputs:, with state: true"
    )
