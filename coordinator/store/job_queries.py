"""Reads jobs, their events and their summaries; nothing here writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import redis

from unstuck.coordinator.model.records import GroupRecord, JobRecord
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.step_stack import StepStack
from unstuck.tasks.transport.stack_store import StackStore

if TYPE_CHECKING:
    from unstuck.coordinator.model.state import JobState

S = GroupState
MAX_GROUPS = 500  # whose durations are read
EARLIER = 500  # jobs, of any name, that are searched for earlier jobs of one name
SAME_NAME = 20  # of these, how many are read


class Queries:
    """Read-only views on one Redis. ``client`` must decode responses."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._redis = client
        self._keys = keys

    def state(self, job: str) -> tuple[JobState, float, float | None] | None:
        """Return the state of a job, the time of Redis, and when the job is due.

        A damaged job has a state, too; see ``JobState.damage``.
        """
        from unstuck.coordinator.model.loading import state_of  # lists need no specs

        keys = self._keys.of(job)
        pipe = self._redis.pipeline(transaction=True)
        for key in (keys.job, keys.groups, keys.forks, keys.attempts):
            pipe.hgetall(key)
        pipe.hkeys(keys.inputs)
        pipe.zscore(self._keys.due, job)
        pipe.time()
        fields, groups, forks, attempts, frozen, due, (seconds, micros) = pipe.execute()
        if not fields:
            return None
        state = state_of(job, fields, groups, forks, attempts, frozen)
        return state, seconds + micros / 1e6, None if due is None else float(due)

    def ids(
        self, status: Sequence[Status] = (), since: float | None = None, limit: int | None = None
    ) -> list[str]:
        """Return ids of jobs, the newest first.

        Args:
            status: only jobs in one of these; empty for all.
            since: only jobs submitted at or after this time.
            limit: at most so many of each status; None for all.
        """
        low = "-inf" if since is None else since
        number = -1 if limit is None else limit
        # In one transaction: a job that moves from one status to another is read once.
        pipe = self._redis.pipeline(transaction=True)
        for index in [self._keys.status(state) for state in status] or [self._keys.jobs]:
            pipe.zrevrangebyscore(index, "+inf", low, start=0, num=number, withscores=True)
        entries: list[tuple[str, float]] = list(chain.from_iterable(pipe.execute()))
        return [job for job, _ in sorted(entries, key=itemgetter(1), reverse=True)]

    def summaries(self, jobs: Sequence[str]) -> list[str]:
        """Return the lines of lists (`state.summary_of`) of those jobs that are in the store."""
        texts = cast(list[str | None], self._redis.hmget(self._keys.summary, jobs)) if jobs else []
        return [text for text in texts if text is not None]

    def failed_ids(self) -> list[str]:
        """Return the jobs of the index of failed jobs."""
        return cast(list[str], self._redis.hvals(self._keys.failed))

    def events(
        self, job: str, after: str = "-", count: int = 10_000
    ) -> list[tuple[str, dict[str, Any]]]:
        """Return the job's events after the entry ``after``, the oldest first."""
        low = "-" if after == "-" else f"({after}"
        entries = cast(
            list[tuple[str, dict[str, str]]],
            self._redis.xrange(self._keys.of(job).events, min=low, count=count),
        )
        return [(entry_id, _event(entry_id, fields)) for entry_id, fields in entries]

    def newest_events(
        self, job: str, count: int, before: str = "+"
    ) -> list[tuple[str, dict[str, Any]]]:
        """Return at most ``count`` events of the job before an entry, the newest first."""
        high = "+" if before == "+" else f"({before}"
        entries = cast(
            list[tuple[str, dict[str, str]]],
            self._redis.xrevrange(self._keys.of(job).events, max=high, count=count),
        )
        return [(entry_id, _event(entry_id, fields)) for entry_id, fields in entries]

    def every_event(self, job: str) -> Iterator[dict[str, Any]]:
        """Yield the whole event log of a job, the oldest first."""
        after = "-"
        while page := self.events(job, after):
            yield from (event for _, event in page)
            after = page[-1][0]

    def last_sweep(self) -> tuple[float, float]:
        """Return the time of the last sweep, and its period in seconds; 0: unknown."""
        looked, period = cast(
            list[str | None], self._redis.hmget(self._keys.alive, ["at", "period"])
        )
        return float(looked or 0), float(period or 0)

    def durations(self, state: JobState) -> dict[str, list[float]]:
        """Return the seconds that running groups took in earlier jobs of the same name.

        It reads the last ``EARLIER`` jobs before this one, at most `MAX_GROUPS` groups, and only
        groups that SUCCEEDED.
        """
        active = [group for group in state.active if state.record(group).state is S.RUNNING]
        groups = active[:MAX_GROUPS]
        if not groups:
            return {}
        pipe = self._redis.pipeline(transaction=False)
        for other in self._earlier(state.job):
            pipe.hmget(self._keys.of(other).groups, groups)
        durations: dict[str, list[float]] = {}
        for texts in pipe.execute():
            for group_id, text in zip(groups, texts, strict=True):
                took = _duration(text)
                if took is not None:
                    durations.setdefault(group_id, []).append(took)
        return durations

    def _earlier(self, job: JobRecord) -> list[str]:
        """Return the last jobs before this one with the same name."""
        low = f"({job.submitted_at!r}"
        ids = cast(
            list[str],
            self._redis.zrevrangebyscore(self._keys.jobs, low, "-inf", start=0, num=EARLIER),
        )
        lines = map(json.loads, self.summaries(ids))
        same = [line["id"] for line in lines if line["name"] == job.name]
        return same[:SAME_NAME]

    def stacks(self, state: JobState) -> dict[str, StepStack]:
        """Return the stacks of the steps that run long, by group."""
        running = [*state.by_state[GroupState.RUNNING], *state.by_state[GroupState.CANCELING]]
        stored = StackStore(self._redis, self._keys).of_job(state.job.id) if running else {}
        stacks = {}
        for group in running if stored else ():
            attempt = state.attempts.get(group)
            if (
                attempt is not None
                and (
                    token := f"{state.record(group).offer(state.job.id, group)}/{attempt.claimant}"
                )
                in stored
            ):
                stacks[group] = stored[token]
        return stacks

    def versions(self, job: str) -> dict[str, str]:
        """Return the minor versions of Python and Spark of the job's first claims, by name."""
        return cast(dict[str, str], self._redis.hgetall(self._keys.of(job).versions))

    def counters(self) -> dict[str, int]:
        """Return how many reports were APPLIED, DUPLICATE, STALE, …."""
        return {
            name: int(n)
            for name, n in cast(dict[str, str], self._redis.hgetall(self._keys.counters)).items()
        }


def _event(entry: str, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return a stored event; a damaged one does not hide others."""
    try:
        event = dict(json.loads(fields["event"]))
        float(event["at"]), str(event["kind"])
        return event
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        at = int(entry.partition("-")[0]) / 1000
        text = f"the stored event {entry} cannot be read ({type(error).__name__}: {error})"
        return {"kind": "EVENT_UNREADABLE", "at": at, "text": text}


def _duration(text: str | None) -> float | None:
    """Return the seconds that a stored group ran; None unless it SUCCEEDED in its own job."""
    record = GroupRecord.readable(text) if text else None
    if record is None or record.state is not S.SUCCEEDED or record.adopted:
        return None
    return max(0.0, record.since - record.started_at)
