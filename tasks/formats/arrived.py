"""A file that has arrived for a stream, as the listing found it, and one that was put aside."""

from __future__ import annotations

from dataclasses import dataclass, field


def content_of(size: int, version: int | str) -> str:
    """The content of a file, to be compared: ``"52 1795801822956405000"``."""
    return f"{size} {version}"


def size_of(content: str) -> int:
    """The size of a file with this content, in bytes."""
    return int(content.partition(" ")[0])


def shown_path(path: str) -> str:
    """Return a path as text, also where its name is not UTF-8."""
    return path.encode(errors="backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class ArrivedFile:
    """One file; its path and its content together are its identity.

    Attributes:
        path: absolute, or a URI such as ``s3://bucket/in/a.json``. Each letter is itself, also
            ``*``, ``[`` and ``%``.
        content: its size in bytes and its version in one text, as of `content_of`: a position holds
            thousands.
        stored: when an object was written, in seconds since the epoch, as its store says.
    """

    path: str
    content: str
    stored: float | None = field(default=None, compare=False)

    @property
    def size(self) -> int:
        """In bytes."""
        return size_of(self.content)

    @property
    def version(self) -> str:
        """Its modification time in nanoseconds since the epoch, or its etag on an object store."""
        return self.content.partition(" ")[2]

    @property
    def written(self) -> float | None:
        """When, in seconds since the epoch; None if that is not known."""
        return self.stored if "://" in self.path else int(self.version) / 1e9


@dataclass(frozen=True, slots=True)
class PutAsideEntry:
    """A file, or a message, of which no row was read.

    Attributes:
        gone: it is not there any more, or has changed since it was listed; a later job may read it.
        line: where the error was found, or the offset of a message; None if it is not of a line.
        text: the line, or its beginning.
    """

    path: str
    error: str
    gone: bool
    line: int | None
    text: str
