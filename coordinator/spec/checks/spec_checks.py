"""Problems that only the whole spec shows: needs, cycles, joins, forks, outputs, parameters and
their bounds (pure).

Only what the spec alone can decide is refused. A Python step may write any output, so a question
that depends on one is left to the runner.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from itertools import chain, count, islice
from operator import or_
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from unstuck.coordinator.errors import ConditionError
from unstuck.coordinator.spec.checks.output_checks import (
    MAX_NAME,
    Hint,
    output_problems,
    outputs_of,
    stream_problems,
)
from unstuck.coordinator.spec.checks.sql import groups_read, sql_problems
from unstuck.coordinator.spec.condition import parse
from unstuck.coordinator.spec.job_params import (
    reference_problems,
    scalar_problem,
    value_problems,
    values_of,
    wrong_declarations,
    wrong_overlay,
)
from unstuck.coordinator.spec.problems import (
    MAX_PROBLEMS,
    Loc,
    Problem,
    describe,
    listed,
    shorten,
    suggestion,
)
from unstuck.tasks.protocol.keys import CONTROL_QUEUE
from unstuck.tasks.protocol.secrets import reference_in
from unstuck.tasks.protocol.texts import texts_in
from unstuck.tasks.spec.fields import ForkItem
from unstuck.tasks.spec.group import MAX_FORK, ForkFrom, GroupSpec, Step, fork_key
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.spec.spark_conf import static_conf

MAX_GROUPS = 10_000
MAX_MEMBERS = 100_000  # of all literal forks together
MAX_INPUTS = 100  # published datasets of one group
MAX_PARAMS = 64 * 1024  # bytes of JSON; parameters travel with every group
MAX_SUGGESTIONS = 10  # looking for the nearest of 10,000 names takes tenths of a second

_ITEM: TypeAdapter[ForkItem] = TypeAdapter(ForkItem)
NO_OUTPUTS: Mapping[str, OutputSpec] = MappingProxyType({})


def problems_in(
    every: Sequence[GroupSpec],
    params: Mapping[str, Any],
    publish: Sequence[str] | None,
    conf: Mapping[str, str],
    outputs: Mapping[str, OutputSpec] = NO_OUTPUTS,
) -> list[Problem]:
    """Everything that is wrong with a spec as a whole.

    ``conf``: that of its defaults. ``outputs``: how single outputs are published, and what is
    checked of them.
    """
    groups = _by_name(every)
    owners = {output: group.name for group in reversed(every) for output in outputs_of(group)}
    hint, values = _hints(), values_of(params)
    problems = chain(
        _sizes(every, values),
        _graph(every, hint),
        *(_join(("groups", i), group, groups) for i, group in enumerate(every)),
        *(
            _fork(("groups", i), group, groups, owners, values, hint)
            for i, group in enumerate(every)
            if group.for_each
        ),
        _conditions(every, groups, values, hint),
        output_problems(every, params, publish, outputs, hint),
        sql_problems(every, groups, params),
        *(_inputs(("groups", i), group, groups) for i, group in enumerate(every) if group.inputs),
        stream_problems(every, publish, outputs),
        _params(every, params),
        _conf(every, conf),
        reference_problems(every, outputs),
    )
    return list(islice(problems, MAX_PROBLEMS))


def problems_of_graph(data: Any) -> list[Problem]:
    """Find mistakes in the names and needs of a spec of which another part cannot be read, such as
    a field.

    Leaves out what mending the rest might mend: a need is called unknown only where all groups have
    their names.
    """
    written = data.get("groups") if isinstance(data, dict) else None
    if not isinstance(written, list | tuple):
        return []
    rough = [_rough(group, i) for i, group in enumerate(written)]
    nameless = any(group.name.startswith("\0") for group in rough)
    return list(islice(_graph(rough, None if nameless else _hints()), MAX_PROBLEMS))


def _rough(group: Any, index: int) -> GroupSpec:
    """The name and needs of a group as they are written, whatever its steps are."""
    if isinstance(group, GroupSpec):
        return group
    fields = group if isinstance(group, dict) else {}
    name, needs = fields.get("name"), fields.get("needs")
    return GroupSpec.model_construct(
        name=name if isinstance(name, str) and name else f"\0{index}",
        needs=tuple(needs)
        if isinstance(needs, list | tuple) and all(isinstance(n, str) for n in needs)
        else (),
        steps=(Step.model_construct(),),
    )


def _by_name(every: Sequence[GroupSpec]) -> dict[str, GroupSpec]:
    groups: dict[str, GroupSpec] = {}
    for group in every:
        groups.setdefault(group.name, group)
    return groups


def _hints() -> Hint:
    """A function that names the nearest known name, or else all of them.

    It looks for the nearest only the first few times, since that takes tenths of a second among
    10,000 names.
    """
    calls = count()

    def hint(name: str, names: Collection[str], what: str) -> str:
        near = suggestion(name, names) if next(calls) < MAX_SUGGESTIONS else ""
        return near or f"; {what}: {listed(names) or 'none'}"

    return hint


def _sizes(every: Sequence[GroupSpec], params: Mapping[str, Any]) -> Iterator[Problem]:
    if len(every) > MAX_GROUPS:
        yield Problem(
            f"{len(every):,} groups; at most {MAX_GROUPS:,} are allowed (a fork is one group)",
            ("groups",),
        )
    members = sum(_members(group, params) for group in every if group.for_each)
    if members > MAX_MEMBERS:
        yield Problem(
            f"all forks together have {members:,} values; at most {MAX_MEMBERS:,} are allowed",
            ("groups",),
        )


def _members(group: GroupSpec, params: Mapping[str, Any]) -> int:
    """The members of a fork, as far as lists of the spec give them. ``params``: the values of the
    job's parameters.
    """
    lists = [
        _values({**params, **group.params}, source) for source in (group.for_each or {}).values()
    ]
    return math.prod(0 if values is None else len(values) for values in lists)


def _values(params: Mapping[str, Any], source: Sequence[Any] | ForkFrom) -> Sequence[Any] | None:
    """The list that a fork is over; None for a column, and for a parameter that is no list."""
    values = (
        params.get(source.param)
        if isinstance(source, ForkFrom) and source.param is not None
        else source
    )
    return values if isinstance(values, list | tuple) else None


def _graph(every: Sequence[GroupSpec], hint: Hint | None) -> Iterator[Problem]:
    """Without ``hint``, unknown needs are left out."""
    groups = _by_name(every)
    first: dict[str, int] = {}
    for i, group in enumerate(every):
        if first.setdefault(group.name, i) != i:
            message = (
                f"two groups are named {group.name!r}, this one and groups[{first[group.name]}]"
            )
            yield Problem(message, ("groups", i, "name"))
        if group.queue == CONTROL_QUEUE:
            message = (
                f"the queue {CONTROL_QUEUE!r} is the coordinators' own, where no worker "
                "listens; name another"
            )
            yield Problem(message, ("groups", i, "queue"))
        if not group.steps and not group.needs:
            message = (
                f"group {group.name!r} has neither steps: nor needs:, so there is nothing to do"
            )
            yield Problem(message, ("groups", i))
        listed_needs: set[str] = set()
        for j, need in enumerate(group.needs):
            loc: Loc = ("groups", i, "needs", j)
            if need == group.name:
                yield Problem(f"group {need!r} needs itself; remove it", loc)
            elif need in listed_needs:
                yield Problem(f"{need!r} is needed twice; keep one", loc)
            elif need not in groups and hint is not None:
                yield Problem(f"unknown group {need!r}{hint(need, groups, 'groups')}", loc)
            listed_needs.add(need)
    yield from _cycle(first, groups)


def _cycle(index: Mapping[str, int], groups: dict[str, GroupSpec]) -> Iterator[Problem]:
    """One cycle is named; the next shows when this one is mended."""
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
        shown = (
            [*cycle, cycle[0]]
            if len(cycle) <= 12
            else [*cycle[:12], f"… {len(cycle) - 12} more …", cycle[0]]
        )
        message = f"a cycle, each needs the next: {' → '.join(shown)}"
        yield Problem(message, ("groups", index[cycle[0]], "needs", need))


def _join(loc: Loc, group: GroupSpec, groups: dict[str, GroupSpec]) -> Iterator[Problem]:
    join, at = group.join, (*loc, "join")
    if join.rule == "at_least" and join.count < 1:
        yield Problem("at_least wants a number, as in join: {at_least: 2}", at)
    elif join.rule != "at_least" and join.count:
        yield Problem(f"count: has no meaning for {join.rule}; it belongs to at_least", at)
    if join.rule != "all_succeeded" and not group.needs:
        yield Problem(f"join: {join.rule} on a group without needs: there is nothing to join", at)
    # A fork counts with each of its members, and a dynamic one has any number.
    elif (
        join.rule == "at_least"
        and join.count > len(group.needs)
        and not any(groups[need].for_each for need in group.needs if need in groups)
    ):
        yield Problem(f"at_least: {join.count} can never be met by {len(group.needs)} needs", at)


def _fork(
    loc: Loc,
    group: GroupSpec,
    groups: dict[str, GroupSpec],
    owners: dict[str, str],
    params: Mapping[str, Any],
    hint: Hint,
) -> Iterator[Problem]:
    """``params``: the values of the job's parameters."""
    visible = {**params, **group.params}
    for param, source in (group.for_each or {}).items():
        for written, at in _params_of(group, loc):
            if param in written:
                yield Problem(
                    f"{param!r} is the fork's parameter already; remove it here", (*at, param), True
                )
        values, place = _values(visible, source), (*loc, "for_each", param)
        if isinstance(source, ForkFrom) and source.param is not None:
            place = (*place, "param")
            if wrong := _wrong_list(source, source.param, values, visible, hint):
                yield Problem(wrong, place)
        for j, value in enumerate(values or ()):
            yield from _fork_value(value, (*place, j) if values is source else place)
    if (members := _members(group, params)) > MAX_FORK:
        yield Problem(
            f"a fork of {members:,} members; at most {MAX_FORK:,} are allowed", (*loc, "for_each")
        )
    if group.fork_from is None:
        return
    reader, at = values_reader(group), (*loc, "for_each", group.fork_params[0], "from")
    if (
        wrong := _wrong_reader(reader, group, groups)
        if reader
        else _fork_source(group, group.fork_from.output, groups, owners)
    ):
        yield Problem(wrong, at)


