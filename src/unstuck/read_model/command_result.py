"""The answer to a command for a job."""

from __future__ import annotations

from dataclasses import dataclass

from unstuck.coordinator.command_table import Answer
from unstuck.coordinator.commands.job_commands import Commanded
from unstuck.read_model.job import JobInfo


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended: DONE, ALREADY or REFUSED, the job after it, and a sentence for
    people.
    """

    answer: Answer
    job: JobInfo
    text: str

    @classmethod
    def of(cls, judged: Commanded) -> CommandResult:
        return cls(judged.answer, JobInfo.of_record(judged.job), judged.text)
