"""Lateness of jobs that no schedule submits, such as those of a crontab: also of one that never
came (pure).

A job is expected by its name: from its first submit with a rule ``late`` on, or since a rule of the
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
from unstuck.coordinator.notices.rules.job_rules import Subscriptions
from unstuck.coordinator.notices.rules.late_deadlines import deadlines
from unstuck.coordinator.notices.rules.schedule_wording import late_text
from unstuck.coordinator.spec.notify_spec import FleetRule, Late, NotifyRule
from unstuck.tasks.spec.fields import STORED

Rule = TypeVar("Rule", bound=NotifyRule)
GIVEN_UP = 7  # deadlines in a row without any job, after which a name is not expected any more


@dataclass(frozen=True, slots=True)
class Expected:
    """All that is known of an expected name.

    Attributes:
        since: from when on it is expected.
        judged: condition → the last deadline that was judged.
        told: by condition, the deadline that was told last; ``texts``: its sentence.
        absent: deadlines in a row for which no job had come.
        by_fleet: a rule of the fleet names it, which another coordinator may not have.
    """

    since: float = 0.0
    judged: dict[str, float] = field(default_factory=dict)
    told: dict[str, Alert] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    absent: int = 0
    by_fleet: bool = False

    @property
    def late(self) -> dict[str, float]:
        """By condition, the deadline since which it is late, as somebody was told."""
        return {key: alert.since for key, alert in self.told.items() if not alert.over}

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
    """A job of an expected name that was submitted; ``why``: it ended so."""

    id: str
    status: Status
    submitted_at: float
    why: str = ""

    @classmethod
    def of_summary(cls, job: Mapping[str, Any]) -> Came:
        """Return the job of a line of a list (`state.summary_of`)."""
        why = job.get("reason", {}).get("text", "")
        return cls(job["id"], Status(job["status"]), job["submitted_at"], why)


@dataclass(frozen=True, slots=True)
class Judged:
    """An expected name after a look. ``forget``: it is not expected any more."""

    expected: Expected
    notices: tuple[Notice, ...] = ()
    forget: bool = False


@lru_cache(1024)
def stored_rules(text: str) -> tuple[NotifyRule, ...]:
    """The rules that a submit has left, as JSON."""
    return tuple(
        NotifyRule.model_validate(rule, context=STORED) for rule in json.loads(text or "[]")
    )


def expecting(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Those of ``rules`` that expect a job."""
    return tuple(
        rule for rule in rules if any(condition.word == "late" for condition in rule.conditions)
    )


def names_of(rules: Sequence[FleetRule]) -> set[str]:
    """The names that rules of the fleet expect: written out, since a pattern does not say which
    jobs there are.
    """
    return {name for rule in expecting(rules) for name in rule.names if not set("*?[") & set(name)}


def looks_back_to(
    subscribed: Subscriptions, expected: Expected, now: float, zone: str
) -> float | None:
    """From when on jobs must be known to judge the name at ``now``; None: nothing is to be
    judged.
    """
    froms = []
    for key, late in _lates(subscribed):
        deadline, alert = deadlines(late, zone, now), expected.told.get(key)
        is_open = alert is not None and not alert.over
        if is_open or (deadline.at > expected.since and expected.judged.get(key) != deadline.at):
            froms.append(deadline.counts_from)
    return min(
        [*froms, *(unwatched.at for _, unwatched in _unwatched(subscribed, expected))], default=None
    )


def judge(
    name: str,
    subscribed: Subscriptions,
    expected: Expected,
    jobs: Sequence[Came],
    now: float,
    zone: str,
    given_up: bool,
) -> Judged:
    """Judge an expected name.

    Args:
        jobs: those of this name since `looks_back_to`, the newest first.
        given_up: whether a name that does not come any more is forgotten.
    """
    alerts, judged, texts, absent = (
        dict(expected.told),
        dict(expected.judged),
        dict(expected.texts),
        expected.absent,
    )
    notices: list[Notice] = []
    forget = False

    def over(key: str, last: Alert, mine: Sequence[Came], done: Came) -> None:
        alerts[key] = replace(last, over=now)
        to = last.told_of_end(subscribed.recovered)
        notices.extend(
            _notice(
                name, "recovered", key, to, last.since, now, mine, f"job {done.id} has ended well"
            )
        )

    for key, late in _lates(subscribed):
        deadline, last = deadlines(late, zone, now), alerts.get(key)
        mine = [job for job in jobs if job.submitted_at > deadline.counts_from]
        done = next((job for job in mine if job.status is Status.FINISHED), None)
        if last is not None and not last.over and done is not None:
            over(key, last, mine, done)
        if deadline.at <= expected.since or judged.get(key) == deadline.at:
            continue
        judged[key] = deadline.at
        absent = 0 if mine else absent + 1
        if done is None:
            forget = given_up and absent >= GIVEN_UP
            to = subscribed.conditions[key][1]
            alerts[key] = subscribed.told_now(deadline.at, now, to)
            texts[key] = late_text(late, deadline, zone)
            text = f"{texts[key]}; {_stands(mine)}"
            if forget:
                text += (
                    f". It has not come {GIVEN_UP} times in a row: until it is submitted "
                    "again, it is not expected"
                )
            notices += _notice(
                name, "late", key, to, deadline.at, now, mine, text, subscribed.ends("late", to)
            )
    for key, last in _unwatched(subscribed, expected):
        mine = [job for job in jobs if job.submitted_at > last.at]
        done = next((job for job in mine if job.status is Status.FINISHED), None)
        if done is not None:
            over(key, last, mine, done)
    return Judged(
        replace(expected, judged=judged, told=alerts, texts=texts, absent=absent),
        tuple(notices),
        forget,
    )


def _lates(subscribed: Subscriptions) -> list[tuple[str, Late]]:
    values = ((key, condition.value) for key, (condition, _) in subscribed.conditions.items())
    return [(key, value) for key, value in values if isinstance(value, Late)]


def _unwatched(subscribed: Subscriptions, expected: Expected) -> list[tuple[str, Alert]]:
    """The problems that stand of rules that were changed since."""
    return [
        (key, alert)
        for key, alert in expected.told.items()
        if not alert.over and key not in subscribed.conditions
    ]


def _stands(jobs: Sequence[Came]) -> str:
    if not jobs:
        return "none was submitted in the day before it"
    job = jobs[0]
    return f"job {job.id}, the newest, is {job.status}{f': {job.why}' if job.why else ''}"


def _notice(
    name: str,
    event: str,
    key: str,
    to: tuple[str, ...],
    since: float,
    now: float,
    jobs: Sequence[Came],
    text: str,
    ends: tuple[str, ...] = (),
) -> list[Notice]:
    if not to:
        return []
    job, status = (jobs[0].id, str(jobs[0].status)) if jobs else ("", "ABSENT")
    return [
        Notice(
            id=notice_id("expected", name, event, key, since),
            to=to,
            event=event,
            kind="job",
            name=name,
            problem=f"expected:{name}",
            at=now,
            since=since,
            job=job,
            status=status,
            text=text,
            commands=(f"unstuck why {job}" if job else f"unstuck list --name {name}",),
            ends=ends,
        )
    ]