def _wrong_list(
    source: ForkFrom,
    param: str,
    values: Sequence[Any] | None,
    visible: Mapping[str, Any],
    hint: Hint,
) -> str:
    """Say why a fork cannot take its values from the parameter ``param``; empty if it can.

    Args:
        visible: the values of all parameters that the group sees.
    """
    if param not in visible:
        return f"unknown parameter {shorten(param)}{hint(param, visible, 'there are')}"
    if values is None and visible[param] is not None:
        return f"the parameter {param!r} is no list; give it one, or type: list"
    if values and not source.distinct and len(set(map(fork_key, values))) != len(values):
        return f"{param!r} holds the same value twice; distinct: true takes each once"
    return ""


def _fork_value(value: Any, at: Loc) -> Iterator[Problem]:
    """Find mistakes in the value of one member of a fork."""
    try:
        _ITEM.validate_python(value)
    except ValidationError:
        what = "text, numbers, true or false, or mappings of names to these"
        yield Problem(f"the values of a fork are {what}, not {describe(value)}", at)
        return
    for scalar in value.values() if isinstance(value, dict) else [value]:
        if wrong := scalar_problem(scalar):
            yield Problem(wrong, at)
        elif isinstance(scalar, str) and (reference := reference_in(scalar)) is not None:
            message = (
                "the values of a fork are stored and shown, so no reference is resolved in them"
            )
            yield Problem(f"{shorten(reference)}: {message}; put it under params:", at)


