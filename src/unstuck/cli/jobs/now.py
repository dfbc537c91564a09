"""``unstuck now``: what is not well at this moment, what goes on, and what has ended; the screen
Now of the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import typer
from rich.text import Text

from unstuck.cli.connection import connected
from unstuck.cli.jobs.look import REASON_WIDTH, print_listing
from unstuck.cli.options import AsJson
from unstuck.cli.render.terminal import TextTable, coloured, emit, stdout, table
from unstuck.client.now import (
    LATELY,
    MOST,
    EndedJobs,
    Seen,
    Trouble,
    ended_lately,
    troubles,
    waits_now,
)
from unstuck.documents.now_documents import NowDocument
from unstuck.exits import ExitCode
from unstuck.tasks.duration import format_duration
from unstuck.views.words import one_line, shortened


def now(as_json: AsJson = False) -> None:
    """Show what is not well now, the worst first, each with its reason; then what runs, and what
    ended.

    Exits with 0 if all is well, 1 if something is not, 5 if Redis cannot be reached.
    """
    with connected() as connection:
        snapshot = Seen.of(connection.client)
        problems, ended = troubles(snapshot), ended_lately(snapshot)
        waits = waits_now(connection.client, snapshot, problems)
    if as_json:
        emit(NowDocument.of_seen(snapshot, problems, ended, waits))
    else:
        _show(snapshot, problems, ended, waits)
    if problems:
        raise typer.Exit(ExitCode.NOT_WELL)


def _show(
    snapshot: Seen,
    problems: Sequence[Trouble],
    ended: Sequence[EndedJobs],
    waits: Mapping[str, str],
) -> None:
    if problems:
        stdout.print(Text(f"Not well ({len(problems):,})", "bold"))
        stdout.print(_not_well(problems[: 2 * MOST], waits, snapshot.at))
        if more := problems[2 * MOST :]:
            stdout.print(f"and {len(more):,} more")
    else:
        stdout.print(Text("All is well.", "bold green"))
    stdout.print()
    if going_on := snapshot.beside(problems):
        stdout.print(Text("Goes on", "bold"))
        print_listing(stdout, [[job] for job in going_on], waits, snapshot.at)
        if len(snapshot.going_on) > MOST:
            stdout.print(f"These are the newest {MOST}; `unstuck list` shows more.")
    else:
        stdout.print("No job goes on." if not problems else "No other job goes on.")
    stdout.print()
    if ended:
        stdout.print(Text("Ended in the last day", "bold"))
        stdout.print(_ended(ended[:MOST], snapshot.at))
    else:
        stdout.print(f"None of the newest {LATELY:,} jobs has ended in the last day.")
    stdout.print(
        "\n`unstuck why JOB` says all of a job, `unstuck schedule why NAME` of a schedule; "
        "`unstuck doctor` examines Redis, the fleet and the warehouse.",
        soft_wrap=True,
    )


def _not_well(problems: Sequence[Trouble], waits: Mapping[str, str], at: float) -> TextTable:
    shown = table("WHAT", "STATUS", "FOR", "WHY", right=("FOR",))
    for problem in problems:
        job = problem.job
        text = problem.text or ("" if job is None else waits.get(job.id, ""))
        name = problem.name if job is None else f"{problem.name} ({job.id})"
        shown.add_row(
            f"{problem.kind} {name}",
            coloured(problem.status),
            format_duration(max(0.0, at - problem.since)) if problem.since else "",
            shortened(one_line(text), 2 * REASON_WIDTH),
        )
    return shown


def _ended(ended: Sequence[EndedJobs], at: float) -> TextTable:
    shown = table("NAME", "HOW", "LAST", "ENDED")
    for entry in ended:
        counts = Text(", ").join(
            coloured(status, f"{count:,} {status}") for status, count in entry.counts.items()
        )
        since = f"{format_duration(max(0.0, at - entry.job.ended_at))} ago"
        shown.add_row(entry.job.name, counts, f"{entry.job.id} {entry.job.status}", since)
    return shown
