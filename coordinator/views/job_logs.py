"""The logs of a job's attempts: files beside the staging folders in the warehouse."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from unstuck.coordinator.views.job_views import JobView
from unstuck.tasks.log_lines import as_text
from unstuck.tasks.protocol.token import GROUP_ID, split_member
from unstuck.tasks.terminal_text import printable
from unstuck.tasks.warehouse.files import Files

MOST_READ = 4 * 1024 * 1024  # bytes of one log, for its last lines
TAIL = 64 * 1024  # bytes of the end of a log
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
    records = {member.id: member for one in view.groups for member in one.members}
    found: list[LogFile] = []
    for folder in files.names(root):
        name, dot, number = folder.partition(".")
        owner = f"{name}[{number}]" if dot else name  # as `Token.staging` names it
        if GROUP_ID.fullmatch(owner) is None or group not in (None, owner, split_member(owner)[0]):
            continue
        logs = _logs_in(files, f"{root}/{folder}", owner)
        found += logs if every_attempt else logs[-1:]

    def order(log: LogFile) -> tuple[float, str, int, int]:
        record = records.get(log.group)
        started = math.inf if record is None else record.started_at or record.since
        name, ordinal = split_member(log.group)
        return started, name, ordinal or 0, log.epoch

    return sorted(found, key=order)


def logs_of(files: Files, job: str, group: str) -> list[LogFile]:
    """The logs of all attempts of one group, or of one member of a fork, the oldest first."""
    name, ordinal = split_member(group)
    return _logs_in(files, f"_staging/{job}/{name if ordinal is None else f'{name}.{ordinal}'}", group)


def _logs_in(files: Files, folder: str, group: str) -> list[LogFile]:
    names: list[str] = []
    with suppress(NotADirectoryError):
        names = files.names(folder)
    matches = filter(None, map(_LOG.fullmatch, names))
    return sorted(LogFile(group, int(match[1]), f"{folder}/{match[0]}") for match in matches)


class Tail(NamedTuple):
    """The end of a log. ``skipped``: bytes before it; ``size``: of the whole log."""

    lines: list[str]
    skipped: int
    size: int


def tail_of(files: Files, path: str, most: int = TAIL) -> Tail:
    """The last lines of a log, of which no more than ``most`` bytes are read. Raises: OSError."""
    size = files.size(path) or 0
    start = max(0, size - most)
    try:
        with files.open(path) as file:
            file.seek(start)
            data = file.read(most) or b""
    except FileNotFoundError:
        return Tail([], 0, 0)  # the staging collector removed it meanwhile
    if start and (end := data.find(b"\n") + 1):
        start, data = start + end, data[end:]  # the first line is not whole
    return Tail(list(_lines_in(data)), start, size)


def shown_line(line: str, clock: Callable[[float, str], str]) -> str:
    """``line`` of a log with its time as ``clock`` tells it, and without what a terminal would obey."""
    if stamp := _STAMP.match(line):
        with suppress(ValueError, OverflowError):  # what looks like a time may be data that a step printed
            at = datetime.datetime.fromisoformat(stamp[0]).timestamp()
            line = clock(at, "milliseconds") + line[stamp.end() :]
    return printable(line)


def read_from(files: Files, path: str, start: int) -> bytes:
    local = files.local_path(path)
    try:
        if local is None:
            return files.read(path)[start:]
        with local.open("rb") as file:
            file.seek(start)
            return file.read()
    except FileNotFoundError:
        return b""  # the staging collector removed it between the listing and this read


def lines_of(files: Files, log: LogFile) -> Iterator[str]:
    """The lines that the attempt has logged and printed so far."""
    yield from _lines_in(read_from(files, log.path, 0))


def _lines_in(data: bytes) -> Iterator[str]:
    written = data.decode(errors="replace").removesuffix("\n")
    for line in written.split("\n") if written else ():
        yield from as_text(line).split("\n")
