"""The answers of the commands that submit and change jobs."""

from __future__ import annotations

from unstuck.coordinator.model.status import Intent, Status
from unstuck.coordinator.store.answers import Submitted
from unstuck.documents.document import AnswerDocument, Document, Word
from unstuck.read_model.command_result import CommandResult


class JobAnswerDocument(AnswerDocument):
    """The answer of a command to one job."""

    id: str
    intent: Intent | None = None
    status: Status | None = None
    retry_of: Word = None

    @property
    def page(self) -> str:
        return self.id

    @classmethod
    def of_result(cls, result: CommandResult) -> JobAnswerDocument:
        return cls.of(result.job, answer=result.answer, text=result.text)


class SubmittedDocument(Document):
    """The answer to a submit. ``status``: of a job that was there; ``retried``: the job that is
    retried.
    """

    id: str
    name: str
    new: bool
    status: Status
    retried: Word
    warnings: tuple[str, ...]

    @classmethod
    def of_submitted(cls, submitted: Submitted, name: str) -> SubmittedDocument:
        return cls.of(submitted, name=name, status=submitted.found_as)
