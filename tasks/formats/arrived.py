"""Describes a file that has arrived for a stream, and a file or message that was put aside."""

from __future__ import annotations

from dataclasses import dataclass, field


def content_of(size: int, version: int | str) -> str:
    """Return the content of a file as text for comparison: ``"52 1795801822956405000"``."""
    return f"{size} {version}"


def size_of(content: str) -> int:
    """Return the size of a file with this content, in bytes."""
    return int(content.partition(" ")[0])


def shown_path(path: str) -> str:
    """Return a path as text, even if it is not UTF-8."""
    return path.encode(errors="backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class ArrivedFile:
    """One file; its path and its content together are its identity.

    Attributes:
        path: absolute path, or a URI such as ``s3://bucket/in/a.json``. No character has a special
            meaning, not even ``*``, ``[`` and ``%``.
        content: its size in bytes and its version, as one text from `content_of`.
        stored: when the store says that an object was written, in seconds since the epoch.
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
        """When it was written, in seconds since the epoch; None if unknown."""
        return self.stored if "://" in self.path else int(self.version) / 1e9


@dataclass(frozen=True, slots=True)
class PutAsideEntry:
    """A file, or a message, of which no row was read.

    Attributes:
        gone: whether it was removed or changed since it was listed; a later job may read it.
        line: line of the error, or offset of the message; None if the error has no line.
        text: the line, or its beginning.
    """

    path: str
    error: str
    gone: bool
    line: int | None
    text: str
