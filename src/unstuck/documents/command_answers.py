"""Give a command of the table through the client.

The command line, the page and the API give commands by this function alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from unstuck.client.client import Client
from unstuck.client.retry_answer import retry_job
from unstuck.coordinator.command_table import Command, CommandOutcome, TargetKind
from unstuck.coordinator.errors import NoSuchReport
from unstuck.coordinator.publishing.restore import Restored
from unstuck.coordinator.publishing.streams.skip_file import SkippedFile
from unstuck.coordinator.schedules.schedule_result import ScheduleResult
from unstuck.coordinator.store.dead_letter_store import DeadLetterAnswer
from unstuck.read_model.command_result import CommandResult


class CommandAnswer(Protocol):
    """The fields that the answer to every command has; see `CommandOutcome`."""

    @property
    def target(self) -> str: ...
    @property
    def answer(self) -> str: ...
    @property
    def text(self) -> str: ...


# The type of the answer, by the target of the command.
ANSWERS: dict[TargetKind, type[CommandAnswer]] = {
    TargetKind.JOB: CommandResult,
    TargetKind.GROUP: CommandResult,
    TargetKind.SCHEDULE: ScheduleResult,
    TargetKind.BACKFILL: ScheduleResult,
    TargetKind.DATASET: Restored,
    TargetKind.STREAM: SkippedFile,
    TargetKind.POOL: CommandOutcome,
    TargetKind.DEAD_LETTER: CommandOutcome,
    TargetKind.PROBLEM: CommandOutcome,
}
# The part of the client that has the methods of a target; of the others, the client itself.
_ROOMS = {
    TargetKind.SCHEDULE: "schedules",
    TargetKind.BACKFILL: "schedules",
    TargetKind.POOL: "pools",
    TargetKind.DEAD_LETTER: "dead_letters",
}


def give(
    client: Client, command: Command, subject: str, arguments: Mapping[str, Any]
) -> CommandAnswer:
    """Give ``command`` to the target that ``subject`` names.

    Args:
        arguments: by the names of the parameters.

    Raises: as the method of the client.
    """
    if command.target is TargetKind.JOB and command.name == "retry":
        return retry_job(client, subject, arguments)
    room = getattr(client, _ROOMS[command.target]) if command.target in _ROOMS else client
    result: CommandAnswer = getattr(room, command.method)(subject, **arguments)
    if result.answer == DeadLetterAnswer.GONE:
        raise NoSuchReport(result.text)
    return result
