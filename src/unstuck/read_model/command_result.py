"""The answer to a command for a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, computed_field

from unstuck.coordinator.command_table import Answer
from unstuck.coordinator.commands.job_commands import Commanded
from unstuck.coordinator.model.status import Intent, Status
from unstuck.read_model.job import JobInfo
from unstuck.tasks.json_fields import Word


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command for a job ended.

    Attributes:
        answer: DONE, ALREADY or REFUSED.
        job: the job after the command; of a retry, the new job.
        text: a sentence for people.
    """

    answer: Answer
    job: Annotated[JobInfo, Field(exclude=True)]
    text: str

    @computed_field  # type: ignore[prop-decorator]
    @property
    def target(self) -> str:
        """Id of the job; of a retry, of the new job."""
        return self.job.id

    @computed_field  # type: ignore[prop-decorator]
    @property
    def status(self) -> Status:
        """Status of the job after the command."""
        return self.job.status

    @computed_field  # type: ignore[prop-decorator]
    @property
    def intent(self) -> Intent:
        """Last command of a user."""
        return self.job.intent

    @computed_field  # type: ignore[prop-decorator]
    @property
    def retry_of(self) -> Word:
        """Id of the job that it retries."""
        return self.job.retry_of

    @classmethod
    def of(cls, judged: Commanded) -> CommandResult:
        return cls(judged.answer, JobInfo.of_record(judged.job), judged.text)
