"""``unstuck watch``: a job as it goes, until it has ended. A live tree on a terminal, one line per change elsewhere.

Watching reads and nothing else: leaving it, or losing the store for a while, changes nothing for the job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated, TypeVar

import redis
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_fixed

from unstuck.coordinator.cli.connection import Connection, connected
from unstuck.coordinator.cli.events import EventLines, event_text
from unstuck.coordinator.cli.exits import ExitCode
from unstuck.coordinator.cli.job_name import resolve
from unstuck.coordinator.cli.render.terminal import can_live, clock, coloured, count_of, one_line, stdout
from unstuck.coordinator.cli.render.tree import MEMBERS, job_tree
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.coordinator.views.jobs import JobView
from unstuck.tasks.duration import format_duration

EVERY = 0.5  # seconds between two looks
OUTAGE = 60.0  # seconds that a watcher waits for a store that was there before
STANDS = 10.0  # seconds without an event after which a line says why
FRAMES = 4  # per second, so that clocks tick between two looks

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="An id, the beginning of one, or `last`.")]
Footer = Callable[[], str]
T = TypeVar("T")


def watch(job: JobArgument) -> None:
    """Watch a job until it ends: a live tree with progress bars. Exit code 1 if it does not finish well."""
    with connected() as connection:
        job_id = resolve(connection.client, job)
        raise typer.Exit(await_end(connection, job_id, stdout))


def await_end(connection: Connection, job_id: str, console: Console, footer: Footer | None = None) -> ExitCode:
    """Show the job on ``console`` until it has ended or the person leaves, and say how it ended.

    Args:
        footer: a line below the live tree, asked for at every frame.

    Returns: FINE, NOT_WELL, or INTERRUPTED.
    Raises: NoSuchJob; redis.RedisError: the store was away for longer than a minute. The job goes on.
    """
    try:
        view = _live(connection, job_id, console, footer) if can_live(console) else _lines(connection, job_id, console)
    except KeyboardInterrupt:
        console.print(f"You have left; job {job_id} goes on. Come back with: unstuck watch {job_id}", soft_wrap=True)
        return ExitCode.INTERRUPTED
    for text in conclusion(view):
        console.print(text, soft_wrap=True)
    return ExitCode.FINE if view.job.status is Status.FINISHED else ExitCode.NOT_WELL


def conclusion(view: JobView) -> Iterator[Text]:
    """How the job ended, why, what was published, and where to look next."""
    job = view.job
    took = format_duration(max(0.0, job.ended_at - (job.started_at or job.submitted_at)))
    reason = f": {one_line(job.reason.text)}" if job.reason else ""
    yield Text.assemble(f"{job.name} {job.id} ", coloured(job.status), f" after {took}{reason}")
    for name, rows in sorted(job.published.items()):
        yield Text(f"  published {name}: {count_of(rows, 'row')}")
    if job.version:
        yield Text(f"  version {job.version} of {job.warehouse}")
    if job.status is not Status.FINISHED:
        yield Text(f"  errors  unstuck show {job.id}\n  logs    unstuck logs {job.id}")


class Patience:
    """Asks the store again while it is away, and says so once per outage."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def ask(self, question: Callable[[], T], /) -> T:
        """The answer of ``question``. Raises: redis.RedisError: none within a minute, or a refusal."""
        return Retrying(
            retry=retry_if_exception(_passing),
            wait=wait_fixed(0.5),
            stop=stop_after_delay(OUTAGE),
            before_sleep=self._told,
            reraise=True,
        )(question)

    def _told(self, state: RetryCallState) -> None:
        if state.attempt_number == 1:
            self._say("Redis does not answer; waiting for it. The job is not affected by this.")


def _passing(error: BaseException) -> bool:
    """An outage that may pass by itself; a refusal does not."""
    return isinstance(error, redis.ConnectionError | redis.TimeoutError) and not isinstance(
        error, redis.AuthenticationError
    )


def _live(connection: Connection, job_id: str, console: Console, footer: Footer | None) -> JobView:
    # Asked before the display is there, so that an error stands alone on the screen.
    latest = _Latest(_look(connection, job_id))
    patience = Patience(console.print)

    def frame() -> RenderableType:
        view, at = latest.now()
        below = [Text(footer(), "dim")] if footer is not None and not view.job.terminal else []
        return Group(job_tree(view, at, console.height - 2 - len(below)), *below)

    with Live(console=console, get_renderable=frame, refresh_per_second=FRAMES, vertical_overflow="crop") as live:
        while not latest.view.job.terminal:
            asked = time.monotonic()
            latest.set(patience.ask(lambda: _look(connection, job_id)))
            # A job of ten thousand groups takes a while to read: spend most of the time not reading it.
            time.sleep(max(EVERY, 4 * (time.monotonic() - asked)))
        live.refresh()
    return latest.view


def _look(connection: Connection, job_id: str) -> JobView:
    return connection.client.show(job_id, why=True, members=MEMBERS)


class _Latest:
    """The newest view, and the clock of the store as it runs on from there. Read by the drawing thread."""

    def __init__(self, view: JobView) -> None:
        self._mutex = threading.Lock()
        self.view = view
        self._seen = time.monotonic()

    def set(self, view: JobView) -> None:
        with self._mutex:
            self.view, self._seen = view, time.monotonic()

    def now(self) -> tuple[JobView, float]:
        with self._mutex:
            return self.view, self.view.at + (time.monotonic() - self._seen)


def _lines(connection: Connection, job_id: str, console: Console) -> JobView:
    """One line per event, from the first one on, and one for each time that the job stands still."""
    connection.client.show(job_id)  # an error now is an answer, and later an outage to wait out
    ask = Patience(console.print).ask

    def stands() -> None:
        if text := standing(ask(lambda: _look(connection, job_id))):
            console.print(text, soft_wrap=True)

    for _, event in EventLines(connection.client, job_id, ask).follow(EVERY, STANDS, stands):
        console.print(event_text(event), soft_wrap=True)
    return ask(lambda: connection.client.show(job_id))


def standing(view: JobView) -> Text | None:
    """Why a job stands still, as one line; None where something runs, for then the events have said what."""
    runs = any(group.census.get(state) for group in view.groups for state in (GroupState.RUNNING, GroupState.CANCELING))
    why = "" if runs or view.job.terminal else view.why_line(view.job.id)
    return Text(f"{clock(view.at)}  stands      {one_line(why)}", "yellow") if why else None
