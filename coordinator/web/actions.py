"""The actions of the page: what may be done to a job now, and the requests that do so through the client."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from starlette.requests import Request

from unstuck.coordinator.commands.job_commands import LEGAL, RETRY_LEGAL, Command
from unstuck.coordinator.model.status import Status
from unstuck.tasks.identity import user_here

MEANS = {
    Command.PAUSE: "Start nothing more; what is running may end.",
    Command.RESUME: "Go on, with the full retry budget.",
    Command.STOP: "Start nothing more, let what is running end, and end the job. Nothing is published.",
    Command.CANCEL: "Interrupt what is running and end the job.",
    Command.FORCE_STOP: "End the job at once, whatever its workers do; they can change nothing any more.",
}
ENDS = (Command.STOP, Command.CANCEL, Command.FORCE_STOP)


@dataclass(frozen=True, slots=True)
class Action:
    """A button: what it is called and means, where its form goes, and the command line that does the same.

    Attributes:
        ends: it ends something that does not come back.
        fields: that the form sends beside the reason.
    """

    label: str
    means: str
    href: str
    command: str
    ends: bool = False
    takes_reason: bool = True
    fields: tuple[tuple[str, str], ...] = ()


def by(request: Request) -> str:
    """The name for the event log: of the person who is logged in, else of the user who runs the page."""
    return f"{request.scope['unstuck.user'] or user_here()} (page)"


def job_actions(job: str, status: Status) -> list[Action]:
    """The actions that are legal for a job in this status, by the table of the command line."""
    found = [
        Action(
            given.replace("-", " ").capitalize(),
            MEANS[given],
            f"/jobs/{job}/{given}",
            shlex.join(["unstuck", given, job]),
            given in ENDS,
        )
        for given in Command
        if status in LEGAL[given]
    ]
    if status in RETRY_LEGAL:
        means = "Make a new job of this one. Finished work is taken over."
        found.append(Action("Retry", means, f"/jobs/{job}/retry", shlex.join(["unstuck", "retry", job])))
    return found
