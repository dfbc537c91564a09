"""The files that have arrived for a stream, minus those that were read, as one frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from unstuck.tasks.formats.arrived import ArrivedFile
from unstuck.tasks.formats.decode import shown_path
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.streams.arrived.listing import Arrivals, arrivals
from unstuck.tasks.streams.arrived.position import FilesPosition, KafkaPosition
from unstuck.tasks.streams.read.files_read import ReadFiles, read_files
from unstuck.tasks.streams.read.group_stream import Reader, Taken

_WITHOUT_SPARK = 256 * 1024 * 1024  # bytes of files that one job reads, unless the spec says more or less


@dataclass(frozen=True, slots=True)
class ArrivingFiles:
    """The files of ``spec``, as `GroupStream` reads them."""

    spec: StreamInput
    reader: Reader

    def take(self, position: FilesPosition | KafkaPosition | None) -> Taken:
        """Raises: SourceUnavailable, FileNameInvalid, FileChanged; as `read_files`."""
        before, reader = position if isinstance(position, FilesPosition) else FilesPosition(), self.reader
        found = arrivals(self.spec, before.seen)
        own = [file for file in found.new if reader.share.has(file.path)]
        batch = _batch(own, self.spec.max_files_per_run, self._max_bytes)
        left = len(own) - len(batch)
        read = read_files(reader.session, batch, self.spec, reader.files, reader.folder)
        bad = {one.path: one.error for one in read.put_aside if not one.gone}
        done = [file for file in batch if file.path in read.rows or file.path in bad]
        counts = {"looked": found.looked, "files": len(read.rows)}
        counts["bytes"] = sum(file.size for file in done if file.path in read.rows)
        counts |= {"left": left} if left else {}
        counts |= {"changed": len(found.changed)} if found.changed else {}
        counts |= {"put_aside": len(bad)} if bad else {}
        counts |= {"unsettled": gone} if (gone := sum(one.gone for one in read.put_aside)) else {}
        after = None
        if done:
            seen = {file.path: file.content for file in done}
            seen = seen if reader.share.of > 1 else before.seen | seen
            after = FilesPosition(seen, dict(read.rows), bad)
        return Taken(read.frame, after, counts, _told(self.spec, found, own, read, left), read.put_aside)

    @property
    def _max_bytes(self) -> int | None:
        """Without Spark all rows are in memory at once."""
        bound = self.spec.max_bytes_per_run
        return _WITHOUT_SPARK if bound is None and self.reader.session is None else bound


def _batch(new: Sequence[ArrivedFile], most: int | None, most_bytes: int | None) -> Sequence[ArrivedFile]:
    """The first of ``new``, within both bounds, and one in any case: a file is read as a whole."""
    ends = accumulate(file.size for file in new[:most])
    fit = sum(1 for end in ends if most_bytes is None or end <= most_bytes)
    return new[: max(fit, 1)]


def _told(spec: StreamInput, found: Arrivals, own: Sequence[ArrivedFile], read: ReadFiles, left: int) -> str:
    looked = f"looked at {_count(found.looked)} in {spec.stream}"
    more = f"; not counted by name: {found.not_counted:,}" if found.not_counted else ""
    if found.changed:
        done = "read once more" if spec.changed == "again" else "passed over, as changed: ignore says"
        more += f"; with other content than when it was read: {_count(len(found.changed))}, {done}"
    more += f"; left for the next job, by max_files_per_run or max_bytes_per_run: {_count(left)}" if left else ""
    gone = [one.path for one in read.put_aside if one.gone]
    more += f"; gone or changed meanwhile, and left for the next job: {_count(len(gone))}" if gone else ""
    if bad := [one for one in read.put_aside if not one.gone]:
        more += f"; put aside: {_count(len(bad))}, the first of them {shown_path(bad[0].path)}: {bad[0].error}"
    if len(own) < len(found.new):
        more += f"; of other members of the fork: {_count(len(found.new) - len(own))}"
    if not own:
        return f"nothing new, {looked}{more}"
    return f"new: {_count(len(own))} with {sum(file.size for file in own):,} bytes, {looked}{more}"


def _count(files: int) -> str:
    return "1 file" if files == 1 else f"{files:,} files"
