"""``unstuck logs``: what attempts logged and printed. The files lie beside the staging folders in the warehouse."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from unstuck.coordinator.cli.connection import Connection, connected
from unstuck.coordinator.cli.datasets import warehouse_at
from unstuck.coordinator.cli.exits import BadRequest
from unstuck.coordinator.cli.options import resolve
from unstuck.coordinator.cli.render.terminal import emit_line, stderr
from unstuck.coordinator.views.jobs import JobView
from unstuck.tasks.errors import Malformed
from unstuck.tasks.protocol.token import GROUP_ID, split_member
from unstuck.tasks.warehouse.files import Files

EVERY = 0.5  # seconds between two looks
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


def find_logs(files: Files, job: str, group: str | None, every_attempt: bool) -> list[LogFile]:
    """The logs there are, in order of group and attempt; the newest of each group unless ``every_attempt``.

    Args:
        group: a group, a fork (all its members), or one member (``by_month[3]``).
    """
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
    return sorted(found, key=lambda log: (split_member(log.group)[0], split_member(log.group)[1] or 0, log.epoch))


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
            return b""  # swept away between listing and reading


def logs(
    job: Annotated[str, typer.Argument(metavar="JOB", help="An id, the beginning of one, or `last`.")],
    group: Annotated[
        str | None, typer.Argument(metavar="[GROUP]", help="A group, a fork, or one member: by_month[3].")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Every attempt, not the newest of each group alone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
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
                sys.stdout.write(f"{line}\n" if one_group and not every else f"{log.name} | {line}\n")
        sys.stdout.flush()
    if not shown:
        stderr.print(
            f"No logs in {view.job.warehouse} for {group or 'any group'} of job {view.job.id} ({view.job.status}). "
            "They appear when an attempt begins; on an object store, when it has ended."
        )


def _lines(
    connection: Connection, view: JobView, files: Files, group: str | None, every: bool, follow: bool
) -> Iterator[tuple[LogFile, str]]:
    reader = Reader(files)
    while True:
        ended = view.job.terminal or not follow
        # While following, an attempt that was seen is followed to its end, also when the next one has begun.
        yield from _look(reader, find_logs(files, view.job.id, group, every or follow), ended)
        sys.stdout.flush()
        if ended:
            return
        time.sleep(EVERY)
        view = connection.client.show(view.job.id)


def _look(reader: Reader, found: Iterable[LogFile], ended: bool) -> Iterator[tuple[LogFile, str]]:
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
