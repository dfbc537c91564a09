"""The one line that ``list`` shows of a job, kept up to date by every commit so that listing reads nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from unstuck.coordinator.model.state import JobState


def summary_of(state: JobState) -> str:
    """The one line of JSON that ``list`` shows of a job."""
    job = state.job
    line: dict[str, Any] = {
        "id": job.id,
        "name": job.name,
        "status": job.status,
        "submitted_at": job.submitted_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "groups": {group_state: number for group_state, number in state.tally.items() if number},
        "total": None if state.unexpanded else state.size,
        "version": job.version,
        "reason": asdict(job.reason) if job.reason else None,
    }
    return json.dumps(line, separators=(",", ":"))
