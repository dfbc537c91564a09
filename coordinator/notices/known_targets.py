"""Warns of targets that a spec names and no coordinator knows; the setting may come later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import redis

from unstuck.coordinator.spec.notify_spec import NotifyRule
from unstuck.coordinator.spec.problems import Loc, SpecProblem, listed, suggestion
from unstuck.tasks.protocol.processes import ProcessRegistry


def unknown_targets(
    rules: Sequence[NotifyRule], registry: ProcessRegistry
) -> Iterator[SpecProblem]:
    """Return warnings for the unknown targets in ``notify:`` of a spec.

    There are none while no coordinator is heard of, or Redis is away.
    """
    try:
        targets = registry.targets() if rules else None
    except redis.RedisError:
        targets = None
    if targets is None:
        return
    for i, rule in enumerate(rules):
        for j, name in enumerate(rule.to):
            place: Loc = ("notify", i, "to", j)
            if name not in targets:
                hint = suggestion(name, targets) or f"; known: {listed(sorted(targets)) or 'none'}"
                what = f"no coordinator has a target {name!r} in UNSTUCK_NOTIFY{hint}"
                yield SpecProblem(f"{what}. Until one has, its notices are dead letters", place)
