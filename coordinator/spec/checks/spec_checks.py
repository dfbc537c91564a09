"""Checks of a spec as a whole: inputs, parameters, conf, and all checks of this folder. Pure.

A spec is refused only for mistakes that it alone shows. A Python step may write any output, so
checks that depend on its outputs are left to the runner.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, count, islice
from types import MappingProxyType
from typing import Any

from unstuck.coordinator.spec.checks.condition_checks import condition_problems
from unstuck.coordinator.spec.checks.fork_checks import fork_problems, params_of
from unstuck.coordinator.spec.checks.graph_checks import graph_problems
from unstuck.coordinator.spec.checks.output_checks import (
    Hint,
    output_problems,
    outputs_of,
    stream_problems,
)
from unstuck.coordinator.spec.checks.sql import groups_read, sql_problems
from unstuck.coordinator.spec.job_params import (
    reference_problems,
    value_problems,
    values_of,
    wrong_declarations,
    wrong_overlay,
)
from unstuck.coordinator.spec.problems import (
    MAX_PROBLEMS,
    Loc,
    SpecProblem,
    listed,
    shorten,
    suggestion,
)
from unstuck.tasks.spec.group import GroupSpec, Step
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.spec.spark_conf import static_conf

MAX_INPUTS = 100  # published datasets of one group
MAX_PARAMS = 64 * 1024  # bytes of JSON; parameters travel with every group
MAX_SUGGESTIONS = 10  # to find the nearest of 10,000 names takes tenths of a second

NO_OUTPUTS: Mapping[str, OutputSpec] = MappingProxyType({})


def problems_in(
    every: Sequence[GroupSpec],
    params: Mapping[str, Any],
    publish: Sequence[str] | None,
    conf: Mapping[str, str],
    outputs: Mapping[str, OutputSpec] = NO_OUTPUTS,
) -> list[SpecProblem]:
    """Return the problems of a spec as a whole.

    Args:
        conf: that of its defaults.
        outputs: how single outputs are published and checked.
    """
    groups = _by_name(every)
    hint, values = _hints(), values_of(params)
    problems = chain(
        graph_problems(every, groups, hint),
        fork_problems(every, groups, values, hint),
        condition_problems(every, groups, values, hint),
        output_problems(every, params, publish, outputs, hint),
        sql_problems(every, groups, params),
        *(_inputs(("groups", i), group, groups) for i, group in enumerate(every) if group.inputs),
        stream_problems(every, publish, outputs),
        _params(every, params),
        _conf(every, conf),
        reference_problems(every, outputs),
    )
    return list(islice(problems, MAX_PROBLEMS))


def problems_of_graph(data: Any) -> list[SpecProblem]:
    """Return the mistakes in names and needs of a spec that has an unreadable part.

    An unknown need is reported only if all groups have names.
    """
    written = data.get("groups") if isinstance(data, dict) else None
    if not isinstance(written, list | tuple):
        return []
    rough = [_rough(group, i) for i, group in enumerate(written)]
    nameless = any(group.name.startswith("\0") for group in rough)
    hint = None if nameless else _hints()
    return list(islice(graph_problems(rough, _by_name(rough), hint, joins=False), MAX_PROBLEMS))


def _rough(group: Any, index: int) -> GroupSpec:
    """Return a group with its written name and needs, whatever else it has."""
    if isinstance(group, GroupSpec):
        return group
    fields = group if isinstance(group, dict) else {}
    name, needs = fields.get("name"), fields.get("needs")
    if not isinstance(name, str):
        name = ""
    if not isinstance(needs, list | tuple) or not all(isinstance(need, str) for need in needs):
        needs = ()
    return GroupSpec.model_construct(
        name=name or f"\0{index}", needs=tuple(needs), steps=(Step.model_construct(),)
    )


def _by_name(every: Sequence[GroupSpec]) -> dict[str, GroupSpec]:
    groups: dict[str, GroupSpec] = {}
    for group in every:
        groups.setdefault(group.name, group)
    return groups


def _hints() -> Hint:
    """Return a function that suggests the nearest name, or lists all names.

    It suggests a name only the first few times, since the search among 10,000 names takes tenths
    of a second.
    """
    calls = count()

    def hint(name: str, names: Collection[str], what: str) -> str:
        near = suggestion(name, names) if next(calls) < MAX_SUGGESTIONS else ""
        return near or f"; {what}: {listed(names) or 'none'}"

    return hint


def _inputs(loc: Loc, group: GroupSpec, groups: Mapping[str, GroupSpec]) -> Iterator[SpecProblem]:
    at = (*loc, "inputs")
    if not group.steps:
        yield SpecProblem("inputs: has no effect in a group without steps; remove it", at)
    if len(group.inputs) > MAX_INPUTS:
        yield SpecProblem(f"at most {MAX_INPUTS} inputs are allowed, not {len(group.inputs)}", at)
    # Compared without case, as outputs are: they become views, too.
    owners = {output.lower(): "an output of this group" for output in outputs_of(group)}
    for need in groups_read(group, groups):
        owners |= {output.lower(): f"an output of {need.name!r}" for output in outputs_of(need)}
    for name in group.inputs:
        if owner := owners.get(name.lower()):
            text = f"{owner} has the name {name!r}, too; give the input another name"
            yield SpecProblem(text, (*at, name), True)
        owners[name.lower()] = "another input (case does not count)"


def _params(every: Sequence[GroupSpec], params: Mapping[str, Any]) -> Iterator[SpecProblem]:
    yield from _params_at(params, ("params",))
    yield from wrong_declarations(params)
    for i, group in enumerate(every):
        for written, loc in params_of(group, ("groups", i)):
            yield from _params_at(written, loc)
            yield from wrong_overlay(params, written, loc)


def _params_at(params: Mapping[str, Any], loc: Loc) -> Iterator[SpecProblem]:
    # A Python list that contains itself would yield problems without end.
    problems = list(islice(value_problems(params, loc), 20))
    yield from problems
    if not problems and len(json.dumps(params)) > MAX_PARAMS:
        text = (
            f"more than {MAX_PARAMS // 1024} KB of parameters; put data into a file that the step "
            "reads"
        )
        yield SpecProblem(text, loc)


def _conf(every: Sequence[GroupSpec], conf: Mapping[str, str]) -> Iterator[SpecProblem]:
    yield from value_problems(conf, ("defaults", "conf"))
    if (warm := next(filter(_is_warm, every), None)) is not None:
        for key in static_conf(conf):
            yield _static(key, f"group {warm.name!r}", ("defaults", "conf", key))
    for i, group in enumerate(every):
        yield from value_problems(group.conf, ("groups", i, "conf"))
        for key in static_conf(group.conf) if _is_warm(group) else ():
            yield _static(key, "the group", ("groups", i, "conf", key))


def _is_warm(group: GroupSpec) -> bool:
    """Return whether attempts of ``group`` run in a session that others have used."""
    return group.spark and bool(group.steps) and not group.fresh


def _static(key: str, group: str, loc: Loc) -> SpecProblem:
    message = (
        f"{shorten(key)} can only be set when a Spark session starts, and groups share a session; "
        f"give {group} fresh: true for a session of its own, or set the key for all groups in "
        "UNSTUCK_SPARK_CONF"
    )
    return SpecProblem(message, loc)
