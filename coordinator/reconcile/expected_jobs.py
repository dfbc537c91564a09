"""Checks periodically whether jobs that are expected by name were submitted in time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from unstuck.coordinator.notices.rules.expected import (
    Came,
    Expected,
    judge,
    looks_back_to,
    names_of,
    stored_rules,
)
from unstuck.coordinator.notices.rules.subscriptions import Subscriptions, subscriptions
from unstuck.coordinator.reconcile.submitted_jobs import SubmittedJobs
from unstuck.coordinator.spec.notify_spec import FleetRule, NotifyRule
from unstuck.coordinator.store.expected_job_store import ExpectedJobsStore
from unstuck.tasks.protocol.report import in_short

SCAN_INTERVAL_S = 30.0  # between scans of one coordinator
JOBS_KNOWN_FOR_S = 25 * 3600.0  # the longest day of a zone

log = logging.getLogger(__name__)

NO_RULES: tuple[NotifyRule, ...] = ()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Name:
    """An expected name, who is notified of it, and its stored text before this scan."""

    expected: Expected
    subscribed: Subscriptions
    stored: str


class ExpectedJobs:
    """Checks expected names. Two coordinators may do so at once: commits are compare-and-set."""

    def __init__(
        self,
        store: ExpectedJobsStore,
        rules: tuple[FleetRule, ...] = (),
        zone: str = "UTC",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the object.

        Args:
            rules: of the fleet; only names without a pattern are expected.
            zone: of local times, if a rule names none.
            clock: monotonic seconds.
        """
        self._store, self._zone, self._clock, self._next = store, zone, clock, 0.0
        self._names, self._mutex = names_of(rules), threading.Lock()
        self._rules = tuple(rule for rule in rules if self._names.intersection(rule.names))
        self._submitted = SubmittedJobs(store)

    def run(self) -> None:
        """Check all expected names, unless the last check was recent. Raises: redis.RedisError."""
        # Two threads may sweep at once.
        if self._clock() >= self._next and self._mutex.acquire(blocking=False):
            try:
                self._scan()
            finally:
                self._mutex.release()

    def _scan(self) -> None:
        self._next = self._clock() + SCAN_INTERVAL_S
        now = self._store.now()
        names = self._expected_names(now)
        if not names:
            return
        since = {
            name: looks_back_to(entry.subscribed, entry.expected, now, self._zone)
            for name, entry in names.items()
        }
        needed = {name: at for name, at in since.items() if at is not None}
        if not self._submitted.follow(names, min([*needed.values(), now - JOBS_KNOWN_FOR_S]), now):
            self._next = 0.0  # the next sweep reads on
            return
        for name, entry in names.items():
            jobs = self._submitted.since(name, needed[name]) if name in needed else []
            self._judge(name, entry, jobs, now)

    def _judge(self, name: str, entry: _Name, jobs: Sequence[Came], now: float) -> None:
        may_forget = name not in self._names
        judged = judge(
            name, entry.subscribed, entry.expected, jobs, now, self._zone, may_forget=may_forget
        )
        after = "" if judged.forget else judged.expected.to_json()
        if after != entry.stored:
            notices = [notice.to_json() for notice in judged.notices]
            self._store.note(name, entry.stored, after, notices)

    def _expected_names(self, now: float) -> dict[str, _Name]:
        """Return the names that no schedule submits, and forget those without a rule."""
        rules, states = self._store.all()
        names = sorted({*rules, *self._names, *states})
        scheduled, expected = self._store.are_schedules(names), {}
        for name in names:
            entry = self._read(name, rules, states)
            has_rule = name in rules or name in self._names
            if not has_rule and not entry.expected.late:
                if not entry.expected.by_fleet:  # otherwise another coordinator may have the rule
                    self._store.note(name, entry.stored, "", ())
            elif name not in scheduled:
                since = entry.expected.since or now
                expected[name] = replace(entry, expected=replace(entry.expected, since=since))
        return expected

    def _read(self, name: str, rules: Mapping[str, str], states: Mapping[str, str]) -> _Name:
        stored = states.get(name, "")
        expected = _parsed(name, stored or "{}", Expected.from_json, Expected())
        if name in self._names:
            expected = replace(expected, by_fleet=True)
        own_rules = _parsed(name, rules.get(name, ""), stored_rules, NO_RULES)
        return _Name(expected, subscriptions(name, own_rules, self._rules), stored)


def _parsed(name: str, text: str, parse: Callable[[str], T], otherwise: T) -> T:
    """Return a stored record; ``otherwise`` if it is damaged, so that it holds up no other."""
    try:
        return parse(text)
    except (ValueError, TypeError) as error:
        log.error(
            "a record of the expected job %s cannot be read, and is begun anew: %s",
            name,
            in_short(error),
        )
        return otherwise
