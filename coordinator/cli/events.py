"""``unstuck events``: what happened to a job, in order, and as it goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Protocol, TypeVar

import typer
from rich.text import Text

from unstuck.coordinator.cli.connection import connected
from unstuck.coordinator.cli.job_name import resolve
from unstuck.coordinator.cli.render.terminal import clock, coloured, count_of, emit_line, iso, one_line, stdout
from unstuck.coordinator.client import Client
from unstuck.coordinator.commands.alter import in_words
from unstuck.coordinator.decide.receipts import REFUSED
from unstuck.coordinator.model.status import TERMINAL
from unstuck.tasks.duration import format_duration

T = TypeVar("T")
Event = dict[str, Any]
LOOK_EVERY = 2.0  # seconds between two looks at the job itself, which may end without an event to say so
CHANGES = 5  # of one alter, written out
_ENDS = {str(status) for status in TERMINAL}


class Ask(Protocol):
    """Puts a question to the store, again while it is away."""

    def __call__(self, question: Callable[[], T], /) -> T: ...


def _once(question: Callable[[], T], /) -> T:
    return question()


class EventLines:
    """The events of one job, each once."""

    def __init__(self, client: Client, job: str, ask: Ask = _once) -> None:
        self._client, self._job, self._ask = client, job, ask
        self._after = "-"

    def new(self) -> Iterator[tuple[str, Event]]:
        """Those since the last call, oldest first."""
        while found := self._ask(lambda: self._client.queries.events(self._job, self._after)):
            self._after = found[-1][0]
            yield from found

    def follow(
        self, every: float, quiet: float = 0.0, on_quiet: Callable[[], None] | None = None
    ) -> Iterator[tuple[str, Event]]:
        """All of them, and each as it comes, until the job has ended.

        Args:
            on_quiet: called once in each stretch of ``quiet`` seconds without an event.
        """
        looked = -LOOK_EVERY
        news = time.monotonic()
        while True:
            ended = False
            if time.monotonic() - looked >= LOOK_EVERY:
                # Asked before the events are read, so that the last of them is among those read.
                ended = self._ask(lambda: self._client.show(self._job)).job.terminal
                looked = time.monotonic()
            for entry, event in self.new():
                ended = ended or ("group" not in event and event["kind"] in _ENDS)
                news = time.monotonic()
                yield entry, event
            if ended:
                return
            if on_quiet is not None and time.monotonic() - news >= quiet:
                on_quiet()
                news = math.inf  # until the next event
            time.sleep(every)


def event_text(event: Event) -> Text:
    """One event as one line."""
    group = str(event.get("group", ""))
    parts = []
    if "epoch" in event and event["kind"] != REFUSED:  # its sentence says so itself
        parts.append(f"attempt {event['epoch']}")
    if event.get("worker"):
        parts.append(f"on {event['worker']}")
    if event.get("claimant"):
        parts.append(f"claimant {event['claimant']}")
    if event.get("queue"):
        parts.append(f"queue {event['queue']}")
    if "rows" in event:
        parts.append(count_of(event["rows"], "row"))
    changes = event.get("changes") or ()  # of an alter
    parts.extend(
        f"{one['path']}: {in_words(one['path'], one['old'])} → {in_words(one['path'], one['new'])}"
        for one in changes[:CHANGES]
    )
    if len(changes) > CHANGES:
        parts.append(f"{len(changes) - CHANGES} more")
    if event.get("by"):
        parts.append(f"by {event['by']}")
    if event.get("next_at"):
        parts.append(f"next in {format_duration(max(0.0, event['next_at'] - event['at']))}")
    said = one_line(str(event.get("text", "")))
    line = Text.assemble(
        (clock(event["at"]), "dim"),
        "  ",
        coloured(event["kind"], f"{event['kind']:<10}"),
        "  ",
        f"{group:<20}" if group or parts or said else "",
        "  ",
        one_line(", ".join(parts)),
        f"  {said}" if said and parts else said,
    )
    line.rstrip()
    return line


def events(
    job: Annotated[str, typer.Argument(metavar="JOB", help="An id, the beginning of one, or `last`.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Show what happened to a job, the oldest first."""
    with connected() as connection:
        client = connection.client
        job_id = resolve(client, job)
        client.show(job_id)  # a job without events is not the same as no job
        lines = EventLines(client, job_id)
        for entry, event in lines.follow(0.5) if follow else lines.new():
            if as_json:
                times = {key: iso(event[key]) for key in ("at", "next_at") if key in event}
                emit_line({"entry": entry, **event, **times})
            else:
                stdout.print(event_text(event), soft_wrap=True)
