"""Adds notices to the commit of a schedule, by its own rules and those of the fleet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from unstuck.coordinator.model.backlog import Backlog
from unstuck.coordinator.model.schedule_record import ScheduleRecord
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.notices.rules.schedule_rules import notices_of_schedule
from unstuck.coordinator.notices.rules.subscriptions import subscriptions
from unstuck.coordinator.schedules.schedule_state import state_of
from unstuck.coordinator.schedules.steps import NOTHING, Published
from unstuck.coordinator.spec.notify_spec import FleetRule, NotifyRule
from unstuck.tasks.spec.fields import STORED


@lru_cache(1024)
def rules_of(spec: str) -> tuple[NotifyRule, ...]:
    """Return the rules in a job spec, as JSON."""
    return tuple(
        NotifyRule.model_validate(rule, context=STORED)
        for rule in json.loads(spec).get("notify") or ()
    )


@dataclass(frozen=True, slots=True)
class ScheduleNotices:
    """Adds notices by the rules of the fleet; ``zone``: time zone of local times without one."""

    rules: tuple[FleetRule, ...] = ()
    zone: str = "UTC"

    def completed(
        self,
        before: ScheduleRecord,
        after: ScheduleRecord,
        events: Sequence[Mapping[str, Any]],
        due: float | None,
        now: float,
        *,
        jobs: Mapping[str, Status] = MappingProxyType({}),
        published: Published = NOTHING,
        backlog: Backlog | None = None,
    ) -> tuple[ScheduleRecord, tuple[str, ...], float | None]:
        """Return the record to commit after ``before``, its notices as JSON, and its due.

        Args:
            jobs, published, backlog: as for `state_of`.
        """
        subscribed = subscriptions(after.name, rules_of(after.spec), self.rules)
        if not subscribed.conditions and not after.alerts:
            return after, (), due
        view = state_of(after, now, due, published, jobs, backlog)
        alerting = notices_of_schedule(subscribed, before, after, view, events, self.zone)
        after = replace(after, alerts=alerting.alerts)
        if alerting.look_at is not None and due is not None:
            due = min(due, alerting.look_at)
        return after, tuple(notice.to_json() for notice in alerting.notices), due

    def concern_backlog(self, record: ScheduleRecord) -> bool:
        """Return whether a rule concerns its backlog."""
        subscribed = subscriptions(record.name, rules_of(record.spec), self.rules)
        return any(condition.word == "behind" for condition, _ in subscribed.conditions.values())


NO_RULES = ScheduleNotices()
