"""Looks from time to time whether jobs have come that are expected by name, and which no schedule
submits.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TypeVar

from unstuck.coordinator.notices.rules.expected import (
    Came,
    Expected,
    judge,
    looks_back_to,
    names_of,
    stored_rules,
)
from unstuck.coordinator.notices.rules.job_rules import Subscriptions, subscriptions
from unstuck.coordinator.spec.notify_spec import FleetRule, NotifyRule
from unstuck.coordinator.store.expected_job_store import ExpectedJobsStore
from unstuck.tasks.protocol.report import in_short

LOOK_EVERY = 30.0  # seconds between looks of one coordinator
MOST = 20_000  # jobs of any name that are looked at in one look; the next ones in the next
DAY = 25 * 3600.0  # seconds back of which jobs are known; the longest day of a zone has so many
# Seconds that are looked at once more, since the clock of Redis may be set back a little.
OVERLAP = 60.0

log = logging.getLogger(__name__)

NO_RULES: tuple[NotifyRule, ...] = ()
T = TypeVar("T")


class ExpectedJobs:
    """Judges expected names. Two coordinators may do so at once: each commit is a
    compare-and-set.
    """

    def __init__(
        self,
        store: ExpectedJobsStore,
        rules: tuple[FleetRule, ...] = (),
        zone: str = "UTC",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            rules: of the fleet. Patterns among their names say nothing of which jobs are to come.
            zone: of local times, where a rule names none.
            clock: monotonic seconds.
        """
        self._store, self._zone, self._clock, self._next = store, zone, clock, 0.0
        self._names, self._looking = names_of(rules), threading.Lock()
        # Of these names all jobs are known that were submitted between these times: by name, each
        # with its own.
        self._from = self._to = 0.0
        self._all = True  # those that were submitted since the last look alone are not known
        self._known: dict[str, dict[str, float]] = {}
        self._rules = tuple(rule for rule in rules if self._names.intersection(rule.names))

    def run(self) -> None:
        """Judge all expected names, unless that was a short while ago. Raises: redis.RedisError."""
        if self._clock() >= self._next and self._looking.acquire(
            blocking=False
        ):  # two threads may sweep at once
            try:
                self._look()
            finally:
                self._looking.release()

    def _look(self) -> None:
        self._next = self._clock() + LOOK_EVERY
        rules, states = self._store.all()
        names = sorted({*rules, *self._names, *states})
        if not names:
            return
        now, schedules = self._store.now(), self._store.are_schedules(names)
        expected: dict[str, Expected] = {}
        subscribed: dict[str, Subscriptions] = {}
        for name in names:
            stored, by_fleet = (
                _read(name, states.get(name, "{}"), Expected.from_json, Expected()),
                name in self._names,
            )
            if name not in rules and not by_fleet and not stored.late:
                if not stored.by_fleet:  # it was submitted without a rule since
                    self._store.note(name, states[name], "", ())
            elif name not in schedules:
                subscribed[name] = subscriptions(
                    name, _read(name, rules.get(name, ""), stored_rules, NO_RULES), self._rules
                )
                expected[name] = replace(
                    stored, since=stored.since or now, by_fleet=by_fleet or stored.by_fleet
                )
        jobs = self._jobs(subscribed, expected, now)
        if jobs is None:
            self._next = 0.0
            return
        for name, expectation in expected.items():
            judged = judge(
                name,
                subscribed[name],
                expectation,
                jobs[name],
                now,
                self._zone,
                given_up=name not in self._names,
            )
            after = "" if judged.forget else judged.expected.to_json()
            if after != states.get(name):
                self._store.note(
                    name,
                    states.get(name, ""),
                    after,
                    [notice.to_json() for notice in judged.notices],
                )

    def _jobs(
        self, subscribed: Mapping[str, Subscriptions], expected: Mapping[str, Expected], now: float
    ) -> dict[str, list[Came]] | None:
        """By name, the jobs that are needed to judge it, the newest first; None: more are to be
        looked at before.
        """
        froms = {
            name: looks_back_to(subscribed[name], expectation, now, self._zone)
            for name, expectation in expected.items()
        }
        since_by_name = {name: at for name, at in froms.items() if at is not None}
        if not self._follow(expected, min([*since_by_name.values(), now - DAY]), now):
            return None
        jobs: dict[str, list[Came]] = defaultdict(list)
        for name, since in since_by_name.items():
            cached = self._known[name]
            newest = sorted(
                (job for job, at in cached.items() if at >= since),
                key=cached.__getitem__,
                reverse=True,
            )
            for line in self._store.lines([name], newest):
                jobs[name].append(Came.of_summary(json.loads(line)))
        return jobs

    def _follow(self, names: Collection[str], since: float, now: float) -> bool:
        """Note the jobs of these names that were submitted since then. Each job of any name is
        looked at once.

        Returns whether all were noted.
        """
        if not (self._known.keys() >= set(names) and self._from <= since and self._to <= now):
            self._known, self._to, self._all = {name: {} for name in names}, since, True
        self._from = since
        for cached in self._known.values():
            for old in [job for job, at in cached.items() if at < since]:
                del cached[old]
        begin = f"{max(since, self._to - OVERLAP)}" if self._all else f"({self._to}"
        submitted = self._store.submitted(begin, MOST)
        times = dict(submitted)
        for line in self._store.lines(self._known, list(times)):
            job = json.loads(line)
            if job["name"] in self._known and not job.get("schedule"):
                self._known[job["name"]][job["id"]] = times[job["id"]]
        if submitted:
            self._to = max(self._to, submitted[-1][1])
        self._all = len(submitted) < MOST
        return self._all


def _read(name: str, text: str, read: Callable[[str], T], otherwise: T) -> T:
    """The stored record of a name; ``otherwise`` if it cannot be read: it is begun anew, and stops
    no other.
    """
    try:
        return read(text)
    except (ValueError, TypeError) as error:
        log.error(
            "a record of the expected job %s cannot be read, and is begun anew: %s",
            name,
            in_short(error),
        )
        return otherwise
