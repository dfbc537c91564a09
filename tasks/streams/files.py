"""A stream without state: the files that have arrived, minus those that were read, as one frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from unstuck.tasks.errors import FileUnsettled
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.streams.arrived import ArrivedFile
from unstuck.tasks.streams.group_stream import Taken
from unstuck.tasks.streams.listing import Arrivals, arrivals, is_as_listed
from unstuck.tasks.streams.position import FilesPosition, KafkaPosition


@dataclass(frozen=True, slots=True)
class ArrivingFiles:
    """The files of ``spec``, as `GroupStream` reads them. ``session``: None for a group without Spark."""

    name: str
    spec: StreamInput
    session: Any
    kind: Literal["files"] = "files"

    @property
    def stream(self) -> str:
        return self.spec.stream

    @property
    def generation(self) -> int:
        return self.spec.generation

    def take(self, position: FilesPosition | KafkaPosition | None) -> Taken:
        """Raises: SourceUnavailable, FileNameInvalid, FileChanged, FileUnsettled; what reading them raises."""
        before = position if isinstance(position, FilesPosition) else FilesPosition()
        found = arrivals(self.spec, before.seen)
        frame = _read(self.session, self.name, found.new, self.spec)
        _check_settled(found.new)
        counts = {"looked": found.looked, "files": len(found.new), "bytes": found.bytes}
        counts |= {"changed": len(found.changed)} if found.changed else {}
        after = None
        if found.new:
            seen = before.seen | {file.path: (file.size, file.version) for file in found.new}
            after = FilesPosition(seen, {file.path: None for file in found.new})
        return Taken(frame, after, counts, _told(self.spec, found))


def _check_settled(files: list[ArrivedFile]) -> None:
    """Raises: FileUnsettled: one of them is not what was listed any more."""
    for file in files:
        if "://" in file.path:
            continue  # an object is read as of one moment
        try:
            settled = is_as_listed(file)
        except FileNotFoundError:
            raise FileUnsettled(f"{file.path} went away while it was read. A retry reads what stands then") from None
        if not settled:
            raise FileUnsettled(
                f"{file.path} changed while it was read. A retry reads what stands then. Write files elsewhere, and "
                "rename them into the folder"
            )


def _told(spec: StreamInput, found: Arrivals) -> str:
    looked = f"looked at {found.looked:,} files in {spec.stream}"
    more = f"; {found.not_counted:,} do not count by their names" if found.not_counted else ""
    if found.changed:
        done = "read once more" if spec.changed == "again" else "passed over, as changed: ignore says"
        more += f"; {len(found.changed):,} have other content than when they were read, and are {done}"
    if not found.new:
        return f"nothing new, {looked}{more}"
    return f"{len(found.new):,} files with {found.bytes:,} bytes are new, {looked}{more}"


def _read(session: Any, name: str, files: list[ArrivedFile], spec: StreamInput) -> Any:
    from unstuck.tasks.errors import SqlInvalid
    from unstuck.tasks.frames.spark import hadoop_uri, sql_error

    try:
        if not files:
            return session.createDataFrame([], spec.columns)
        reader = session.read.format(spec.format).schema(spec.columns)
    except Exception as error:
        if (what := sql_error(error)) is not None:
            raise SqlInvalid(f"inputs: {name}: schema: {what}") from error
        raise
    return reader.options(**spec.options).load([hadoop_uri(file.path) for file in files])
