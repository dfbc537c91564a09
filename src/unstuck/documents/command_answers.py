"""Give a command of the table through the client, and answer it with a document.

The command line, the page and the API give commands by this function alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unstuck.client.client import Client
from unstuck.client.retry_answer import retry_job
from unstuck.coordinator.command_table import Command, CommandOutcome, TargetKind
from unstuck.coordinator.errors import NoSuchReport
from unstuck.coordinator.store.dead_letter_store import DeadLetterAnswer
from unstuck.documents.dataset_documents import RestoredDocument, SkippedFileDocument
from unstuck.documents.document import AnswerDocument, OutcomeDocument
from unstuck.documents.fleet_documents import DeadLetterAnswerDocument
from unstuck.documents.job_documents import JobAnswerDocument
from unstuck.documents.schedule_documents import ScheduleAnswerDocument

# The answer to a command, by its target.
DOCUMENTS: dict[TargetKind, type[AnswerDocument]] = {
    TargetKind.JOB: JobAnswerDocument,
    TargetKind.GROUP: JobAnswerDocument,
    TargetKind.SCHEDULE: ScheduleAnswerDocument,
    TargetKind.BACKFILL: ScheduleAnswerDocument,
    TargetKind.DATASET: RestoredDocument,
    TargetKind.STREAM: SkippedFileDocument,
    TargetKind.POOL: OutcomeDocument,
    TargetKind.DEAD_LETTER: DeadLetterAnswerDocument,
}


def _to_job(
    client: Client, command: Command, job: str, arguments: Mapping[str, Any]
) -> AnswerDocument:
    if command.name == "retry":
        return JobAnswerDocument.of_result(retry_job(client, job, arguments))
    return JobAnswerDocument.of_result(getattr(client, command.method)(job, **arguments))


def _to_schedule(
    client: Client, command: Command, name: str, arguments: Mapping[str, Any]
) -> AnswerDocument:
    result = getattr(client.schedules, command.method)(name, **arguments)
    if isinstance(result, CommandOutcome):
        return ScheduleAnswerDocument(name=name, answer=result.answer, text=result.text)
    return ScheduleAnswerDocument.of_result(result)


def _to_dead_letter(
    client: Client, command: Command, letter: str, arguments: Mapping[str, Any]
) -> AnswerDocument:
    result = getattr(client.dead_letters, command.method)(letter, **arguments)
    if result.word is DeadLetterAnswer.GONE:
        raise NoSuchReport(result.text)
    return DeadLetterAnswerDocument.of(result, answer=result.word)


def _to_pool(
    client: Client, command: Command, pool: str, arguments: Mapping[str, Any]
) -> AnswerDocument:
    return OutcomeDocument.of(getattr(client.pools, command.method)(pool, **arguments))


def _to_dataset(
    client: Client, command: Command, dataset: str, arguments: Mapping[str, Any]
) -> AnswerDocument:
    result = getattr(client, command.method)(dataset, **arguments)
    return DOCUMENTS[command.target].of(result, dataset=dataset)


_GIVE: Mapping[TargetKind, Callable[[Client, Command, str, Mapping[str, Any]], AnswerDocument]] = {
    TargetKind.JOB: _to_job,
    TargetKind.GROUP: _to_job,
    TargetKind.SCHEDULE: _to_schedule,
    TargetKind.BACKFILL: _to_schedule,
    TargetKind.DATASET: _to_dataset,
    TargetKind.STREAM: _to_dataset,
    TargetKind.POOL: _to_pool,
    TargetKind.DEAD_LETTER: _to_dead_letter,
}


def give(
    client: Client, command: Command, subject: str, arguments: Mapping[str, Any]
) -> AnswerDocument:
    """Give ``command`` to the target that ``subject`` names.

    Args:
        arguments: by the names of the parameters.

    Raises: as the method of the client.
    """
    return _GIVE[command.target](client, command, subject, arguments)
