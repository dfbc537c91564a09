"""A part of a spec: some of its groups, which read what the others have published before (pure)."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unstuck.coordinator.errors import NoSuchGroup
from unstuck.coordinator.spec.checks.output_checks import outputs_of
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.plan import Plan, PlannedGroup, compile_plan
from unstuck.coordinator.spec.problems import Problem, SpecError, listed, suggestion
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
        reads: by published dataset, a group that runs and reads it, and the group left out that
            makes it.
        parts: forks of which single members run. Then nothing is published.
    """

    spec: JobSpec
    reads: Mapping[str, tuple[str, str]]
    parts: tuple[str, ...]

    def lacking(self, published: Collection[str]) -> str:
        """Name the datasets that cannot be read, with what helps; empty if there is none."""
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
    """The groups that all of the given arguments select; an empty one selects all.

    Args:
        only: names or patterns (``load_*``) of the groups, or single members of forks
            (``by_month[2]``).
        after: of groups that run with everything after them.
        until: of groups that run with everything before them.

    Raises:
        NoSuchGroup: a name fits no group, or no group is left.
        SpecError: the groups that are left make no spec, such as a condition on one that is left
            out.
    """
    plan = compile_plan(spec)
    names = [group.name for group in spec.groups]
    members: dict[str, list[ForkValue]] = {}
    kept = set(names)
    if only:
        kept &= _all_fitting(only, names, plan, members)
    if after:
        kept &= _after(plan, _all_fitting(after, names, plan))
    if until:
        kept &= _before(plan, _all_fitting(until, names, plan))
    if not kept:
        raise NoSuchGroup(
            "no group is left: each of --only, --from and --until must select the groups that run"
        )
    whole = {name for word in only for name in fnmatch.filter(names, word)}
    members = {name: values for name, values in members.items() if name in kept.difference(whole)}
    reads: dict[str, tuple[str, str]] = {}
    written = {name: value for name, value in spec.dumped().items() if name not in _OF_THE_WHOLE}
    by_name = {group["name"]: group for group in spec.dumped()["groups"]}
    written["groups"] = [
        _alone(by_name[name], plan, kept, reads, members.get(name))
        for name in names
        if name in kept
    ]
    if members:
        written["publish"] = []
    else:
        part_plan = compile_plan(JobSpec.from_values(written, None))
        written |= _published(spec, plan, kept, part_plan)
    written["outputs"] = dict(_outputs(spec, plan, kept, written.get("publish")))
    return GroupSelection(JobSpec.from_values(written, None), reads, tuple(sorted(members)))


def _all_fitting(
    words: Collection[str],
    names: Collection[str],
    plan: Plan,
    members: dict[str, list[ForkValue]] | None = None,
) -> set[str]:
    """Return the groups that any of ``words`` names; see `_fitting`. Raises: NoSuchGroup."""
    return {name for word in words for name in _fitting(word, names, plan, members)}


def _fitting(
    word: str, names: Collection[str], plan: Plan, members: dict[str, list[ForkValue]] | None = None
) -> list[str]:
    """The groups that ``word`` names; the value of a single member is added to ``members``. Raises:
    NoSuchGroup.
    """
    name, ordinal = split_member(word) if word.endswith("]") else (word, None)
    matches = [name] if name in names else fnmatch.filter(names, word) if ordinal is None else []
    if not matches:
        raise NoSuchGroup(
            f"the job has no group {word}{suggestion(name, names) or f'; it has: {listed(names)}'}"
        )
    if ordinal is not None:
        values = plan.groups[name].values
        if members is None or values is None or ordinal >= len(values):
            reason = (
                "no member that is known before the job runs"
                if values is None
                else f"{len(values)} members"
            )
            why = "name the whole fork" if members is None else f"{name} has {reason}"
            raise NoSuchGroup(f"{word} cannot be selected: {why}")
        members.setdefault(name, []).append(values[ordinal])
    return matches


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
    """``group`` without needs that are left out.

    Their outputs are inputs, which are added to ``reads``.
    """
    planned = plan.groups[group["name"]]
    needs = list(dict.fromkeys(_needs(planned, plan, kept)))
    inputs = dict(group.get("inputs", {}))
    for maker in needs:
        for output in outputs_of(plan.groups[maker].spec) if maker not in kept else ():
            inputs.setdefault(output, {"dataset": output})
            reads.setdefault(output, (planned.name, maker))
    written = {**group, "needs": [need for need in needs if need in kept], "inputs": inputs}
    if values is not None:
        written["for_each"] = _values(planned, values)
    return {key: value for key, value in written.items() if key not in ("needs", "inputs") or value}


def _needs(planned: PlannedGroup, plan: Plan, kept: Collection[str]) -> Iterator[str]:
    """The groups before it; in the place of a join that is left out, the groups that it joins."""
    for need in planned.spec.needs:
        if need in kept or not plan.groups[need].spec.is_join:
            yield need
        else:
            yield from _needs(plan.groups[need], plan, kept)


def _values(planned: PlannedGroup, values: list[ForkValue]) -> dict[str, Any]:
    """``for_each`` of these members alone. Raises: SpecError: they are not all combinations of
    their values.
    """
    names = planned.spec.fork_params
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    columns = {
        name: list({fork_key(row[at]): row[at] for row in rows}.values())
        for at, name in enumerate(names)
    }
    if math.prod(map(len, columns.values())) != len(set(map(fork_key, rows))):
        raise SpecError(
            [
                Problem(
                    f"select one member of {planned.name} at a time: it is forked over several "
                    "lists"
                )
            ]
        )
    return columns


def _published(spec: JobSpec, plan: Plan, kept: Collection[str], alone: Plan) -> dict[str, Any]:
    """``publish``: what the whole job publishes of what the groups that are left make.

    Args:
        alone: the groups that are left, as if nothing were said of what is published.
    """
    if spec.publish is not None:
        made_elsewhere = set(_made(plan, set(plan.groups).difference(kept))).difference(
            _made(plan, kept)
        )
        return {"publish": [name for name in spec.publish if name not in made_elsewhere]}
    shown = plan.default_publish.intersection(kept)
    return {} if shown == alone.default_publish else {"publish": _made(plan, shown)}


def _outputs(
    spec: JobSpec, plan: Plan, kept: Collection[str], publish: Collection[str] | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """``outputs``: those of the groups that are left; of one that is not published, its checks
    alone.
    """
    outputs = {*_made(plan, kept)}
    for name, output in spec.outputs.items():
        if name in outputs or name not in _made(plan, plan.groups):
            written = output.model_dump(mode="json", by_alias=True, exclude_unset=True)
            checks_alone = publish is not None and name not in publish
            yield (
                name,
                {
                    key: value
                    for key, value in written.items()
                    if not checks_alone or key in _CHECKS
                },
            )


def _made(plan: Plan, names: Collection[str]) -> list[str]:
    """The outputs that these groups declare."""
    return [
        output
        for name in plan.groups
        if name in names
        for output in outputs_of(plan.groups[name].spec)
    ]
