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
    known = takes or {}

    def may_take(group: GroupSpec, name: str) -> bool:
        taken = known.get(group.name)
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
        for j, step in enumerate(group.steps):
            for name in step.params if step.sql else ():
                if name in _MARKERS.findall(step.sql or ""):
                    continue
                yield Problem(
                    "the statement has no such marker", ("groups", i, "steps", j, "params", name)
                )


def unbound_markers(spec: JobSpec) -> Iterator[Problem]:
    """Find the ``:name`` of statements to which no parameter gives a value; Spark would refuse them
    in the attempt.
    """
    for i, group in enumerate(spec.groups):
        given = {*spec.params, *group.params, *(group.for_each or ())}
        for j, step in enumerate(group.steps):
            for name in sorted(markers_in(step.sql or "") - given - {*step.params, "results"}):
                near = suggestion(name, {*given, *step.params})
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
            given = {*spec.params, *group.params, *(group.for_each or ()), *step.params}
            for text in (token.text for token in tokens(sql) if token.kind == "string"):
                if (found := _QUOTED.fullmatch(text)) and found[1] in given:
                    name = found[1]
                    yield Problem(
                        (
                            f"':{name}' is text in quotes, and no parameter; write :{name} without "
                            "quotes"
                        ),
                        loc,
                    )
                for one in _TEMPLATES.finditer(text):
                    names = [name for name in _WORDS.findall(one[0]) if name in given]
                    if one[1] or names:
                        what = f"{shorten(one[0], quote='')} in {shorten(text, quote='')}"
                        use = f":{names[0] if names else 'NAME'}"
                        yield Problem(
                            f"{what} is text, and no parameter; write {use}, outside of quotes", loc
                        )


def for_python_alone(spec: JobSpec) -> dict[str, tuple[str, ...]]:
    """Per group, the parameters that have no effect unless the Python of this group takes them."""
    named = {group.name: _named_in(group) for group in spec.groups}
    found = {
        group.name: group.params.keys() - named[group.name]
        for group in spec.groups
        if _has_python(group, spec)
    }
    if len(found) == 1:  # no other group can take what the job gives
        (only,) = found
        everywhere = _words(spec.outputs and spec.model_dump_json(include={"outputs"})).union(
            *named.values()
        )
        found[only] |= spec.params.keys() - everywhere
    return {name: tuple(sorted(params)) for name, params in found.items() if params}


def _has_python(group: GroupSpec, spec: JobSpec) -> bool:
    return any(step.python for step in group.steps)


def _named_in(group: GroupSpec) -> set[str]:
    """Names that the group has outside of Python: markers of SQL, and words elsewhere."""
    found = _words(group.when).union(
        *(_MARKERS.findall(step.sql) for step in group.steps if step.sql)
    )
    found |= {
        one.param
        for one in (group.for_each or {}).values()
        if isinstance(one, ForkFrom) and one.param
    }
    return found | _words(group.inputs and group.model_dump_json(include={"inputs"}))


def _words(text: object) -> set[str]:
    return set(_WORDS.findall(text)) if isinstance(text, str) else set()
