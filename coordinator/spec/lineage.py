"""Which groups led to an output: its maker, and the groups before it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

Needs = Mapping[str, Collection[str]]
"""By group, the groups that it needs, in an order in which every group comes after what it
needs.
"""


def led_to(needs: Needs, groups: Collection[str]) -> dict[str, frozenset[str]]:
    """Return by group which of ``groups`` led to its output: itself, and those before it."""
    before: dict[str, frozenset[str]] = {}
    for group, needed in needs.items():
        before[group] = frozenset({group}.intersection(groups)).union(
            *(before[need] for need in needed)
        )
    return {group: before.get(group, frozenset({group})) for group in groups}
