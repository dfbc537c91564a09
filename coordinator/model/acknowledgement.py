"""The acknowledgement of a problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from unstuck.tasks.json_fields import Time


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A person knows of a problem; ``version``: that of the problem, ``at``: Unix seconds."""

    version: Annotated[str, Field(exclude=True)]
    at: Time
    by: str
    reason: str = ""