def values_reader(group: GroupSpec) -> str:
    """The name of the group that reads the values of ``group`` before it; empty unless it is forked
    over an input.
    """
    return (
        f"{group.name}-values"
        if group.fork_from is not None and group.fork_from.output in group.inputs
        else ""
    )


def _wrong_reader(reader: str, group: GroupSpec, groups: Mapping[str, GroupSpec]) -> str:
    if reader in groups:
        return (
            f"there is a group {reader!r}, the name of the one that will read these values; "
            "give it another name"
        )
    if len(reader) > MAX_NAME:
        return (
            f"a group named {reader!r} will read these values, and names have at most "
            f"{MAX_NAME} characters"
        )
    if group.join.rule not in ("all_succeeded", "none_failed"):
        return (
            "a fork over an input waits for the group that reads its values, so join: cannot "
            f"be {group.join}"
        )
    return ""


def _fork_source(
    group: GroupSpec, source: str, groups: dict[str, GroupSpec], owners: dict[str, str]
) -> str:
    """Why ``group`` cannot be forked from a column of ``source``; empty if it can, or if only a run
    can show it.
    """
    needed = {need: groups[need] for need in group.needs if need in groups}
    if not group.needs:
        return (
            f"a fork of {source!r} must need the group that makes it; add needs:, or inputs: "
            "with that name"
        )
    maker = needed.get(source) or next(
        (g for g in needed.values() if source in outputs_of(g)), None
    )
    if maker is not None:
        return _wrong_maker(maker, source)
    outside = source if source in groups else owners.get(source)
    if outside == group.name:
        return (
            f"{source!r} is made by this group itself; a fork takes its values from a group that "
            "it needs"
        )
    if outside is not None:
        return (
            f"{source!r} is made by group {outside!r}, which is not among the needs; add it to "
            "needs:"
        )
    if len(needed) < len(group.needs):
        return ""
    makers = [g for g in needed.values() if any(step.python for step in g.steps)]
    if any(g.for_each is None for g in makers):
        return ""
    if makers:
        return _wrong_maker(makers[0], source)
    candidates = dict.fromkeys(
        [*needed, *(name for g in needed.values() for name in outputs_of(g))]
    )
    return (
        f"no needed group makes {source!r}{suggestion(source, candidates)}; known: "
        f"{listed(candidates)}"
    )


