"""Stores which jobs are expected by name, and the results of their checks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import redis

from unstuck.coordinator.store.answers import CommitAnswer
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.lua import Script

AT_ONCE = 500  # lines of jobs that are read at once


class ExpectedJobsStore:
    """The expected names of one Redis. ``client`` must decode responses."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._redis, self._keys = client, keys
        self._note = Script(client, keys, __package__, "note_expected")

    def now(self) -> float:
        """Return the time in seconds, by the clock of Redis."""
        seconds, micros = self._redis.time()
        return float(seconds + micros / 1e6)

    def all(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the rules of submits by expected name, and the states of names, as JSON."""
        pipe = self._redis.pipeline(transaction=False)
        for key in (self._keys.expected, self._keys.expected_state):
            pipe.hgetall(key)
        rules, states = pipe.execute()
        return rules, states

    def are_schedules(self, names: Sequence[str]) -> set[str]:
        """Return the names that a schedule has."""
        lines = (
            cast(list[str | None], self._redis.hmget(self._keys.schedules, list(names)))
            if names
            else []
        )
        return {name for name, line in zip(names, lines, strict=True) if line is not None}

    def submitted(self, since: str, most: int) -> list[tuple[str, float]]:
        """Return the first ``most`` jobs that were submitted since a time, with their times.

        Args:
            since: Unix seconds; with ``(`` before them, only later jobs.
        """
        entries = self._redis.zrangebyscore(
            self._keys.jobs, since, "+inf", start=0, num=most, withscores=True
        )
        return cast(list[tuple[str, float]], entries)

    def lines(self, names: Iterable[str], jobs: Sequence[str]) -> Iterator[str]:
        """Yield the lines of ``jobs`` that may have one of these names, as JSON, in order."""
        fragments = [f'"name":{json.dumps(name)}' for name in names]
        for start in range(0, len(jobs), AT_ONCE):
            lines = cast(
                list[str | None],
                self._redis.hmget(self._keys.summary, jobs[start : start + AT_ONCE]),
            )
            yield from (
                line
                for line in lines
                if line is not None and any(fragment in line for fragment in fragments)
            )

    def note(self, name: str, before: str, after: str, notices: Sequence[str]) -> CommitAnswer:
        """Store the state of a name and its notices, unless another coordinator was first."""
        notices_text = json.dumps(list(notices))
        return CommitAnswer(self._note(name=name, before=before, after=after, notices=notices_text))
