"""The plan: a job spec that is compiled once, so that a decision never walks the spec.

It holds which groups need and follow which, and what each runner must collect for the forks that
wait for it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from graphlib import TopologicalSorter
from typing import Any

from unstuck.coordinator.spec.checks.output_checks import appended_outputs, outputs_of
from unstuck.coordinator.spec.checks.spec_checks import values_reader
from unstuck.coordinator.spec.checks.unused import for_python_alone
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.notify_spec import NotifyRule
from unstuck.coordinator.spec.problems import shorten
from unstuck.tasks.protocol.texts import Packer, unpack
from unstuck.tasks.spec.fields import STORED, ForkItem, ForkValue, Scalar
from unstuck.tasks.spec.group import READ_VALUES, ForkFrom, GroupSpec, Step, fork_key
from unstuck.tasks.spec.outputs import Checks, OutputSpec, Publishing
from unstuck.tasks.spec.retry import RetryPolicy
from unstuck.tasks.spec.work_order import Collect, GroupPlan


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """One group of the spec with the job's defaults merged in.

    A fork is one planned group with many members.
    """

    spec: GroupSpec
    successors: tuple[str, ...]
    collect: tuple[Collect, ...]
    feeds: tuple[
        tuple[str, str], ...
    ]  # forks whose values it may make, each with the key it reports them under
    reads: tuple[
        str, ...
    ]  # groups whose outputs it reads: what it needs, and what a join among them needs in turn
    values: (
        tuple[ForkValue, ...] | None
    )  # of its members; None if it has none, or is forked dynamically
    # Its failure does not fail the job: it is optional, or every group after it can live with it.
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
        groups: by name, in an order in which every group comes after what it needs.
        timeout: seconds the job may take, from its first claimed attempt to publishing; None: no
            end.
        outputs: how single outputs are published.
        default_publish: groups that no other needs (for a join: what it joins); published unless
            the spec names others.
        for_python: per group, the parameters that have no effect unless its Python takes them.
        params_told: the parameters in words, cut where they are long.
        zone: the time zone of its steps; empty: that of the fleet.
        notify: its rules of who is told of what.
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

    def member_count(self, group: str, collected: dict[str, tuple[Scalar, ...]]) -> int | None:
        """How many members ``group`` has: 1 unless forked; None while a dynamic fork's values are
        unknown.

        ``collected``: the values of dynamic forks, by the name of the fork.
        """
        planned = self.groups[group]
        if planned.spec.for_each is None:
            return 1
        values = planned.values if planned.spec.fork_from is None else collected.get(group)
        return None if values is None else len(values)

    def member_value(
        self, group: str, ordinal: int, collected: dict[str, tuple[Scalar, ...]]
    ) -> ForkValue:
        """The fork value of one member."""
        return (self.groups[group].values or collected[group])[ordinal]

    def appended_by(self, group: PlannedGroup) -> tuple[str, ...]:
        """The outputs that ``group`` may write from a stream that it reads: none that another group
        declares.
        """
        is_published = self.publish is not None or group.name in self.default_publish
        if not (group.spec.streams and is_published):
            return ()
        own, any_python = outputs_of(group.spec), any(step.python for step in group.spec.steps)
        others = {
            name
            for other in self.groups.values()
            if other is not group
            for name in outputs_of(other.spec)
        }
        appended = appended_outputs(self.outputs, self.publish)
        return tuple(
            name for name in appended if name in own or (any_python and name not in others)
        )

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
    ) -> dict[str, str]:
        """The stored plan of each group for the runners, as JSON with references to the long texts
        of the spec.

        ``reruns``, ``adopts``, ``any_code``, ``base``, ``mixed`` and ``schedule``: as on the job's
        record.
        """
        pack = Packer().pack
        plans = {}
        partition_by = {
            name: output.partition_by
            for name, output in self.outputs.items()
            if output.partition_by
        }
        checks = {
            name: output.checks
            for name, output in self.outputs.items()
            if output.checks != Checks()
        }
        ways = {
            name: output.publishing
            for name, output in self.outputs.items()
            if output.publishing != Publishing()
        }
        for group in self.groups.values():
            if group.spec.steps:
                makes_all = self.publish is None and group.name in self.default_publish
                plan = GroupPlan(
                    group=_without_values(group.spec),
                    collect=group.collect,
                    warehouse=warehouse,
                    warehouse_id=warehouse_id,
                    rerun=(reruns or {}).get(group.name, ""),
                    adopts=adopts,
                    any_code=any_code,
                    partition_by=partition_by,
                    forks={
                        name: tuple(outputs_of(self.groups[name].spec))
                        for name in group.reads
                        if self.groups[name].spec.for_each is not None
                    },
                    branches={
                        name: tuple(outputs_of(self.groups[name].spec))
                        for name in group.reads
                        if self.groups[name].spec.for_each is None
                        and group.spec.join.rule != "all_succeeded"
                    },
                    base=base,
                    mixed=mixed,
                    schedule=schedule,
                    zone=self.zone,
                    checks=checks,
                    appended=self.appended_by(group),
                    for_python=self.for_python.get(group.name, ()),
                    publishes=None if makes_all else self.publish or (),
                    publishing=ways,
                ).model_dump(mode="json", by_alias=True, exclude_defaults=True)
                # The texts of a group are all texts of the spec; those beside it are not, and stay
                # as they are.
                plan["group"] = pack(plan["group"])
                plans[group.name] = json.dumps(plan, ensure_ascii=False, separators=(",", ":"))
        return plans


NO_GROUPS = Plan("", {}, {}, None, None, True, None, frozenset(), {})


def _without_values(group: GroupSpec) -> GroupSpec:
    """``group`` as a runner gets it: a fork's values stay behind, since each member's own comes
    with its inputs.

    The plan is sent and read at every claim; with its values a fork of N members would cost N x N.
    """
    if group.for_each is None or group.fork_from is not None:
        return group
    return group.model_copy(update={"for_each": dict.fromkeys(group.for_each, ())})


def _merged(group: GroupSpec, spec: JobSpec) -> GroupSpec:
    """``group`` with the job's defaults where it says nothing itself."""
    defaults = spec.defaults
    update: dict[str, Any] = {}
    for field in ("retry", "timeout", "queue_timeout", "queue", "pool"):
        if getattr(group, field) is None and getattr(defaults, field) is not None:
            update[field] = getattr(defaults, field)
    if "worker_losses" not in group.model_fields_set and defaults.worker_losses is not None:
        update["worker_losses"] = defaults.worker_losses
    if defaults.conf:
        update["conf"] = {**defaults.conf, **group.conf}
    if group.for_each and group.fork_from is None:
        params = {**spec.values, **group.params}
        update["for_each"] = {
            name: _listed_in(params, source) if isinstance(source, ForkFrom) else source
            for name, source in group.for_each.items()
        }
    return group.model_copy(update=update) if update else group


