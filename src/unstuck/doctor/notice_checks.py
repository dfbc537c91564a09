"""Checks the targets of notices: named by specs, known to coordinators, and accepting notices."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import redis

from unstuck.coordinator.model.fleet import FleetInfo
from unstuck.coordinator.notices.outbox import Outbox
from unstuck.coordinator.problems.queues import some
from unstuck.coordinator.spec.problems import suggestion
from unstuck.coordinator.store.schedule_store import ScheduleStore
from unstuck.doctor.finding import Finding, ok, problem, warning
from unstuck.doctor.redis_facts import open_jobs
from unstuck.tasks.duration import format_duration
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.process_info import CoordinatorInfo
from unstuck.views.words import count_of

CODE = "NOTICES"


@dataclass(frozen=True, slots=True)
class NoticeFacts:
    """The named targets, and the failing ones.

    Attributes:
        named: target → the jobs and schedules whose specs name it, as ``job ID`` or ``schedule
            NAME``.
        failing: target → since when it has accepted nothing, its last reply, and how many notices
            wait for it.
    """

    named: Mapping[str, list[str]]
    failing: Mapping[str, tuple[float, str, int]]


def notice_facts(client: redis.Redis, keys: Keys) -> NoticeFacts:
    """Read the facts of the newest open jobs, and of all schedules. Raises: redis.RedisError."""
    named: defaultdict[str, list[str]] = defaultdict(list)
    jobs, pipe = open_jobs(client, keys), client.pipeline(transaction=False)
    for job in jobs:
        pipe.hget(keys.of(job).job, "spec")
    specs = [(f"job {job}", spec) for job, spec in zip(jobs, pipe.execute(), strict=True)]
    store = ScheduleStore(client, keys)
    specs += [
        (f"schedule {schedule.name}", schedule.spec)
        for schedule in store.load_all(store.names())[0]
    ]
    for who, spec in specs:
        for target in _targets_in(spec or "{}"):
            named[target].append(who)
    failing = {}
    waiting = Outbox(client, keys).waiting()
    for target, text in cast(dict[str, str], client.hgetall(keys.notices)).items():
        state = json.loads(text)
        if state.get("failed"):
            failing[target] = (
                state["since"],
                state.get("reply", ""),
                sum(notice.to == target for notice in waiting),
            )
    return NoticeFacts(named, failing)


def _targets_in(spec: str) -> set[str]:
    try:
        return {
            name for rule in cast(Any, json.loads(spec)).get("notify", ()) for name in rule["to"]
        }
    except (ValueError, AttributeError, KeyError, TypeError):
        return set()  # a record that is damaged


def of_notices(facts: NoticeFacts, view: FleetInfo) -> Iterator[Finding]:
    """Check that each target that a spec names exists on all coordinators, and accepts notices."""
    coordinators = [coordinator for coordinator in view.coordinators if not coordinator.silent]
    configured = {target for coordinator in coordinators for target in coordinator.targets}
    findings = [
        *(_unknown_targets(facts.named, configured) if coordinators else ()),
        *_differing_targets(coordinators, configured),
        *_failing_targets(facts.failing, view.at),
    ]
    text = f"{count_of(len(configured), 'target')} known to the coordinators"
    yield from findings or [ok(CODE, text)]


def _unknown_targets(
    named: Mapping[str, list[str]], configured: Collection[str]
) -> Iterator[Finding]:
    cure = (
        "Add it there and restart the coordinators, or correct `to:`. Until then it is not "
        "notified."
    )
    for target in sorted(named.keys() - set(configured)):
        hint = suggestion(target, configured)
        text = (
            f"{some(named[target])} notify {target!r}, which no coordinator has in "
            f"UNSTUCK_NOTIFY{hint}"
        )
        yield problem(CODE, text, cure)


def _differing_targets(
    coordinators: Sequence[CoordinatorInfo], configured: Iterable[str]
) -> Iterator[Finding]:
    for target in sorted(configured):
        lacking = [
            f"{coordinator.host}:{coordinator.pid}"
            for coordinator in coordinators
            if target not in coordinator.targets
        ]
        text = (
            f"the target {target!r} is not in UNSTUCK_NOTIFY of {some(lacking)}, and is in that "
            "of others"
        )
        if lacking:
            yield warning(CODE, text, "Give all coordinators one setting, and restart those.")


def _failing_targets(
    failing: Mapping[str, tuple[float, str, int]], now: float
) -> Iterator[Finding]:
    for target, (since, reply, waiting) in sorted(failing.items()):
        duration = format_duration(max(0.0, now - since))
        text = f"{target!r} has taken no notice for {duration}: {reply}"
        text += f"; {count_of(waiting, 'notice')} for it" if waiting else ""
        yield warning(CODE, text, f"Try it where the setting is: unstuck notify test {target}")
