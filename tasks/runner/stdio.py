"""The standard streams of an attempt: what a step prints goes to the worker's own stream as ever, and into the log.

A step sees what it sees when it runs alone: text, bytes through ``buffer``, an encoding, a descriptor. Lines reach the
log whole. One that does not end, such as dots or a bar that draws itself again, is shown every ``SHOWN_EVERY`` at most,
so that it can be followed and floods nothing. A write costs what it is long, however long the line has become.
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
    """The line that one thread has begun. One a thread, so that what several print is not mixed within a line.

    What is added went through ``stream``, so that it holds no secret wherever the line is cut.
    """

    def __init__(self, put: Callable[[str], None], clock: Callable[[], float], stream: Stream) -> None:
        self.stream = stream
        self._put = put
        self._clock = clock
        self._parts: list[str] = []
        self._length = 0
        self._since: float | None = None  # when the oldest that was not put yet was written, drawn over or not
        self._returned = False  # a \r came last: what follows draws over the line, unless it is \n

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


class _Bytes(io.BufferedIOBase):
    """``sys.stdout.buffer``: bytes that become text of the tee. What is no text is shown as U+FFFD."""

    def __init__(self, tee: Tee) -> None:
        self._tee = tee
        self._decoder = codecs.getincrementaldecoder(tee.encoding)("replace")

    @property
    def raw(self) -> Any:
        return self

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._tee.fileno()

    def write(self, data: Any) -> int:
        read = memoryview(data)
        self._tee.write(self._decoder.decode(read.tobytes()))
        return read.nbytes

    def flush(self) -> None:
        self._tee.flush()

    def close(self) -> None:
        """Nothing: it is the tee's, and a wrapper around it closes it when it is collected."""

    def finish(self) -> None:
        self._tee.write(self._decoder.decode(b"", final=True))


class Tee(io.TextIOBase):
    """One standard stream of an attempt.

    Whoever keeps it beyond the attempt, such as a logger that is set up once in a process, writes to the tee of the
    attempt that runs then, or to the worker's own stream.
    """

    _open: ClassVar[dict[str, Tee]] = {}

    def __init__(
        self,
        name: str,
        stream: TextIO,
        put: Callable[[str], None],
        *,
        secrets: Secrets | None = None,
        heard: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            name: ``stdout`` or ``stderr``.
            stream: the worker's own.
            put: takes a line for the log.
            secrets: to be taken out.
            heard: whether what this thread writes now is in the log already, as the record that is being shown.
            clock: seconds.
        """
        self._name = name
        self._stream = stream
        self._put = put
        self._secrets = secrets or Secrets()
        self._heard = heard
        self._clock = clock
        self._lines: dict[int, _Line] = {}
        self._encoding = "utf-8"
        self._buffer = _Bytes(self)
        self._open[name] = self

    def finish(self) -> None:
        """The attempt is over: what no line end followed goes into the log as well."""
        self._buffer.finish()
        for line in list(self._lines.values()):
            self._add(line, line.stream.finish())
            line.finish()
        if self._open.get(self._name) is self:
            del self._open[self._name]

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        tee = self._open.get(self._name)
        if not text:
            return 0  # as print(…, end="") writes, each time
        if tee is self:
            self._take(text)
        elif tee is None:
            self._show(self._secrets.clean(text))
        else:
            tee.write(self._secrets.clean(text))
        return len(text)

    def _take(self, text: str) -> None:
        if self._heard():
            self._show(self._secrets.clean(text))
            return
        thread = threading.get_ident()
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

    # -- what code asks of a stream ----------------------------------------------------------------------------

    @property
    def buffer(self) -> _Bytes:
        return self._buffer

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "replace"

    @property
    def name(self) -> str:
        return f"<{self._name}>"

    @property
    def mode(self) -> str:
        return "w"

    @property
    def line_buffering(self) -> bool:
        return True

    @property
    def write_through(self) -> bool:
        return True

    def reconfigure(self, *, encoding: str | None = None, **_: Any) -> None:
        """Another encoding of the bytes. All else is as it is: errors are shown, lines are written at once."""
        if encoding is not None:
            self._encoding = codecs.lookup(encoding).name
            self._buffer = _Bytes(self)

    def detach(self) -> Any:
        return self._buffer

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._stream.fileno()

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Nothing: the stream is the worker's, and others use it after the step."""
