"""Reads the bytes of a file that has arrived: opens, decompresses and converts them to UTF-8."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

from unstuck.tasks.errors import OutOfMemory, SourceUnavailable, lacks_memory
from unstuck.tasks.formats.arrived import ArrivedFile, shown_path
from unstuck.tasks.spec.streams.stream_options import NOT_UNPACKED, PACKED
from unstuck.tasks.warehouse.object_store import ObjectStore

_BLOCK = 16 * 1024 * 1024
# Bytes that are split into lines at once; each line needs some 40 bytes more.
_OF_LINES = 1024 * 1024
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BEGINS = {
    b"\x1f\x8b": "is packed by gzip. Give it a name that ends with .gz, and it is unpacked",
    b"BZh91AY": "is packed by bz2. Give it a name that ends with .bz2, and it is unpacked",
    b"\x28\xb5\x2f\xfd": (
        "is packed by zstd. Give it a name that ends with .zst, and it is unpacked"
    ),
    b"\x04\x22\x4d\x18": "is packed by lz4. Give it a name that ends with .lz4, and it is unpacked",
    b"PK\x03\x04": "is a zip archive. Unpack it before; an .xlsx file is one, too",
    b"PAR1\x15": "is Parquet. Say format: parquet",
    b"Obj\x01": "is Avro, which is not read from files",
}


class Unreadable(Exception):
    """The content of a file cannot be read as the spec says.

    Attributes:
        line: line of the error; 0 if the error has no line.
        text: the line, or its beginning.
    """

    def __init__(self, why: str, line: int = 0, text: bytes | str = "") -> None:
        super().__init__(why)
        self.line = line
        self.text = (text if isinstance(text, str) else text[:400].decode(errors="replace"))[
            :300
        ].rstrip("\r\n")


class Gone(Exception):
    """The file was removed or changed since it was listed. A retry reads the new content."""


class _Raw(io.RawIOBase):
    """A file of a store that keeps the error of the store.

    Decompressors raise errors of the same types.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self.failed: OSError | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._file.read(len(buffer))
        except OSError as error:
            self.failed = error
            raise
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Left(io.BufferedReader):
    """Arrow closes what it has read."""

    def close(self) -> None:
        self.detach()


@contextmanager
def opened(file: ArrivedFile) -> Iterator[Any]:
    """Yield a reader of the stored bytes of ``file``.

    Raises:
        Gone: the file was removed or changed since it was listed, even if its content caused
            another error.
        Unreadable: instead of the errors that decompression and decoding raise.
        SourceUnavailable: this process may not read the file, or its store failed.
        OutOfMemory: this process has too little memory for it.
    """
    try:
        source: Any
        if "://" in file.path:
            store, key = _store_of(file.path)
            source = store.open(key)
        else:
            # Closed with the reader.
            source = open(file.path.encode(), "rb", buffering=0)  # noqa: SIM115
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise Gone("the file is not there any more") from error
    except OSError as error:
        raise _unavailable(file, error) from error
    raw = _Raw(source)
    with io.BufferedReader(raw, 1024 * 1024) as reader:
        try:
            yield reader
        except (EOFError, zlib.error, OSError, MemoryError, Unreadable) as error:
            if lacks_memory(error):
                raise OutOfMemory(
                    f"{shown_path(file.path)} takes more memory than this worker has. Nothing was "
                    "read. Give the worker more memory, or bound the files with max_file_bytes or "
                    "max_row_bytes"
                ) from error
            if isinstance(raw.failed, FileNotFoundError):
                raise Gone("the file was removed while it was read") from error
            if raw.failed is not None:
                raise _unavailable(file, raw.failed) from raw.failed
            _check_same(file, source)
            if isinstance(error, Unreadable):
                raise
            raise Unreadable(f"the file is cut short, or damaged: {error}") from error
        _check_same(file, source)


def _unavailable(file: ArrivedFile, error: OSError) -> SourceUnavailable:
    """Return the error for a file that cannot be fetched.

    It says nothing about the content, and another worker may be able to fetch it.
    """
    return SourceUnavailable(
        f"{shown_path(file.path)} cannot be read by this worker: {error.strerror or error}. "
        "Nothing was read. Look at the rights of the file and of its folders, and at its store"
    )


def _check_same(file: ArrivedFile, source: Any) -> None:
    """A file that somebody writes while it is read may look whole. Raises: Gone."""
    if "://" in file.path:
        store, key = _store_of(file.path)
        try:
            size, version = store.about(key)  # it was read by ranges, which may be of two objects
        except FileNotFoundError as error:
            raise Gone("the file was removed while it was read") from error
    else:
        about = os.fstat(source.fileno())
        size, version = about.st_size, str(about.st_mtime_ns)
    if (size, version) != (file.size, file.version):
        raise Gone(
            f"the file has changed since it was listed: it had {file.size:,} bytes, and has "
            f"{size:,}"
        )


