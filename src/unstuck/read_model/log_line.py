"""A line of the log of an attempt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that an attempt logged or printed.

    Attributes:
        group: group or member of the attempt.
        attempt: number of the attempt.
        file: path of the log file.
        line: the text.
    """

    group: str
    attempt: int
    file: str
    line: str
