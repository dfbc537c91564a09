"""``unstuck logs`` shows what attempts logged and printed, from files beside the staging folders in the warehouse."""

from __future__ import annotations

import datetime
import math
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import typer

from unstuck.coordinator.cli.connection import Connection, connected
from unstuck.coordinator.cli.datasets import warehouse_at
from unstuck.coordinator.cli.options import Follow, JobArgument, JsonLines, resolve
from unstuck.coordinator.cli.render.terminal import clock, emit_line, printable, stderr
from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.views.jobs import JobView
from unstuck.tasks.errors import Malformed
from unstuck.tasks.protocol.token import GROUP_ID, split_member
from unstuck.tasks.warehouse.files import Files

EVERY = 0.5  # seconds between two reads
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z(?= )")
_LOG = re.compile(r"(\d+)-(\w+)-(\w+)\.log")


@dataclass(frozen=True, slots=True)
class LogFile:
    """The log of one attempt. ``path`` is relative to the warehouse."""

    group: str
    epoch: int
    path: str

    @property
    def name(self) -> str:
        return f"{self.group}#{self.epoch}"


def find_logs(files: Files, view: JobView, group: str | None, every_attempt: bool) -> list[LogFile]:
    """The logs of a job, in the order in which its groups started; the newest of each group unless ``every_attempt``.

    Args:
        group: a group, a fork (all its members), or one member (``by_month[3]``).
    """
    job = view.job.id
    records = {member.id: member.record for one in view.groups for member in one.members}
    started = {name: record.started_at or record.since for name, record in records.items()}
    found = []
    for folder in files.names(f"_staging/{job}"):
        owner = _group_of(folder)
        if GROUP_ID.fullmatch(owner) is None:
            continue  # not ours
        if group is not None and owner != group and split_member(owner)[0] != group:
            continue
        logs = []
        for name in _names(files, f"_staging/{job}/{folder}"):
            if match := _LOG.fullmatch(name):
                logs.append(LogFile(owner, int(match[1]), f"_staging/{job}/{folder}/{name}"))
        logs.sort(key=lambda log: log.epoch)
        found += logs if every_attempt else logs[-1:]

    def order(log: LogFile) -> tuple[float, str, int, int]:
        name, ordinal = split_member(log.group)
        return started.get(log.group, math.inf), name, ordinal or 0, log.epoch

    return sorted(found, key=order)


def _names(files: Files, folder: str) -> list[str]:
    try:
        return files.names(folder)
    except NotADirectoryError:
        return []


def _group_of(folder: str) -> str:
    """``by_month[3]`` of the folder ``by_month.3`` (see ``Token.staging``)."""
    name, dot, ordinal = folder.partition(".")
    return f"{name}[{ordinal}]" if dot else name


class Reader:
    """Reads whole lines of logs as they grow."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._read: dict[str, int] = {}

    def new_lines(self, log: LogFile, ended: bool) -> list[str]:
        """Lines since the last call; an unfinished last line only when nothing more can come."""
        start = self._read.get(log.path, 0)
        data = self._after(log.path, start)
        if not ended:
            data = data[: data.rfind(b"\n") + 1]
        self._read[log.path] = start + len(data)
        return data.decode(errors="replace").split("\n")[: -1 if data.endswith(b"\n") else None] if data else []

    def _after(self, path: str, start: int) -> bytes:
        local = self._files.local_path(path)
        try:
            if local is None:
                return self._files.read(path)[start:]
            with local.open("rb") as file:
                file.seek(start)
                return file.read()
        except FileNotFoundError:
            return b""  # the staging collector removed it between the listing and this read


def logs(
    job: JobArgument,
    group: Annotated[
        str | None, typer.Argument(metavar="[GROUP]", help="A group, a fork, or one member: by_month[3].")
    ] = None,
    follow: Follow = False,
    every: Annotated[bool, typer.Option("--all", help="Every attempt, not the newest of each group alone.")] = False,
    as_json: JsonLines = False,
) -> None:
    """Show what a job's attempts logged and printed. Lines of several groups are led by GROUP#ATTEMPT."""
    with connected() as connection:
        view = connection.client.show(resolve(connection.client, job))
        _check_group(view, group)
        files = warehouse_at(view.job.warehouse).storage
        one_group = group is not None and (split_member(group)[1] is not None or not _forked(view, group))
        shown = 0
        for log, line in _lines(connection, view, files, group, every, follow):
            shown += 1
            if as_json:
                emit_line({"group": log.group, "attempt": log.epoch, "file": files.uri(log.path), "line": line})
            else:
                text = shown_line(line)
                sys.stdout.write(f"{text}\n" if one_group and not every else f"{log.name} | {text}\n")
        sys.stdout.flush()
    if not shown:
        stderr.print(
            f"No logs in {view.job.warehouse} for {group or 'any group'} of job {view.job.id} ({view.job.status}). "
            "They appear when an attempt begins; on an object store, when it has ended."
        )


def shown_line(line: str) -> str:
    """``line`` of a log with its time as a person here reads it, and without what a terminal would obey."""
    if stamp := _STAMP.match(line):
        with suppress(ValueError, OverflowError):  # what looks like a time may be data that a step printed
            at = datetime.datetime.fromisoformat(stamp[0]).timestamp()
            line = clock(at, "milliseconds") + line[stamp.end() :]
    return printable(line)


def _lines(
    connection: Connection, view: JobView, files: Files, group: str | None, every: bool, follow: bool
) -> Iterator[tuple[LogFile, str]]:
    reader = Reader(files)
    while True:
        ended = view.job.terminal or not follow
        # An attempt that was shown is followed to its end, also when the next one has begun.
        yield from _read(reader, find_logs(files, view, group, every or follow), ended)
        sys.stdout.flush()
        if ended:
            return
        time.sleep(EVERY)
        view = connection.client.show(view.job.id)


def _read(reader: Reader, found: Iterable[LogFile], ended: bool) -> Iterator[tuple[LogFile, str]]:
    for log in found:
        for line in reader.new_lines(log, ended):
            yield log, line


def _forked(view: JobView, group: str) -> bool:
    return any(one.name == group and one.forked for one in view.groups)


def _check_group(view: JobView, group: str | None) -> None:
    """Raises: BadRequest: the job has no such group."""
    if group is None:
        return
    names = [one.name for one in view.groups]
    try:
        known = split_member(group)[0] in names
    except Malformed:
        known = False
    if not known:
        raise BadRequest(f"job {view.job.id} has no group {group!r}; it has: {', '.join(names[:20])}")
