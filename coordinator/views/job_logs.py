"""The logs of a job's attempts: files beside the staging folders in the warehouse."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from unstuck.coordinator.views.job_views import JobView
from unstuck.tasks.log_lines import as_text
from unstuck.tasks.protocol.token import GROUP_ID, split_member
from unstuck.tasks.warehouse.files import Files

MOST_READ = 4 * 1024 * 1024  # bytes of one log, for its last lines
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
    written = read_from(files, log.path, 0).decode(errors="replace").removesuffix("\n")
    for line in written.split("\n") if written else ():
        yield from as_text(line).split("\n")


def tail_of(files: Files, log: LogFile, most: int) -> list[str]:
    """The last lines that the attempt has logged and printed, of the last `MOST_READ` bytes of its log."""
    local = files.local_path(log.path)
    start = 0
    with suppress(FileNotFoundError):  # as in `read_from`
        start = 0 if local is None else max(0, local.stat().st_size - MOST_READ)
    written = read_from(files, log.path, start).decode(errors="replace").removesuffix("\n")
    lines = written.split("\n")[1 if start else 0 :] if written else []
    return [line for one in lines[-most:] for line in as_text(one).split("\n")][-most:]
