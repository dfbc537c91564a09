"""The files that have arrived for a stream: a listing of its folder, which coordinators may ask for too."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate

from unstuck.tasks.errors import FileChanged, FileNameInvalid, SourceUnavailable
from unstuck.tasks.formats.arrived import ArrivedFile, content_of, size_of
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.warehouse.object_store import ObjectStore

_PATTERN = re.compile(r"[*?\[{]")
_BRACES = re.compile(r"\{([^{}]*)\}")
_SHOWN = 3  # names in a message

Seen = Mapping[str, str]
"""Path → content of files."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files in the folder of a stream.

    Attributes:
        files: path → content of each file that counts.
        not_counted: how many files do not count, by their names.
        folders: on this machine: each folder that was read, with all names in it, as this process decodes them.
        stored: in an object store: path → when it was written.
    """

    files: Seen
    not_counted: int = 0
    folders: dict[str, set[str]] = field(default_factory=dict)
    stored: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The files of a listing beside those that were read before.

    Attributes:
        new: the files to read, in the order in which they were written.
        changed: those that were read before, and have other content now.
        looked: how many files were looked at.
    """

    new: list[ArrivedFile]
    changed: list[ArrivedFile] = field(default_factory=list)
    looked: int = 0
    not_counted: int = 0


def arrivals(stream: StreamInput, seen: Seen) -> Arrivals:
    """Look at the folder of ``stream``. ``seen``: the files that were read.

    Raises:
        SourceUnavailable: the folder is not there, or it or one below cannot be read.
        FileNameInvalid: a file has a name that is no UTF-8; or as `_check_address`.
        FileChanged: a file that was read has other content now, and the stream says ``changed: fail``.
        ValueError, WarehouseUnsupported: this process cannot ask the store of the folder.
    """
    found = listing(stream)
    new, changed = compare(found, seen)
    if changed and stream.changed == "fail":
        raise FileChanged(_changed_text(changed, seen))
    if stream.changed == "again":
        new = _as_written([*new, *changed])
    return Arrivals(new, changed, len(found.files), found.not_counted)


def compare(found: Listing, seen: Seen) -> tuple[list[ArrivedFile], list[ArrivedFile]]:
    """The files that are new, and those that were read before and have other content now; the oldest first."""
    news = [(path, content) for path, content in found.files.items() if seen.get(path) != content]
    files = _as_written(ArrivedFile(path, content, found.stored.get(path)) for path, content in news)
    return [file for file in files if file.path not in seen], [file for file in files if file.path in seen]


def _as_written(files: Iterable[ArrivedFile]) -> list[ArrivedFile]:
    return sorted(files, key=lambda file: (file.written or 0.0, file.path))


def listing(stream: StreamInput) -> Listing:
    """All files that lie in the folder of ``stream`` and below it. Raises: as `arrivals`."""
    _check_address(stream.stream)
    names = _Names.of(stream)
    if "://" in names.folder:
        _in_store(names)
    else:
        # As bytes: how Python decodes names depends on the locale of the process, and how the names were made does not.
        _below(names, names.folder.encode(), 0, ())
    return Listing(names.files, names.not_counted, names.folders, names.stored)


def _check_address(stream: str) -> None:
    """Raises: FileNameInvalid: a folder of this machine has this name, and as a pattern it means other folders."""
    folder, patterns = _split(stream)
    if "://" in folder or not patterns or not os.path.lexists(stream.encode()):
        return
    if not all(_compiled(part).fullmatch(part) for part in patterns):
        raise FileNameInvalid(
            f"the folder {stream} is there, and this stream does not read it: in the address of a stream, what stands "
            "in [ ] or { } is a pattern. Write ? for each of these characters, or rename the folder"
        )


def fixed_folder(stream: str) -> str:
    """The part of the address of a stream before its first pattern."""
    return _split(stream)[0]


