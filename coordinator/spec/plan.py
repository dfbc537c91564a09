"""The plan: a compiled job spec, so that a decision never walks the spec.

It has the needs and successors of each group, and what each runner collects for dynamic forks.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from graphlib import TopologicalSorter
from itertools import chain
from typing import Any, TypeVar

from unstuck.coordinator.spec.checks.fork_checks import values_reader
from unstuck.coordinator.spec.checks.output_checks import appended_outputs, outputs_of
from unstuck.coordinator.spec.checks.unused import for_python_alone
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.notify_spec import NotifyRule
from unstuck.coordinator.spec.problems import shorten
from unstuck.tasks.protocol.texts import Packer, unpack
from unstuck.tasks.spec.fields import STORED, ForkItem, ForkValue, Scalar
from unstuck.tasks.spec.group import READ_VALUES, ForkFrom, GroupSpec, Step, fork_key
from unstuck.tasks.spec.inputs import DatasetInput
from unstuck.tasks.spec.outputs import Checks, OutputSpec, Publishing
from unstuck.tasks.spec.retry import RetryPolicy
from unstuck.tasks.spec.work_order import Collect, GroupPlan

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """One group of the spec with the job's defaults merged in.

    A fork is one planned group with many members.

    Attributes:
        feeds: forks whose values it may provide, each with the key under which it reports them.
        reads: groups whose outputs it reads: its needs; for a join among them, the needs of the
            join.
        values: values of its members; None without members, or for a dynamic fork.
        absorbed: whether its failure does not fail the job, because it is optional, or every later
            group tolerates the failure.
    """

    spec: GroupSpec
    successors: tuple[str, ...]
    collect: tuple[Collect, ...]
    feeds: tuple[tuple[str, str], ...]
    reads: tuple[str, ...]
    values: tuple[ForkValue, ...] | None
    absorbed: bool

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def retry(self) -> RetryPolicy:
        return self.spec.retry or RetryPolicy()


@dataclass(frozen=True, slots=True)
class Plan:
    """A compiled job spec.

    Attributes:
        groups: by name; every group comes after its needs.
        timeout: seconds that the job may take, from its first claimed attempt to publishing; None:
            no limit.
        outputs: how single outputs are published.
        default_publish: groups that no other needs (for a join: what it joins); published unless
            the spec names others.
        for_python: by group, the parameters that have no effect unless its Python takes them.
        params_told: the parameters in words, shortened.
        zone: the time zone of its steps; empty: that of the fleet.
        notify: its notification rules.
    """

    name: str
    params: dict[str, Any]
    groups: dict[str, PlannedGroup]
    max_parallel: int | None
    timeout: float | None
    cancel_others: bool
    publish: tuple[str, ...] | None
    default_publish: frozenset[str]
    outputs: dict[str, OutputSpec]
    for_python: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    params_told: str = ""
    zone: str = ""
    notify: tuple[NotifyRule, ...] = ()

    @property
    def datasets_read(self) -> tuple[str, ...]:
        """The published datasets that are inputs of groups, sorted."""
        inputs = chain.from_iterable(group.spec.inputs.values() for group in self.groups.values())
        names = {item.dataset for item in inputs if isinstance(item, DatasetInput)}
        return tuple(sorted(names))

    def member_count(self, group: str, collected: dict[str, tuple[Scalar, ...]]) -> int | None:
        """Return the number of members of ``group``; None while a dynamic fork has no values.

        A group that is not a fork has 1 member.

        Args:
            collected: the values of dynamic forks, by the name of the fork.
        """
        planned = self.groups[group]
        if planned.spec.for_each is None:
            return 1
        values = planned.values if planned.spec.fork_from is None else collected.get(group)
        return None if values is None else len(values)

    def member_value(
        self, group: str, ordinal: int, collected: dict[str, tuple[Scalar, ...]]
    ) -> ForkValue:
        """Return the fork value of one member."""
        return (self.groups[group].values or collected[group])[ordinal]

    def appended_by(self, group: PlannedGroup) -> tuple[str, ...]:
        """Return the outputs that ``group`` may write from a stream that it reads.

        An output that another group declares is not among them.
        """
        is_published = self.publish is not None or group.name in self.default_publish
        if not (group.spec.streams and is_published):
            return ()
        own = outputs_of(group.spec)
        declared = (outputs_of(planned.spec) for planned in self.groups.values())
        foreign = set(chain.from_iterable(declared))
        if not any(step.python for step in group.spec.steps):
            foreign.update(self.outputs)  # SQL writes only what it declares
        appended = appended_outputs(self.outputs, self.publish)
        return tuple(name for name in appended if name in own or name not in foreign)

    def group_plans(
        self,
        warehouse: str,
        warehouse_id: str | None,
        reruns: Mapping[str, str] | None = None,
        adopts: tuple[str, ...] = (),
        *,
        any_code: bool = False,
        base: int = 0,
        mixed: bool = False,
        schedule: str = "",
        judged_at: float | None = None,
    ) -> dict[str, str]:
        """Return the stored plan of each group for the runners.

        A plan is JSON with references to the long texts of the spec. The arguments are fields of
        the job's record.
        """
        pack = Packer().pack
        plans = {}
        partition_by = self._of_outputs(lambda output: output.partition_by, tuple[str, ...]())
        checks = self._of_outputs(lambda output: output.checks, Checks())
        publishing = self._of_outputs(lambda output: output.publishing, Publishing())
        for group in self.groups.values():
            if not group.spec.steps:
                continue
            publishes = self.publish or ()
            makes_all = self.publish is None and group.name in self.default_publish
            forks, branches = self._outputs_read(group)
            plan = GroupPlan(
                group=_without_values(group.spec),
                collect=group.collect,
                warehouse=warehouse,
                warehouse_id=warehouse_id,
                rerun=(reruns or {}).get(group.name, ""),
                adopts=adopts,
                any_code=any_code,
                partition_by=partition_by,
                forks=forks,
                branches=branches,
                base=base,
                mixed=mixed,
                schedule=schedule,
                judged_at=judged_at,
                zone=self.zone,
                checks=checks,
                appended=self.appended_by(group),
                for_python=self.for_python.get(group.name, ()),
                publishes=None if makes_all else publishes,
                publishing=publishing,
            ).model_dump(mode="json", by_alias=True, exclude_defaults=True)
            # All texts of a group are texts of the spec. The other texts stay as they are.
            plan["group"] = pack(plan["group"])
            plans[group.name] = json.dumps(plan, ensure_ascii=False, separators=(",", ":"))
        return plans

    def _of_outputs(self, read: Callable[[OutputSpec], T], default: T) -> dict[str, T]:
        """Return a part of each output where it differs from the default."""
        parts = {name: read(output) for name, output in self.outputs.items()}
        return {name: part for name, part in parts.items() if part != default}

    def _outputs_read(
        self, group: PlannedGroup
    ) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
        """Return the outputs that a group reads, by their maker: of forks, and of branches.

        A branch is a group that may have no output, since the join does not need its success.
        """
        forks: dict[str, tuple[str, ...]] = {}
        branches: dict[str, tuple[str, ...]] = {}
        for name in group.reads:
            maker = self.groups[name].spec
            if maker.for_each is not None:
                forks[name] = tuple(outputs_of(maker))
            elif group.spec.join.rule != "all_succeeded":
                branches[name] = tuple(outputs_of(maker))
        return forks, branches


NO_GROUPS = Plan("", {}, {}, None, None, True, None, frozenset(), {})


def _without_values(group: GroupSpec) -> GroupSpec:
    """Return ``group`` for a runner, without the values of a fork.

    Each member gets its own value with its inputs. The plan is sent at every claim: with all
    values, a fork of N members would cost N x N.
    """
    if group.for_each is None or group.fork_from is not None:
        return group
    return group.model_copy(update={"for_each": dict.fromkeys(group.for_each, ())})


def _merged(group: GroupSpec, spec: JobSpec) -> GroupSpec:
    """Return ``group`` with the job's defaults for the fields that it leaves out."""
    defaults = spec.defaults
    update: dict[str, Any] = {}
    for field in ("retry", "timeout", "queue_timeout", "queue", "pool", "worker_losses"):
        # worker_losses has a default of its own, so its value does not tell.
        absent = field not in group.model_fields_set or getattr(group, field) is None
        if absent and (value := getattr(defaults, field)) is not None:
            update[field] = value
    if defaults.conf:
        update["conf"] = {**defaults.conf, **group.conf}
    if group.for_each and group.fork_from is None:
        params = {**spec.values, **group.params}
        update["for_each"] = {
            name: _listed_in(params, source) for name, source in group.for_each.items()
        }
    return group.model_copy(update=update) if update else group


