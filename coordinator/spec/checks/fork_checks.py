"""Checks forks: their values, and the group that provides them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from pydantic import TypeAdapter, ValidationError

from unstuck.coordinator.spec.checks.output_checks import MAX_NAME, Hint, outputs_of
from unstuck.coordinator.spec.job_params import scalar_problem
from unstuck.coordinator.spec.problems import (
    Loc,
    SpecProblem,
    describe,
    listed,
    shorten,
    suggestion,
)
from unstuck.tasks.protocol.secrets import reference_in
from unstuck.tasks.spec.fields import ForkItem
from unstuck.tasks.spec.group import MAX_FORK, ForkFrom, GroupSpec, fork_key

MAX_MEMBERS = 100_000  # of all literal forks together
_ITEM: TypeAdapter[ForkItem] = TypeAdapter(ForkItem)


def fork_problems(
    every: Sequence[GroupSpec],
    groups: Mapping[str, GroupSpec],
    params: Mapping[str, Any],
    hint: Hint,
) -> Iterator[SpecProblem]:
    """Find mistakes in the forks of a spec.

    Args:
        params: the values of the job's parameters.
    """
    owners = {output: group.name for group in reversed(every) for output in outputs_of(group)}
    total = 0
    for i, group in enumerate(every):
        if group.for_each:
            loc: Loc = ("groups", i)
            members = _members(group, params)
            total += members
            yield from _fork(loc, group, params, hint)
            if members > MAX_FORK:
                text = f"a fork has at most {MAX_FORK:,} members, not {members:,}"
                yield SpecProblem(text, (*loc, "for_each"))
            yield from _source(loc, group, groups, owners)
    if total > MAX_MEMBERS:
        text = f"all forks together have at most {MAX_MEMBERS:,} values, not {total:,}"
        yield SpecProblem(text, ("groups",))


def params_of(group: GroupSpec, loc: Loc) -> Iterator[tuple[Mapping[str, Any], Loc]]:
    """Yield the parameters of a group and of its steps, with their places."""
    yield group.params, (*loc, "params")
    for j, step in enumerate(group.steps):
        yield step.params, (*loc, "steps", j, "params")


def _members(group: GroupSpec, params: Mapping[str, Any]) -> int:
    """Return the number of members of a fork, as far as lists of the spec name them."""
    visible = {**params, **group.params}
    lists = [_values(visible, source) for source in (group.for_each or {}).values()]
    return math.prod(len(values or ()) for values in lists)


def _values(params: Mapping[str, Any], source: Sequence[Any] | ForkFrom) -> Sequence[Any] | None:
    """Return the list of a fork; None for a column, or for a parameter that is not a list."""
    values: Any = source
    if isinstance(source, ForkFrom) and source.param is not None:
        values = params.get(source.param)
    return values if isinstance(values, list | tuple) else None


def _fork(
    loc: Loc, group: GroupSpec, params: Mapping[str, Any], hint: Hint
) -> Iterator[SpecProblem]:
    """Find mistakes in the parameters and values of one fork."""
    visible = {**params, **group.params}
    for written, at in params_of(group, loc):
        for param in written.keys() & group.fork_params:
            text = f"{param!r} is a parameter of the fork; remove it here"
            yield SpecProblem(text, (*at, param), True)
    for param, source in (group.for_each or {}).items():
        values, place = _values(visible, source), (*loc, "for_each", param)
        if isinstance(source, ForkFrom) and source.param is not None:
            place = (*place, "param")
            if wrong := _wrong_list(source, source.param, values, visible, hint):
                yield SpecProblem(wrong, place)
        for j, value in enumerate(values or ()):
            yield from _fork_value(value, (*place, j) if values is source else place)


def _wrong_list(
    source: ForkFrom,
    param: str,
    values: Sequence[Any] | None,
    visible: Mapping[str, Any],
    hint: Hint,
) -> str:
    """Return why a fork cannot take its values from a parameter; empty if it can.

    Args:
        visible: the values of all parameters of the group.
    """
    if param not in visible:
        return f"unknown parameter {shorten(param)}{hint(param, visible, 'there are')}"
    if values is None and visible[param] is not None:
        return f"the parameter {param!r} is not a list; give it a list, or type: list"
    if values and not source.distinct and len(set(map(fork_key, values))) != len(values):
        return f"{param!r} has the same value twice; distinct: true takes each value once"
    return ""


def _fork_value(value: Any, at: Loc) -> Iterator[SpecProblem]:
    """Find mistakes in the value of one member of a fork."""
    try:
        _ITEM.validate_python(value)
    except ValidationError:
        expected = "text, a number, true, false, or a mapping of names to these"
        yield SpecProblem(f"expected a value of a fork ({expected}), not {describe(value)}", at)
        return
    for scalar in value.values() if isinstance(value, dict) else [value]:
        if wrong := scalar_problem(scalar):
            yield SpecProblem(wrong, at)
        elif isinstance(scalar, str) and (reference := reference_in(scalar)) is not None:
            why = "the values of a fork are stored and shown, so references are not resolved there"
            yield SpecProblem(f"{shorten(reference)}: {why}; put it under params:", at)


def _source(
    loc: Loc, group: GroupSpec, groups: Mapping[str, GroupSpec], owners: Mapping[str, str]
) -> Iterator[SpecProblem]:
    """Find mistakes in the column that a fork takes its values from."""
    if group.fork_from is None:
        return
    reader = values_reader(group)
    if reader:
        wrong = _wrong_reader(reader, group, groups)
    else:
        wrong = _wrong_source(group, group.fork_from.output, groups, owners)
    if wrong:
        yield SpecProblem(wrong, (*loc, "for_each", group.fork_params[0], "from"))


def values_reader(group: GroupSpec) -> str:
    """Return the name of the group that reads the values of a fork over an input; else empty."""
    if group.fork_from is None or group.fork_from.output not in group.inputs:
        return ""
    return f"{group.name}-values"


def _wrong_reader(reader: str, group: GroupSpec, groups: Mapping[str, GroupSpec]) -> str:
    if reader in groups:
        return (
            f"the group that reads these values is named {reader!r}; give the other group of this "
            "name another name"
        )
    if len(reader) > MAX_NAME:
        return (
            f"the group that reads these values is named {reader!r}, and a name has at most "
            f"{MAX_NAME} characters; shorten the name of the fork"
        )
    if group.join.rule not in ("all_succeeded", "none_failed"):
        return (
            "a fork over an input waits for the group that reads its values, so its join: cannot "
            f"be {group.join}"
        )
    return ""


def _wrong_source(
    group: GroupSpec, source: str, groups: Mapping[str, GroupSpec], owners: Mapping[str, str]
) -> str:
    """Return why ``group`` cannot be forked from ``source``; empty if it can or a run decides."""
    if not group.needs:
        return (
            f"a fork of {source!r} needs the group that makes it; add needs:, or inputs: with that "
            "name"
        )
    needed = {need: groups[need] for need in group.needs if need in groups}
    for maker in needed.values():
        if source == maker.name or source in outputs_of(maker):
            return _wrong_maker(needed.get(source, maker), source)
    outside = source if source in groups else owners.get(source)
    if outside is not None:
        return _source_outside(group, source, outside)
    if len(needed) < len(group.needs):
        return ""  # an unknown need, which is reported
    return _unknown_source(source, [*needed.values()])


def _source_outside(group: GroupSpec, source: str, maker: str) -> str:
    if maker == group.name:
        return (
            f"{source!r} is an output of this group; a fork takes its values from a group that it "
            "needs"
        )
    return f"{source!r} is an output of group {maker!r}; add that group to needs:"


def _unknown_source(source: str, needed: Sequence[GroupSpec]) -> str:
    """Return why none of the needed groups makes ``source``; empty if Python may make it."""
    makers = [maker for maker in needed if any(step.python for step in maker.steps)]
    if any(maker.for_each is None for maker in makers):
        return ""
    if makers:
        return _wrong_maker(makers[0], source)
    outputs = chain.from_iterable(map(outputs_of, needed))
    candidates = dict.fromkeys([*(maker.name for maker in needed), *outputs])
    near = suggestion(source, candidates)
    return f"no needed group makes {source!r}{near}; known: {listed(candidates)}"


def _wrong_maker(maker: GroupSpec, source: str) -> str:
    """Return why a fork cannot take its values from ``source`` of ``maker``; empty if it can."""
    if maker.for_each is not None:
        return f"group {maker.name!r} is a fork, and each of its members has its own values"
    if maker.is_join:
        return f"group {maker.name!r} has no steps, so it makes no output"
    several = outputs_of(maker)
    if maker.name == source and source not in several and len(several) > 1:
        return f"group {source!r} has several outputs; name the one to take: {listed(several)}"
    if not several and not any(step.python for step in maker.steps):
        return f"group {source!r} declares no output:; give its SQL step one"
    return ""
