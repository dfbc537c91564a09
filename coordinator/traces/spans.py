"""The trace of an ended job, from its record and its event log: spans of job, groups and attempts (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.tasks.protocol.token import split_member

S = GroupState
Event = Mapping[str, Any]
_END_AN_ATTEMPT = (S.BACKOFF, S.SUCCEEDED, S.FAILED, S.CANCELED, S.SKIPPED, S.WAITING)
_NO_ERROR = ("RELEASED", "ALTERED")  # reasons of BACKOFF


@dataclass(frozen=True, slots=True)
class JobSpan:
    """One span of a trace.

    Attributes:
        key: the same for the same span of the same job, however often it is made; its id follows from it.
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


@dataclass(slots=True)
class _Attempt:
    """An attempt whose end is not read yet."""

    number: int
    queued_at: float
    queue: str
    claimed_at: float | None = None
    worker: str = ""


def spans_of(job: JobRecord, events: Iterable[Event]) -> Iterator[JobSpan]:
    """The spans of an ended job, each after the span around it.

    An event log keeps its newest 20,000 events: what it has lost is left out.
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
            {"unstuck.job.id": job.id, "unstuck.status": str(job.status), "unstuck.schedule": job.schedule}
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
        error=_error(last),
    )
    attempt: _Attempt | None = None
    made = 0
    for event in events:
        at, kind = float(event["at"]), event["kind"]
        if kind == S.QUEUED:
            attempt = _Attempt(int(event.get("epoch", 0)), at, str(event.get("queue", "")))
        elif kind == S.RUNNING:
            # The log may have lost when it was queued.
            attempt = attempt or _Attempt(int(event.get("epoch", 0)), at, "")
            attempt.claimed_at, attempt.worker = max(at, attempt.queued_at), str(event.get("worker", ""))
        elif attempt is not None and kind in _END_AN_ATTEMPT:
            made += 1  # after a rerun the numbers of attempts begin again, and two spans must not have one id
            yield _attempt(f"{key}/{made}", key, attempt, event, of_group)
            attempt = None


def _attempt(key: str, group: str, attempt: _Attempt, end: Event, of_group: dict[str, str]) -> JobSpan:
    ended_at = max(float(end["at"]), attempt.claimed_at or attempt.queued_at)
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
                "unstuck.status": str(end["kind"]),
                "unstuck.queue": attempt.queue,
                "unstuck.worker": attempt.worker,
                "unstuck.queue_time": round(claimed_at - attempt.queued_at, 6),
                "unstuck.run_time": round(ended_at - claimed_at, 6),
            }
        ),
        error=_error(end),
        points=() if attempt.claimed_at is None else (("claimed", attempt.claimed_at, ""),),
    )


def _error(event: Event) -> tuple[str, str] | None:
    code = str(event.get("code", ""))
    if event["kind"] == S.FAILED or (event["kind"] == S.BACKOFF and code not in _NO_ERROR):
        return code, str(event.get("text", ""))
    return None


def _known(attributes: Mapping[str, str | int | float]) -> dict[str, str | int | float]:
    return {name: value for name, value in attributes.items() if value != ""}