def _wrong_maker(maker: GroupSpec, source: str) -> str:
    """Say why a fork cannot take its values from ``source`` of ``maker``; empty if it can."""
    if maker.for_each is not None:
        return (
            f"group {maker.name!r} is a fork itself; its members would each bring values of "
            "their own"
        )
    if maker.is_join:
        return f"group {maker.name!r} has no steps, so it makes no output"
    several = outputs_of(maker)
    if maker.name == source and source not in several and len(several) > 1:
        return f"group {source!r} has several outputs; name the one to take: {listed(several)}"
    if not several and not any(step.python for step in maker.steps):
        return f"group {source!r} declares no output:; give its SQL step one"
    return ""


def _inputs(loc: Loc, group: GroupSpec, groups: Mapping[str, GroupSpec]) -> Iterator[Problem]:
    at = (*loc, "inputs")
    if not group.steps:
        yield Problem("inputs: on a group without steps: there is nothing that reads them", at)
    if len(group.inputs) > MAX_INPUTS:
        yield Problem(f"{len(group.inputs)} inputs; at most {MAX_INPUTS} are allowed", at)
    # Compared without case, as outputs are: they become views too.
    taken = {output.lower(): "an output of this group" for output in outputs_of(group)}
    for need in groups_read(group, groups):
        taken |= {output.lower(): f"an output of {need.name!r}" for output in outputs_of(need)}
    for name in group.inputs:
        if owner := taken.get(name.lower()):
            yield Problem(
                f"{name!r} is the name of {owner} too; give the input another one",
                (*at, name),
                True,
            )
        taken[name.lower()] = "another input (case does not count)"


def _conditions(
    every: Sequence[GroupSpec], groups: dict[str, GroupSpec], params: Mapping[str, Any], hint: Hint
) -> Iterator[Problem]:
    if not any(group.when for group in every):
        return
    before = _order(groups)
    for i, group in enumerate(every):
        loc: Loc = ("groups", i, "when")
        try:
            references = parse(group.when)[1] if group.when else {}
        except ConditionError as error:
            yield Problem(str(error), loc)
            continue
        for reference in references.values():
            if reference.group is None:
                message = _wrong_param(reference.name, group, {**params, **group.params}, hint)
            else:
                message = _wrong_result(reference.group, group, groups, before, hint)
            if message:
                yield Problem(f"{reference.place}: {message}", loc)


