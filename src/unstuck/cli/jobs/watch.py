"""``unstuck watch`` shows a job until it ends; ``unstuck events`` shows its event log.

Both only read: leaving, or losing the store for a while, changes nothing for the job.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import redis
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_fixed

from unstuck.cli.connection import connected
from unstuck.cli.options import Follow, JsonLines, LookArgument
from unstuck.cli.render.job_tree import job_tree
from unstuck.cli.render.terminal import can_live, clock, coloured, emit_line, hanging, stdout
from unstuck.client.find_job import find_job
from unstuck.coordinator.errors import Unreachable
from unstuck.coordinator.model.status import TERMINAL, GroupState, Status
from unstuck.exits import ExitCode
from unstuck.read_model.event import EventInfo
from unstuck.read_model.job import JobInfo
from unstuck.tasks.duration import format_duration
from unstuck.views.event_words import in_few_words, without_repeats
from unstuck.views.jobs.job_lines import MEMBERS
from unstuck.views.words import FIRST_LINE, count_of, one_line, shortened

if TYPE_CHECKING:
    from unstuck.client.client import Client

EVERY = 0.5  # seconds between two reads
MOST = 5.0  # seconds between two reads of a job that takes long to read
OUTAGE = 60.0  # seconds that a watcher waits for a store that was there before
QUIET = 10.0  # seconds without an event after which a line says what the job waits for
FRAMES = 4  # per second, so that clocks tick between two reads
JOB_EVERY = 2.0  # seconds between two reads of the job itself, which may end without an event

Event = dict[str, Any]
Ask = Callable[[Callable[[], Any]], Any]  # asks Redis, and again while it is away
Footer = Callable[[], str]
_ENDS = {str(status) for status in TERMINAL}


def events_of(
    client: Client,
    job: str,
    *,
    follow: bool = True,
    until: Callable[[JobInfo], bool] | None = None,
    ask: Ask = lambda question: question(),
    on_quiet: Callable[[], None] | None = None,
) -> Iterator[tuple[str, Event]]:
    """Yield the events of a job, oldest first.

    Args:
        follow: also yield each new event until the job has ended.
        until: that, or something else of the job that ends it.
        on_quiet: called once in each stretch of ``QUIET`` seconds without an event.
    """
    after = "-"
    read_at = -JOB_EVERY
    last_event = time.monotonic()
    ended = not follow
    until = until or (lambda job: job.terminal)
    while True:
        if follow and time.monotonic() - read_at >= JOB_EVERY:
            # Checked before the events are read, so that the last event is among those read.
            ended = until(ask(lambda: client.facts(job)))
            read_at = time.monotonic()
        if batch := ask(lambda: list(client.events(job, after))):  # noqa: B023 - asked at once
            after = batch[-1][0]
            last_event = time.monotonic()
            ended = ended or any(
                "group" not in event and event["kind"] in _ENDS for _, event in batch
            )
            yield from batch
        if ended:
            return
        if on_quiet is not None and time.monotonic() - last_event >= QUIET:
            on_quiet()
            last_event = math.inf  # until the next event
        time.sleep(EVERY)


def event_text(event: Mapping[str, Any]) -> Text:
    """Return one event as one line."""
    group, parts, text = str(event.get("group", "")), *in_few_words(event)
    line = Text.assemble(
        (clock(event["at"]), "dim"),
        "  ",
        coloured(event["kind"], f"{event['kind']:<10}"),
        "  ",
        f"{group:<20}" if group or parts or text else "",
        "  ",
        parts,
        f"  {text}" if text and parts else text,
    )
    line.rstrip()
    return line


def events(job: LookArgument, follow: Follow = False, as_json: JsonLines = False) -> None:
    """Show what happened to a job, the oldest first."""
    with connected() as connection:
        client = connection.client
        job_id = find_job(client, job, by_key=True)
        client.facts(job_id)  # a job without events is not the same as no job
        job_events = events_of(client, job_id, follow=follow)
        if not as_json:
            for event in without_repeats(job_events):
                stdout.print(hanging(stdout, event_text(event), 4))
            return
        for entry, event in job_events:
            emit_line(EventInfo.of(event, entry))


def watch(job: LookArgument) -> None:
    """Watch a job until it ends or is HALTED: a live tree with bars.

    Exit code 1 if it does not finish well.
    """
    with connected() as connection:
        job_id = find_job(connection.client, job, by_key=True)
        raise typer.Exit(await_end(connection.client, job_id, stdout))


def await_end(
    client: Client, job_id: str, console: Console, footer: Footer | None = None
) -> ExitCode:
    """Show the job on ``console`` until it ends, is HALTED, or the user leaves. Print its end.

    Args:
        footer: returns a line below the live tree, at every frame.

    Returns: FINE, NOT_WELL, or INTERRUPTED.
    Raises: NoSuchJob; Unreachable: Redis was away for longer than a minute. The job continues.
    """
    try:
        view = (
            _live(client, job_id, console, footer)
            if can_live(console)
            else _lines(client, job_id, console)
        )
    except KeyboardInterrupt:
        console.print(
            f"You have left; job {job_id} goes on. Come back with: unstuck watch {job_id}",
            soft_wrap=True,
        )
        return ExitCode.INTERRUPTED
    for text in conclusion(view):
        console.print(text, soft_wrap=True)
    return ExitCode.FINE if view.status is Status.FINISHED else ExitCode.NOT_WELL


def conclusion(job: JobInfo) -> Iterator[Text]:
    """Yield how the job ended, what was published, and where to look next.

    The tree or the events have shown the reasons.
    """
    yield from outcome(job)
    if not job.terminal:
        yield Text(f"  reason  unstuck why {job.id}\n  go on   unstuck resume {job.id}")
    elif job.status is not Status.FINISHED:
        yield Text(f"  errors  unstuck show {job.id}\n  logs    unstuck logs {job.id}")


def outcome(job: JobInfo) -> Iterator[Text]:
    """Return how the job ended, and what was published."""
    duration = format_duration(
        max(0.0, (job.ended_at or job.at) - (job.started_at or job.submitted_at))
    )
    yield Text.assemble(f"{job.name} {job.id} ", coloured(job.status), f" after {duration}")
    for name, rows in sorted(job.published.items()):
        yield Text(f"  published {name}: {count_of(rows, 'row')}")
    if job.version:
        yield Text(f"  version {job.version} of {job.warehouse}")


def _through_outages(say: Callable[[str], object]) -> Retrying:
    """Repeat a query while Redis is away, for a minute at most. Report each outage once."""

    def announce(state: RetryCallState) -> None:
        if state.attempt_number == 1:
            say("Redis does not answer; waiting for it. The job is not affected by this.")

    return Retrying(
        retry=retry_if_exception(_may_pass),
        wait=wait_fixed(0.5),
        stop=stop_after_delay(OUTAGE),
        before_sleep=announce,
        reraise=True,
    )


def _may_pass(error: BaseException) -> bool:
    """Return whether the error is an outage, which may pass, and not a refusal."""
    error = error.__cause__ if isinstance(error, Unreachable) and error.__cause__ else error
    return isinstance(error, redis.ConnectionError | redis.TimeoutError) and not isinstance(
        error, redis.AuthenticationError
    )


def _live(client: Client, job_id: str, console: Console, footer: Footer | None) -> JobInfo:
    def read() -> tuple[JobInfo, float, float]:
        started_at = time.monotonic()
        view = client.show(job_id, why=True, members=MEMBERS)
        return view, time.monotonic(), time.monotonic() - started_at

    latest = read()  # before the display starts, so that an error stands alone on the screen
    ask = _through_outages(console.print)

    def frame() -> RenderableType:
        view, read_at, _ = latest
        below = [Text(footer(), "dim")] if footer is not None and not view.terminal else []
        at = (
            view.at + time.monotonic() - read_at
        )  # the clock of the store, as it runs on from the read
        return Group(job_tree(view, at, console.height - 2 - len(below), cut=True), *below)

    try:
        with Live(console=console, get_renderable=frame, refresh_per_second=FRAMES, transient=True):
            while not latest[0].at_rest:
                latest = ask(read)
                # A job of ten thousand groups takes a while to read: spend most of the time not
                # reading it. An outage is no reading, and the first answer after it may have waited
                # for it.
                time.sleep(min(max(EVERY, 4 * latest[2]), MOST))
    finally:
        console.print(job_tree(latest[0], latest[0].at, console.height - 2))
    return latest[0]


def _lines(client: Client, job_id: str, console: Console) -> JobInfo:
    """Print one line for each event, and one line each time that nothing happens for a while."""
    client.facts(job_id)  # an error now is an answer, and later an outage to wait out
    ask = _through_outages(console.print)

    def say_why() -> None:
        if text := waiting(ask(lambda: client.show(job_id, why=True, members=MEMBERS))):
            console.print(hanging(console, text, 4))

    for event in without_repeats(
        events_of(client, job_id, until=lambda job: job.at_rest, ask=ask, on_quiet=say_why)
    ):
        console.print(hanging(console, event_text(event), 4))
    return ask(lambda: client.show(job_id))


def waiting(view: JobInfo) -> Text | None:
    """Return the reason why a job waits, as one line; None if something runs.

    Then the events have shown it.
    """
    runs = any(
        group.states.get(state)
        for group in view.groups
        for state in (GroupState.RUNNING, GroupState.CANCELING)
    )
    why = "" if runs or view.terminal else view.why_line(view.id)
    return (
        Text(f"{clock(view.at)}  waiting     {shortened(one_line(why), FIRST_LINE)}", "yellow")
        if why
        else None
    )
