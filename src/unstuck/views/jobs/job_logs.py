"""The logs of a job's attempts: files in one folder of the warehouse."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from unstuck.read_model.job import JobInfo
from unstuck.tasks.log_lines import as_text
from unstuck.tasks.protocol.token import GROUP_ID, fork_member, log_folder, split_member
from unstuck.tasks.terminal_text import printable
from unstuck.tasks.warehouse.files import Files

MOST_READ = 4 * 1024 * 1024  # bytes of one log, for its last lines
TAIL = 64 * 1024  # bytes of the end of a log
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z(?= )")
_LOG = re.compile(r"([^.]+)(?:\.(\d+))?\.(\d+)-\w+-\w+\.log")  # see `Token.log`


class LogFile(NamedTuple):
    """The log of one attempt. ``path`` is relative to the warehouse."""

    group: str
    epoch: int
    path: str


def find_logs(files: Files, view: JobInfo, group: str | None, every_attempt: bool) -> list[LogFile]:
    """Return the logs of a job, in the order in which its groups started.

    Args:
        group: a group, a fork (all its members), or one member (``by_month[3]``); None for all.
        every_attempt: include all attempts, not only the newest of each group.
    """
    records = {member.id: member for fork in view.groups for member in fork.members}
    logs = [
        log
        for log in _logs_in(files, view.id)
        if group in (None, log.group, split_member(log.group)[0])
    ]
    if not every_attempt:
        logs = [*{log.group: log for log in logs}.values()]

    def order(log: LogFile) -> tuple[float, str, int, int]:
        record = records.get(log.group)
        started = math.inf if record is None else record.started_at or record.since
        name, ordinal = split_member(log.group)
        return started, name, ordinal or 0, log.epoch

    return sorted(logs, key=order)


def logs_of(files: Files, job: str, group: str) -> list[LogFile]:
    """Return the logs of all attempts of one group or member, the oldest first."""
    return [log for log in _logs_in(files, job) if log.group == group]


def _logs_in(files: Files, job: str) -> list[LogFile]:
    """Return all logs of a job by group, the oldest first."""
    folder, names = log_folder(job), list[str]()
    with suppress(NotADirectoryError):
        names = files.names(folder)
    logs = []
    for match in filter(None, map(_LOG.fullmatch, names)):
        name, ordinal, epoch = match.groups()
        if GROUP_ID.fullmatch(name):
            group = name if ordinal is None else fork_member(name, int(ordinal))
            logs.append(LogFile(group, int(epoch), f"{folder}/{match[0]}"))
    return sorted(logs)


class Tail(NamedTuple):
    """The end of a log.

    Attributes:
        skipped: bytes before it.
        size: bytes of the whole log.
    """

    lines: list[str]
    skipped: int
    size: int


def tail_of(files: Files, path: str, most: int = TAIL) -> Tail:
    """Return the last lines of a log. Reads at most ``most`` bytes. Raises: OSError."""
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
    """Return a line of a log, with its time as ``clock`` writes it and no control characters."""
    if stamp := _STAMP.match(line):
        # Text that looks like a time may be data that a step printed.
        with suppress(ValueError, OverflowError):
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
    """Yield the lines that the attempt has logged and printed so far."""
    yield from _lines_in(read_from(files, log.path, 0))


def _lines_in(data: bytes) -> Iterator[str]:
    written = data.decode(errors="replace").removesuffix("\n")
    for line in written.split("\n") if written else ():
        yield from as_text(line).split("\n")
