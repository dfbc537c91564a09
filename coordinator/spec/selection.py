"""Selects some groups of a spec, which read the published outputs of the others. Pure."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from unstuck.coordinator.errors import NoSuchGroup
from unstuck.coordinator.spec.checks.output_checks import outputs_of
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.plan import Plan, PlannedGroup, compile_plan
from unstuck.coordinator.spec.problems import SpecError, SpecProblem, listed, suggestion
from unstuck.tasks.protocol.token import split_member
from unstuck.tasks.spec.fields import ForkValue
from unstuck.tasks.spec.group import fork_key

_OF_THE_WHOLE = ("schedule", "notify", "groups", "publish", "outputs")
_CHECKS = ("quality", "columns", "expect")


@dataclass(frozen=True, slots=True)
class GroupSelection:
    """A part of a spec.

    Attributes:
        spec: the groups that run, as a spec of their own.
        reads: published dataset → a group that runs and reads it, and the excluded group that makes
            it.
        parts: forks of which single members run. Then nothing is published.
    """

    spec: JobSpec
    reads: Mapping[str, tuple[str, str]]
    parts: tuple[str, ...]

    def lacking(self, published: Collection[str]) -> str:
        """Return a message about datasets that cannot be read; empty if there is none."""
        lacks = {dataset: how for dataset, how in self.reads.items() if dataset not in published}
        return "\n".join(
            f"group {reader} reads {dataset} of group {maker}, which is left out, and the "
            f"warehouse has no dataset {dataset}. Run {maker} too, or publish {dataset} by one "
            f"whole run with publish: [{dataset}] in the spec"
            for dataset, (reader, maker) in lacks.items()
        )


def select(
    spec: JobSpec, only: Collection[str], after: Collection[str], until: Collection[str]
) -> GroupSelection:
    """Return the groups that all of the given arguments select; an empty argument selects all.

    Args:
        only: names or patterns (``load_*``) of groups, or single members of forks
            (``by_month[2]``).
        after: groups that run with everything after them.
        until: groups that run with everything before them.

    Raises:
        NoSuchGroup: a name fits no group, or no group is left.
        SpecError: the groups that are left are not a spec, such as with a condition on an excluded
            group.
    """
    plan = compile_plan(spec)
    names = [group.name for group in spec.groups]
    kept, members = set(names), dict[str, list[ForkValue]]()
    if only:
        kept, members = _only(only, names, plan)
    if after:
        kept &= _after(plan, _whole_groups(after, names))
    if until:
        kept &= _before(plan, _whole_groups(until, names))
    if not kept:
        raise NoSuchGroup(
            "no group is left: each of --only, --from and --until must select the groups that run"
        )
    members = {name: values for name, values in members.items() if name in kept}
    written, reads = _groups_alone(spec, plan, kept, members)
    if members:
        written["publish"] = []
    else:
        part_plan = compile_plan(JobSpec.from_values(written, None))
        written |= _published(spec, plan, kept, part_plan)
    written["outputs"] = dict(_outputs(spec, plan, kept, written.get("publish")))
    return GroupSelection(JobSpec.from_values(written, None), reads, tuple(sorted(members)))


def _groups_alone(
    spec: JobSpec, plan: Plan, kept: Collection[str], members: Mapping[str, list[ForkValue]]
) -> tuple[dict[str, Any], dict[str, tuple[str, str]]]:
    """Return a spec of the ``kept`` groups that publishes nothing, and the datasets that it reads.

    The datasets are those of `GroupSelection.reads`.
    """
    reads: dict[str, tuple[str, str]] = {}
    dumped = spec.dumped()
    written = {name: value for name, value in dumped.items() if name not in _OF_THE_WHOLE}
    written["groups"] = [
        _alone(group, plan, kept, reads, members.get(group["name"]))
        for group in dumped["groups"]
        if group["name"] in kept
    ]
    return written, reads


def _only(
    words: Collection[str], names: Collection[str], plan: Plan
) -> tuple[set[str], dict[str, list[ForkValue]]]:
    """Return the groups that ``words`` name, and the values of forks with single members.

    Raises: NoSuchGroup.
    """
    whole, members = set[str](), dict[str, list[ForkValue]]()
    for word in words:
        name, ordinal = split_member(word) if word.endswith("]") else (word, None)
        if ordinal is None:
            whole.update(_fitting(word, names))
            continue
        values = plan.groups[name].values if name in names else _no_group(word, name, names)
        if values is None or ordinal >= len(values):
            count = "no member that is known before the job runs"
            if values is not None:
                count = f"{len(values)} members"
            raise NoSuchGroup(f"{word} cannot be selected: {name} has {count}")
        members.setdefault(name, []).append(values[ordinal])
    parts = {name: values for name, values in members.items() if name not in whole}
    return whole.union(parts), parts


def _whole_groups(words: Collection[str], names: Collection[str]) -> set[str]:
    """Return the groups that ``words`` name. Raises: NoSuchGroup: for a single member, too."""
    groups: set[str] = set()
    for word in words:
        name, ordinal = split_member(word) if word.endswith("]") else (word, None)
        if ordinal is not None and name in names:
            raise NoSuchGroup(f"{word} cannot be selected: name the whole fork")
        groups.update(_fitting(word, names))
    return groups


def _fitting(word: str, names: Collection[str]) -> list[str]:
    """Return the groups that a name or a pattern fits. Raises: NoSuchGroup."""
    matches = [word] if word in names else fnmatch.filter(names, word)
    return matches or _no_group(word, word, names)


def _no_group(word: str, name: str, names: Collection[str]) -> NoReturn:
    remedy = suggestion(name, names) or f"; it has: {listed(names)}"
    raise NoSuchGroup(f"the job has no group {word}{remedy}")


def _after(plan: Plan, names: Collection[str]) -> set[str]:
    selected = set(names)
    for name, planned in plan.groups.items():  # needs come first
        if selected.intersection(planned.spec.needs):
            selected.add(name)
    return selected


def _before(plan: Plan, names: Collection[str]) -> set[str]:
    selected = set(names)
    for name, planned in reversed(plan.groups.items()):
        if name in selected:
            selected.update(planned.spec.needs)
    return selected


def _alone(
    group: dict[str, Any],
    plan: Plan,
    kept: Collection[str],
    reads: dict[str, tuple[str, str]],
    values: list[ForkValue] | None,
) -> dict[str, Any]:
    """Return ``group`` with the outputs of excluded needs as inputs.

    These are added to ``reads``.
    """
    planned = plan.groups[group["name"]]
    needs = list(dict.fromkeys(_needs(planned, plan, kept)))
    inputs = dict(group.get("inputs", {}))
    for maker in needs:
        for output in () if maker in kept else outputs_of(plan.groups[maker].spec):
            inputs.setdefault(output, {"dataset": output})
            reads.setdefault(output, (planned.name, maker))
    written = {**group, "needs": [need for need in needs if need in kept], "inputs": inputs}
    if values is not None:
        written["for_each"] = _values(planned, values)
    empty = [key for key in ("needs", "inputs") if not written[key]]
    return {key: value for key, value in written.items() if key not in empty}


def _needs(planned: PlannedGroup, plan: Plan, kept: Collection[str]) -> Iterator[str]:
    """Yield the groups before it; in place of an excluded join, the groups that it joins."""
    for need in planned.spec.needs:
        if need in kept or not plan.groups[need].spec.is_join:
            yield need
        else:
            yield from _needs(plan.groups[need], plan, kept)


def _values(planned: PlannedGroup, values: list[ForkValue]) -> dict[str, Any]:
    """Return ``for_each`` with these members alone.

    Raises:
        SpecError: they are not all combinations of their values.
    """
    names = planned.spec.fork_params
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    columns = {
        name: list({fork_key(row[at]): row[at] for row in rows}.values())
        for at, name in enumerate(names)
    }
    if math.prod(map(len, columns.values())) != len(set(map(fork_key, rows))):
        why = f"select one member of {planned.name} at a time: it is forked over several lists"
        raise SpecError([SpecProblem(why)])
    return columns


def _published(spec: JobSpec, plan: Plan, kept: Collection[str], alone: Plan) -> dict[str, Any]:
    """Return ``publish``: what the whole job publishes of the outputs of the groups that are left.

    Args:
        alone: the plan of the groups that are left, with the default of what is published.
    """
    if spec.publish is not None:
        elsewhere = set(_made(plan, set(plan.groups).difference(kept)))
        elsewhere.difference_update(_made(plan, kept))
        return {"publish": [name for name in spec.publish if name not in elsewhere]}
    shown = plan.default_publish.intersection(kept)
    return {} if shown == alone.default_publish else {"publish": _made(plan, shown)}


def _outputs(
    spec: JobSpec, plan: Plan, kept: Collection[str], publish: Collection[str] | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``outputs`` of the groups that are left; of an unpublished output, only its checks."""
    elsewhere = set(_made(plan, plan.groups)).difference(_made(plan, kept))
    for name, output in spec.outputs.items():
        if name in elsewhere:
            continue
        written = output.model_dump(mode="json", by_alias=True, exclude_unset=True)
        if publish is not None and name not in publish:
            written = {key: value for key, value in written.items() if key in _CHECKS}
        yield name, written


def _made(plan: Plan, names: Collection[str]) -> list[str]:
    """Return the outputs that these groups declare."""
    groups = [planned.spec for name, planned in plan.groups.items() if name in names]
    return [output for group in groups for output in outputs_of(group)]
