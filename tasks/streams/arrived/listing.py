"""List the files that have arrived for a stream. Coordinators use it as well."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate

from unstuck.tasks.errors import FileChanged, FileNameInvalid, SourceUnavailable
from unstuck.tasks.formats.arrived import ArrivedFile, content_of, shown_path, size_of
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.spec.streams.file_format import file_format
from unstuck.tasks.spec.streams.stream_options import NOT_UNPACKED, PACKED
from unstuck.tasks.warehouse.object_store import ObjectStore

_PATTERN = re.compile(r"[*?\[{]")
_BRACES = re.compile(r"\{([^{}]*)\}")
_HIDDEN = ("_*", ".*", "~$*")  # the last are lock files of Microsoft Office
_SHOWN = 3  # names in a message

Seen = Mapping[str, str]
"""Path → content of files."""


@dataclass(frozen=True, slots=True)
class FolderListing:
    """The files in the folder of a stream.

    Attributes:
        files: path → content of each file that counts.
        ignored: the paths of the files that do not count, by their names.
        folders: on this machine: each folder that was read, with all names in it, as this process
            decodes them.
        stored: in an object store: path → when it was written.
    """

    files: Seen
    ignored: Sequence[str] = ()
    folders: dict[str, set[str]] = field(default_factory=dict)
    stored: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileArrivals:
    """The files of a listing beside those that were read before.

    Attributes:
        new: the files to read, in the order in which they were written.
        changed: those that were read before, and have other content now.
        looked: how many files were looked at.
        ignored: as in `FolderListing`.
    """

    new: list[ArrivedFile]
    changed: list[ArrivedFile] = field(default_factory=list)
    looked: int = 0
    ignored: Sequence[str] = ()


def arrivals(stream: StreamInput, already_read: Seen) -> FileArrivals:
    """Look at the folder of ``stream``. ``already_read``: the files that were read.

    Raises:
        SourceUnavailable: the folder is not there, or it or one below cannot be read.
        FileNameInvalid: a file has a name that is no UTF-8; or as `_check_address`.
        FileChanged: a file that was read has other content now, and the stream says ``changed:
            fail``.
        ValueError, WarehouseUnsupported: this process cannot ask the store of the folder.
    """
    listed = listing(stream)
    new, changed = compare(listed, already_read)
    if changed and stream.changed == "fail":
        raise FileChanged(_changed_text(changed, already_read))
    if stream.changed == "again":
        new = _as_written([*new, *changed])
    return FileArrivals(new, changed, len(listed.files), listed.ignored)


def compare(
    listed: FolderListing, already_read: Seen
) -> tuple[list[ArrivedFile], list[ArrivedFile]]:
    """Return new files, and read files whose content has changed, oldest first."""
    news = [
        (path, content)
        for path, content in listed.files.items()
        if already_read.get(path) != content
    ]
    files = _as_written(
        ArrivedFile(path, content, listed.stored.get(path)) for path, content in news
    )
    return [file for file in files if file.path not in already_read], [
        file for file in files if file.path in already_read
    ]


def _as_written(files: Iterable[ArrivedFile]) -> list[ArrivedFile]:
    return sorted(files, key=lambda file: (file.written or 0.0, file.path))


def listing(stream: StreamInput) -> FolderListing:
    """All files that lie in the folder of ``stream`` and below it. Raises: as `arrivals`."""
    _check_address(stream.stream)
    names = _Names.of(stream)
    if "://" in names.folder:
        _in_store(names)
    else:
        # As bytes: how Python decodes names depends on the locale of the process, and how the names
        # were made does not.
        _below(names, names.folder.encode(), 0, ())
    return FolderListing(names.files, names.ignored, names.folders, names.stored)


def _check_address(stream: str) -> None:
    """Check that the address of a stream is not ambiguous.

    Raises: FileNameInvalid: it names an existing local folder, and as a pattern it matches others.
    """
    folder, patterns = _split(stream)
    if "://" in folder or not patterns or not os.path.lexists(stream.encode()):
        return
    if not all(_compiled(part).fullmatch(part) for part in patterns):
        raise FileNameInvalid(
            f"the folder {stream} is there, and this stream does not read it: in the address of a "
            "stream, what stands in [ ] or { } is a pattern. Write ? for each of these characters, "
            "or rename the folder"
        )


def fixed_folder(stream: str) -> str:
    """The part of the address of a stream before its first pattern."""
    return _split(stream)[0]


def found_as(path: str) -> str:
    """Return the content of one file.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such file.
        SourceUnavailable: it cannot be accessed.
    """
    try:
        if "://" not in path:
            about = os.stat(path.encode())
            return content_of(about.st_size, about.st_mtime_ns)
        scheme, _, rest = path.partition("://")
        bucket, _, key = rest.partition("/")
        return content_of(*ObjectStore(f"{scheme}://{bucket}").about(key))
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise SourceUnavailable(f"{path} cannot be read: {error}") from error


def _split(stream: str) -> tuple[str, list[str]]:
    parts = stream.split("/")
    at = next((i for i, part in enumerate(parts) if _PATTERN.search(part)), len(parts))
    return "/".join(parts[:at]) or "/", parts[at:]


@dataclass(slots=True)
class _Names:
    """The names that count below a folder, and what was found there, as in `FolderListing`.

    Attributes:
        folder: the part of the address before its first pattern.
        patterns: of the folders and the file below it, one for each level; any folder counts below
            the last of them.
        hidden: names of files and folders that do not count.
        counted: names of files that count. A file that the last of ``patterns`` names with its
            ending, as ``*.dat`` does, counts as well.
    """

    folder: str
    patterns: list[re.Pattern[str]]
    hidden: re.Pattern[str]
    counted: re.Pattern[str]
    names_files: bool
    files: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    folders: dict[str, set[str]] = field(default_factory=dict)
    stored: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, stream: StreamInput) -> _Names:
        folder, patterns = _split(stream.stream)
        counted = _endings(stream.format) if stream.files is None else _compiled(*stream.files)
        hidden, by_level = _compiled(*_HIDDEN, *stream.ignore), [*map(_compiled, patterns)]
        return cls(folder, by_level, hidden, counted, bool(patterns) and "." in patterns[-1])

    def folder_counts(self, name: str, depth: int) -> bool:
        """Return whether the folder ``name`` counts at this depth below the stream."""
        return self._fits_address(name, depth) and self.hidden.match(name) is None

    def file_counts(self, begin: str, name: str, depth: int) -> bool:
        """As `folder_counts`, of a file; ``begin`` is its path before its name."""
        if depth + 1 < len(self.patterns) or not self._fits_address(name, depth):
            return False
        by_address = self.names_files and depth + 1 == len(self.patterns)
        if self.hidden.match(name) is None and (by_address or self.counted.match(name)):
            return True
        self.ignored.append(begin + name)
        return False

    def _fits_address(self, name: str, depth: int) -> bool:
        return depth >= len(self.patterns) or self.patterns[depth].fullmatch(name) is not None


def _compiled(*patterns: str) -> re.Pattern[str]:
    return re.compile(
        "|".join(
            translate(alternative) for pattern in patterns for alternative in _alternatives(pattern)
        )
    )


def _endings(format: str) -> re.Pattern[str]:
    """The names of files of a format, whatever the case of their endings."""
    packed = "|".join(map(re.escape, (*PACKED, *NOT_UNPACKED)))
    endings = "|".join(map(re.escape, file_format(format).endings))
    return re.compile(rf"(?is:.*\.(?:{endings})(?:{packed})?)\Z")


def some_names(paths: Sequence[str]) -> str:
    """Return the number of ``paths`` and some names; hidden names come last."""
    names = sorted(
        (path.rpartition("/")[2] for path in paths), key=lambda name: (name[:1] in "_.~", name)
    )
    some = ", ".join(shown_path(name) for name in names[:_SHOWN])
    if len(names) <= _SHOWN:
        return f"{len(names):,} ({some})"
    return f"{len(names):,} ({some}, …)"


def _alternatives(pattern: str) -> Iterator[str]:
    """``a{b,c}`` as ``ab`` and ``ac``."""
    if (braces := _BRACES.search(pattern)) is None:
        yield pattern
        return
    for alternative in braces[1].split(","):
        yield from _alternatives(pattern[: braces.start()] + alternative + pattern[braces.end() :])


# -- a folder of this machine ----------------------------------------------------------------------


def _below(names: _Names, folder: bytes, depth: int, above: Sequence[tuple[int, int]]) -> None:
    """Find the files below ``folder``.

    ``above`` holds the parent folders, so that links cannot form a cycle.

    Written for speed: there may be tens of thousands of files, of which one is new.
    """
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if depth and isinstance(error, FileNotFoundError | NotADirectoryError):
            names.folders[os.fsdecode(os.path.dirname(folder))].discard(
                os.fsdecode(os.path.basename(folder))
            )
            return  # removed since its name was read
        raise SourceUnavailable(_unreadable(folder, error, names)) from error
    try:
        _of_folder(names, folder, opened, depth, above)
    finally:
        os.close(opened)


def _of_folder(
    names: _Names, folder: bytes, opened: int, depth: int, above: Sequence[tuple[int, int]]
) -> None:
    """As `_below`, of an open folder: each file is looked up in it, and not from the root."""
    entry_names = names.folders[os.fsdecode(folder)] = set()
    begin = os.path.join(folder, b"").decode(errors="surrogateescape")
    files = names.files
    with os.scandir(opened) as entries:
        for entry in entries:
            name = entry.name
            entry_names.add(name)
            if not name.isascii():
                name = os.fsencode(name).decode(errors="surrogateescape")
            try:
                is_folder = entry.is_dir()
                counts = (
                    names.folder_counts(name, depth)
                    if is_folder
                    else names.file_counts(begin, name, depth)
                )
                if not counts:
                    continue
                about = entry.stat()
            except FileNotFoundError:
                # Removed since, or a dangling link: a file may still appear there.
                entry_names.discard(entry.name)
                continue
            except OSError as error:
                raise SourceUnavailable(
                    _unreadable(_path_of(folder, entry), error, names)
                ) from error
            if is_folder:
                place = (about.st_dev, about.st_ino)
                if place not in above:
                    _below(names, _path_of(folder, entry), depth + 1, (*above, place))
            elif stat.S_ISREG(about.st_mode):
                path = begin + name
                path = path if path.isascii() else _as_text(_path_of(folder, entry))
                files[path] = f"{about.st_size} {about.st_mtime_ns}"


def _path_of(folder: bytes, entry: os.DirEntry[str]) -> bytes:
    return os.path.join(folder, os.fsencode(entry.name))


def _as_text(path: bytes) -> str:
    """Return a path as text. Raises: FileNameInvalid."""
    try:
        return path.decode()
    except UnicodeDecodeError:
        raise FileNameInvalid(
            f"the name of a file that has arrived is no UTF-8: {path!r}. No file was read. Rename "
            f"it, as with: mv $'{_in_shell(path)}' NEWNAME"
        ) from None


def _in_shell(path: bytes) -> str:
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\x{byte:02x}" for byte in path
    )


def _unreadable(path: bytes, error: OSError, names: _Names) -> str:
    place = path.decode(errors="backslashreplace")
    where = "" if place == names.folder else f", below {names.folder}"
    return (
        f"the stream cannot read {place}{where}: {error.strerror}. Nothing was read. Look whether "
        "the folder is there, mounted on this machine, and readable by the account of this process"
    )


# -- an object store -------------------------------------------------------------------------------


def _in_store(names: _Names) -> None:
    scheme, _, rest = names.folder.partition("://")
    bucket, _, prefix = rest.partition("/")
    store = ObjectStore(f"{scheme}://{bucket}")
    try:
        for path, size, version, at in store.listed(prefix):
            *folders, name = path.removeprefix(f"{prefix}/" if prefix else "").split("/")
            counts = all(names.folder_counts(folder, depth) for depth, folder in enumerate(folders))
            file = f"{scheme}://{bucket}/{path}"
            if counts and names.file_counts(file.removesuffix(name), name, len(folders)):
                names.files[file], names.stored[file] = content_of(size, version), at
    except OSError as error:
        raise SourceUnavailable(
            f"the stream cannot read {names.folder}: {error}. Nothing was read"
        ) from error


# -- what people are told --------------------------------------------------------------------------


def _changed_text(changed: Sequence[ArrivedFile], already_read: Seen) -> str:
    def described(file: ArrivedFile) -> str:
        size = size_of(already_read[file.path])
        how = "as many" if size == file.size else f"{file.size:,}"
        return f"{file.path} (read with {size:,} bytes, has {how} now and was written since)"

    rest = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    return (
        f"{', '.join(map(described, changed[:_SHOWN]))}{rest}: a file that was read has other "
        "content now. Nothing was read. Give new content a new name; or say changed: again "
        "(all rows of the file are appended once more) or changed: ignore"
    )
