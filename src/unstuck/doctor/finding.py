"""A finding of the doctor: the subject, its severity, and the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from unstuck.tasks.duration import format_duration


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of the doctor, and its result.

    Attributes:
        code: of the check.
        level: how bad the result is.
        text: the result in words.
        cure: what to do; empty if all is well.
    """

    code: str
    level: Level
    text: str
    cure: str = ""


def ok(code: str, text: str) -> Finding:
    return Finding(code, Level.OK, text)


def warning(code: str, text: str, cure: str) -> Finding:
    return Finding(code, Level.WARNING, text, cure)


def problem(code: str, text: str, cure: str) -> Finding:
    return Finding(code, Level.PROBLEM, text, cure)


def ago(at: float | None, now: float) -> str:
    return "never" if at is None else f"{format_duration(max(0.0, now - at))} ago"
