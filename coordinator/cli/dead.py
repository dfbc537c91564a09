"""``unstuck dead``: reports that nobody can apply. They are parked, never thrown away; this only shows them."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from coordinator.cli.connection import connected
from coordinator.cli.terminal import clock, emit, iso, one_line, stderr, stdout, table

dead = typer.Typer(help="Reports of workers that nobody could apply.", no_args_is_help=True)


@dead.callback()
def _reports() -> None:
    """Reports of workers that nobody could apply."""


@dead.command("list")
def list_dead(
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Answer in JSON.")] = False,
) -> None:
    """List parked reports, the newest first, with the reason for each."""
    with connected() as connection:
        parked = connection.inbox.dead(limit)
    if as_json:
        emit([{"id": d.id, "at": iso(_at(d.id)), "reason": d.reason, "report": d.fields} for d in parked])
        return
    if not parked:
        stderr.print("No parked reports.")
        return
    listing = table("ID", "WHEN", "KIND", "TOKEN", "REASON")
    for one in parked:
        listing.add_row(
            *(one.id, clock(_at(one.id)), Text(one_line(one.fields.get("kind", "?")))),
            *(Text(one_line(one.fields.get("token", "?"))), Text(one_line(one.reason))),
        )
    stdout.print(listing)


def _at(entry: str) -> float:
    """Seconds since the epoch in the id of a stream entry."""
    return int(entry.partition("-")[0]) / 1000