def found_as(path: str) -> str:
    """The content of one file.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such file.
        SourceUnavailable: it cannot be asked for.
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
    """Which names count below a folder, and what was found of it, as in `Listing`.

    Attributes:
        folder: the part of the address before its first pattern.
        patterns: of the folders and the file below it, one for each level; below the last of them all counts.
    """

    folder: str
    patterns: list[re.Pattern[str]]
    hidden: re.Pattern[str]
    files: dict[str, str] = field(default_factory=dict)
    not_counted: int = 0
    folders: dict[str, set[str]] = field(default_factory=dict)
    stored: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, stream: StreamInput) -> _Names:
        folder, patterns = _split(stream.stream)
        return cls(folder, [*map(_compiled, patterns)], _compiled("_*", ".*", *stream.ignore))

    def counts(self, name: str, depth: int, *, is_file: bool) -> bool:
        """Whether the entry ``name`` counts, so many levels below the folder."""
        if depth < len(self.patterns) and not self.patterns[depth].fullmatch(name):
            return False
        if is_file and depth + 1 < len(self.patterns):
            return False  # a folder is wanted there
        if self.hidden.match(name) is None:
            return True
        self.not_counted += is_file
        return False


def _compiled(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(translate(one) for pattern in patterns for one in _alternatives(pattern)))


def _alternatives(pattern: str) -> Iterator[str]:
    """``a{b,c}`` as ``ab`` and ``ac``."""
    if (braces := _BRACES.search(pattern)) is None:
        yield pattern
        return
    for one in braces[1].split(","):
        yield from _alternatives(pattern[: braces.start()] + one + pattern[braces.end() :])


# -- a folder of this machine ----------------------------------------------------------------------------------


def _below(names: _Names, folder: bytes, depth: int, above: Sequence[tuple[int, int]]) -> None:
    """Find the files below ``folder``. ``above``: the folders on the way to it, so that no link leads round and round.

    Written for speed: there may be tens of thousands of files, of which one is new.
    """
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if depth and isinstance(error, FileNotFoundError | NotADirectoryError):
            names.folders[os.fsdecode(os.path.dirname(folder))].discard(os.fsdecode(os.path.basename(folder)))
            return  # removed since its name was read
        raise SourceUnavailable(_unreadable(folder, error, names)) from error
    try:
        _of_folder(names, folder, opened, depth, above)
    finally:
        os.close(opened)


def _of_folder(names: _Names, folder: bytes, opened: int, depth: int, above: Sequence[tuple[int, int]]) -> None:
    """As `_below`, of an open folder: each file is looked up in it, and not from the root."""
    there = names.folders[os.fsdecode(folder)] = set()
    begin = os.path.join(folder, b"").decode(errors="surrogateescape")
    hidden, files, matched = names.hidden.match, names.files, depth >= len(names.patterns)
    with os.scandir(opened) as entries:
        for entry in entries:
            name = entry.name
            there.add(name)
            if not name.isascii():
                name = os.fsencode(name).decode(errors="surrogateescape")
            try:
                is_folder = entry.is_dir()
                if not (matched and hidden(name) is None) and not names.counts(name, depth, is_file=not is_folder):
                    continue
                about = entry.stat()
            except FileNotFoundError:
                there.discard(entry.name)  # removed since, or a link to nothing: a file may come there
                continue
            except OSError as error:
                raise SourceUnavailable(_unreadable(_path_of(folder, entry), error, names)) from error
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
    """Raises: FileNameInvalid."""
    try:
        return path.decode()
    except UnicodeDecodeError:
        raise FileNameInvalid(
            f"the name of a file that has arrived is no UTF-8: {path!r}. No file was read. Rename it, as with: "
            f"mv $'{_in_shell(path)}' NEWNAME"
        ) from None


def _in_shell(path: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\x{byte:02x}" for byte in path)


def _unreadable(path: bytes, error: OSError, names: _Names) -> str:
    place = path.decode(errors="backslashreplace")
    where = "" if place == names.folder else f", below {names.folder}"
    return (
        f"the stream cannot read {place}{where}: {error.strerror}. Nothing was read. Look whether the folder is there, "
        "mounted on this machine, and readable by the account of this process"
    )


# -- an object store -------------------------------------------------------------------------------------------


def _in_store(names: _Names) -> None:
    scheme, _, rest = names.folder.partition("://")
    bucket, _, prefix = rest.partition("/")
    store = ObjectStore(f"{scheme}://{bucket}")
    try:
        for path, size, version, at in store.listed(prefix):
            parts = path.removeprefix(f"{prefix}/" if prefix else "").split("/")
            *folders, name = parts
            counts = all(names.counts(folder, depth, is_file=False) for depth, folder in enumerate(folders))
            if counts and names.counts(name, len(folders), is_file=True):
                file = f"{scheme}://{bucket}/{path}"
                names.files[file], names.stored[file] = content_of(size, version), at
    except OSError as error:
        raise SourceUnavailable(f"the stream cannot read {names.folder}: {error}. Nothing was read") from error


# -- what people are told --------------------------------------------------------------------------------------


def _changed_text(changed: Sequence[ArrivedFile], seen: Seen) -> str:
    def one(file: ArrivedFile) -> str:
        size = size_of(seen[file.path])
        how = "as many" if size == file.size else f"{file.size:,}"
        return f"{file.path} (read with {size:,} bytes, has {how} now and was written since)"

    rest = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    return (
        f"{', '.join(map(one, changed[:_SHOWN]))}{rest}: a file that was read has other content now. Nothing was read. "
        "Give new content a new name; or say changed: again (all rows of the file are appended once more) or "
        "changed: ignore"
    )
