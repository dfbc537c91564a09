"""``unstuck dead`` shows undeliverable reports and notices, and refused submits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.text import Text

from unstuck.cli.connection import connected
from unstuck.cli.options import AsJson
from unstuck.cli.render.dead_letter_table import dead_letter_table, shortened_value
from unstuck.cli.render.terminal import clock, emit, stderr, stdout, table
from unstuck.coordinator.store.reports import DeadLetter

dead = typer.Typer(no_args_is_help=True)


@dead.command("list", epilog="Example: unstuck dead list --limit 20")
def list_dead(
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List dead letters, the newest first, with the reason for each."""
    with connected() as connection:
        letters = connection.client.dead_letters.newest(limit)
    if as_json:
        emit(letters)
        return
    if not letters:
        stderr.print("No dead letters.")
        return
    stdout.print(dead_letter_table(letters))


@dead.command("show", epilog="Example: unstuck dead show 1388530799000-0")
def show_dead(
    report: Annotated[str, typer.Argument(metavar="ID", help="Of a dead letter.")],
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: its reason, its time, and the unchanged text of the report."""
    with connected() as connection:
        letter = connection.client.dead_letters.get(report)
    if as_json:
        emit(letter)
        return
    shown = table("", "")
    for name, value in _rows_of(letter):
        shown.add_row(Text(shortened_value(name)), Text(shortened_value(value)))
    stdout.print(shown)
    stdout.print()
    stdout.print(json.dumps(letter.raw, indent=2, ensure_ascii=False), soft_wrap=True)


def _rows_of(letter: DeadLetter) -> Iterator[tuple[str, str]]:
    """Yield the fields of a dead letter, each with its name."""
    since, tries = clock(letter.at), str(letter.deliveries or "not recorded")
    if letter.task:
        yield from (
            ("refused task", letter.id),
            ("task", letter.task),
            ("dead letter since", since),
        )
    elif letter.notice:
        yield "notice", letter.id
        if letter.to:
            yield "target", letter.to
        yield from (("dead letter since", since), ("tries", tries))
    else:
        sent = f"{clock(_at(letter.entry))} as {letter.entry}" if letter.entry else "not recorded"
        yield from (("report", letter.id), ("dead letter since", since))
        yield from (("sent", sent), ("deliveries", tries))
    for n, line in enumerate(letter.reason.splitlines()):
        yield "" if n else "reason", line
    replay = f"unstuck dead replay {letter.id}"
    yield "replay", f"refused: {letter.unreadable}" if letter.unreadable else replay
    for name, value in letter.fields.items():
        yield f"says {name}", value


def _at(entry: str) -> float:
    """Return the seconds since the epoch in the id of a stream entry."""
    return int(entry.partition("-")[0]) / 1000
