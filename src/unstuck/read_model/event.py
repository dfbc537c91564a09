"""An event of a job or of a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from unstuck.tasks.json_fields import OptionalTime, Time, Word


class EventInfo(BaseModel):
    """One event. Its other fields depend on ``kind``.

    Attributes:
        entry: id in the event log of a job; null for an event of a schedule.
        kind: such as RUNNING, or USER_PAUSE.
        at: when it happened.
        next_at: when the next attempt may start (BACKOFF).
    """

    model_config = ConfigDict(extra="allow", defer_build=True)

    entry: Word = ""
    kind: str
    at: Time
    next_at: OptionalTime = None

    @classmethod
    def of(cls, event: Mapping[str, Any], entry: str = "") -> EventInfo:
        """Return ``event`` of a log."""
        return cls.model_construct(entry=entry, **event)
