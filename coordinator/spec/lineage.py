"""Which groups led to an output: the one that wrote it, and those before it (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

Needs = Mapping[str, Collection[str]]
"""By group, the groups that it needs, in an order in which every group comes after what it
needs.
"""


def led_to(needs: Needs, groups: Collection[str]) -> dict[str, frozenset[str]]:
    """Return which of ``groups`` led to the output of each of them: itself, and those before it,
    through any needs.
    """
    before: dict[str, frozenset[str]] = {}
    for group, needed in needs.items():
        before[group] = frozenset({group}.intersection(groups)).union(
            *(before[need] for need in needed)
        )
    return {group: before.get(group, frozenset({group})) for group in groups}
