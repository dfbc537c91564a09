"""Give a command of the table through the client, and answer it with a document.

The command line, the page and the API give commands by this function alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unstuck.client.client import Client
from unstuck.client.retry_answer import retry_job
from unstuck.coordinator.command_table import Command, TargetKind
from unstuck.documents.fleet_documents import DeadLetterAnswerDocument
from unstuck.documents.job_documents import JobAnswerDocument
from unstuck.tasks.errors import UnstuckError

AnswerDocument = JobAnswerDocument | DeadLetterAnswerDocument
# The answer to a command, by its target.
DOCUMENTS: dict[TargetKind, type[AnswerDocument]] = {
    TargetKind.JOB: JobAnswerDocument,
    TargetKind.GROUP: JobAnswerDocument,
}


def _to_job(
    client: Client, command: Command, job: str, arguments: Mapping[str, Any]
) -> JobAnswerDocument:
    if command.name == "retry":
        return JobAnswerDocument.of_result(retry_job(client, job, arguments))
    return JobAnswerDocument.of_result(getattr(client, command.method)(job, **arguments))


_GIVE: dict[TargetKind, Callable[[Client, Command, str, Mapping[str, Any]], AnswerDocument]] = {
    TargetKind.JOB: _to_job,
    TargetKind.GROUP: _to_job,
}


def give(
    client: Client, command: Command, subject: str, arguments: Mapping[str, Any]
) -> AnswerDocument:
    """Give ``command`` to the target that ``subject`` names.

    Args:
        arguments: by the names of the parameters.

    Raises: as the method of the client; a refusal is an answer.
    """
    return _GIVE[command.target](client, command, subject, arguments)


def unanswered(command: Command, subject: str, error: UnstuckError) -> AnswerDocument:
    """Return the answer to a command whose target cannot be asked; its word is the code of the
    error.
    """
    return DOCUMENTS[command.target].of_error(subject, error)
