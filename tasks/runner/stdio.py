"""The standard streams of an attempt: what a step prints goes to the worker's own stream and into the attempt's log.

The log gets whole lines. A line that does not end, such as a progress bar, is logged every ``SHOWN_EVERY`` seconds.
"""

from __future__ import annotations

import codecs
import io
import re
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar, TextIO

from unstuck.tasks.protocol.secrets import Secrets, Stream

MAX_LINE = 64 * 1024  # characters; what is longer is cut
SHOWN_EVERY = 5.0  # seconds
_END = re.compile(r"([\r\n])")


class _Line:
    """The line that one thread has begun; one per thread, so that lines of several threads are not mixed.

    What is added went through ``stream``, so it holds no secret wherever the line is cut.
    """

    def __init__(self, put: Callable[[str], None], clock: Callable[[], float], stream: Stream) -> None:
        self.stream = stream
        self._put = put
        self._clock = clock
        self._parts: list[str] = []
        self._length = 0
        self._since: float | None = None  # when the oldest text that was not put yet was written
        self._returned = False  # a \r came last: the next text overwrites the line, unless it is \n

    def add(self, text: str) -> None:
        for piece in _END.split(text):
            if piece == "\n":
                self._show()
            elif piece == "\r":
                self._returned = True
            elif piece:
                self._go_on(piece)

    def finish(self) -> None:
        if self._parts:
            self._show()

    def _go_on(self, piece: str) -> None:
        now = self._clock()
        waited = self._since is not None and now - self._since >= SHOWN_EVERY
        if self._returned:
            if waited and "".join(self._parts).strip():
                self._show()
            self._parts, self._length, self._returned = [], 0, False
        elif self._parts and (waited or self._length + len(piece) > MAX_LINE):
            self._show()
        if self._since is None:
            self._since = now
        self._parts.append(piece)
        self._length += len(piece)

    def _show(self) -> None:
        text = "".join(self._parts)
        self._parts, self._length, self._since, self._returned = [], 0, None, False
        self._put(text)


class _Sink(io.BufferedIOBase):
    """The bytes below a ``Tee``: cleaned of secrets, copied to the worker's own stream, and put into the log as lines.

    A logger may keep a stream beyond its attempt. What is written to a kept stream goes to the attempt that runs then,
    or to the worker's own stream alone.
    """

    _open: ClassVar[dict[str, _Sink]] = {}

    def __init__(
        self,
        name: str,
        stream: TextIO,
        put: Callable[[str], None],
        secrets: Secrets,
        logged: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.encoding = "utf-8"
        self._stream = stream
        self._put = put
        self._secrets = secrets
        self._logged = logged
        self._clock = clock
        self._lines: dict[int, _Line] = {}
        self._decoders: dict[int, codecs.IncrementalDecoder] = {}
        self._open[name] = self

    def decode_as(self, encoding: str) -> None:
        self.encoding = encoding
        self._decoders.clear()

    def finish(self) -> None:
        """The attempt is over: lines without an end go into the log as well."""
        for thread, decoder in list(self._decoders.items()):
            self.take(decoder.decode(b"", final=True), thread)
        for line in list(self._lines.values()):
            self._add(line, line.stream.finish())
            line.finish()
        if self._open.get(self.name) is self:
            del self._open[self.name]

    def write(self, data: Any) -> int:
        read = memoryview(data)
        thread = threading.get_ident()
        if thread not in self._decoders:
            self._decoders[thread] = codecs.getincrementaldecoder(self.encoding)("replace")
        self.take(self._decoders[thread].decode(read.tobytes()), thread)
        return read.nbytes

    @property
    def raw(self) -> _Sink:
        return self

    def take(self, text: str, thread: int) -> None:
        current = self._open.get(self.name)
        if current is not self and current is not None:
            current.take(self._secrets.clean(text), thread)
        elif current is None or self._logged():
            self._show(self._secrets.clean(text))
        else:
            line = self._lines.get(thread)
            if line is None:
                line = self._lines[thread] = _Line(self._put_cut, self._clock, Stream(self._secrets))
            self._add(line, line.stream.feed(text))

    def _add(self, line: _Line, clean: str) -> None:
        if clean:
            self._show(clean)
            line.add(clean)

    def _show(self, text: str) -> None:
        """To the worker's own stream, in whatever encoding it has."""
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))

    def _put_cut(self, text: str) -> None:
        for at in range(0, max(1, len(text)), MAX_LINE):
            self._put(text[at : at + MAX_LINE])

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Nothing: others use the worker's stream after the step, and a wrapper around this closes it at its end."""


class Tee(io.TextIOWrapper):
    """One standard stream of an attempt, with all that code asks of ``sys.stdout``."""

    def __init__(
        self,
        name: str,
        stream: TextIO,
        put: Callable[[str], None],
        *,
        secrets: Secrets | None = None,
        logged: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            name: ``stdout`` or ``stderr``.
            stream: the worker's own.
            put: takes a line for the log.
            secrets: to be taken out.
            logged: whether what this thread writes now is in the log already, as a record that a handler prints.
            clock: seconds.
        """
        self._sink = _Sink(f"<{name}>", stream, put, secrets or Secrets(), logged, clock)
        super().__init__(self._sink, self._sink.encoding, "backslashreplace", newline="", line_buffering=True)
        self.mode = "w"  # type: ignore[misc]

    def write(self, text: str) -> int:
        """Past the encoding: the secrets are taken out of the text as the step wrote it."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._sink.take(text, threading.get_ident())
        return len(text)

    def finish(self) -> None:
        """The attempt is over."""
        self._sink.finish()

    def reconfigure(self, *, encoding: str | None = None, **_: Any) -> None:
        """Change the encoding alone: whatever a step wants, lines are written at once and no character is an error."""
        if encoding is not None:
            super().reconfigure(encoding=encoding, errors=self.errors)
            self._sink.decode_as(encoding)

    def detach(self) -> Any:
        return self.buffer

    def close(self) -> None:
        """Nothing: others use the worker's stream after the step."""