def _listed_in(params: Mapping[str, Any], source: ForkFrom) -> tuple[ForkItem, ...]:
    """The values of a fork over a parameter; none where it has no value."""
    values = params.get(source.param or "") or ()
    return (
        tuple({fork_key(value): value for value in values}.values())
        if source.distinct
        else tuple(values)
    )


def _with_readers(every: Iterable[GroupSpec]) -> dict[str, GroupSpec]:
    """``every`` group by name; before each fork over an input, one that goes when the fork may and
    reads the values.

    Any runner of the fork's queue can read them, without Spark.
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
    """Return by group what it collects for forks, by key; and the forks that it feeds, with the key
    for each.
    """
    collect: dict[str, dict[str, Collect]] = {name: {} for name in groups}
    feeds: dict[str, list[tuple[str, str]]] = {name: [] for name in groups}
    for group in groups.values():
        source = group.fork_from
        if source is None:
            continue
        # `from: clean.month` names an input, a needed group, or an output that one of the needed
        # groups makes; not one that is a fork, which `problems_in` refuses.
        makers = [source.output] if source.output in group.needs else list(group.needs)
        if reader := values_reader(group):
            makers = [reader]
        collected = Collect(output=source.output, column=source.column, distinct=source.distinct)
        for maker in makers:
            if groups[maker].for_each is None:
                other = collect[maker].setdefault(collected.key, collected)
                if other.distinct and not collected.distinct:
                    collect[maker][collected.key] = collected
                feeds[maker].append((group.name, collected.key))
    return collect, feeds


def _reads(groups: Mapping[str, GroupSpec], order: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return by group the groups whose outputs it reads: a join passes on those that it needs.

    ``order``: the groups, each after its needs.
    """
    reads: dict[str, tuple[str, ...]] = {}
    for name in order:
        readable: dict[str, None] = {}
        for need in groups[name].needs:
            readable.update(dict.fromkeys(reads[need] if groups[need].is_join else (need,)))
        reads[name] = tuple(readable)
    return reads


def _is_optional(group: GroupSpec, later: Sequence[GroupSpec]) -> bool:
    """Return whether the job lives with a failure of ``group``; ``later``: groups that need it."""
    return group.optional or (bool(later) and all(other.join.tolerates_failure for other in later))


def compile_plan(spec: JobSpec) -> Plan:
    """Compile ``spec``, which has been validated."""
    merged = _with_readers(_merged(group, spec) for group in spec.groups)
    successors: dict[str, list[str]] = {name: [] for name in merged}
    for group in merged.values():
        for need in group.needs:
            successors[need].append(group.name)
    collect, feeds = _dynamic_forks(merged)
    order = list(
        TopologicalSorter({name: group.needs for name, group in merged.items()}).static_order()
    )
    reads = _reads(merged, order)
    planned = {
        name: PlannedGroup(
            merged[name],
            tuple(successors[name]),
            tuple(collect[name].values()),
            tuple(feeds[name]),
            reads[name],
            merged[name].fork_values,
            _is_optional(merged[name], [merged[later] for later in successors[name]]),
        )
        for name in order
    }
    return Plan(
        name=spec.name,
        params=spec.values,
        params_told=shorten(
            ", ".join(f"{name}={value}" for name, value in spec.values.items()), 100, quote=""
        ),
        groups=planned,
        max_parallel=spec.max_parallel,
        timeout=spec.timeout,
        cancel_others=spec.on_failure == "cancel_others",
        publish=None if spec.publish is None else tuple(spec.publish),
        default_publish=frozenset(
            maker
            for name in merged
            if all(merged[later].join.wants_failure for later in successors[name])
            for maker in (reads[name] if merged[name].is_join else (name,))
        ),
        outputs=dict(spec.outputs),
        for_python=for_python_alone(spec),
        zone=spec.steps_zone,
        notify=spec.notify,
    )


@dataclass(frozen=True, slots=True)
class _Stored:
    """A stored spec: equal to another where the JSON is, since what it refers to is named by its
    content.
    """

    spec: str
    texts: Mapping[str, str] = dataclasses.field(compare=False)


def plan_of(spec_json: str, texts: Mapping[str, str] | None = None) -> Plan:
    """The plan of a stored spec and its long texts, compiled once and cached."""
    return _plan_of(_Stored(spec_json, texts or {}))


@lru_cache(maxsize=1024)
def _plan_of(stored: _Stored) -> Plan:
    return compile_plan(
        JobSpec.model_validate(unpack(json.loads(stored.spec), stored.texts), context=STORED)
    )
