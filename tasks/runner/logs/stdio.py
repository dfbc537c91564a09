"""Copy what a step prints to the worker's stream and to the log of the attempt.

The log gets whole lines. A line that does not end, such as a progress bar, is logged every
``SHOWN_EVERY`` seconds.
"""

from __future__ import annotations

import codecs
import io
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, ClassVar, TextIO

from unstuck.tasks.protocol.secrets import Secrets, Stream

MAX_LINE = 64 * 1024  # characters; what is longer is cut
SHOWN_EVERY = 5.0  # seconds


class _Line:
    """The unfinished line of one thread, so that lines of several threads are not mixed.

    What is added went through ``stream``, so it holds no secret wherever the line is cut.
    """

    def __init__(
        self, put: Callable[[str], None], clock: Callable[[], float], secrets: Secrets
    ) -> None:
        self.stream = Stream(secrets)
        self._put = put
        self._clock = clock
        self._parts: list[str] = []
        self._length = 0
        self._since = 0.0  # when the first part was written

    def add(self, text: str) -> None:
        *ended, rest = text.split("\n")
        for piece in ended:
            self._parts.append(piece)
            self.show(blank=True)
        if not rest:
            return
        now = self._clock()
        if now - self._since >= SHOWN_EVERY or self._length + len(rest) > MAX_LINE:
            self.show()
        if not self._parts:
            self._since = now
        self._parts.append(rest)
        self._length += len(rest)

    def show(self, *, blank: bool = False) -> None:
        # After \r a progress bar is drawn again: what was drawn last counts. A \r at the end is
        # half of a \r\n.
        text = "".join(self._parts).rstrip("\r").rpartition("\r")[2]
        self._parts, self._length = [], 0
        if blank or text.strip():
            for at in range(0, max(1, len(text)), MAX_LINE):
                self._put(text[at : at + MAX_LINE])


class _Bytes(io.BufferedIOBase):
    """``sys.stdout.buffer``: decodes what is written, and hands it to its ``Tee``."""

    def __init__(self, name: str, tee: Tee) -> None:
        self.name = name
        self._tee = tee
        self.decoders: dict[int, codecs.IncrementalDecoder] = defaultdict(
            lambda: codecs.getincrementaldecoder(tee.encoding)("replace")
        )

    @property
    def raw(self) -> _Bytes:
        return self

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._tee.stream.fileno()

    def write(self, data: Any) -> int:
        read = memoryview(data)
        thread = threading.get_ident()
        self._tee.take(self.decoders[thread].decode(read.tobytes()), thread)
        return read.nbytes

    def flush(self) -> None:
        self._tee.stream.flush()

    def close(self) -> None:
        """Do nothing, since others use the worker's stream after the step.

        A wrapper around this closes it at its end.
        """


class Tee(io.TextIOWrapper):
    """A standard stream of an attempt, with the interface of ``sys.stdout``.

    A logger may keep a stream beyond its attempt. What is written to a kept stream goes to the
    attempt that runs then, or to the worker's own stream alone.
    """

    _open: ClassVar[dict[str, Tee]] = {}

    def __init__(
        self,
        name: str,
        stream: TextIO,
        put: Callable[[str], None],
        *,
        secrets: Secrets | None = None,
        logged: Callable[[], bool] = lambda: False,
        shows: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``stream`` is the worker's own, and ``put`` takes a line for the log.

        ``logged``: whether what this thread writes now is in the log already, as a record that a
        handler prints.
        ``shows``: also on the worker's own stream, as it is written; else ``put`` shows it.
        """
        self.stream = stream
        self._secrets = secrets or Secrets()
        self._logged = logged
        self._shows = shows
        self._lines: dict[int, _Line] = defaultdict(lambda: _Line(put, clock, self._secrets))
        self._bytes = _Bytes(f"<{name}>", self)
        super().__init__(self._bytes, "utf-8", "backslashreplace", newline="", line_buffering=True)
        self.mode = "w"  # type: ignore[misc]
        self._open[self.name] = self

    def write(self, text: str) -> int:
        """Write text. Secrets are removed before it is encoded."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.take(text, threading.get_ident())
        return len(text)

    def take(self, text: str, thread: int) -> None:
        """Print ``text``, and write it to the log of the running attempt."""
        current = self._open.get(self.name)
        if current is not self and current is not None:
            current.take(self._secrets.clean(text), thread)
        elif current is None or self._logged():
            self._show(self._secrets.clean(text))
        else:
            line = self._lines[thread]
            self._add(line, line.stream.feed(text))

    def finish(self) -> None:
        """Write an unfinished line to the log when the attempt is over."""
        for thread, decoder in list(self._bytes.decoders.items()):
            self.take(decoder.decode(b"", final=True), thread)
        for line in list(self._lines.values()):
            self._add(line, line.stream.finish())
            line.show()
        if self._open.get(self.name) is self:
            del self._open[self.name]

    def _add(self, line: _Line, clean: str) -> None:
        if clean:
            if self._shows:
                self._show(clean)
            line.add(clean)

    def _show(self, text: str) -> None:
        """To the worker's own stream, in whatever encoding it has."""
        try:
            self.stream.write(text)
        except UnicodeEncodeError:
            encoding = self.stream.encoding
            self.stream.write(text.encode(encoding, "backslashreplace").decode(encoding))

    def reconfigure(self, *, encoding: str | None = None, **_: Any) -> None:
        """Change only the encoding. Lines are still written at once, with any character."""
        if encoding is not None:
            super().reconfigure(encoding=encoding, errors=self.errors)
            self._bytes.decoders.clear()

    def detach(self) -> Any:
        return self.buffer

    def close(self) -> None:
        """Do nothing, because others use the worker's stream after the step."""
