"""Totals of all ended jobs by name, for the metrics; the commit that ends a job adds it once.

Times are counted in buckets, as in a histogram of Prometheus.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unstuck.coordinator.model.records import JobRecord

BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 10800.0, 43200.0, 86400.0)  # seconds
MAX_NAMES = 100  # of jobs that are counted by themselves
_JOB = "job "  # begins the field of a name
PUBLISHING = "publishing"  # the field of the publishing of all jobs


@dataclass(frozen=True, slots=True)
class Totals:
    """The counts of one field.

    Attributes:
        counts: how many jobs ended with each status.
        buckets: how many times were at most as long as each of ``BUCKETS``, and beside them longer
            than all.
        seconds: all times together.
    """

    counts: Mapping[str, int]
    buckets: tuple[int, ...]
    seconds: float

    @classmethod
    def from_json(cls, text: str) -> Totals:
        """Raises: ValueError, TypeError, AttributeError: the text is damaged."""
        amounts = {str(what): float(amount) for what, amount in json.loads(text).items()}
        counts = {what: int(amount) for what, amount in amounts.items() if what.isupper()}
        buckets = tuple(int(amounts.get(str(number), 0)) for number in range(len(BUCKETS) + 1))
        return cls(counts, buckets, amounts.get("seconds", 0.0))


def job_of(field: str) -> str | None:
    """Return the job of a field, empty for the jobs beyond the limit of names.

    None for another field.
    """
    return field.removeprefix(_JOB) if field.startswith(_JOB) else None


def ended_as(job: JobRecord, publishing: float | None) -> dict[str, Any]:
    """Return how the commit that ends ``job`` counts it.

    Args:
        publishing: seconds that publishing took; None if it published no version.
    """
    ran = _timed(job.ended_at - job.started_at) if job.started_at else {}
    published = {} if publishing is None else _timed(publishing)
    return {
        "name": job.name,
        "most": MAX_NAMES,
        "job": {str(job.status): 1, **ran},
        "publishing": published,
    }


def _timed(seconds: float) -> dict[str, float]:
    return {str(bisect_left(BUCKETS, seconds)): 1, "seconds": max(0.0, seconds)}
