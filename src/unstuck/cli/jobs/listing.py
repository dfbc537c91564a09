"""``unstuck list``: jobs in a table, with the reason of each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from unstuck.cli.connection import CliConnection, connected
from unstuck.cli.options import AsJson, Named, Since, Statuses
from unstuck.cli.render.terminal import coloured, emit, stderr, stdout, table
from unstuck.client.waits import waits_of
from unstuck.coordinator.errors import BadRequest
from unstuck.read_model.job import JobInfo, json_of_list
from unstuck.tasks.duration import format_duration
from unstuck.views.jobs.job_views import folded
from unstuck.views.words import count_of, first_line, one_line, shortened

FOLDED_OF = 2_000  # jobs among which those are looked for that are shown in one line
PARAMS_WIDTH = 40  # characters of the parameters in a listing: they only remind
REASON_WIDTH = 200  # characters of a reason in a listing; `show` has the whole


def list_jobs(
    status: Statuses = None,
    name: Named = None,
    since: Since = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many.")] = 50,
    unfold: Annotated[
        bool, typer.Option("--unfold", help="Show each run of backfills and schedules.")
    ] = False,
    late: Annotated[
        bool,
        typer.Option(
            "--late",
            help="Names that a rule `late` expects, and without a successful job in time.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List jobs, the newest first, with the reason for which each waits or ended.

    The runs of a backfill are one line, and so are the FINISHED runs of a schedule before its
    newest run.
    """
    filtered = bool(status or name) or since is not None
    if late:
        _list_late(as_json, other_options=filtered or unfold)
        return
    whole = as_json or unfold
    most = limit if whole else max(limit, FOLDED_OF)
    with connected() as connection:
        jobs = connection.jobs.jobs(status or (), name, since, most)
        lines = [[job] for job in jobs] if whole else folded(jobs)[:limit]
        waits = _waits(connection, [line[0] for line in lines])
    if as_json:
        emit(json_of_list([replace(job, why=waits.get(job.id, "")) for job in jobs]))
    elif jobs:
        print_listing(stdout, lines, waits, time.time())
        _print_cut(len(lines), len(jobs), limit, most)
    else:
        stderr.print("No job fits." if filtered else "No jobs.")


def _print_cut(lines: int, jobs: int, limit: int, most: int) -> None:
    """Tell that there may be more jobs than were read, or than are shown."""
    if lines == limit:
        stderr.print(f"These are the newest {limit}; --limit shows more.")
    elif jobs == most:
        stderr.print(
            f"These are the newest {most:,} jobs, some of them folded; --unfold --limit shows more."
        )


def _waits(connection: CliConnection, jobs: Sequence[JobInfo]) -> Mapping[str, str]:
    """Return the line of ``why`` of each open job. Only an open job needs the client."""
    open_jobs = [job for job in jobs if not job.status.terminal]
    return waits_of(connection.client, open_jobs) if open_jobs else {}


def _list_late(as_json: bool, *, other_options: bool) -> None:
    """List the names that are late and that no schedule submits. Raises: BadRequest."""
    if other_options:
        raise BadRequest(
            "--late lists names, not jobs, so of the other options only --json goes with it"
        )
    with connected() as connection:
        late_jobs = connection.client.late_jobs()
    if as_json:
        emit(late_jobs)
        return
    if not late_jobs:
        stderr.print("No job is late.")
        return
    listing = table("NAME", "LATE FOR", "WHY", right=("LATE FOR",))
    for job in late_jobs:
        lasting = format_duration(max(0.0, time.time() - job.since)) if job.since else ""
        listing.add_row(job.name, lasting, job.text)
    stdout.print(listing)


def print_listing(
    console: Console, lines: Sequence[Sequence[JobInfo]], waits: Mapping[str, str], now: float
) -> None:
    """Print jobs as a table. Several jobs get one line each, without columns that are empty."""
    rows = [
        _job_row(line[0], waits, now) if len(line) == 1 else _fold_row(line, now) for line in lines
    ]
    used = [name for name in _COLUMNS if name in _ALWAYS or any(row[name] for row in rows)]
    listing = table(*used, right=("DONE", "AGE", "TOOK"))
    for row in rows:
        listing.add_row(*(row[name] for name in used))
    console.print(listing)


_ALWAYS = ("ID", "NAME", "STATUS", "DONE", "AGE", "TOOK")
_COLUMNS = (*_ALWAYS, "KEY", "PARAMS", "REASON")


def _job_row(job: JobInfo, waits: Mapping[str, str], now: float) -> dict[str, str | Text]:
    duration = (job.ended_at or now) - job.started_at if job.started_at else None
    reason = one_line(waits.get(job.id, "")) or first_line(job.trouble)
    return {
        "ID": job.id,
        "NAME": job.name,
        "STATUS": coloured(job.status),
        "DONE": job.progress,
        "AGE": format_duration(max(0.0, now - job.submitted_at)),
        "TOOK": "" if duration is None else format_duration(max(0.0, duration)),
        "KEY": one_line(job.key),
        "PARAMS": shortened(one_line(job.params_text), PARAMS_WIDTH),
        "REASON": shortened(reason, REASON_WIDTH),
    }


def _fold_row(runs: Sequence[JobInfo], now: float) -> dict[str, str | Text]:
    newest, counts = runs[0], Counter(run.status for run in runs)
    by_status = ", ".join(f"{count:,} {status}" for status, count in counts.items())
    what = f"the backfill of {newest.backfill}" if newest.backfill else "earlier runs"
    return {
        "ID": newest.id,
        "NAME": newest.name,
        "STATUS": coloured(newest.status) if len(counts) == 1 else "",
        "DONE": count_of(len(runs), "run"),
        "AGE": format_duration(max(0.0, now - newest.submitted_at)),
        "TOOK": "",
        "KEY": "",
        "PARAMS": "",
        "REASON": f"{what}: {by_status}; --unfold shows each",
    }
