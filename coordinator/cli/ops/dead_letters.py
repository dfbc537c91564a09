"""``unstuck dead`` shows reports that cannot be applied, and replays or drops them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from unstuck.coordinator.cli.connection import connected
from unstuck.coordinator.cli.control import SHOWN
from unstuck.coordinator.cli.exits import ExitCode
from unstuck.coordinator.cli.options import AsJson, Yes, confirm
from unstuck.coordinator.cli.render.terminal import (
    clock,
    count_of,
    emit,
    for_people,
    iso,
    one_line,
    printable,
    stderr,
    stdout,
    table,
)
from unstuck.coordinator.client import Client
from unstuck.coordinator.errors import BadRequest, NoSuchReport
from unstuck.coordinator.store.dead_letters import DeadLetterAnswer, DeadLetterResult, unreadable
from unstuck.coordinator.store.reports import DeadLetter
from unstuck.tasks.protocol.failure import shorten

MOST = 200  # characters of one value in a table; `dead show` and --json have it whole

dead = typer.Typer(help="Reports of workers that nobody could apply.", no_args_is_help=True)

Reports = Annotated[list[str] | None, typer.Argument(metavar="ID…", help="Ids, as `unstuck dead list` shows them.")]
All = Annotated[bool, typer.Option("--all", help="Every report that is parked now.")]


@dead.callback()
def _reports() -> None:
    """Reports of workers that nobody could apply."""


@dead.command("list", epilog="Example: unstuck dead list --limit 20")
def list_dead(
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many.")] = 100, as_json: AsJson = False
) -> None:
    """List parked reports, the newest first, with the reason for each."""
    with connected() as connection:
        parked = connection.stream.dead_letters(limit)
    if as_json:
        emit([report_json(one) for one in parked])
        return
    if not parked:
        stderr.print("No parked reports.")
        return
    stdout.print(_listing(parked))


@dead.command("show", epilog="Example: unstuck dead show 1388530799000-0")
def show_dead(
    report: Annotated[str, typer.Argument(metavar="ID", help="Of a report.")], as_json: AsJson = False
) -> None:
    """Show one parked report: why and when it was parked, and, at the end, what it says, word for word."""
    with connected() as connection:
        one = connection.client.dead_letters.get(report)
    if as_json:
        emit({**report_json(one), "unreadable": unreadable(one) or None, "raw": one.raw})
        return
    why_not = unreadable(one)
    shown = table("", "")
    for name, value in (
        ("report", one.id),
        ("parked", clock(_at(one.id))),
        ("sent", f"{clock(_at(one.entry))} as {one.entry}" if one.entry else "not recorded"),
        ("deliveries", str(one.deliveries) if one.deliveries else "not recorded"),
        ("reason", one.reason),
        ("replay", f"refused, since it cannot be read: {why_not}" if why_not else f"unstuck dead replay {one.id}"),
        *((f"says {name}", value) for name, value in one.fields.items()),
    ):
        shown.add_row(Text(_cut(name)), Text(_cut(value)))
    shown.show_header = False
    stdout.print(shown)
    stdout.print()
    stdout.print(printable(json.dumps(one.raw, indent=2, ensure_ascii=False)), soft_wrap=True)


@dead.command("replay", epilog="Example: unstuck dead replay --all")
def replay(reports: Reports = None, everything: All = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Put parked reports back, for a coordinator to apply. Refused for what would only be parked again."""
    _treat(reports, everything, yes, as_json, "replay", lambda client: client.replay_report)


