"""Problems that only the whole spec shows: needs, cycles, joins, forks, outputs, parameters and their bounds (pure).

Only what the spec alone can decide is refused. A Python step may write any output, so a question that depends on one is
left to the runner.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import chain, islice
from typing import Any, Protocol

from unstuck.coordinator.errors import BadKey
from unstuck.coordinator.spec.condition import Scope, check
from unstuck.coordinator.spec.problems import MAX_PROBLEMS, Loc, Problem, describe, listed, shorten, suggestion
from unstuck.tasks.protocol.group import GroupSpec, Step
from unstuck.tasks.protocol.keys import CONTROL_QUEUE
from unstuck.tasks.protocol.secrets import reference_in

MAX_GROUPS = 10_000
MAX_MEMBERS = 100_000  # of all literal forks together
MAX_PARAMS = 64 * 1024  # bytes of JSON; parameters travel with every group
MAX_PARAM_DEPTH = 20
MAX_KEY = 200  # characters of a submit key
MAX_SUGGESTIONS = 10  # looking for the nearest of 10,000 names takes tenths of a second


_SURROGATE = re.compile("[\ud800-\udfff]")
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SQL_TEXTS = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|--[^\n]*|/\*.*?\*/""", re.DOTALL)  # strings, names, comments
# Where `;` may be no end of a statement: what ends otherwise than we think, a script's statements, the value of a SET.
_SQL_UNSURE = re.compile(r"""['"`$]|/\*|\*/|\bbegin\b|^\s*set\b""", re.IGNORECASE)


class Spec(Protocol):
    """What the checks read of a ``JobSpec``."""

    @property
    def groups(self) -> Sequence[GroupSpec]: ...
    @property
    def params(self) -> Mapping[str, Any]: ...
    @property
    def publish(self) -> Sequence[str] | None: ...
    @property
    def defaults(self) -> Any: ...


def problems_in(spec: Spec) -> list[Problem]:
    """Everything that is wrong with ``spec`` as a whole."""
    groups: dict[str, GroupSpec] = {}
    for group in spec.groups:
        groups.setdefault(group.name, group)
    owners: dict[str, str] = {}
    for group in spec.groups:
        for output in outputs_of(group):
            owners.setdefault(output, group.name)
    found = chain(
        _sizes(spec),
        _graph(spec.groups),
        *(_join(("groups", i), group, groups) for i, group in enumerate(spec.groups)),
        *(_fork(("groups", i), group, groups, owners) for i, group in enumerate(spec.groups)),
        _conditions(spec, groups),
        _outputs(spec),
        _statements(spec),
        _publish(spec),
        _params(spec),
        _references(spec),
    )
    return list(islice(found, MAX_PROBLEMS))


def problems_of_graph(data: Any) -> list[Problem]:
    """What is wrong with the names and needs of a spec of which something else cannot be read, such as a field.

    Tells nothing that mending the rest might mend: a need is called unknown only where all groups have their names.
    """
    written = data.get("groups") if isinstance(data, dict) else None
    if not isinstance(written, list | tuple):
        return []
    rough = [_rough(group, i) for i, group in enumerate(written)]
    return list(islice(_graph(rough, nameless=any(group.name.startswith("\0") for group in rough)), MAX_PROBLEMS))


def _rough(group: Any, index: int) -> GroupSpec:
    """The name and needs of a group as they are written, with no word about its steps."""
    if isinstance(group, GroupSpec):
        return group
    fields = group if isinstance(group, dict) else {}
    name, needs, queue = fields.get("name"), fields.get("needs"), fields.get("queue")
    return GroupSpec.model_construct(
        name=name if isinstance(name, str) and name else f"\0{index}",
        needs=tuple(needs) if isinstance(needs, list | tuple) and all(isinstance(n, str) for n in needs) else (),
        queue=queue if isinstance(queue, str) else None,
        steps=(Step.model_construct(),),
    )


def _graph(every: Sequence[GroupSpec], *, nameless: bool = False) -> Iterator[Problem]:
    groups: dict[str, GroupSpec] = {}
    for group in every:
        groups.setdefault(group.name, group)
    yield from _names(every)
    yield from _needs(every, groups, nameless)
    yield from _cycle(every, groups)


