"""Checks of the parameters and results that the conditions of groups name. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from operator import or_
from typing import Any

from unstuck.coordinator.errors import ConditionError
from unstuck.coordinator.spec.checks.output_checks import Hint
from unstuck.coordinator.spec.condition import parse
from unstuck.coordinator.spec.problems import Loc, SpecProblem, shorten
from unstuck.tasks.protocol.secrets import reference_in
from unstuck.tasks.protocol.texts import texts_in
from unstuck.tasks.spec.group import GroupSpec


def condition_problems(
    every: Sequence[GroupSpec],
    groups: Mapping[str, GroupSpec],
    params: Mapping[str, Any],
    hint: Hint,
) -> Iterator[SpecProblem]:
    """Find mistakes in the conditions of groups."""
    if not any(group.when for group in every):
        return
    before = _order(groups)
    for i, group in enumerate(every):
        if group.when is None:
            continue
        loc: Loc = ("groups", i, "when")
        try:
            references = parse(group.when)[1]
        except ConditionError as error:
            yield SpecProblem(str(error), loc)
            continue
        for reference in references.values():
            if reference.group is None:
                message = _wrong_param(reference.name, group, {**params, **group.params}, hint)
            else:
                message = _wrong_result(reference.group, group, groups, before, hint)
            if message:
                yield SpecProblem(f"{reference.place}: {message}", loc)


def _wrong_param(name: str, group: GroupSpec, params: Mapping[str, Any], hint: Hint) -> str:
    if name in group.fork_params:
        return (
            f"{name!r} is a parameter of the fork; a condition decides about the whole group, "
            "before it has members"
        )
    if name not in params:
        return f"unknown parameter {shorten(name)}{hint(name, params, 'there are')}"
    for text in texts_in(params[name]):
        if (reference := reference_in(text)) is not None:
            return (
                f"{name!r} has {shorten(reference)}, which only a worker can resolve; record the "
                "value with ctx.result in an earlier group, and use that result"
            )
    return ""


def _wrong_result(
    name: str,
    group: GroupSpec,
    groups: Mapping[str, GroupSpec],
    before: Callable[[str, str], bool],
    hint: Hint,
) -> str:
    named = groups.get(name)
    if named is None:
        return f"unknown group {shorten(name)}{hint(name, groups, 'groups')}"
    if name == group.name:
        return f"{name!r} is this group, which has no results before it has run"
    if not before(name, group.name):
        return f"group {name!r} does not come before this one; add it to needs:"
    return no_results(named)


def no_results(group: GroupSpec) -> str:
    """Return why ``group`` has no results to refer to; empty if it has some."""
    if group.for_each is not None:
        return f"group {group.name!r} is a fork, and each of its members has its own results"
    if not group.records_results:
        return f"group {group.name!r} has no Python step and no stream, so it has no results"
    return ""


def _order(groups: Mapping[str, GroupSpec]) -> Callable[[str, str], bool]:
    """Return a function that tells whether the first of two groups comes before the second.

    It returns true for all if there is a cycle, which another check reports. A set of groups is
    a number, one bit for each group, since a chain of 10,000 groups has 50 million pairs.
    """
    bits = {name: 1 << at for at, name in enumerate(groups)}
    needs = {
        name: [need for need in group.needs if need in groups] for name, group in groups.items()
    }
    above = dict.fromkeys(groups, -1)
    with suppress(CycleError):
        for name in TopologicalSorter(needs).static_order():
            above[name] = reduce(or_, (above[need] | bits[need] for need in needs[name]), 0)
    return lambda name, after: bool(above[after] & bits[name])