def _store_of(path: str) -> tuple[ObjectStore, str]:
    """The bucket of an object, and its key."""
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    return ObjectStore(f"{scheme}://{bucket}"), key


def unpacked(reader: Any, file: ArrivedFile) -> Any:
    """Return a stream of the bytes of a text file, decompressed by the ending of its name.

    Raises: Unreadable.
    """
    name = file.path.lower()
    if name.endswith(NOT_UNPACKED):
        raise Unreadable(
            f"a file {os.path.splitext(name)[1]} cannot be unpacked; known are "
            f"{', '.join(PACKED)}, and plain files"
        )
    kind = PACKED.get(os.path.splitext(name)[1])
    if kind is None:
        return reader
    if not file.size:
        raise Unreadable(
            "the file is cut short: it has no bytes, and not even the end of what was packed"
        )
    if kind == "gzip":
        return gzip.GzipFile(fileobj=reader)
    if kind == "bz2":
        return bz2.BZ2File(reader)
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(_Left(reader), "r"), kind)


def beyond_row(what: str, bound: int, line: int, text: bytes = b"") -> Unreadable:
    """Return the error for a line, a record or a row with more than ``bound`` bytes."""
    return Unreadable(
        f"a {what} has more than {bound:,} bytes. If that is right, say max_row_bytes:", line, text
    )


def in_utf8(stream: Any, encoding: str, size: int = _BLOCK) -> Iterator[bytes]:
    """Yield the blocks of a text file in UTF-8, without a byte order mark.

    The blocks are not validated.

    Raises: Unreadable: the file has another encoding than the spec says.
    """
    blocks = iter(partial(stream.read, size), b"")
    first = next(blocks, b"")
    if kind := next((kind for mark, kind in _BEGINS.items() if first.startswith(mark)), ""):
        raise Unreadable(f"the file is no text: by its first bytes it {kind}")
    if encoding:
        yield from filter(None, _decoded(chain([first], blocks), encoding))
        return
    if first.startswith(_UTF_16):
        raise Unreadable("the file is in UTF-16. Say options: {encoding: UTF-16}", 1)
    yield from filter(None, chain([first.removeprefix(codecs.BOM_UTF8)], blocks))


def _decoded(blocks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Yield ``blocks`` in UTF-8, without the mark at the beginning. Raises: Unreadable."""
    decoder, line, mark = codecs.getincrementaldecoder(encoding)(), 1, "\ufeff"
    for block in chain(blocks, [b""]):
        try:
            text = decoder.decode(block, not block)
        except UnicodeError as error:
            raise Unreadable(
                f"the file is not in the encoding {encoding}: {error}", line
            ) from error
        yield text.removeprefix(mark).encode()
        line += text.count("\n")
        mark = ""


def check_utf8(block: bytes, line: int) -> None:
    """Check that a block of text is UTF-8; ``line``: number of its first line.

    Raises: Unreadable.
    """
    try:
        block.decode()
        if (at := block.find(b"\0")) < 0:
            return
        why = "it holds the character 0, as text in UTF-16 does"
    except UnicodeDecodeError as error:
        at = error.start
        why = f"the byte 0x{block[at]:02X} is no UTF-8"
    begin = block.rfind(b"\n", 0, at) + 1
    raise Unreadable(
        f"{why}: character {len(block[begin:at].decode(errors='replace')) + 1} of its line. If the "
        "file is in another encoding, say which, such as options: {encoding: ISO-8859-1}",
        line + block.count(b"\n", 0, at),
        block[begin : block.find(b"\n", at) if b"\n" in block[at:] else None],
    )


Placed = tuple[Any, Callable[[int], int]]  # a table, and the line of each of its rows


def lines_of(stream: Any, encoding: str, max_line: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield blocks of whole lines without line ends, and the number of the first line.

    Raises: Unreadable.
    """
    rest, line = b"", 1
    for block in in_utf8(stream, encoding, _OF_LINES):
        rest += block
        cut = rest.rfind(b"\n") + 1
        if cut:
            check_utf8(rest[:cut], line)
            lines = rest[: cut - 1].split(b"\n")
            yield line, [raw_line.removesuffix(b"\r") for raw_line in lines]
            line, rest = line + len(lines), rest[cut:]
        if len(rest) > max_line:
            raise beyond_row("line", max_line, line, rest)
    if rest:
        check_utf8(rest, line)
        yield line, [rest.removesuffix(b"\r")]
