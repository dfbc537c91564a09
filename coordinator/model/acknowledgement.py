"""The acknowledgement of a problem."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A person knows of a problem; ``version``: that of the problem, ``at``: Unix seconds."""

    version: str
    at: float
    by: str
    reason: str = ""
