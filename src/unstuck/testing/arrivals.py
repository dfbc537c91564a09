"""The files that arrive in a test: each stream of a job becomes a folder of the test."""

from __future__ import annotations

import csv
import datetime
import io
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from unstuck.coordinator.spec.model import JobSpec
from unstuck.tasks.spec.group import GroupSpec
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.spec.streams.kafka_input import KafkaInput
from unstuck.tasks.spec.streams.stream_columns import declared
from unstuck.tasks.spec.streams.stream_options import FILE_COLUMN, FileOptions, file_options
from unstuck.testing.given_rows import frame_of

_TEXT_FORMATS = ("csv", "json", "text")


Streams = dict[str, dict[str, StreamInput]]
"""By name, by group and name, and by address; then by address."""


class ArrivalQueue:
    """Files that have arrived, and the folders of streams."""

    def __init__(self, folder: Path) -> None:
        """Create a queue. ``folder``: for the files of all streams."""
        self._folder = folder
        self._folders: dict[str, Path] = {}  # by the address of the stream in specs
        # Stream, content and file name of input that no job has read yet.
        self._waiting: list[tuple[str, Any, str | None]] = []
        self._count = 0

    def add(self, stream: str, rows: Any, file: str | None) -> None:
        """Keep rows, or the content of a file, for the next job with this stream.

        Raises:
            TypeError: they are no rows.
            OSError: the file cannot be read.
        """
        if isinstance(rows, Path):
            rows, file = rows.read_bytes(), file or rows.name
        content = rows if isinstance(rows, str | bytes) else _rows(rows, stream)
        self._waiting.append((stream, content, file))

    def put(self, spec: JobSpec, running: Collection[str]) -> JobSpec:
        """Write the arrived files, and return the job with folders of the test as its streams.

        Raises:
            NotImplementedError: one of its groups that are ``running`` reads Kafka.
            ValueError: something has arrived for a stream that the job does not have.
        """
        streams: Streams = {}
        groups = [
            self._with_folders(group, streams, group.name in running) for group in spec.groups
        ]
        while self._waiting:
            name, content, file = self._waiting[0]
            stream = _only_stream(name, streams, spec.name)
            self._count += 1
            ending = "txt" if stream.format == "text" else stream.format
            _write(stream, content, Path(stream.stream) / (file or f"{self._count:06d}.{ending}"))
            del self._waiting[0]
        return spec.model_copy(update={"groups": tuple(groups)}) if streams else spec

    def _with_folders(self, group: GroupSpec, streams: Streams, runs: bool) -> GroupSpec:
        """Return ``group`` with folders as its streams, and add these to ``streams``.

        Raises: NotImplementedError: it ``runs``, and reads Kafka.
        """
        inputs = dict(group.inputs)
        for name, source in group.inputs.items():
            if isinstance(source, KafkaInput) and runs:
                raise NotImplementedError(
                    f"the input {name} of {group.name} is a Kafka topic, and tests have streams of "
                    "files alone. Test the step with unstuck.step(…, "
                    f"inputs={{{name!r}: rows}})"
                )
            if isinstance(source, StreamInput):
                folder = str(self._folder_of(name, source.stream))
                here = source.model_copy(update={"stream": folder})
                inputs[name] = streams.setdefault(name, {})[source.stream] = here
                streams[f"{group.name}.{name}"] = {source.stream: here}
                streams.setdefault(source.stream, {})[source.stream] = here
        return group if inputs == group.inputs else group.model_copy(update={"inputs": inputs})

    def _folder_of(self, name: str, address: str) -> Path:
        folder = self._folders.setdefault(address, self._folder / f"{len(self._folders)}-{name}")
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _only_stream(name: str, streams: Streams, job: str) -> StreamInput:
    """Return the stream of this name. Raises: ValueError: there is none, or several."""
    matches = list(streams.get(name, {}).values())
    if len(matches) == 1:
        return matches[0]
    what = "has no such stream"
    if matches:
        what = "has several streams of this name; take one with its group, or the address"
    available = ", ".join(streams) or "none"
    raise ValueError(f"arrive({name!r}): the job {job} {what}; there are: {available}")


def _rows(content: Any, stream: str) -> list[Any]:
    if isinstance(content, Sequence) and all(isinstance(row, str | Mapping) for row in content):
        return list(content)
    return list(frame_of(content, about=f"arrive({stream!r})").to_pylist())


def _write(stream: StreamInput, content: Any, path: Path) -> None:
    """Write a file as a source would: under a temporary name until it is complete."""
    text = content if isinstance(content, str | bytes) else _in_format(stream, content)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}")
    part.write_bytes(
        text
        if isinstance(text, bytes)
        else text.encode(file_options(stream.format, stream.options).encoding or "utf-8")
    )
    part.rename(path)


def _in_format(stream: StreamInput, rows: list[Any]) -> bytes | str:
    """Return ``rows`` as a file of ``stream``. Columns may differ from its schema."""
    if stream.format in ("parquet", "orc"):
        return _columnar(stream, rows)
    options = file_options(stream.format, stream.options)
    if stream.format not in _TEXT_FORMATS:
        raise NotImplementedError(
            f"arrive({stream.stream!r}): rows cannot be written as {stream.format}; give the bytes "
            "of a file"
        )
    if stream.format == "csv" and not all(isinstance(row, str) for row in rows):
        return _csv(stream, options, rows)
    lines = [_line(stream.format, row) for row in rows]
    return f"[{', '.join(lines)}]" if options.whole else "".join(f"{line}\n" for line in lines)


def _columnar(stream: StreamInput, rows: list[Any]) -> bytes:
    import pyarrow.parquet as pq
    from pyarrow import orc

    table = frame_of(rows, None if rows else stream.columns, about=stream.stream)
    out = io.BytesIO()
    (pq if stream.format == "parquet" else orc).write_table(table, out)
    return out.getvalue()


def _line(form: str, row: str | Mapping[str, Any]) -> str:
    """Return a row as a line of text; of a text file, its only value."""
    value: Any = row
    if form == "text" and isinstance(row, Mapping):
        value = next(iter(row.values()), "")
    if isinstance(value, str):
        return value
    return json.dumps(value, default=_as_text, ensure_ascii=False)


def _csv(stream: StreamInput, options: FileOptions, rows: list[Any]) -> str:
    present = dict.fromkeys(name for row in rows for name in row)
    schema_names = [
        column["name"] for column in declared(stream.columns) if column["name"] != FILE_COLUMN
    ]
    # Without a header, the place says which column it is.
    names = list(present) if options.header else list(dict.fromkeys([*schema_names, *present]))
    text = io.StringIO()
    quoting = (
        {"quotechar": options.quote}
        if options.quote
        else {"quoting": csv.QUOTE_NONE, "escapechar": "\\"}
    )
    writer = csv.writer(text, delimiter=options.separator, lineterminator="\n", **quoting)
    writer.writerows([names] if options.header else [])
    writer.writerows(
        [options.null if row.get(n) is None else _as_text(row[n]) for n in names] for row in rows
    )
    return text.getvalue()


def _as_text(value: Any) -> Any:
    """Return a value as files write it: times in ISO form, booleans in lower case."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value).lower() if isinstance(value, bool) else str(value)