def _sizes(spec: Spec) -> Iterator[Problem]:
    if len(spec.groups) > MAX_GROUPS:
        yield Problem(
            f"{len(spec.groups):,} groups; at most {MAX_GROUPS:,} are allowed (a fork is one group)", ("groups",)
        )
    members = sum(len(group.fork_values or ()) for group in spec.groups)
    if members > MAX_MEMBERS:
        yield Problem(f"all forks together have {members:,} values; at most {MAX_MEMBERS:,} are allowed", ("groups",))


def _names(every: Sequence[GroupSpec]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for i, group in enumerate(every):
        if group.name in first:
            yield Problem(
                f"two groups are named {group.name!r}, this one and groups[{first[group.name]}]", ("groups", i, "name")
            )
        first.setdefault(group.name, i)
        if group.queue == CONTROL_QUEUE:
            yield Problem(
                f"the queue {CONTROL_QUEUE!r} is the coordinators' own, where no worker listens; name another",
                ("groups", i, "queue"),
            )


def _needs(every: Sequence[GroupSpec], groups: dict[str, GroupSpec], nameless: bool) -> Iterator[Problem]:
    unknown = 0
    for i, group in enumerate(every):
        if not group.steps and not group.needs:
            yield Problem(
                f"group {group.name!r} has neither steps: nor needs:, so there is nothing to do", ("groups", i)
            )
        seen: set[str] = set()
        for j, need in enumerate(group.needs):
            loc: Loc = ("groups", i, "needs", j)
            if need == group.name:
                yield Problem(f"group {need!r} needs itself; remove it", loc)
            elif need in seen:
                yield Problem(f"{need!r} is needed twice; keep one", loc)
            elif need not in groups and not nameless:
                unknown += 1
                near = suggestion(need, groups) if unknown <= MAX_SUGGESTIONS else ""
                hint = near or f"; groups: {listed(groups)}"
                yield Problem(f"unknown group {need!r}{hint}", loc)
            seen.add(need)


def _cycle(every: Sequence[GroupSpec], groups: dict[str, GroupSpec]) -> Iterator[Problem]:
    """One cycle is named; the next shows when this one is mended."""
    known = {name: [need for need in group.needs if need in groups and need != name] for name, group in groups.items()}
    try:
        TopologicalSorter(known).prepare()
    except CycleError as error:
        ring: list[str] = error.args[1][:0:-1]  # graphlib lists each before the one that needs it
        index = {group.name: i for i, group in reversed(list(enumerate(every)))}
        start = min(range(len(ring)), key=lambda at: index[ring[at]])
        ring = [*ring[start:], *ring[:start]]
        at = index[ring[0]]
        need = every[at].needs.index(ring[1])
        shown = [*ring, ring[0]] if len(ring) <= 12 else [*ring[:12], f"… {len(ring) - 12} more …", ring[0]]
        yield Problem(f"a cycle, each needs the next: {' → '.join(shown)}", ("groups", at, "needs", need))


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


def _fork(loc: Loc, group: GroupSpec, groups: dict[str, GroupSpec], owners: dict[str, str]) -> Iterator[Problem]:
    param = group.fork_param
    if param is None:
        return
    if param in group.params:
        yield Problem(f"{param!r} is the fork's parameter already; remove it here", (*loc, "params", param), True)
    for j, step in enumerate(group.steps):
        if param in step.params:
            yield Problem(
                f"{param!r} is the fork's parameter already; remove it here", (*loc, "steps", j, "params", param), True
            )
    for j, value in enumerate(group.fork_values or ()):
        yield from _json_problems(value, (*loc, "for_each", param, j))
    if group.fork_from is not None:
        message = _fork_source(group, group.fork_from.output, groups, owners)
        if message:
            yield Problem(message, (*loc, "for_each", param, "from"))


def _fork_source(group: GroupSpec, source: str, groups: dict[str, GroupSpec], owners: dict[str, str]) -> str | None:
    """Why ``group`` cannot be forked from a column of ``source``; None if it can, or if only a run can tell."""
    needed = {need: groups[need] for need in group.needs if need in groups}
    if not group.needs:
        return f"a fork of {source!r} must need the group that makes it; add needs:"
    maker = needed.get(source) or next((g for g in needed.values() if source in outputs_of(g)), None)
    if maker is None:
        outside = source if source in groups else owners.get(source)
        if outside == group.name:
            return f"{source!r} is made by this group itself; a fork takes its values from a group that it needs"
        if outside is not None:
            return f"{source!r} is made by group {outside!r}, which is not among the needs; add it to needs:"
        if len(needed) < len(group.needs):
            return None
        pythons = [g for g in needed.values() if any(step.python for step in g.steps)]
        if any(g.for_each is None for g in pythons):
            return None
        if pythons:
            return f"group {pythons[0].name!r} is a fork itself; its members would each bring values of their own"
        known = [*needed, *(name for g in needed.values() for name in outputs_of(g))]
        return f"no needed group makes {source!r}{suggestion(source, known)}; known: {listed(dict.fromkeys(known))}"
    if maker.for_each is not None:
        return f"group {maker.name!r} is a fork itself; its members would each bring values of their own"
    if maker.is_join:
        return f"group {maker.name!r} has no steps, so it makes no output"
    several = outputs_of(maker)
    if maker.name == source and source not in several and len(several) > 1:
        return f"group {source!r} has several outputs; name the one to take: {listed(several)}"
    if not several and not any(step.python for step in maker.steps):
        return f"group {source!r} declares no output:; give its SQL step one"
    return None


def _conditions(spec: Spec, groups: dict[str, GroupSpec]) -> Iterator[Problem]:
    if not any(group.when is not None for group in spec.groups):
        return
    bits, above = _ancestors(groups)
    told = 0
    for i, group in enumerate(spec.groups):
        if group.when is None:
            continue

        def before(name: str, mine: int = above.get(group.name, -1)) -> bool:
            return bool(mine & bits[name])

        params = {**spec.params, **group.params}
        for message in check(group.when, Scope(group, params, groups, before, told < MAX_SUGGESTIONS)):
            told += 1
            yield Problem(message, ("groups", i, "when"))


def _ancestors(groups: dict[str, GroupSpec]) -> tuple[dict[str, int], dict[str, int]]:
    """A bit for each group, and for each group those of all that come before it; none in a cycle, which is told anyway.

    As bits, for 10,000 groups in a chain have 50 million pairs.
    """
    bits = {name: 1 << at for at, name in enumerate(groups)}
    known = {name: [need for need in group.needs if need in groups] for name, group in groups.items()}
    above: dict[str, int] = {}
    try:
        for name in TopologicalSorter(known).static_order():
            mine = 0
            for need in known[name]:
                mine |= above[need] | bits[need]
            above[name] = mine
    except CycleError:
        return bits, {}
    return bits, above


def outputs_of(group: GroupSpec) -> list[str]:
    """Outputs that ``group`` declares, in the order of its steps."""
    return [step.output for step in group.steps if step.output is not None]


def _outputs(spec: Spec) -> Iterator[Problem]:
    # Compared without case: Spark's views and some file systems do not tell `Flights` from `flights`.
    first: dict[str, tuple[str, str]] = {}
    for i, group in enumerate(spec.groups):
        for j, step in enumerate(group.steps):
            if step.output is None:
                continue
            name, owner = first.setdefault(step.output.lower(), (step.output, f"groups[{i}].steps[{j}]"))
            if owner == f"groups[{i}].steps[{j}]":
                continue
            same = f"{step.output!r}" if name == step.output else f"{step.output!r} (or {name!r}: case does not count)"
            message = f"output {same} is made by {owner} too; an output has one maker, give one another name"
            yield Problem(message, ("groups", i, "steps", j, "output"))


def _statements(spec: Spec) -> Iterator[Problem]:
    several = cache(several_statements)  # a text may stand in thousands of steps
    for i, group in enumerate(spec.groups):
        for j, step in enumerate(group.steps):
            if step.sql is not None and several(step.sql):
                yield Problem(ONE_STATEMENT, ("groups", i, "steps", j, "sql"))


ONE_STATEMENT = "several statements in one step; a step is one statement, give each its own step"


def several_statements(sql: str) -> bool:
    """True if ``sql`` is surely more than one statement; what only Spark's own parser can tell is left to the run."""
    bare = _SQL_TEXTS.sub(" ", sql)
    if re.search(r"""\\['"]""", sql) or _SQL_UNSURE.search(bare):
        return False
    first, _, rest = bare.partition(";")
    return bool(first.strip()) and bool(rest.strip("; \t\r\n\f\v"))


def _publish(spec: Spec) -> Iterator[Problem]:
    declared = [name for group in spec.groups for name in outputs_of(group)]
    any_python = any(step.python for group in spec.groups for step in group.steps)
    seen: set[str] = set()
    for j, name in enumerate(spec.publish or ()):
        if name in seen:
            yield Problem(f"{name!r} is listed twice; keep one", ("publish", j))
        elif name not in declared and not any_python:
            hint = suggestion(name, declared) or f"; outputs: {listed(declared) or 'none'}"
            yield Problem(f"no group makes an output {name!r}{hint}", ("publish", j))
        seen.add(name)


def _params(spec: Spec) -> Iterator[Problem]:
    yield from _params_at(spec.params, ("params",))
    for i, group in enumerate(spec.groups):
        yield from _params_at(group.params, ("groups", i, "params"))
        for j, step in enumerate(group.steps):
            yield from _params_at(step.params, ("groups", i, "steps", j, "params"))


def _params_at(params: Mapping[str, Any], loc: Loc) -> Iterator[Problem]:
    if not params:
        return
    # A few will do, and a Python list that holds itself would bring them without end.
    problems = list(islice(_json_problems(params, loc), 20))
    yield from problems
    if problems:
        return
    yield from _references_in(params, loc)
    if len(json.dumps(params)) > MAX_PARAMS:
        yield Problem(f"more than {MAX_PARAMS // 1024} KB of parameters; put data into a file that the step reads", loc)


def _references(spec: Spec) -> Iterator[Problem]:
    """What is wrong with ``${env:NAME}`` outside of parameters, and with the texts of ``conf``."""
    for conf, loc in (
        (spec.defaults.conf, ("defaults", "conf")),
        *((group.conf, ("groups", i, "conf")) for i, group in enumerate(spec.groups)),
    ):
        yield from _json_problems(conf, loc)
        yield from _references_in(conf, loc)
    for i, group in enumerate(spec.groups):
        for j, value in enumerate(group.fork_values or ()):
            if isinstance(value, str) and (found := reference_in(value)) is not None:
                message = "the values of a fork are stored and shown, so no reference is resolved in them; put it under"
                yield Problem(
                    f"{shorten(found)}: {message} params:", ("groups", i, "for_each", group.fork_param or "", j)
                )


def _references_in(value: Any, loc: Loc) -> Iterator[Problem]:
    if isinstance(value, dict):
        for key, child in value.items():
            if (found := reference_in(key)) is not None:
                yield Problem(
                    f"{shorten(found)}: a reference is resolved in a value, and not in a key", (*loc, key), True
                )
            yield from _references_in(child, (*loc, key))
    elif isinstance(value, list | tuple):
        for i, child in enumerate(value):
            yield from _references_in(child, (*loc, i))
    elif isinstance(value, str) and (found := reference_in(value, wrong=True)) is not None:
        yield Problem(
            f"expected a reference such as ${{env:NAME}}, not {shorten(found)}; where the text itself is meant, write "
            "$${ for ${",
            loc,
        )


def _json_problems(value: Any, loc: Loc, depth: int = 0) -> Iterator[Problem]:
    """Values that JSON cannot hold, or cannot give back as they were."""
    if depth > MAX_PARAM_DEPTH:
        yield Problem(f"nested more than {MAX_PARAM_DEPTH} levels deep", loc)
    elif isinstance(value, dict):
        for key, child in value.items():
            if not isinstance(key, str):
                yield Problem(f"a key must be text, not {describe(key)}", loc)
            else:
                yield from _json_problems(child, (*loc, key), depth + 1)
    elif isinstance(value, list | tuple):
        for i, child in enumerate(value):
            yield from _json_problems(child, (*loc, i), depth + 1)
    elif isinstance(value, str):
        if _SURROGATE.search(value):
            yield Problem(f"not valid Unicode text: {shorten(value)}", loc)
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            yield Problem(f"{value} is no number that JSON can hold", loc)
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            yield Problem("a whole number of more than 64 bits; give it as text", loc)
    elif value is not None:
        yield Problem(f"expected text, a number, true, false, null, a list or a mapping, not {describe(value)}", loc)


def check_key(key: object) -> None:
    """Check the word under which submitting the same spec again is the same job. Raises: BadKey."""
    if not isinstance(key, str):
        raise BadKey(f"the key: expected text, not {describe(key)}")
    if not 1 <= len(key) <= MAX_KEY:
        raise BadKey(f"the key {shorten(key)}: expected 1 to {MAX_KEY} characters, not {len(key):,}")
    if found := _UNSEEN.search(key):
        raise BadKey(f"the key {shorten(key)}: expected no control characters, not {found[0]!r}")