def _wrong_param(name: str, group: GroupSpec, params: Mapping[str, Any], hint: Hint) -> str:
    if name in group.fork_params:
        return (
            f"{name!r} is the fork's parameter; a condition is on the group, before it has members"
        )
    if name not in params:
        return f"unknown parameter {shorten(name)}{hint(name, params, 'there are')}"
    if (
        reference := next(filter(None, map(reference_in, texts_in(params[name]))), None)
    ) is not None:
        return (
            f"{name!r} holds {shorten(reference)}, which only a worker can resolve, and a "
            "condition is judged elsewhere; record the value by ctx.result in a group before, and "
            "ask for that"
        )
    return ""


def _wrong_result(
    name: str,
    group: GroupSpec,
    groups: dict[str, GroupSpec],
    before: Callable[[str, str], bool],
    hint: Hint,
) -> str:
    named = groups.get(name)
    if named is None:
        return f"unknown group {shorten(name)}{hint(name, groups, 'groups')}"
    if name == group.name:
        return f"{name!r} is this group itself, which has no results before it has run"
    if not before(name, group.name):
        return f"group {name!r} does not come before this one; add it to needs:"
    if named.for_each is not None:
        return (
            f"group {name!r} is a fork; its members have results of their own, and none speaks "
            "for all"
        )
    if not named.records_results:
        return f"group {name!r} has no Python step and no stream, so it has no results"
    return ""


def _order(groups: dict[str, GroupSpec]) -> Callable[[str, str], bool]:
    """Whether one group comes before another; true for all where there is a cycle, which is
    reported anyway.

    A set of groups is one number of bits, since a chain of 10,000 groups has 50 million pairs.
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


def _params_of(group: GroupSpec, loc: Loc) -> Iterator[tuple[Mapping[str, Any], Loc]]:
    yield group.params, (*loc, "params")
    for j, step in enumerate(group.steps):
        yield step.params, (*loc, "steps", j, "params")


def _params(every: Sequence[GroupSpec], params: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _params_at(params, ("params",))
    yield from wrong_declarations(params)
    for i, group in enumerate(every):
        for written, loc in _params_of(group, ("groups", i)):
            yield from _params_at(written, loc)
            yield from wrong_overlay(params, written, loc)


def _params_at(params: Mapping[str, Any], loc: Loc) -> Iterator[Problem]:
    # A few will do, and a Python list that holds itself would bring them without end.
    problems = list(islice(value_problems(params, loc), 20))
    yield from problems
    if not problems and len(json.dumps(params)) > MAX_PARAMS:
        yield Problem(
            (
                f"more than {MAX_PARAMS // 1024} KB of parameters; put data into a file that the "
                "step reads"
            ),
            loc,
        )


def _conf(every: Sequence[GroupSpec], conf: Mapping[str, str]) -> Iterator[Problem]:
    yield from value_problems(conf, ("defaults", "conf"))
    if (warm := next(filter(_is_warm, every), None)) is not None:
        for key in static_conf(conf):
            yield _static(key, f"group {warm.name!r}", ("defaults", "conf", key))
    for i, group in enumerate(every):
        yield from value_problems(group.conf, ("groups", i, "conf"))
        for key in static_conf(group.conf) if _is_warm(group) else ():
            yield _static(key, "the group", ("groups", i, "conf", key))


def _is_warm(group: GroupSpec) -> bool:
    """True for a group whose attempts run in a session that others have used."""
    return group.spark and bool(group.steps) and not group.fresh


def _static(key: str, group: str, loc: Loc) -> Problem:
    message = (
        f"{shorten(key)} can only be set when a Spark session starts, and groups share one; give "
        f"{group} fresh: true, which starts one for each of its attempts, or set it in "
        "UNSTUCK_SPARK_CONF for all"
    )
    return Problem(message, loc)
