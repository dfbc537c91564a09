"""Describes what to publish for a job: its outputs, and how each is published. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Literal

from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.spec.checks.output_checks import outputs_of
from unstuck.coordinator.spec.lineage import Needs
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.warehouse.log_entry import Entry
from unstuck.tasks.warehouse.marker import StagedOutput


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """A job whose outputs are to be published together, or never.

    Attributes:
        publish_id: an id that at most one entry of the log has.
        package_id: as in `Entry`; empty for an ABORT, or for a job without a key.
        sources: group → the staging folders whose markers count, in member order.
        published_by: the groups whose outputs are published when ``requested`` is None.
        requested: the datasets to publish, from any group; None for all of ``published_by``.
        skipped: outputs of SKIPPED groups, which may be requested and missing.
        needs: as for `led_to`.
        outputs: how single datasets are published; the others are replaced.
        base: version of the warehouse at which the job was submitted. Any entry of ``publish_id``
            is newer.
        at: seconds since the epoch, for people.
        take_over: whether the job becomes the owner of all datasets that it publishes.
        judged_at: the reference time of checks: the tick of the job, if that is earlier than
            ``at``.
    """

    warehouse: str
    warehouse_id: str
    publish_id: str
    job: str
    job_name: str
    base: int
    at: float
    judged_at: float | None = None
    package_id: str = ""
    take_over: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    published_by: Set[str] = frozenset()
    requested: tuple[str, ...] | None = None
    skipped: Set[str] = frozenset()
    needs: Needs = field(default_factory=dict)
    outputs: Mapping[str, OutputSpec] = field(default_factory=dict)

    @classmethod
    def of(cls, state: JobState, at: float) -> PublishRequest:
        """Return the request of a job, for the outputs of the groups that SUCCEEDED."""
        job, plan = state.job, state.plan
        sources = {
            name: tuple(
                filter(None, (state.record(member).marked for member in state.members(name)))
            )
            for name in plan.groups
        }
        return cls(
            warehouse=job.warehouse,
            warehouse_id=job.warehouse_id,
            publish_id=job.id,
            job=job.id,
            job_name=job.name,
            base=job.base or 0,
            at=at,
            judged_at=None if job.tick is None else min(at, job.tick),
            package_id=job.package_id or job.id,
            take_over=job.take_over,
            params=plan.params,
            sources={name: folders for name, folders in sources.items() if folders},
            published_by=plan.default_publish,
            requested=plan.publish,
            skipped=_skipped_outputs(state),
            needs={name: planned.spec.needs for name, planned in plan.groups.items()},
            outputs=plan.outputs,
        )

    def spec_of(self, name: str, output: StagedOutput) -> OutputSpec:
        """Return how the dataset ``name`` is published; rejected rows follow their output."""
        if output.rejected_of:
            return self.outputs.get(output.rejected_of, OutputSpec()).of_rejected_rows
        return self.outputs.get(name, OutputSpec())

    def entry(self, n: int, kind: Literal["package", "abort"], **more: Any) -> Entry:
        """Return an entry of this request with the number ``n``."""
        if kind == "package":
            more |= {"package_id": self.package_id, "judged_at": self.judged_at}
        return Entry(n, n - 1, self.publish_id, kind, self.job, self.job_name, self.at, **more)


def _skipped_outputs(state: JobState) -> Set[str]:
    """Return the outputs of groups that were SKIPPED while nothing failed.

    A condition, a person or an empty fork skips a group so.
    """
    if state.by_state[GroupState.FAILED] or state.by_state[GroupState.CANCELED]:
        return frozenset()
    return {
        output
        for name, group in state.plan.groups.items()
        if all(state.record(member).state is GroupState.SKIPPED for member in state.members(name))
        for output in outputs_of(group.spec)
    }
