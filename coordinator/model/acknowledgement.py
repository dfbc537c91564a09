"""The acknowledgement of a problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from unstuck.tasks.json_fields import Time

ACKNOWLEDGED_FOR_S = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The acknowledgement of a problem by a user.

    Attributes:
        version: `Problem.version` when it was acknowledged.
        at: when it was given, in Unix seconds; it expires after ``ACKNOWLEDGED_FOR_S``.
        by: who gave it.
        reason: why.
    """

    version: Annotated[str, Field(exclude=True)]
    at: Time
    by: str
    reason: str = ""

    def expired(self, now: float) -> bool:
        """Return whether the problem counts again."""
        return now - self.at > ACKNOWLEDGED_FOR_S
