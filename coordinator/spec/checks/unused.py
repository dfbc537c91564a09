"""Finds what is right and may be a slip: parameters that nothing uses, markers of SQL that nothing
gives or fills in.

SQL, conditions and forks name their parameters; which of them Python takes, only a process can tell
that imports it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.problems import Problem, shorten, suggestion
from unstuck.tasks.spec.group import ForkFrom, GroupSpec
from unstuck.tasks.spec.sql_tokens import markers_in, tokens

Takes = Mapping[str, Collection[str] | None]
"""Per group, the parameters that its Python steps take; None: any."""

_WORDS = re.compile(r"[A-Za-z_]\w*")
# Also in strings and comments: each load of a job asks, and the tokenizer of SQL takes 800 times as
# long.
_MARKERS = re.compile(r":([A-Za-z_]\w*)")
_QUOTED = re.compile(r"[rR]?['\"]:(\w+)['\"]")
_TEMPLATES = re.compile(
    r"(\{\{[^{}]*+\}\})|\$?\{(\w++)\}"
)  # in time that grows with the length alone


def doubts(spec: JobSpec, takes: Takes | None = None) -> Iterator[Problem]:
    """The warnings about a spec that is right. ``takes``: as of `unused_params`."""
    yield from unused_params(spec, takes)
    yield from unbound_markers(spec)
    yield from quoted_markers(spec)


def unused_params(spec: JobSpec, takes: Takes | None = None) -> Iterator[Problem]:
    """Find the parameters of the job, its groups and their SQL that nothing uses, as far as can be
    told.

    ``takes``: of groups that are not in it, nobody knows what their Python takes.
    """
    taken_by_group = takes or {}

    def may_take(group: GroupSpec, name: str) -> bool:
        taken = taken_by_group.get(group.name)
        return _has_python(group, spec) and (taken is None or name in taken)

    named = [_named_in(group) for group in spec.groups]
    everywhere = _words(spec.outputs and spec.model_dump_json(include={"outputs"})).union(*named)
    for name in spec.params:
        if name not in everywhere and not any(may_take(group, name) for group in spec.groups):
            yield Problem("nothing in the job uses this parameter", ("params", name))
    for i, group in enumerate(spec.groups):
        for name in group.params:
            if name not in named[i] and not may_take(group, name):
                yield Problem(
                    "nothing in the group uses this parameter", ("groups", i, "params", name)
                )
        yield from _unused_of_steps(i, group)


def _unused_of_steps(i: int, group: GroupSpec) -> Iterator[Problem]:
    """Find parameters of SQL steps that the statement does not use."""
    for j, step in enumerate(group.steps):
        if not step.sql:
            continue
        markers = _MARKERS.findall(step.sql)
        for name in step.params:
            if name not in markers:
                place = ("groups", i, "steps", j, "params", name)
                yield Problem("the statement has no such marker", place)


def unbound_markers(spec: JobSpec) -> Iterator[Problem]:
    """Find the ``:name`` of statements to which no parameter gives a value; Spark would refuse them
    in the attempt.
    """
    for i, group in enumerate(spec.groups):
        bound = {*spec.params, *group.params, *(group.for_each or ())}
        for j, step in enumerate(group.steps):
            for name in sorted(markers_in(step.sql or "") - bound - {*step.params, "results"}):
                near = suggestion(name, {*bound, *step.params})
                yield Problem(
                    f"nothing gives :{name} a value{near}", ("groups", i, "steps", j, "sql")
                )


def quoted_markers(spec: JobSpec) -> Iterator[Problem]:
    """Find texts in statements that look as if a parameter were put in: each compares as the text
    that it is.
    """
    for i, group in enumerate(spec.groups):
        for j, step in enumerate(group.steps):
            sql, loc = step.sql or "", ("groups", i, "steps", j, "sql")
            if not (_QUOTED.search(sql) or _TEMPLATES.search(sql)):
                continue
            bound = {*spec.params, *group.params, *(group.for_each or ()), *step.params}
            for text in (token.text for token in tokens(sql) if token.kind == "string"):
                yield from (Problem(message, loc) for message in _quoted_in(text, bound))


def _quoted_in(text: str, bound: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with a ``text`` of SQL that looks as if one of the parameters ``bound``
    were put in.
    """
    match = _QUOTED.fullmatch(text)
    if match is not None and match[1] in bound:
        name = match[1]
        yield f"':{name}' is text in quotes, and no parameter; write :{name} without quotes"
    for template in _TEMPLATES.finditer(text):
        names = [name for name in _WORDS.findall(template[0]) if name in bound]
        if template[1] or names:
            what = f"{shorten(template[0], quote='')} in {shorten(text, quote='')}"
            use = f":{names[0] if names else 'NAME'}"
            yield f"{what} is text, and no parameter; write {use}, outside of quotes"


def for_python_alone(spec: JobSpec) -> dict[str, tuple[str, ...]]:
    """Per group, the parameters that have no effect unless the Python of this group takes them."""
    named = {group.name: _named_in(group) for group in spec.groups}
    unused = {
        group.name: group.params.keys() - named[group.name]
        for group in spec.groups
        if _has_python(group, spec)
    }
    if len(unused) == 1:  # no other group can take what the job gives
        (only,) = unused
        everywhere = _words(spec.outputs and spec.model_dump_json(include={"outputs"})).union(
            *named.values()
        )
        unused[only] |= spec.params.keys() - everywhere
    return {name: tuple(sorted(params)) for name, params in unused.items() if params}


def _has_python(group: GroupSpec, spec: JobSpec) -> bool:
    return any(step.python for step in group.steps)


def _named_in(group: GroupSpec) -> set[str]:
    """Names that the group has outside of Python: markers of SQL, and words elsewhere."""
    names = _words(group.when).union(
        *(_MARKERS.findall(step.sql) for step in group.steps if step.sql)
    )
    names |= {
        source.param
        for source in (group.for_each or {}).values()
        if isinstance(source, ForkFrom) and source.param
    }
    return names | _words(group.inputs and group.model_dump_json(include={"inputs"}))


def _words(text: object) -> set[str]:
    return set(_WORDS.findall(text)) if isinstance(text, str) else set()