def _listed_in(
    params: Mapping[str, Any], source: tuple[ForkItem, ...] | ForkFrom
) -> tuple[ForkItem, ...]:
    """Return the values of a fork, which may be those of a parameter."""
    if not isinstance(source, ForkFrom):
        return source
    values = params.get(source.param or "") or ()
    if source.distinct:
        values = {fork_key(value): value for value in values}.values()
    return tuple(values)


def _with_readers(every: Iterable[GroupSpec]) -> dict[str, GroupSpec]:
    """Return ``every`` group by name, with a group before each fork over an input.

    That group reads the values of the fork, on any runner of the fork's queue, without Spark.
    """
    groups: dict[str, GroupSpec] = {}
    for group in every:
        if reader := values_reader(group):
            assert group.fork_from is not None
            source = group.fork_from.output
            update: dict[str, Any] = {
                "name": reader,
                "for_each": None,
                "queue": group.queue_name,
                "pool": None,
                "spark": False,
                "inputs": {source: group.inputs[source]},
                "conf": {},
                "steps": (Step(python=READ_VALUES),),
                "fresh": False,
                "code_version": READ_VALUES,
            }
            groups[reader] = group.model_copy(update=update)
            group = group.model_copy(update={"needs": (reader, *group.needs)})
        groups[group.name] = group
    return groups


