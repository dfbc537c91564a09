"""``unstuck pause | resume | stop | cancel | force-stop``: what a user wants of a job.

A command is on record when it returns; a coordinator brings it about. Refused commands say in which state, and what
would be legal, and exit with 4.
"""

from __future__ import annotations

from typing import Annotated

import typer

from coordinator.cli.connection import connected
from coordinator.cli.exits import ExitCode
from coordinator.cli.job_name import resolve
from coordinator.cli.terminal import emit, stderr, stdout
from coordinator.commands import Answer, Command, Commanded

Jobs = Annotated[list[str], typer.Argument(metavar="JOB…", help="Ids, beginnings of ids, or `last`.")]
Because = Annotated[str, typer.Option("--reason", help="Why, for the event log.")]
AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]


def pause(
    jobs: Jobs,
    reason: Because = "",
    now: Annotated[bool, typer.Option("--now", help="Interrupt what is running; it is charged to nobody.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start nothing more; what is running may end."""
    _give(Command.PAUSE, jobs, reason, as_json, now=now)


def resume(jobs: Jobs, reason: Because = "", as_json: AsJson = False) -> None:
    """Go on with a paused job, with its full retry budget."""
    _give(Command.RESUME, jobs, reason, as_json)


def stop(jobs: Jobs, reason: Because = "", as_json: AsJson = False) -> None:
    """Start nothing more, let what is running end, and end the job. Nothing is published."""
    _give(Command.STOP, jobs, reason, as_json)


def cancel(jobs: Jobs, reason: Because = "", as_json: AsJson = False) -> None:
    """Interrupt what is running and end the job. At the deadline it ends without its workers."""
    _give(Command.CANCEL, jobs, reason, as_json)


def force_stop(jobs: Jobs, reason: Because = "", as_json: AsJson = False) -> None:
    """End the job at once, whatever its workers do; they can change nothing any more."""
    _give(Command.FORCE_STOP, jobs, reason, as_json)


def _give(given: Command, jobs: list[str], reason: str, as_json: bool, *, now: bool = False) -> None:
    with connected() as connection:
        ids = [resolve(connection.client, job) for job in jobs]
        results = [connection.client.command(job, given, reason=reason, now=now) for job in ids]
    tell(results, as_json)


def tell(results: list[Commanded], as_json: bool) -> None:
    """Say what came of commands, and leave with 4 if one was refused."""
    if as_json:
        emit([_as_json(result) for result in results])
    for result in results if not as_json else ():
        (stderr if result.answer is Answer.REFUSED else stdout).print(result.text, soft_wrap=True)
    if any(result.answer is Answer.REFUSED for result in results):
        raise typer.Exit(ExitCode.REFUSED)


def _as_json(result: Commanded) -> dict[str, str]:
    return {
        "id": result.job.id,
        "answer": str(result.answer),
        "intent": str(result.job.intent),
        "status": str(result.job.status),
        "text": result.text,
    }