@dead.command("drop", epilog="Example: unstuck dead drop 1388530799000-0 --yes")
def drop(reports: Reports = None, everything: All = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove parked reports for good. Asks first."""
    _treat(reports, everything, yes, as_json, "drop", lambda client: client.drop_report)


def _treat(
    reports: Sequence[str] | None,
    everything: bool,
    yes: bool,
    as_json: bool,
    word: str,
    treatment: Callable[[Client], Callable[[str], DeadLetterResult]],
) -> None:
    """Do it to each, and say what came of it. One that is refused, or not there, never stops the others.

    Raises:
        BadRequest: neither ids nor ``--all``, or both; or nobody there who could agree.
        typer.Exit: not all could be done, or a person said no.
    """
    if bool(reports) == everything:
        raise BadRequest(f"unstuck dead {word} takes ids, as `unstuck dead list` shows them, or --all")
    with connected() as connection:
        client = connection.client
        ids = [one.id for one in _chosen(client, word, yes)] if everything else list(dict.fromkeys(reports or ()))
        if not everything and word == "drop":
            _agree(word, _known(client, ids), yes)
        do = treatment(client)
        treated = [do(one) for one in ids]
    if as_json:
        emit([{"id": one.id, "answer": str(one.word), "text": one.text} for one in treated])
    for one in () if as_json else treated:
        bad = one.word in (DeadLetterAnswer.REFUSED, DeadLetterAnswer.GONE)
        if bad or not everything:
            (stderr if bad else stdout).print(printable(one.text), soft_wrap=True)
    if everything:
        counted = ((sum(one.word is answer for one in treated), str(answer).lower()) for answer in DeadLetterAnswer)
        told = ", ".join(f"{count:,} {name}" for count, name in counted if count) or "no report is parked"
        for_people(as_json).print(f"{word}: {told}", soft_wrap=True)
    words = {one.word for one in treated}
    if DeadLetterAnswer.REFUSED in words:
        raise typer.Exit(ExitCode.REFUSED)
    if DeadLetterAnswer.GONE in words:
        raise typer.Exit(ExitCode.NO_SUCH_JOB)


def _known(client: Client, ids: Sequence[str]) -> list[DeadLetter]:
    """Those of ``ids`` that are parked."""
    found = []
    for one in ids:
        try:
            found.append(client.dead_letters.get(one))
        except NoSuchReport:
            continue  # said of it in its turn
    return found


def _chosen(client: Client, word: str, yes: bool) -> list[DeadLetter]:
    """All that are parked, once a person has agreed."""
    parked = client.dead_letters.all()
    _agree(word, parked, yes)
    return parked


def _agree(word: str, parked: Sequence[DeadLetter], yes: bool) -> None:
    """Show which are meant and let a person decide. Raises: BadRequest, typer.Exit."""
    if not parked:
        return
    stderr.print(_listing(parked[:SHOWN]))
    if len(parked) > SHOWN:
        stderr.print(f"and {len(parked) - SHOWN:,} more")
    count = count_of(len(parked), "parked report")
    confirm(f"{word}: {count}, as listed?", f"{word} would be done to {count}", yes)


def _listing(parked: Sequence[DeadLetter]) -> Any:
    listing = table("ID", "WHEN", "KIND", "TOKEN", "DELIVERIES", "REASON", right=("DELIVERIES",))
    for one in parked:
        listing.add_row(
            *(one.id, clock(_at(one.id)), Text(_cut(one.fields.get("kind", "?")))),
            *(Text(_cut(one.fields.get("token", "?"))), str(one.deliveries or "?"), Text(_cut(one.reason))),
        )
    return listing


def _cut(text: str) -> str:
    """A value on one line of a table, without its middle where it is long: a worker may have sent anything."""
    return one_line(shorten(text, MOST))


def report_json(one: DeadLetter) -> dict[str, Any]:
    """A parked report as ``list`` and ``show`` give it. ``deliveries`` is null where that was not recorded."""
    return {
        "id": one.id,
        "at": iso(_at(one.id)),
        "reason": one.reason,
        "entry": one.entry or None,
        "deliveries": one.deliveries or None,
        "report": one.fields,
    }


def _at(entry: str) -> float:
    """Seconds since the epoch in the id of a stream entry."""
    return int(entry.partition("-")[0]) / 1000
