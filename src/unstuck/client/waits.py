"""The lines of ``why`` for a list of jobs, for the command line and the page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import redis

from unstuck.coordinator.errors import NewerJob, NoSuchJob, Unreachable

if TYPE_CHECKING:
    from unstuck.client.client import Client
    from unstuck.coordinator.problems.state import JobSummary

# Seconds for the reasons of a listing; a job of ten thousand groups takes a while to read.
EXPLAIN_WITHIN = 2.0


def waits_of(
    client: Client, jobs: Sequence[JobSummary], within: float = EXPLAIN_WITHIN
) -> dict[str, str]:
    """Return the line of ``why`` of each job that has not ended.

    Jobs that were not read within ``within`` seconds are left out.

    Raises: Unreachable.
    """
    until = time.monotonic() + within
    waits = {}
    for job in jobs:
        if job.status.terminal or time.monotonic() > until:
            continue
        with suppress(NoSuchJob):  # it was removed since it was listed
            try:
                waits[job.id] = client.show(job.id, why=True, members=1).why_line(job.id)
            except (NewerJob, Unreachable) as error:
                if isinstance(error, Unreachable) and not isinstance(
                    error.__cause__, redis.ResponseError
                ):
                    raise
                waits[job.id] = str(
                    error.__cause__ or error
                )  # one that cannot be read hides no other
    return waits
