"""``unstuck logs`` shows what attempts logged and printed, from files beside the staging folders in the warehouse."""

from __future__ import annotations

import datetime
import math
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, NamedTuple

import typer

from unstuck.coordinator.cli.connection import connected
from unstuck.coordinator.cli.datasets import warehouse_at
from unstuck.coordinator.cli.options import Follow, JsonLines, LookArgument, resolve
from unstuck.coordinator.cli.render.terminal import clock, emit_line, stderr
from unstuck.coordinator.client import Client
from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.views.job_views import JobView
from unstuck.tasks.errors import Malformed
from unstuck.tasks.log_lines import as_text
from unstuck.tasks.protocol.token import GROUP_ID, split_member
from unstuck.tasks.terminal import printable
from unstuck.tasks.warehouse.files import Files

EVERY = 0.5  # seconds between two reads
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z(?= )")
_LOG = re.compile(r"(\d+)-(\w+)-(\w+)\.log")


class LogFile(NamedTuple):
    """The log of one attempt. ``path`` is relative to the warehouse."""

    group: str
    epoch: int
    path: str


def find_logs(files: Files, view: JobView, group: str | None, every_attempt: bool) -> list[LogFile]:
    """The logs of a job, in the order in which its groups started; the newest of each group unless ``every_attempt``.

    Args:
        group: a group, a fork (all its members), or one member (``by_month[3]``).
    """
    root = f"_staging/{view.job.id}"
    records = {member.id: member.record for one in view.groups for member in one.members}
    found: list[LogFile] = []
    for folder in files.names(root):
        name, dot, number = folder.partition(".")
        owner = f"{name}[{number}]" if dot else name  # as `Token.staging` names it
        if GROUP_ID.fullmatch(owner) is None or group not in (None, owner, split_member(owner)[0]):
            continue
        names: list[str] = []
        with suppress(NotADirectoryError):
            names = files.names(f"{root}/{folder}")
        matches = filter(None, map(_LOG.fullmatch, names))
        logs = sorted(LogFile(owner, int(match[1]), f"{root}/{folder}/{match[0]}") for match in matches)
        found += logs if every_attempt else logs[-1:]

    def order(log: LogFile) -> tuple[float, str, int, int]:
        record = records.get(log.group)
        started = math.inf if record is None else record.started_at or record.since
        name, ordinal = split_member(log.group)
        return started, name, ordinal or 0, log.epoch

    return sorted(found, key=order)


def _read_from(files: Files, path: str, start: int) -> bytes:
    local = files.local_path(path)
    try:
        if local is None:
            return files.read(path)[start:]
        with local.open("rb") as file:
            file.seek(start)
            return file.read()
    except FileNotFoundError:
        return b""  # the staging collector removed it between the listing and this read


def logs(
    job: LookArgument,
    group: Annotated[
        str | None, typer.Argument(metavar="[GROUP]", help="A group, a fork, or one member: by_month[3].")
    ] = None,
    follow: Follow = False,
    every: Annotated[bool, typer.Option("--all", help="Every attempt, not the newest of each group alone.")] = False,
    as_json: JsonLines = False,
) -> None:
    """Show what a job's attempts logged and printed. Lines of several groups are led by GROUP#ATTEMPT."""
    with connected() as connection:
        view = connection.client.show(resolve(connection.client, job, by_key=True))
        one_group = _is_one_group(view, group)
        files = warehouse_at(view.job.warehouse).storage
        shown = 0
        for log, line in _lines(connection.client, view, files, group, every, follow):
            shown += 1
            if as_json:
                emit_line({"group": log.group, "attempt": log.epoch, "file": files.uri(log.path), "line": line})
            else:
                text = shown_line(line)
                sys.stdout.write(f"{text}\n" if one_group and not every else f"{log.group}#{log.epoch} | {text}\n")
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
    client: Client, view: JobView, files: Files, group: str | None, every: bool, follow: bool
) -> Iterator[tuple[LogFile, str]]:
    """Whole lines of logs as they grow; an unfinished last line only when nothing more can come."""
    read: dict[str, int] = {}  # bytes of each log
    while True:
        ended = view.job.terminal or not follow
        # An attempt that was shown is followed to its end, also when the next one has begun.
        for log in find_logs(files, view, group, every or follow):
            start = read.get(log.path, 0)
            data = _read_from(files, log.path, start)
            if not ended:
                data = data[: data.rfind(b"\n") + 1]
            read[log.path] = start + len(data)
            if data:
                written = data.decode(errors="replace").removesuffix("\n").split("\n")
                yield from ((log, line) for one in written for line in as_text(one).split("\n"))
        sys.stdout.flush()
        if ended:
            return
        time.sleep(EVERY)
        view = client.show(view.job.id)


def _is_one_group(view: JobView, group: str | None) -> bool:
    """False for a fork, or for the whole job. Raises: BadRequest: the job has no such group."""
    if group is None:
        return False
    forked = {one.name: one.forked for one in view.groups}
    try:
        name, ordinal = split_member(group)
    except Malformed:
        name, ordinal = group, None
    if name not in forked:
        raise BadRequest(f"job {view.job.id} has no group {group!r}; it has: {', '.join([*forked][:20])}")
    return ordinal is not None or not forked[name]
