"""``unstuck logs`` shows what attempts logged and printed, from files in the warehouse."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from unstuck.cli.connection import connected
from unstuck.cli.options import Follow, JsonLines, LookArgument
from unstuck.cli.render.terminal import clock, emit_line, stderr
from unstuck.client.client import Client
from unstuck.client.find_job import find_job
from unstuck.read_model.job import JobInfo
from unstuck.read_model.log_line import LogLine
from unstuck.tasks.log_lines import as_text
from unstuck.tasks.warehouse.files import Files
from unstuck.views.dataset_views import warehouse_at
from unstuck.views.jobs.job_logs import LogFile, find_logs, read_from, shown_line

EVERY = 0.5  # seconds between two reads


def logs(
    job: LookArgument,
    group: Annotated[
        str | None,
        typer.Argument(metavar="[GROUP]", help="A group, a fork, or one member: by_month[3]."),
    ] = None,
    follow: Follow = False,
    every: Annotated[
        bool, typer.Option("--all", help="Every attempt, not the newest of each group alone.")
    ] = False,
    as_json: JsonLines = False,
) -> None:
    """Show what attempts logged and printed. Lines of several groups begin with GROUP#ATTEMPT.

    Lines of several groups are led by GROUP#ATTEMPT.
    """
    with connected() as connection:
        view = connection.client.show(find_job(connection.client, job, by_key=True))
        one_group = group is not None and (not view.planned(group).forked or "[" in group)
        files = warehouse_at(view.warehouse).storage
        shown = 0
        for log, line in _lines(connection.client, view, files, group, every, follow):
            shown += 1
            if as_json:
                emit_line(
                    LogLine(group=log.group, attempt=log.epoch, file=files.uri(log.path), line=line)
                )
            else:
                text = shown_line(line, clock)
                sys.stdout.write(
                    f"{text}\n"
                    if one_group and not every
                    else f"{log.group}#{log.epoch} | {text}\n"
                )
        sys.stdout.flush()
    if not shown:
        stderr.print(
            f"No logs in {view.warehouse} for {group or 'any group'} of job {view.id} "
            f"({view.status}). They appear when an attempt begins; on an object store, when it "
            "has ended."
        )


def _lines(
    client: Client, view: JobInfo, files: Files, group: str | None, every: bool, follow: bool
) -> Iterator[tuple[LogFile, str]]:
    """Yield whole lines of growing logs; an unfinished last line only when the log is complete."""
    read: dict[str, int] = {}  # bytes of each log
    while True:
        ended = view.terminal or not follow
        # An attempt that was shown is followed to its end, also when the next one has begun.
        for log in find_logs(files, view, group, every or follow):
            start = read.get(log.path, 0)
            data = read_from(files, log.path, start)
            if not ended:
                data = data[: data.rfind(b"\n") + 1]
            read[log.path] = start + len(data)
            if data:
                written = data.decode(errors="replace").removesuffix("\n").split("\n")
                yield from (
                    (log, line) for raw_line in written for line in as_text(raw_line).split("\n")
                )
        sys.stdout.flush()
        if ended:
            return
        time.sleep(EVERY)
        view = client.show(view.id)
