"""``unstuck pause | resume | stop | cancel | force-stop``: what a user wants of a job.

A command is on record when it returns; a coordinator brings it about. Refused commands say in which state, and what
would be legal, and exit with 4. Which jobs are meant stands in ``selection``.
"""

from __future__ import annotations

from typing import Annotated

import typer

from unstuck.coordinator.cli.connection import connected
from unstuck.coordinator.cli.selection import Named, Since, Statuses, Wanted, Words, Yes, give, tell_all
from unstuck.coordinator.commands.job import LEGAL, Command

Because = Annotated[str, typer.Option("--reason", help="Why, for the event log.")]
By = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who asks, for the event log; by default user@host.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]


def pause(
    jobs: Words = None,
    status: Statuses = None,
    name: Named = None,
    since: Since = None,
    yes: Yes = False,
    reason: Because = "",
    by: By = None,
    now: Annotated[bool, typer.Option("--now", help="Interrupt what is running; it is charged to nobody.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start nothing more; what is running may end."""
    _give(Command.PAUSE, Wanted(jobs, status, name, since, yes), reason, by, as_json, now=now)


def resume(
    jobs: Words = None,
    status: Statuses = None,
    name: Named = None,
    since: Since = None,
    yes: Yes = False,
    reason: Because = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a paused job, with its full retry budget."""
    _give(Command.RESUME, Wanted(jobs, status, name, since, yes), reason, by, as_json)


def stop(
    jobs: Words = None,
    status: Statuses = None,
    name: Named = None,
    since: Since = None,
    yes: Yes = False,
    reason: Because = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Start nothing more, let what is running end, and end the job. Nothing is published."""
    _give(Command.STOP, Wanted(jobs, status, name, since, yes), reason, by, as_json)


def cancel(
    jobs: Words = None,
    status: Statuses = None,
    name: Named = None,
    since: Since = None,
    yes: Yes = False,
    reason: Because = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Interrupt what is running and end the job. At the deadline it ends without its workers."""
    _give(Command.CANCEL, Wanted(jobs, status, name, since, yes), reason, by, as_json)


def force_stop(
    jobs: Words = None,
    status: Statuses = None,
    name: Named = None,
    since: Since = None,
    yes: Yes = False,
    reason: Because = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """End the job at once, whatever its workers do; they can change nothing any more."""
    _give(Command.FORCE_STOP, Wanted(jobs, status, name, since, yes), reason, by, as_json)


def _give(given: Command, wanted: Wanted, reason: str, by: str | None, as_json: bool, *, now: bool = False) -> None:
    with connected() as connection:
        client = connection.client
        answers = give(
            client, given, LEGAL[given], wanted, lambda job: client.command(job, given, reason=reason, by=by, now=now)
        )
    tell_all(answers, wanted.filtered, as_json)
