"""Remove secrets from what an attempt writes to descriptors 1 and 2, past ``sys.stdout``.

Child processes and C libraries write there. A small process reads their text and writes it, without
secrets, to the worker's own streams; it ends when the last writer has closed its descriptors.
"""

# A thread could not filter: C code that holds the GIL while it writes into a full pipe would wait
# for ever.

from __future__ import annotations

import codecs
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain

from unstuck.tasks.errors import NotBegun
from unstuck.tasks.protocol.secrets import Secrets, Stream


@contextmanager
def filtered(
    secrets: Secrets, start: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen
) -> Iterator[None]:
    """Keep the values of ``secrets`` out of the worker's own streams during the block.

    ``start`` starts the process that filters, which ends by itself. Without secrets, nothing is
    started.

    Raises:
        NotBegun: the process that filters cannot be started.
    """
    streams = {1: sys.__stdout__, 2: sys.__stderr__}
    descriptors = [fd for fd, stream in streams.items() if stream and not stream.closed]
    if not secrets.values or not descriptors:
        yield
        return
    with ExitStack() as stack:
        try:
            with ExitStack() as ends:
                pipes = {fd: os.pipe() for fd in descriptors}
                for end in chain.from_iterable(pipes.values()):
                    ends.callback(os.close, end)
                _start(secrets, {fd: read for fd, (read, _) in pipes.items()}, start)
                for fd, (_, write) in pipes.items():
                    stack.callback(_put, os.dup(fd), fd)
                    os.dup2(write, fd)
        except OSError as error:  # no descriptor or process is left
            raise NotBegun(f"what is printed cannot be kept free of secrets: {error}") from error
        stack.callback(_flush)
        yield


def _start(
    secrets: Secrets, reads: Mapping[int, int], start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Start the process that filters. ``reads``: a pipe for each descriptor of the worker."""
    process = start(
        [sys.executable, "-m", "unstuck.tasks.runner.logs.stdio_filter", json.dumps(reads)],
        stdin=subprocess.PIPE,
        pass_fds=list(reads.values()),
    )
    assert process.stdin is not None
    with process.stdin as pipe:  # through a pipe: other users can see arguments and environment
        pipe.write(json.dumps(secrets.values).encode())


def _put(kept: int, fd: int) -> None:
    """Restore ``fd``."""
    with suppress(OSError):  # the step has closed all descriptors
        os.dup2(kept, fd)
        os.close(kept)


def _flush() -> None:
    """Write out the buffers of this process, while the filter is in place."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(Exception):  # a step may have closed or replaced the stream
            stream.flush()  # type: ignore[union-attr]
    ctypes.CDLL(None).fflush(None)


# -- the process -----------------------------------------------------------------------------------


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the writers; this process ends after them
    reads = json.loads(sys.argv[1])
    secrets = Secrets.of(json.loads(sys.stdin.buffer.read()))
    with selectors.DefaultSelector() as waiting:
        for fd, read in reads.items():
            decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
            waiting.register(read, selectors.EVENT_READ, (int(fd), decoder, Stream(secrets)))
        while waiting.get_map():
            for ready, _ in waiting.select():
                fd, decoder, stream = ready.data
                data = os.read(ready.fd, 2**16)
                text = stream.feed(decoder.decode(data, final=not data))
                if not data:
                    text += stream.finish()
                    waiting.unregister(ready.fileobj)
                _write(fd, text.encode("utf-8", "surrogateescape"))


def _write(fd: int, data: bytes) -> None:
    with suppress(OSError):  # nobody reads any more; the writers must not notice
        while data:
            data = data[os.write(fd, data) :]


if __name__ == "__main__":
    main()