def _dynamic_forks(
    groups: Mapping[str, GroupSpec],
) -> tuple[dict[str, dict[str, Collect]], dict[str, list[tuple[str, str]]]]:
    """Return what each group collects for forks, by key, and with their keys the forks it feeds."""
    collect: dict[str, dict[str, Collect]] = {name: {} for name in groups}
    feeds: dict[str, list[tuple[str, str]]] = {name: [] for name in groups}
    for group in groups.values():
        source = group.fork_from
        if source is None:
            continue
        collected = Collect(output=source.output, column=source.column, distinct=source.distinct)
        for maker in _makers_of_values(group, source.output):
            if groups[maker].for_each is None:
                other = collect[maker].setdefault(collected.key, collected)
                if other.distinct:
                    collect[maker][collected.key] = collected
                feeds[maker].append((group.name, collected.key))
    return collect, feeds


def _makers_of_values(group: GroupSpec, source: str) -> list[str]:
    """Return the groups that may make the values of a dynamic fork.

    `from: clean.month` names an input, a needed group, or an output of one of the needed groups.
    """
    if reader := values_reader(group):
        return [reader]
    return [source] if source in group.needs else list(group.needs)


def _reads(groups: Mapping[str, GroupSpec], order: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return by group the groups whose outputs it reads; a join passes on its needs.

    Args:
        order: the groups, each after its needs.
    """
    reads: dict[str, tuple[str, ...]] = {}
    for name in order:
        readable: dict[str, None] = {}
        for need in groups[name].needs:
            readable.update(dict.fromkeys(reads[need] if groups[need].is_join else (need,)))
        reads[name] = tuple(readable)
    return reads


def _is_optional(group: GroupSpec, later: Sequence[GroupSpec]) -> bool:
    """Return whether the job tolerates a failure of ``group``, which the groups ``later`` need."""
    return group.optional or (bool(later) and all(other.join.tolerates_failure for other in later))


def compile_plan(spec: JobSpec) -> Plan:
    """Compile ``spec``, which has been validated."""
    merged = _with_readers(_merged(group, spec) for group in spec.groups)
    successors: dict[str, list[str]] = {name: [] for name in merged}
    for group in merged.values():
        for need in group.needs:
            successors[need].append(group.name)
    collect, feeds = _dynamic_forks(merged)
    needs = {name: group.needs for name, group in merged.items()}
    order = list(TopologicalSorter(needs).static_order())
    reads = _reads(merged, order)
    planned = {
        name: PlannedGroup(
            spec=merged[name],
            successors=tuple(successors[name]),
            collect=tuple(collect[name].values()),
            feeds=tuple(feeds[name]),
            reads=reads[name],
            values=merged[name].fork_values,
            absorbed=_is_optional(merged[name], [merged[later] for later in successors[name]]),
        )
        for name in order
    }
    values = ", ".join(f"{name}={value}" for name, value in spec.values.items())
    return Plan(
        name=spec.name,
        params=spec.values,
        params_told=shorten(values, 100, quote=""),
        groups=planned,
        max_parallel=spec.max_parallel,
        timeout=spec.timeout,
        cancel_others=spec.on_failure == "cancel_others",
        publish=None if spec.publish is None else tuple(spec.publish),
        default_publish=_default_publish(merged, successors, reads),
        outputs=dict(spec.outputs),
        for_python=for_python_alone(spec),
        zone=spec.steps_zone,
        notify=spec.notify,
    )


def _default_publish(
    groups: Mapping[str, GroupSpec],
    successors: Mapping[str, Sequence[str]],
    reads: Mapping[str, Iterable[str]],
) -> frozenset[str]:
    """Return the groups that no other needs; in place of a join, the groups that it joins."""
    published: set[str] = set()
    for name, group in groups.items():
        if all(groups[later].join.wants_failure for later in successors[name]):
            published.update(reads[name] if group.is_join else (name,))
    return frozenset(published)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A stored spec.

    It equals another with the same JSON, since its texts are named by their content.
    """

    spec: str
    texts: Mapping[str, str] = dataclasses.field(compare=False)


def plan_of(spec_json: str, texts: Mapping[str, str] | None = None) -> Plan:
    """Return the plan of a stored spec and its long texts; it is cached."""
    return _plan_of(_Stored(spec_json, texts or {}))


@lru_cache(maxsize=1024)
def _plan_of(stored: _Stored) -> Plan:
    return compile_plan(
        JobSpec.model_validate(unpack(json.loads(stored.spec), stored.texts), context=STORED)
    )
