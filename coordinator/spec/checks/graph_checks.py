"""Checks of the graph of a spec: names, needs, cycles and joins. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from unstuck.coordinator.spec.checks.output_checks import Hint
from unstuck.coordinator.spec.problems import Loc, SpecProblem
from unstuck.tasks.protocol.keys import CONTROL_QUEUE
from unstuck.tasks.spec.group import GroupSpec

MAX_GROUPS = 10_000
MAX_CYCLE_SHOWN = 12  # groups


def graph_problems(
    every: Sequence[GroupSpec],
    groups: Mapping[str, GroupSpec],
    hint: Hint | None,
    *,
    joins: bool = True,
) -> Iterator[SpecProblem]:
    """Find mistakes in the names and needs of groups, and in their joins.

    Args:
        hint: None: unknown needs are not reported.
        joins: whether joins are checked.
    """
    if len(every) > MAX_GROUPS:
        text = f"at most {MAX_GROUPS:,} groups are allowed, not {len(every):,}; a fork is one group"
        yield SpecProblem(text, ("groups",))
    first: dict[str, int] = {}
    for i, group in enumerate(every):
        loc: Loc = ("groups", i)
        index = first.setdefault(group.name, i)
        if index != i:
            text = f"groups[{index}] has the name {group.name!r}, too; give each group its own name"
            yield SpecProblem(text, (*loc, "name"))
        if group.queue == CONTROL_QUEUE:
            text = (
                f"the queue {CONTROL_QUEUE!r} belongs to the coordinators, and no worker listens "
                "on it; name another queue"
            )
            yield SpecProblem(text, (*loc, "queue"))
        if not group.steps and not group.needs:
            text = f"group {group.name!r} has nothing to do; give it steps: or needs:"
            yield SpecProblem(text, loc)
        yield from _needs(loc, group, groups, hint)
    yield from _cycle(first, groups)
    if joins:
        for i, group in enumerate(every):
            yield from _join(("groups", i), group, groups)


def _needs(
    loc: Loc, group: GroupSpec, groups: Mapping[str, GroupSpec], hint: Hint | None
) -> Iterator[SpecProblem]:
    listed_needs: set[str] = set()
    for j, need in enumerate(group.needs):
        at: Loc = (*loc, "needs", j)
        if need == group.name:
            yield SpecProblem(f"group {need!r} needs itself; remove it", at)
        elif need in listed_needs:
            yield SpecProblem(f"{need!r} is listed twice; remove one of them", at)
        elif need not in groups and hint is not None:
            yield SpecProblem(f"unknown group {need!r}{hint(need, groups, 'groups')}", at)
        listed_needs.add(need)


def _cycle(index: Mapping[str, int], groups: Mapping[str, GroupSpec]) -> Iterator[SpecProblem]:
    """Report one cycle; the next is reported when this one is corrected."""
    needs_of = {
        name: [need for need in group.needs if need in groups and need != name]
        for name, group in groups.items()
    }
    try:
        TopologicalSorter(needs_of).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1][:0:-1]  # graphlib lists each before the one that needs it
        start = cycle.index(min(cycle, key=index.__getitem__))
        cycle = [*cycle[start:], *cycle[:start]]
        need = groups[cycle[0]].needs.index(cycle[1])
        shown = cycle[:MAX_CYCLE_SHOWN]
        if len(cycle) > MAX_CYCLE_SHOWN:
            shown.append(f"… {len(cycle) - MAX_CYCLE_SHOWN} more …")
        text = f"a cycle, in which each group needs the next: {' → '.join([*shown, cycle[0]])}"
        yield SpecProblem(text, ("groups", index[cycle[0]], "needs", need))


def _join(loc: Loc, group: GroupSpec, groups: Mapping[str, GroupSpec]) -> Iterator[SpecProblem]:
    join, at = group.join, (*loc, "join")
    if join.rule == "at_least":
        yield from _quorum(at, group, groups)
    elif join.count:
        yield SpecProblem(f"count: belongs to at_least, not to {join.rule}; remove it", at)
    if join.rule != "all_succeeded" and not group.needs:
        yield SpecProblem(f"join: {join.rule} needs groups to join; add needs:", at)


def _quorum(at: Loc, group: GroupSpec, groups: Mapping[str, GroupSpec]) -> Iterator[SpecProblem]:
    count, needs = group.join.count, group.needs
    if count < 1:
        yield SpecProblem("at_least needs a number, as in join: {at_least: 2}", at)
    # Each member of a fork counts, and a dynamic fork has any number of members.
    elif 0 < len(needs) < count and not any(groups[n].for_each for n in needs if n in groups):
        yield SpecProblem(f"at_least: {count} can never be met by {len(needs)} needs", at)
