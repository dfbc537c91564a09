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
from unstuck.cli.render.terminal import Listing, coloured, emit, stdout, table
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
        seen = Seen.of(connection.client)
        found, ended = troubles(seen), ended_lately(seen)
        waits = waits_now(connection.client, seen, found)
    if as_json:
        emit(NowDocument.of_seen(seen, found, ended, waits))
    else:
        _show(seen, found, ended, waits)
    if found:
        raise typer.Exit(ExitCode.NOT_WELL)


def _show(
    seen: Seen, found: Sequence[Trouble], ended: Sequence[EndedJobs], waits: Mapping[str, str]
) -> None:
    if found:
        stdout.print(Text(f"Not well ({len(found):,})", "bold"))
        stdout.print(_not_well(found[: 2 * MOST], waits, seen.at))
        if more := found[2 * MOST :]:
            stdout.print(f"and {len(more):,} more")
    else:
        stdout.print(Text("All is well.", "bold green"))
    stdout.print()
    if going_on := seen.beside(found):
        stdout.print(Text("Goes on", "bold"))
        print_listing(stdout, [[job] for job in going_on], waits, seen.at)
        if len(seen.going_on) > MOST:
            stdout.print(f"These are the newest {MOST}; `unstuck list` shows more.")
    else:
        stdout.print("No job goes on." if not found else "No other job goes on.")
    stdout.print()
    if ended:
        stdout.print(Text("Ended in the last day", "bold"))
        stdout.print(_ended(ended[:MOST], seen.at))
    else:
        stdout.print(f"None of the newest {LATELY:,} jobs has ended in the last day.")
    stdout.print(
        "\n`unstuck why JOB` says all of a job, `unstuck schedule why NAME` of a schedule; "
        "`unstuck doctor` examines Redis, the fleet and the warehouse.",
        soft_wrap=True,
    )


def _not_well(found: Sequence[Trouble], waits: Mapping[str, str], at: float) -> Listing:
    shown = table("WHAT", "STATUS", "FOR", "WHY", right=("FOR",))
    for one in found:
        text = one.text or ("" if one.job is None else waits.get(one.job.id, ""))
        shown.add_row(
            f"{one.kind} {one.name if one.job is None else f'{one.name} ({one.job.id})'}",
            coloured(one.status),
            format_duration(max(0.0, at - one.since)) if one.since else "",
            shortened(one_line(text), 2 * REASON_WIDTH),
        )
    return shown


def _ended(ended: Sequence[EndedJobs], at: float) -> Listing:
    shown = table("NAME", "HOW", "LAST", "ENDED")
    for one in ended:
        counts = Text(", ").join(
            coloured(status, f"{count:,} {status}") for status, count in one.counts.items()
        )
        since = f"{format_duration(max(0.0, at - one.job.ended_at))} ago"
        shown.add_row(one.job.name, counts, f"{one.job.id} {one.job.status}", since)
    return shown
