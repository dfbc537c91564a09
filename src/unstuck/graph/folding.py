"""Folds a large graph into one box for each level and state (pure).

A level holds the groups that are as far from the start of the job. Levels of a deep graph are
merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter

from unstuck.graph.job_graph import GraphGroup

MAX_BOXES = 300  # of a graph that is not folded
MAX_LEVELS = 12  # of a folded graph


@dataclass(frozen=True, slots=True)
class _Fold:
    """The groups of one state on the levels ``first`` to ``last``, counted from 1."""

    first: int
    last: int
    groups: Sequence[GraphGroup]

    @property
    def levels(self) -> str:
        return f"level {self.first}" + (f" to {self.last}" if self.last > self.first else "")

    def box(self, state_href: Callable[[str], str]) -> GraphGroup:
        """Return the box of all groups; of one group, its own box."""
        if len(self.groups) == 1:
            return self.groups[0]
        state = self.groups[0].state
        return GraphGroup(
            f"groups of {self.levels} that are {state}",
            state=state,
            forked=True,
            census={state: len(self.groups)},
            label=self.levels,
            href=state_href(state),
        )


def folded_groups(
    groups: Sequence[GraphGroup], state_href: Callable[[str], str]
) -> Sequence[GraphGroup]:
    """Return at most `MAX_BOXES` groups, or one for each level and state.

    Args:
        groups: each has a state.
        state_href: returns the address of a list of all groups in a state.
    """
    if len(groups) <= MAX_BOXES:
        return groups
    boxes: dict[str, GraphGroup] = {}
    box_of: dict[str, str] = {}
    for fold in _folds(groups):
        box = fold.box(state_href)
        boxes[box.name] = box
        box_of |= dict.fromkeys((group.name for group in fold.groups), box.name)
    needs: dict[str, set[str]] = {name: set() for name in boxes}
    for group in groups:
        needs[box_of[group.name]] |= {box_of[need] for need in group.needs if need in box_of}
    return [
        replace(boxes[name], needs=direct) for name, direct in _direct_needs(needs, boxes).items()
    ]


def _folds(groups: Sequence[GraphGroup]) -> list[_Fold]:
    """Return the folds, those of earlier levels first."""
    levels = _levels({group.name: group.needs for group in groups})
    depth = max(levels.values()) + 1
    merged = -(-depth // MAX_LEVELS)  # levels in one
    folds: dict[tuple[int, str], list[GraphGroup]] = {}
    for group in groups:
        folds.setdefault((levels[group.name] // merged, group.state), []).append(group)
    return [
        _Fold(band * merged + 1, min((band + 1) * merged, depth), folds[band, state])
        for band, state in sorted(folds)
    ]


def _levels(needs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the number of groups on the longest way from the start to each group."""
    drawn = {name: [need for need in needs[name] if need in needs] for name in needs}
    levels: dict[str, int] = {}
    for name in TopologicalSorter(drawn).static_order():
        levels[name] = max((levels[need] + 1 for need in drawn[name]), default=0)
    return levels


def _direct_needs(needs: Mapping[str, set[str]], order: Iterable[str]) -> dict[str, list[str]]:
    """Return the needs of each box without those that another need implies.

    Args:
        order: the boxes, each after those that it needs. A need of a box that comes later, such as
            one of the same levels, is left out.
    """
    earlier: dict[str, set[str]] = {}
    direct: dict[str, list[str]] = {}
    for name in order:
        drawn = [need for need in needs[name] if need in earlier]
        implied = set[str]().union(*(earlier[need] for need in drawn))
        direct[name] = sorted(need for need in drawn if need not in implied)
        earlier[name] = implied.union(drawn)
    return direct
