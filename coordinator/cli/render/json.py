"""The answers of ``--json``. The field names are a promise to scripts. Times are ISO 8601 in UTC with Z, or null."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from unstuck.coordinator.cli.render.terminal import iso
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.views.jobs import ForkView, GroupView, JobView, ListedJob
from unstuck.tasks.protocol.report import Failure


def listed_json(job: ListedJob, why: str = "") -> dict[str, Any]:
    """One line of ``list``; ``why``: what the job waits for. ``total`` is null while a dynamic fork is not expanded."""
    return {
        "id": job.id,
        "name": job.name,
        "status": str(job.status),
        "submitted_at": iso(job.submitted_at),
        "started_at": iso(job.started_at),
        "ended_at": iso(job.ended_at),
        "done": job.done,
        "total": job.total,
        "groups": job.groups,
        "version": job.version,
        "why": why or None,
        "reason": _reason(job.reason),
    }


def job_json(view: JobView) -> dict[str, Any]:
    """Everything that ``show`` knows."""
    job = view.job
    return {
        "id": job.id,
        "name": job.name,
        "status": str(job.status),
        "intent": str(job.intent),
        "phase": job.phase,
        "why": None if job.terminal else view.why_line(job.id) or None,
        "reason": _reason(job.reason),
        "halted": _reason(job.halted),
        "damage": view.damage or None,
        "submitted_at": iso(job.submitted_at),
        "submitted_by": job.submitted_by,
        "started_at": iso(job.started_at),
        "ended_at": iso(job.ended_at),
        "due_at": iso(view.due),
        "key": job.key or None,
        "retry_of": job.retry_of or None,
        "params": {} if view.damage else job.written().get("params", {}),
        "warehouse": job.warehouse,
        "version": job.version,
        "published": job.published,
        "done": view.done,
        "total": view.total,
        "groups": [_group(view, group) for group in view.groups],
    }


def _group(view: JobView, group: ForkView) -> dict[str, Any]:
    return {
        "name": group.name,
        "needs": list(group.needs),
        "join": group.join,
        "forked": group.forked,
        "expanded": group.expanded,
        "total": group.total,
        "states": {str(state): count for state, count in group.census.items()},
        "why": view.why_fork(group) or None,
        "members": [_member(view, member) for member in group.members],
    }


def _member(view: JobView, member: GroupView) -> dict[str, Any]:
    record, attempt = member.record, member.attempt
    return {
        "id": member.id,
        "value": member.value,
        "state": str(record.state),
        "reason": _reason(record.reason),
        "why": view.why_line(member.id) or None,
        "attempt": record.epoch,
        "since": iso(record.since),
        "started_at": iso(record.started_at),
        "next_at": iso(record.next_at),
        "worker": (attempt.worker if attempt else "") or record.worker,
        "failures": record.failures,
        "losses": record.losses,
        "releases": record.releases,
        "adopted": record.adopted,
        "rows": record.rows,
        "results": record.results,
        "progress": member.progress,
        "first_error": _failure(record.first_error),
        "last_error": _failure(record.last_error),
    }


def _reason(reason: Reason | None) -> dict[str, str] | None:
    return None if reason is None else asdict(reason)


def _failure(failure: Failure | None) -> dict[str, Any] | None:
    return None if failure is None else asdict(failure)
