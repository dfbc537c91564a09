"""Looks from time to time whether jobs have come that are expected by name, and which no schedule submits."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

from unstuck.coordinator.notices.expected import Came, Expected, judge, looks_back_to, names_of, stored_rules
from unstuck.coordinator.notices.rules import Subscriptions, subscriptions
from unstuck.coordinator.spec.notify_spec import FleetRule
from unstuck.coordinator.store.expected_job_store import ExpectedJobsStore
from unstuck.coordinator.views.job_views import read_line

LOOK_EVERY = 30.0  # seconds between looks of one coordinator
MOST = 20_000  # jobs of any name among which those of the expected names are looked for


class ExpectedJobs:
    """Judges expected names. Two coordinators may do so at once: each commit is a compare-and-set."""

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
        self._names = names_of(rules)
        self._rules = tuple(rule for rule in rules if self._names.intersection(rule.names))

    def run(self) -> None:
        """Judge all expected names, unless that was a short while ago. Raises: redis.RedisError."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + LOOK_EVERY
        rules, states = self._store.all()
        names = sorted({*rules, *self._names, *states})
        if not names:
            return
        now, schedules = self._store.now(), self._store.are_schedules(names)
        expected: dict[str, Expected] = {}
        asked: dict[str, Subscriptions] = {}
        for name in names:
            known, by_fleet = Expected.from_json(states.get(name, "{}")), name in self._names
            if name not in rules and not by_fleet and not known.stands:
                if not known.by_fleet:  # it was submitted without a rule since
                    self._store.note(name, states[name], "", ())
            elif name not in schedules:
                asked[name] = subscriptions(name, stored_rules(rules.get(name, "")), self._rules)
                expected[name] = replace(known, since=known.since or now, by_fleet=by_fleet or known.by_fleet)
        jobs = self._jobs(asked, expected, now)
        for name, one in expected.items():
            found = judge(name, asked[name], one, jobs[name], now, self._zone, given_up=name not in self._names)
            after = "" if found.forget else found.expected.to_json()
            if after != states.get(name):
                self._store.note(name, states.get(name, ""), after, [one.to_json() for one in found.notices])

    def _jobs(
        self, asked: Mapping[str, Subscriptions], expected: Mapping[str, Expected], now: float
    ) -> dict[str, list[Came]]:
        """By name, the jobs that are needed to judge it."""
        froms = {name: looks_back_to(asked[name], one, now, self._zone) for name, one in expected.items()}
        wanted = {name: at for name, at in froms.items() if at is not None}
        found: dict[str, list[Came]] = defaultdict(list)
        if wanted:
            for line in self._store.lines(wanted, min(wanted.values()), MOST):
                job = read_line(line)
                if job.name in wanted and not job.schedule:
                    why = job.reason.text if job.reason is not None else ""
                    found[job.name].append(Came(job.id, job.status, job.submitted_at, why))
        return found
