"""The result of a command: whether it was applied, and the record of the job after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from unstuck.coordinator.model.records import JobRecord


class Answer(StrEnum):
    DONE = "DONE"  # the intent is written; a coordinator acts on it
    ALREADY = "ALREADY"  # it was so before; nothing changed
    REFUSED = "REFUSED"  # not legal in this state


@dataclass(frozen=True, slots=True)
class Commanded:
    """The result of a command: the job's record after it, and a sentence for the user.

    ``plans`` and ``params`` are what runners get from now on, where an ``alter`` changed it.
    """

    answer: Answer
    job: JobRecord
    text: str
    plans: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] | None = None
