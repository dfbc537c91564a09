"""``unstuck dead`` shows reports that cannot be applied, notices that cannot be sent, and submits
that were refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated

import typer
from rich.text import Text

from unstuck.cli.connection import connected
from unstuck.cli.jobs.control import show_answers
from unstuck.cli.options import AsJson, Yes, confirm
from unstuck.cli.render.terminal import TextTable, clock, emit, stderr, stdout, table
from unstuck.coordinator.errors import BadRequest, NoSuchReport
from unstuck.coordinator.store.reports import DeadLetter
from unstuck.documents.fleet_documents import DeadLetterAnswerDocument
from unstuck.tasks.protocol.failure import shorten
from unstuck.views.words import one_line

MOST = 200  # characters of one value in a table; `dead show` and --json have it whole

HELP = (
    "Reports that nobody could apply, notices that could not be sent, and Celery submits that "
    "were refused."
)
dead = typer.Typer(help=HELP, no_args_is_help=True)

Reports = Annotated[
    list[str] | None, typer.Argument(metavar="ID…", help="Ids, as `unstuck dead list` shows them.")
]
All = Annotated[bool, typer.Option("--all", help="Every dead letter.")]


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
    stdout.print(_listing(letters))


@dead.command("show", epilog="Example: unstuck dead show 1388530799000-0")
def show_dead(
    report: Annotated[str, typer.Argument(metavar="ID", help="Of a dead letter.")],
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: why and since when it is one, and, at the end, what the report says,
    word for word.
    """
    with connected() as connection:
        letter = connection.client.dead_letters.get(report)
    if as_json:
        emit(letter)
        return
    shown = table("", "")
    for name, value in _rows_of(letter):
        shown.add_row(Text(_cut(name)), Text(_cut(value)))
    stdout.print(shown)
    stdout.print()
    stdout.print(json.dumps(letter.raw, indent=2, ensure_ascii=False), soft_wrap=True)


def _rows_of(letter: DeadLetter) -> Iterator[tuple[str, str]]:
    """Yield what is known of a dead letter, each value with its name."""
    yield "refused task" if letter.task else "notice" if letter.notice else "report", letter.id
    if letter.task:
        yield "task", letter.task
    if letter.to:
        yield "target", letter.to
    yield "dead letter since", clock(letter.at)
    if not letter.notice and not letter.task:
        sent = f"{clock(_at(letter.entry))} as {letter.entry}" if letter.entry else "not recorded"
        yield "sent", sent
    if not letter.task:
        tries = str(letter.deliveries or "not recorded")
        yield "tries" if letter.notice else "deliveries", tries
    for n, line in enumerate(letter.reason.splitlines()):
        yield "" if n else "reason", line
    replay = f"unstuck dead replay {letter.id}"
    yield "replay", f"refused: {letter.unreadable}" if letter.unreadable else replay
    for name, value in letter.fields.items():
        yield f"says {name}", value


@dead.command("replay", epilog="Example: unstuck dead replay --all")
def replay(
    reports: Reports = None, everything: All = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Put dead letters back, for a coordinator to apply.

    Refused for what would only be a dead letter again.
    """
    _resolve(reports, everything, yes, as_json, "replay")


@dead.command("drop", epilog="Example: unstuck dead drop 1388530799000-0 --yes")
def drop(
    reports: Reports = None, everything: All = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Remove dead letters for good. Asks first."""
    _resolve(reports, everything, yes, as_json, "drop")


def _resolve(
    reports: Sequence[str] | None, everything: bool, yes: bool, as_json: bool, word: str
) -> None:
    """Replay or drop each, and show the answers. One that is refused, or is not there, does not
    stop the others.

    Raises:
        BadRequest: neither ids nor ``--all``, or both; or nobody is there to confirm.
        typer.Exit: not all could be done, or a person said no.
    """
    if bool(reports) == everything:
        raise BadRequest(
            f"unstuck dead {word} takes ids, as `unstuck dead list` shows them, or --all"
        )
    with connected() as connection:
        client = connection.client
        ids = list(dict.fromkeys(reports or ()))
        letters: list[DeadLetter] = client.dead_letters.all() if everything else []
        for letter_id in ids:
            with suppress(NoSuchReport):  # its answer says so
                letters.append(client.dead_letters.get(letter_id))
        if everything or word == "drop":
            confirm(word, letters, "dead letter", _listing, yes)
        resolve = client.dead_letters.drop if word == "drop" else client.dead_letters.replay
        results = [resolve(letter_id) for letter_id in (ids or [letter.id for letter in letters])]
    answers = [DeadLetterAnswerDocument.of(result, answer=result.word) for result in results]
    show_answers(word, answers, as_json, filtered=everything, none="there is no dead letter")


def _listing(letters: Sequence[DeadLetter]) -> TextTable:
    listing = table("ID", "WHEN", "KIND", "OF", "DELIVERIES", "REASON", right=("DELIVERIES",))
    for letter in letters:
        listing.add_row(
            letter.id,
            clock(letter.at),
            Text(_cut(letter.kind)),
            Text(_cut(letter.subject)),
            "" if letter.task else str(letter.deliveries or "?"),
            Text(_cut(letter.reason)),
        )
    return listing


def _cut(text: str) -> str:
    """A value on one line of a table, without its middle where it is long: a worker may have sent
    anything.
    """
    return one_line(shorten(text, MOST))


def _at(entry: str) -> float:
    """Seconds since the epoch in the id of a stream entry."""
    return int(entry.partition("-")[0]) / 1000
