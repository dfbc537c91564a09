"""The answer to a restore; and rows as plain values."""

from __future__ import annotations

import datetime
import math
from typing import Any

from unstuck.documents.document import AnswerDocument
from unstuck.tasks.protocol.replaced import Replaced


class RestoredDocument(AnswerDocument):
    """A dataset that stands as it did before; ``new`` is false if it stood so already."""

    dataset: str
    version: int
    new: bool
    rows: int
    files: int
    replaced: Replaced | None
    stream: str | None


class SkippedFileDocument(AnswerDocument):
    """A file that the stream of a dataset passes over. ``version``: of the warehouse that says so;
    0 before the first load. ``new`` is false if it was so already.
    """

    dataset: str
    path: str
    version: int
    new: bool


def plain_value(value: Any) -> Any:
    """A value of a row as JSON has it: times in ISO form, bytes in hexadecimal, decimals as
    text.
    """
    if isinstance(value, dict):
        return {name: plain_value(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain_value(element) for element in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | None) else str(value)
