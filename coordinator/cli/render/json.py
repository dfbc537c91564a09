"""The answers of ``--json``. The field names are a promise to scripts. Times are ISO 8601 in UTC with Z, or null."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from unstuck.coordinator.cli.render.terminal import iso
from unstuck.coordinator.explain.explanation import Explanation
from unstuck.coordinator.model.backlog import Backlog
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import RunFailure, RunSuccess
from unstuck.coordinator.schedules.explain import ScheduleExplanation
from unstuck.coordinator.schedules.schedule_facts import BackfillView
from unstuck.coordinator.schedules.schedule_view import ScheduleView
from unstuck.coordinator.views.job_facts import GroupView
from unstuck.coordinator.views.job_views import ForkView, JobView, ListedJob
from unstuck.tasks.protocol.report import Failure
from unstuck.tasks.protocol.step_stack import StepStack


def fields_of(record: Any, names: str) -> dict[str, Any]:
    """The attributes ``names`` (separated by spaces) of ``record``: times as text, records as objects."""
    fields = {}
    for name in names.split():
        value = getattr(record, name)
        if name in ("at", "since") or name.endswith("_at"):
            value = iso(value)
        elif isinstance(value, Reason | Failure):
            value = asdict(value)
        fields[name] = value
    return fields


def listed_json(job: ListedJob, why: str = "") -> dict[str, Any]:
    """One line of ``list``; ``why``: what the job waits for. ``total`` is null while a dynamic fork is not expanded."""
    known = fields_of(job, "id name status submitted_at started_at ended_at done total groups version reason")
    more = {"key": job.key, "schedule": job.schedule, "backfill": job.backfill, "why": why}
    return {**known, **{name: text or None for name, text in more.items()}}


def job_json(view: JobView) -> dict[str, Any]:
    """Everything that ``show`` knows."""
    job = view.job
    return {
        **fields_of(job, "id name status intent phase reason halted submitted_at submitted_by started_at ended_at"),
        "why": None if job.terminal else view.why_line(job.id) or None,
        "damage": view.damage or None,
        "due_at": iso(view.due),
        "key": job.key or None,
        "retry_of": job.retry_of or None,
        "schedule": job.schedule or None,
        "params": dict(view.params),
        **fields_of(job, "warehouse version published"),
        "replaced": {name: asdict(one) for name, one in job.replaced.items()},
        **fields_of(view, "done total zones"),
        "groups": [_group(view, group) for group in view.groups],
    }


def _group(view: JobView, group: ForkView) -> dict[str, Any]:
    return {
        **fields_of(group, "name needs join forked expanded total"),
        "states": group.census,
        "why": view.why_fork(group) or None,
        "members": [_member(view, member) for member in group.members],
    }


def _member(view: JobView, member: GroupView) -> dict[str, Any]:
    return {
        **fields_of(member, "id value progress quality"),
        **fields_of(member, "state reason since started_at next_at failures losses releases adopted rows results"),
        **fields_of(member, "first_error last_error attempt worker"),
        "why": view.why_line(member.id) or None,
        "stack": stack_json(view.why[member.id].stack) if member.id in view.why else None,
    }


def explanation_json(one: Explanation) -> dict[str, Any]:
    """The answer of ``why`` about a job or one of its groups."""
    return {
        **fields_of(one, "subject state what short timed since tried help"),
        "next_at": iso(one.next.at),
        "next_what": one.next.what,
        "gives_up": one.ends.what,
        "gives_up_at": iso(one.ends.at),
        "stack": stack_json(one.stack),
    }


def stack_json(stack: StepStack | None) -> dict[str, Any] | None:
    """Where a step stands; null if it was not looked at."""
    if stack is None:
        return None
    frames, stages = ([asdict(one) for one in part] for part in (stack.frames, stack.stages))
    return {**fields_of(stack, "at since"), "frames": frames, "stages": stages}


def schedule_json(view: ScheduleView, ticks: int = 1) -> dict[str, Any]:
    """How a schedule stands, with so many of its next ticks."""
    one = view.schedule
    return {
        **fields_of(one, "name status intent since set_at set_by intent_at intent_by intent_why failures halted"),
        "trigger": one.trigger,
        "waits": view.waits,
        "next": [iso(tick.timestamp()) for tick in view.next_ticks(ticks)],
        "runs_now": [run.job or None for run in one.runs],
        "backfill": _backfill(one.backfill),
        "backlog": _backlog(view.backlog),
        "next_try": iso(min((run.next_at for run in one.retries if run.next_at), default=None)),
        **{name: _run_end(getattr(one, name)) for name in ("last_success", "first_error", "last_error")},
    }


def _backlog(one: Backlog | None) -> dict[str, Any] | None:
    if one is None:
        return None
    streams = [
        {
            "stream": address,
            **fields_of(stream, "new changed bytes looked lag trouble known"),
            "oldest": iso(stream.since),
            "position": stream.next or stream.position or None,
        }
        for address, stream in one.streams.items()
    ]
    return {"looked_at": iso(one.at), "oldest": iso(one.since), "streams": streams}


def _backfill(one: BackfillView | None) -> dict[str, Any] | None:
    if one is None:
        return None
    told = fields_of(one, "status total had well failed parallel redo backwards at by paused_by halted last_error")
    return {**told, "first": iso(one.first), "last": iso(one.last), "runs_now": [run.job or None for run in one.runs]}


def _run_end(ended: RunSuccess | RunFailure | None) -> dict[str, Any] | None:
    return None if ended is None else {**asdict(ended), "tick": iso(ended.tick), "at": iso(ended.at)}


def schedule_why_json(one: ScheduleExplanation) -> dict[str, Any]:
    """The answer of ``schedule why``."""
    facts = [fields_of(fact, "what text at") for fact in one.facts]
    return {**fields_of(one, "name status what since help"), "facts": facts, "backlog": _backlog(one.backlog)}


def diff_json(view: JobView) -> dict[str, Any]:
    """The alterations in order, and for each group that was ever claimed the revision that it ran with."""
    return {
        **fields_of(view.job, "id revision"),
        "alterations": [
            {
                "revision": number,
                **fields_of(one, "at by reason"),
                "changes": [asdict(each) for each in one.changes],
            }
            for number, one in enumerate(view.job.alterations, 1)
        ],
        "groups": [
            {"group": one.id, "state": one.state, "attempt": one.attempt, "revision": one.revision}
            for one in view.claimed
        ],
    }
