"""Finds the groups that an output depends on: the group that writes it, and earlier ones. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

Needs = Mapping[str, Collection[str]]
"""By group, the groups that it needs, in an order in which every group comes after what it
needs.
"""


def led_to(needs: Needs, groups: Collection[str]) -> dict[str, frozenset[str]]:
    """Return for each of ``groups`` itself and the groups that it depends on."""
    before: dict[str, frozenset[str]] = {}
    for group, needed in needs.items():
        before[group] = frozenset({group}.intersection(groups)).union(
            *(before[need] for need in needed)
        )
    return {group: before.get(group, frozenset({group})) for group in groups}
