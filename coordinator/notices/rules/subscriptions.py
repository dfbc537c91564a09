"""Decides who is notified of which conditions, by the rules of a job or schedule and the fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from unstuck.coordinator.spec.notify_spec import Condition, FleetRule, NotifyRule


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """The monitored conditions, and the targets of each.

    Attributes:
        conditions: condition and its targets, by key.
        recovered: targets that are notified of the end of a problem.
    """

    conditions: Mapping[str, tuple[Condition, tuple[str, ...]]]
    recovered: frozenset[str]

    def to(self, word: str) -> tuple[str, ...]:
        """Return the targets of a condition without a value."""
        return self.conditions[word][1] if word in self.conditions else ()

    def ends(self, event: str, to: tuple[str, ...]) -> tuple[str, ...]:
        """Return the targets of a notice that are to be notified of the end of its problem."""
        if event in ("finished", "recovered"):
            return ()
        return tuple(target for target in to if target in self.recovered)


@lru_cache(maxsize=1024)
def subscriptions(
    name: str, rules: tuple[NotifyRule, ...], fleet: tuple[FleetRule, ...]
) -> Subscriptions:
    """Return the rules of a job or schedule of this name, and the matching rules of the fleet."""
    conditions: dict[str, tuple[Condition, tuple[str, ...]]] = {}
    recovered: set[str] = set()
    for rule in (
        *rules,
        *(
            fleet_rule
            for fleet_rule in fleet
            if any(fnmatchcase(name, glob) for glob in fleet_rule.names)
        ),
    ):
        for condition in rule.conditions:
            if condition.word == "recovered":
                recovered.update(rule.to)
                continue
            _, targets = conditions.get(condition.key, (condition, ()))
            conditions[condition.key] = condition, tuple(dict.fromkeys((*targets, *rule.to)))
    return Subscriptions(conditions, frozenset(recovered))
