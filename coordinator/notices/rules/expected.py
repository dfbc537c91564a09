"""Detects late jobs that no schedule submits, such as those of a crontab. Pure.

A job is expected by its name, from its first submit with a rule ``late``, or since a rule of the
fleet names it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import TypeAdapter

from unstuck.coordinator.model.notice import Alert, Notice, notice_id
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.notices.rules.alerts import Alerts, NoticeSubject
from unstuck.coordinator.notices.rules.job_wording import Words
from unstuck.coordinator.notices.rules.late_deadlines import Deadlines, deadlines
from unstuck.coordinator.notices.rules.schedule_wording import late_text
from unstuck.coordinator.notices.rules.subscriptions import Subscriptions
from unstuck.coordinator.spec.notify_spec import FleetRule, Late, NotifyRule
from unstuck.tasks.json_fields import DEFERRED
from unstuck.tasks.spec.fields import STORED

Rule = TypeVar("Rule", bound=NotifyRule)
MAX_ABSENT = 7  # deadlines in a row without any job, after which a name is not expected any more


@dataclass(frozen=True, slots=True)
class Expected:
    """The stored state of an expected job name.

    Attributes:
        since: since when it is expected.
        judged: condition → the last deadline that was checked.
        alerts: condition → the last deadline of which targets were notified; ``texts``: its
            sentence.
        absent: number of consecutive deadlines without a job.
        by_fleet: whether a rule of the fleet names it, which another coordinator may not have.
    """

    __pydantic_config__ = DEFERRED

    since: float = 0.0
    judged: dict[str, float] = field(default_factory=dict)
    alerts: dict[str, Alert] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    absent: int = 0
    by_fleet: bool = False

    @property
    def late(self) -> dict[str, float]:
        """Return the deadline that it missed, for each condition with an open alert."""
        return {key: alert.since for key, alert in self.alerts.items() if not alert.over}

    def to_json(self) -> str:
        return json.dumps(
            _EXPECTED.dump_python(self, mode="json", exclude_defaults=True), separators=(",", ":")
        )

    @classmethod
    def from_json(cls, text: str) -> Expected:
        return _EXPECTED.validate_json(text)


_EXPECTED: TypeAdapter[Expected] = TypeAdapter(Expected)


@dataclass(frozen=True, slots=True)
class Came:
    """A submitted job with an expected name; ``why``: the reason of its end."""

    id: str
    status: Status
    submitted_at: float
    why: str = ""

    @classmethod
    def of_summary(cls, job: Mapping[str, Any]) -> Came:
        """Return the job from its summary (`state.summary_of`)."""
        why = job.get("reason", {}).get("text", "")
        return cls(job["id"], Status(job["status"]), job["submitted_at"], why)


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of a check of an expected name. ``forget``: the name is no longer expected."""

    expected: Expected
    notices: tuple[Notice, ...] = ()
    forget: bool = False


@lru_cache(1024)
def stored_rules(text: str) -> tuple[NotifyRule, ...]:
    """Parse the rules that a submit stored as JSON."""
    return tuple(
        NotifyRule.model_validate(rule, context=STORED) for rule in json.loads(text or "[]")
    )


