"""The answer to a command for a schedule."""

from __future__ import annotations

from dataclasses import dataclass

from unstuck.coordinator.command_table import Answer
from unstuck.coordinator.model.schedule_record import ScheduleStatus
from unstuck.coordinator.schedules.schedule_commands import ScheduleCommanded


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """How a command for a schedule ended.

    Attributes:
        target: name of the schedule.
        answer: DONE, ALREADY or REFUSED.
        text: a sentence for people.
        status: of the schedule after the command; None if it is removed.
        warnings: of `set`: parts of the spec without effect, such as a parameter that nothing uses.
    """

    target: str
    answer: Answer
    text: str
    status: ScheduleStatus | None = None
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, judged: ScheduleCommanded) -> ScheduleResult:
        return cls(judged.record.name, judged.answer, judged.text, judged.record.status)
