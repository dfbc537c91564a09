"""``unstuck now``: current problems, running jobs and recently ended jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import typer
from rich.text import Text

from unstuck.cli.connection import connected
from unstuck.cli.jobs.listing import REASON_WIDTH, print_listing
from unstuck.cli.options import AsJson
from unstuck.cli.render.terminal import TextTable, coloured, emit, stdout, table
from unstuck.client.now import MAX_JOBS_PER_SCAN, MAX_ROWS_SHOWN, EndedJobs, Snapshot
from unstuck.coordinator.problems.detect import open_problems
from unstuck.coordinator.problems.problem import Problem
from unstuck.documents.envelopes import NowAnswer
from unstuck.exits import ExitCode
from unstuck.tasks.duration import format_duration
from unstuck.views.words import one_line, shortened


def now(as_json: AsJson = False) -> None:
    """Show the current problems, the worst first, then running and recently ended jobs.

    Exits with 0 if there is no problem, 1 if there is one, 5 if Redis cannot be reached.
    """
    with connected() as connection:
        snapshot, waits = Snapshot.of(connection.client).explained(connection.client)
    if as_json:
        emit(NowAnswer.of(snapshot, waits))
    else:
        _show(snapshot, waits)
    if open_problems(snapshot.problems):
        raise typer.Exit(ExitCode.NOT_WELL)


def _show(snapshot: Snapshot, waits: Mapping[str, str]) -> None:
    problems, others, ended = snapshot.problems, snapshot.others, snapshot.ended
    if problems:
        stdout.print(Text(f"Problems ({len(problems):,})", "bold"))
        stdout.print(_problems(problems[: 2 * MAX_ROWS_SHOWN], snapshot.at))
        if more := problems[2 * MAX_ROWS_SHOWN :]:
            stdout.print(f"and {len(more):,} more")
    else:
        stdout.print(Text("All is well.", "bold green"))
    stdout.print()
    if others:
        stdout.print(Text("Running", "bold"))
        print_listing(stdout, [[job] for job in others], waits, snapshot.at)
        if len(snapshot.running) > MAX_ROWS_SHOWN:
            stdout.print(f"These are the newest {MAX_ROWS_SHOWN}; `unstuck list` shows more.")
    else:
        stdout.print("No other job is running." if problems else "No job is running.")
    stdout.print()
    if ended:
        stdout.print(Text("Ended in the last day", "bold"))
        stdout.print(_ended(ended[:MAX_ROWS_SHOWN], snapshot.at))
    else:
        stdout.print(f"None of the newest {MAX_JOBS_PER_SCAN:,} jobs has ended in the last day.")
    stdout.print(
        "\n`unstuck ack KIND/NAME/PROBLEM --reason TEXT` acknowledges a problem. "
        "`unstuck why JOB` says all of a job, `unstuck schedule why NAME` of a schedule; "
        "`unstuck doctor` examines Redis, the fleet and the warehouse.",
        soft_wrap=True,
    )


def _problems(problems: Sequence[Problem], at: float) -> TextTable:
    shown = table("WHAT", "PROBLEM", "FOR", "WHY", right=("FOR",))
    for problem in problems:
        name = f"{problem.name} ({problem.job})" if problem.job else problem.name
        shown.add_row(
            f"{problem.kind} {name}",
            coloured(problem.code),
            format_duration(max(0.0, at - problem.since)) if problem.since else "",
            shortened(one_line(problem.shown_text), 2 * REASON_WIDTH),
        )
    return shown


def _ended(ended: Sequence[EndedJobs], at: float) -> TextTable:
    shown = table("NAME", "HOW", "LAST", "ENDED")
    for entry in ended:
        counts = Text(", ").join(
            coloured(status, f"{count:,} {status}") for status, count in entry.counts.items()
        )
        since = f"{format_duration(max(0.0, at - entry.ended_at))} ago"
        shown.add_row(entry.name, counts, f"{entry.job} {entry.status}", since)
    return shown
