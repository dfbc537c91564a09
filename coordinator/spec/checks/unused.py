"""Warnings about a correct spec: unused parameters, and SQL markers without a value. Pure.

SQL, conditions and forks name their parameters. Only a process that imports the Python of a step
knows its parameters.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import chain

from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.problems import Loc, SpecProblem, shorten, suggestion
from unstuck.tasks.spec.group import ForkFrom, GroupSpec
from unstuck.tasks.spec.sql_tokens import markers_in, tokens

Takes = Mapping[str, Collection[str] | None]
"""By group, the parameters that its Python steps take; None: any."""

_WORDS = re.compile(r"[A-Za-z_]\w*")
# Finds markers in strings and comments, too. Each load of a job uses it, and the tokenizer of SQL
# takes 800 times as long.
_MARKERS = re.compile(r":([A-Za-z_]\w*)")
_QUOTED = re.compile(r"[rR]?['\"]:(\w+)['\"]")
# Possessive, so that the time grows with the length alone.
_TEMPLATES = re.compile(r"(\{\{[^{}]*+\}\})|\$?\{(\w++)\}")


def doubts(spec: JobSpec, takes: Takes | None = None) -> Iterator[SpecProblem]:
    """Find warnings about a correct spec; ``takes`` as for `unused_params`."""
    yield from unused_params(spec, takes)
    yield from unbound_markers(spec)
    yield from quoted_markers(spec)


def unused_params(spec: JobSpec, takes: Takes | None = None) -> Iterator[SpecProblem]:
    """Find the parameters of the job, its groups and their SQL that nothing uses.

    Args:
        takes: a group without an entry may take any parameter in Python.
    """
    named = [_named_in(group) for group in spec.groups]
    everywhere = _words_of_outputs(spec).union(*named)
    for name in spec.params:
        if name not in everywhere and not any(_may_take(g, name, takes) for g in spec.groups):
            yield SpecProblem("nothing in the job uses this parameter", ("params", name))
    for i, group in enumerate(spec.groups):
        for name in group.params:
            if name not in named[i] and not _may_take(group, name, takes):
                loc = ("groups", i, "params", name)
                yield SpecProblem("nothing in the group uses this parameter", loc)
        yield from _unused_of_steps(i, group)


def _may_take(group: GroupSpec, name: str, takes: Takes | None) -> bool:
    """Return whether the Python of a group may take the parameter ``name``."""
    taken = (takes or {}).get(group.name)
    return _has_python(group) and (taken is None or name in taken)


def _unused_of_steps(i: int, group: GroupSpec) -> Iterator[SpecProblem]:
    """Find parameters of SQL steps that the statement does not use."""
    for j, step in enumerate(group.steps):
        if not step.sql:
            continue
        markers = _MARKERS.findall(step.sql)
        for name in step.params:
            if name not in markers:
                place = ("groups", i, "steps", j, "params", name)
                yield SpecProblem("the statement has no such marker", place)


def _sql_steps(spec: JobSpec) -> Iterator[tuple[Loc, str, set[str]]]:
    """Yield the place of each statement, its text, and the parameters that it may use."""
    for i, group in enumerate(spec.groups):
        for j, step in enumerate(group.steps):
            if step.sql:
                bound = {*spec.params, *group.params, *group.fork_params, *step.params}
                yield ("groups", i, "steps", j, "sql"), step.sql, bound


def unbound_markers(spec: JobSpec) -> Iterator[SpecProblem]:
    """Find markers ``:name`` of SQL without a value, which Spark would refuse in the attempt."""
    for loc, sql, bound in _sql_steps(spec):
        for name in sorted(markers_in(sql) - bound - {"results"}):
            yield SpecProblem(f"nothing gives :{name} a value{suggestion(name, bound)}", loc)


def quoted_markers(spec: JobSpec) -> Iterator[SpecProblem]:
    """Find texts of SQL that look like a parameter, and that SQL compares as text."""
    for loc, sql, bound in _sql_steps(spec):
        if not (_QUOTED.search(sql) or _TEMPLATES.search(sql)):
            continue
        texts = [token.text for token in tokens(sql) if token.kind == "string"]
        for message in chain.from_iterable(_quoted_in(text, bound) for text in texts):
            yield SpecProblem(message, loc)


def _quoted_in(text: str, bound: Collection[str]) -> Iterator[str]:
    """Yield warnings about a text of SQL that looks as if it used a parameter of ``bound``."""
    match = _QUOTED.fullmatch(text)
    if match is not None and match[1] in bound:
        name = match[1]
        yield f"':{name}' in quotes is text, not a parameter; write :{name} without quotes"
    for template in _TEMPLATES.finditer(text):
        names = [name for name in _WORDS.findall(template[0]) if name in bound]
        if template[1] or names:
            what = f"{shorten(template[0], quote='')} in {shorten(text, quote='')}"
            name = next(iter(names), "NAME")
            yield f"{what} is text, not a parameter; write :{name} outside of quotes"


def for_python_alone(spec: JobSpec) -> dict[str, tuple[str, ...]]:
    """Return, by group, the parameters that only its Python may use."""
    named = {group.name: _named_in(group) for group in spec.groups}
    unused = {
        group.name: group.params.keys() - named[group.name]
        for group in spec.groups
        if _has_python(group)
    }
    if len(unused) == 1:  # no other group can take what the job gives
        (only,) = unused
        unused[only] |= spec.params.keys() - _words_of_outputs(spec).union(*named.values())
    return {name: tuple(sorted(params)) for name, params in unused.items() if params}


def _has_python(group: GroupSpec) -> bool:
    return any(step.python for step in group.steps)


def _words_of_outputs(spec: JobSpec) -> set[str]:
    return _words(spec.model_dump_json(include={"outputs"})) if spec.outputs else set()


def _named_in(group: GroupSpec) -> set[str]:
    """Return the names that the group has outside of Python: SQL markers, and words elsewhere."""
    names = _words(group.when or "")
    for step in group.steps:
        names.update(_MARKERS.findall(step.sql or ""))
    for source in (group.for_each or {}).values():
        if isinstance(source, ForkFrom) and source.param:
            names.add(source.param)
    if group.inputs:
        names |= _words(group.model_dump_json(include={"inputs"}))
    return names


def _words(text: str) -> set[str]:
    return set(_WORDS.findall(text))