def expecting(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Return those of ``rules`` that expect a job."""
    return tuple(
        rule for rule in rules if any(condition.word == "late" for condition in rule.conditions)
    )


def names_of(rules: Sequence[FleetRule]) -> set[str]:
    """Return the names that rules of the fleet expect, without patterns."""
    return {name for rule in expecting(rules) for name in rule.names if not set("*?[") & set(name)}


def looks_back_to(
    subscribed: Subscriptions, expected: Expected, now: float, zone: str
) -> float | None:
    """Return the submit time from which a check at ``now`` needs jobs; None if it needs none."""
    froms = [alert.at for _, alert in _unsubscribed(subscribed, expected)]
    for key, late in _lates(subscribed):
        deadline, alert = deadlines(late, zone, now), expected.alerts.get(key)
        is_open = alert is not None and not alert.over
        if is_open or _is_new(expected, key, deadline):
            froms.append(deadline.counts_from)
    return min(froms, default=None)


def judge(
    name: str,
    subscribed: Subscriptions,
    expected: Expected,
    jobs: Sequence[Came],
    now: float,
    zone: str,
    may_forget: bool,
) -> Judged:
    """Check whether the jobs of an expected name are on time.

    Args:
        jobs: jobs of this name since `looks_back_to`, the newest first.
        may_forget: whether a name without jobs is dropped after `MAX_ABSENT` deadlines.
    """
    look = _Look(name, subscribed, expected, jobs, now, zone, may_forget)
    for key, late in _lates(subscribed):
        look.at_deadline(key, late)
    for key, alert in _unsubscribed(subscribed, expected):
        look.close_if_done(key, alert.at)
    look.recovered()
    return look.result()


class _Look:
    def __init__(
        self,
        name: str,
        subscribed: Subscriptions,
        expected: Expected,
        jobs: Sequence[Came],
        now: float,
        zone: str,
        may_forget: bool,
    ) -> None:
        self._name, self._jobs, self._zone, self._may_forget = name, jobs, zone, may_forget
        self._expected, self._forget = expected, False
        subject = NoticeSubject("job", name, f"expected:{name}")
        self._book = Alerts(subject, subscribed, expected.alerts, now)

    def result(self) -> Judged:
        """Return the state of the name after the check."""
        alerting = self._book.result()
        expected = replace(self._expected, alerts=alerting.alerts)
        return Judged(expected, alerting.notices, self._forget)

    def at_deadline(self, key: str, late: Late) -> None:
        """Check the last deadline of a rule."""
        deadline = deadlines(late, self._zone, self._book.now)
        self.close_if_done(key, deadline.counts_from)
        if not _is_new(self._expected, key, deadline):
            return
        jobs, before = self._since(deadline.counts_from), self._expected
        absent = 0 if jobs else before.absent + 1
        judged = {**before.judged, key: deadline.at}
        self._expected = replace(before, judged=judged, absent=absent)
        if _done(jobs) is None:
            self._forget = self._may_forget and absent >= MAX_ABSENT
            self._open(key, deadline.at, late_text(late, deadline, self._zone), jobs)

    def _open(self, key: str, since: float, text: str, jobs: Sequence[Came]) -> None:
        to = self._book.subscribed.conditions[key][1]
        texts = {**self._expected.texts, key: text}
        self._expected = replace(self._expected, texts=texts)
        self._book.open(key, since, to)
        text = f"{text}; {_newest(jobs)}"
        if self._forget:
            text += (
                f". It has not come {MAX_ABSENT} times in a row: until it is submitted again, it "
                "is not expected"
            )
        self._notify("late", key, to, since, text, jobs)

    def close_if_done(self, key: str, since: float) -> None:
        """Close an open alert if a job that was submitted since its start is FINISHED."""
        if self._book.opened(key) is not None and _done(self._since(since)) is not None:
            self._book.close(key)

    def recovered(self) -> None:
        """Notify of the end of lateness."""
        done = _done(self._jobs)
        text = "" if done is None else f"job {done.id} has ended well"
        for keys, to, since in self._book.ended():
            self._notify("recovered", " ".join(keys), to, since, text, self._jobs)

    def _since(self, at: float) -> list[Came]:
        return [job for job in self._jobs if job.submitted_at > at]

    def _notify(
        self,
        event: str,
        key: str,
        to: tuple[str, ...],
        since: float,
        text: str,
        jobs: Sequence[Came],
    ) -> None:
        if to:
            job, status = (jobs[0].id, str(jobs[0].status)) if jobs else ("", "ABSENT")
            command = f"unstuck why {job}" if job else f"unstuck list --name {self._name}"
            id_ = notice_id("expected", self._name, event, key, since)
            self._book.notify(id_, event, to, since, status, Words(text, "", "", (command,), job))


def _lates(subscribed: Subscriptions) -> list[tuple[str, Late]]:
    values = ((key, condition.value) for key, (condition, _) in subscribed.conditions.items())
    return [(key, value) for key, value in values if isinstance(value, Late)]


def _unsubscribed(subscribed: Subscriptions, expected: Expected) -> list[tuple[str, Alert]]:
    """Return the open alerts of rules that have changed."""
    return [
        (key, alert)
        for key, alert in expected.alerts.items()
        if not alert.over and key not in subscribed.conditions
    ]


def _is_new(expected: Expected, key: str, deadline: Deadlines) -> bool:
    return deadline.at > expected.since and expected.judged.get(key) != deadline.at


def _done(jobs: Sequence[Came]) -> Came | None:
    return next((job for job in jobs if job.status is Status.FINISHED), None)


def _newest(jobs: Sequence[Came]) -> str:
    if not jobs:
        return "none was submitted in the day before it"
    job = jobs[0]
    return f"job {job.id}, the newest, is {job.status}{f': {job.why}' if job.why else ''}"
