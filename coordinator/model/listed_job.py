"""One line of a list of jobs, as it is stored beside the job."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pydantic import TypeAdapter

from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.status import DONE, Status
from unstuck.coordinator.model.tick import is_by_hand


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job in a list.

    Attributes:
        params: in words, and cut where they are long.
        schedule: of which it is a run; ``backfill``: when the backfill was given that submitted it,
            if one did.
    """

    id: str
    name: str
    status: Status
    submitted_at: float
    started_at: float
    ended_at: float
    groups: dict[str, int]
    total: int | None
    version: int
    reason: Reason | None
    key: str = ""
    params: str = ""
    schedule: str = ""
    backfill: str = ""

    @property
    def tick(self) -> str:
        """The tick of a run in ISO 8601, as in its key; empty for a job without a schedule."""
        return self.key.partition("@")[2].partition("/")[0] if self.schedule else ""

    @property
    def by_hand(self) -> bool:
        """Whether a person started it as a run without a tick."""
        return bool(self.schedule) and is_by_hand(self.key)

    @property
    def done(self) -> int:
        """Groups that have ended and were not canceled."""
        return sum(n for state, n in self.groups.items() if state in DONE)

    @property
    def took(self) -> float | None:
        """Seconds from its first claim to its end; None if it has not had both."""
        return self.ended_at - self.started_at if self.ended_at and self.started_at else None

    @property
    def trouble(self) -> str:
        """The sentence of how it ended, or of what stopped it; empty if it FINISHED."""
        return self.reason.text if self.reason and self.status is not Status.FINISHED else ""

    @classmethod
    def from_json(cls, text: str) -> ListedJob:
        """Read a line that was stored. Raises: ValueError."""
        # Not pydantic's own JSON, which refuses half of a surrogate pair.
        return _ADAPTER.validate_python(json.loads(text))


_ADAPTER: TypeAdapter[ListedJob] = TypeAdapter(ListedJob)
