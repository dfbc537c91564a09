"""The files that have arrived for a stream, minus those that were read, as one frame."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import accumulate

from unstuck.tasks.formats.arrived import ArrivedFile, shown_path
from unstuck.tasks.formats.digest import digest_of
from unstuck.tasks.formats.file_content import Gone
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.streams.arrived.listing import FileArrivals, arrivals, some_names
from unstuck.tasks.streams.arrived.position import FilesPosition, KafkaPosition
from unstuck.tasks.streams.read.files_read import ReadFiles, read_files
from unstuck.tasks.streams.read.group_stream import Reader, StreamBatch

BYTES_WITHOUT_SPARK = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ArrivingFiles:
    """The files of ``spec``, as `GroupStream` reads them.

    Attributes:
        without_spark: bytes of files that one job without Spark reads, unless the spec has a bound.
    """

    spec: StreamInput
    reader: Reader
    without_spark: int = BYTES_WITHOUT_SPARK

    def take(self, position: FilesPosition | KafkaPosition | None) -> StreamBatch:
        """Read what has arrived.

        Raises: SourceUnavailable, FileNameInvalid, FileChanged; as `read_files`.
        """
        before = position if isinstance(position, FilesPosition) else FilesPosition()
        reader = self.reader
        arrived = arrivals(self.spec, before.contents)
        own = [file for file in arrived.new if reader.share.has(file.path)]
        batch = _batch(own, self.spec.max_files_per_run, self._max_bytes)
        left = len(own) - len(batch)
        copies = _Copies(before.digests)
        if self.spec.known_by == "content":
            batch = copies.left_out(batch)
        read = read_files(reader.session, batch, self.spec, reader.files, reader.folder)
        copies.add_read(read)
        paths = read.rows.keys() | read.bad.keys()
        done = [file for file in batch if file.path in paths]
        done += copies.settled({file.path for file in done})
        sizes = {file.path: file.size for file in done}
        counts = {
            "looked": arrived.looked,
            "files": len(read.rows),
            "bytes": sum(map(sizes.__getitem__, read.rows)),
        }
        counts |= _nonzero(
            left=left,
            ignored=len(arrived.ignored),
            duplicates=len(copies.of),
            changed=len(arrived.changed),
            put_aside=len(read.bad),
            unsettled=len(read.gone),
        )
        after = self._after(before, done, read, read.digests | copies.digests)
        summary = _summary(self.spec, arrived, own, read, left) + copies.summary()
        return StreamBatch(read.frame, after, counts, summary, read.put_aside)

    def _after(
        self,
        before: FilesPosition,
        done: Sequence[ArrivedFile],
        read: ReadFiles,
        digests: dict[str, str],
    ) -> FilesPosition | None:
        """Return the position after the files ``done``; None without such files.

        The position of a member of a fork has only the files of this job.
        """
        if not done:
            return None
        contents = {file.path: file.content for file in done}
        if self.reader.share.of == 1:
            contents = before.contents | contents
            digests = before.digests | digests
        return FilesPosition(contents, dict(read.rows), read.bad, digests)

    @property
    def _max_bytes(self) -> int | None:
        """Without Spark all rows are in memory at once."""
        bound = self.spec.max_bytes_per_run
        return self.without_spark if bound is None and self.reader.session is None else bound


class _Copies:
    """New files with the bytes of another file that was read.

    Attributes:
        of: path of the copy → path of the other file.
        digests: of the copies that are not read.
    """

    def __init__(self, digests: dict[str, str]) -> None:
        # Reversed, so that the first of several paths wins.
        self._path_by_digest = {digest: path for path, digest in reversed(digests.items())}
        self._left_out: list[ArrivedFile] = []
        self.of: dict[str, str] = {}
        self.digests: dict[str, str] = {}

    def left_out(self, batch: Sequence[ArrivedFile]) -> list[ArrivedFile]:
        """Return ``batch`` without copies. Raises: SourceUnavailable."""
        kept, path_by_digest = [], dict(self._path_by_digest)
        for file in batch:
            try:
                digest = digest_of(file, exact=True)
            except Gone:  # its reading says so
                kept.append(file)
                continue
            other = path_by_digest.setdefault(digest, file.path)
            if other == file.path:
                kept.append(file)
            else:
                self.of[file.path], self.digests[file.path] = other, digest
                self._left_out.append(file)
        return kept

    def settled(self, done: Set[str]) -> list[ArrivedFile]:
        """Return the skipped copies.

        A copy of a file that was not read in this attempt is left for the next job.
        """
        before = {*self._path_by_digest.values()}
        for file in [file for file in self._left_out if self.of[file.path] not in before | done]:
            self._left_out.remove(file)
            del self.of[file.path], self.digests[file.path]
        return self._left_out

    def add_read(self, read: ReadFiles) -> None:
        """Add the copies among the files that were read. Empty files do not count as copies."""
        path_by_digest = dict(self._path_by_digest)
        for path, digest in read.digests.items():
            other = path_by_digest.setdefault(digest, path)
            if other != path and read.rows[path]:
                self.of[path] = other

    def summary(self) -> str:
        """Return a clause for the summary, beginning with a semicolon; empty without copies."""
        if not self.of:
            return ""
        path, other = next(iter(self.of.items()))
        done = (
            "passed over" if self.digests else "read all the same, unless identity: content is said"
        )
        first = f"{shown_path(path)} is {shown_path(other)}"
        return (
            f"; with the bytes of another file, {done}: {_count(len(self.of))}, the first: {first}"
        )


def _batch(
    new: Sequence[ArrivedFile], most: int | None, most_bytes: int | None
) -> Sequence[ArrivedFile]:
    """The first of ``new``, within both bounds, and one in any case: a file is read as a whole."""
    ends = accumulate(file.size for file in new[:most])
    fit = sum(1 for end in ends if most_bytes is None or end <= most_bytes)
    return new[: max(fit, 1)]


def _summary(
    spec: StreamInput, arrived: FileArrivals, own: Sequence[ArrivedFile], read: ReadFiles, left: int
) -> str:
    bad, many = next(iter(read.bad.items()), ("", "")), len(read.bad)
    if spec.changed == "again":
        changed = "read once more"
    else:
        changed = "passed over, as changed: ignore says"
    if own:
        summary = f"new: {_count(len(own))} with {sum(file.size for file in own):,} bytes"
    else:
        summary = "nothing new"
    clauses = [
        (len(arrived.ignored), f"ignored by their names: {some_names(arrived.ignored)}"),
        (
            len(arrived.changed),
            f"with other content than when it was read: {_count(len(arrived.changed))}, {changed}",
        ),
        (left, f"left for the next job, by max_files_per_run or max_bytes_per_run: {_count(left)}"),
        (
            len(read.gone),
            f"gone or changed meanwhile, and left for the next job: {_count(len(read.gone))}",
        ),
        (many, f"put aside: {_count(many)}, the first of them {shown_path(bad[0])}: {bad[1]}"),
        (
            len(arrived.new) - len(own),
            f"of other members of the fork: {_count(len(arrived.new) - len(own))}",
        ),
    ]
    looked = f"{summary}, looked at {_count(arrived.looked)} in {spec.stream}"
    return "; ".join([looked, *(clause for count, clause in clauses if count)])


def _nonzero(**counts: int) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _count(files: int) -> str:
    return "1 file" if files == 1 else f"{files:,} files"
