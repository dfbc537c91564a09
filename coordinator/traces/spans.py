"""The trace of an ended job: spans of job, groups and attempts, from its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from unstuck.coordinator.model.past_attempts import AttemptInfo, Event, attempts_of
from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.tasks.protocol.token import split_member


@dataclass(frozen=True, slots=True)
class JobSpan:
    """One span of a trace.

    Attributes:
        key: the same for the same span of the same job, however often it is made; its id follows
            from it.
        parent: the key of the span around it; empty: it is that of the job.
        start, end: seconds since the epoch, by the clock of Redis.
        error: code and text, if it failed.
        points: what happened within it: a name, a time, a text.
        follows: jobs that this one retries.
    """

    key: str
    parent: str
    name: str
    start: float
    end: float
    attributes: Mapping[str, str | int | float]
    error: tuple[str, str] | None = None
    points: tuple[tuple[str, float, str], ...] = ()
    follows: tuple[str, ...] = ()


def spans_of(job: JobRecord, events: Iterable[Event]) -> Iterator[JobSpan]:
    """Return the spans of an ended job, each after the span around it.

    An event log has its newest 20,000 events; lost events are left out.
    """
    groups: dict[str, list[Event]] = {}
    points = []
    for event in events:
        if group := event.get("group"):
            groups.setdefault(group, []).append(event)
        else:
            points.append((str(event["kind"]), float(event["at"]), str(event.get("text", ""))))
    failed = job.status is Status.FAILED and job.reason is not None
    yield JobSpan(
        key=job.id,
        parent="",
        name=job.name,
        start=job.submitted_at,
        end=job.ended_at,
        attributes=_known(
            {
                "unstuck.job.id": job.id,
                "unstuck.status": str(job.status),
                "unstuck.schedule": job.schedule,
            }
        ),
        error=(job.reason.code, job.reason.text) if failed and job.reason is not None else None,
        points=tuple(points),
        follows=job.adopts,
    )
    for group, happened in groups.items():
        yield from _group(job, group, happened)


def _group(job: JobRecord, group: str, events: list[Event]) -> Iterator[JobSpan]:
    key, last = f"{job.id}/{group}", events[-1]
    of_group = {"unstuck.job.id": job.id, "unstuck.group": group}
    yield JobSpan(
        key=key,
        parent=job.id,
        name=split_member(group)[0],
        start=float(events[0]["at"]),
        end=float(last["at"]),
        attributes={**of_group, "unstuck.status": str(last["kind"])},
        error=(str(last.get("code", "")), str(last.get("text", "")))
        if last["kind"] == GroupState.FAILED
        else None,
    )
    # After a rerun the numbers of attempts begin again, and two spans must not have one id.
    for number, attempt in enumerate(
        (ended for ended in attempts_of(events) if ended.ended_at is not None), 1
    ):
        yield _attempt(f"{key}/{number}", key, attempt, of_group)


def _attempt(key: str, group: str, attempt: AttemptInfo, of_group: dict[str, str]) -> JobSpan:
    ended_at = attempt.queued_at if attempt.ended_at is None else attempt.ended_at
    claimed_at = ended_at if attempt.claimed_at is None else attempt.claimed_at
    return JobSpan(
        key=key,
        parent=group,
        name=f"attempt of {split_member(of_group['unstuck.group'])[0]}",
        start=attempt.queued_at,
        end=ended_at,
        attributes=_known(
            {
                **of_group,
                "unstuck.attempt": attempt.number,
                "unstuck.status": attempt.ended_as,
                "unstuck.queue": attempt.queue,
                "unstuck.worker": attempt.worker,
                "unstuck.queue_time": round(claimed_at - attempt.queued_at, 6),
                "unstuck.run_time": round(ended_at - claimed_at, 6),
            }
        ),
        error=(attempt.code, attempt.text) if attempt.failed else None,
        points=() if attempt.claimed_at is None else (("claimed", attempt.claimed_at, ""),),
    )


def _known(attributes: Mapping[str, str | int | float]) -> dict[str, str | int | float]:
    return {name: value for name, value in attributes.items() if value != ""}
