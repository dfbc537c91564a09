"""The parts of a spec that one process cannot provide: some are refused, others reported (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.problems import listed
from unstuck.coordinator.spec.selection import GroupSelection
from unstuck.tasks.spec.outputs import OutputSpec


def refuse_what_needs_a_fleet(spec: JobSpec) -> None:
    """Refuse a group that needs a fleet.

    Raises: BadRequest: a step compacts a dataset, which asks the store who reads it.
    """
    if compacting := [group.name for group in spec.groups if group.compacts]:
        raise BadRequest(
            f"compact: in group {listed(compacting)} asks Redis which jobs read the dataset, and "
            "`unstuck run` has no Redis. Leave the group out with --only or --until, or submit the "
            "job to a fleet"
        )


def notes_on_one_process(spec: JobSpec, part: GroupSelection | None = None) -> Iterator[str]:
    """Yield a sentence for each key without effect, and for what running ``part`` changes."""
    if spec.schedule is not None:
        yield "schedule: has no effect here: the job runs once, now"
    if spec.notify:
        yield "notify: has no effect here: no notice is sent"
    if fresh := [group.name for group in spec.groups if group.fresh]:
        yield (
            f"fresh: true has no effect here: {listed(fresh)} runs in this process, on the one "
            "Spark session"
        )
    if part is not None and part.parts:
        yield (
            f"nothing is published: of {listed(part.parts)} single members run, whose rows are "
            "a "
            "part of the dataset"
        )
    for dataset, (reader, maker) in part.reads.items() if part is not None else ():
        if (mode := spec.outputs.get(dataset, OutputSpec()).mode) != "replace":
            yield (
                f"{reader} reads all rows of {dataset} that are published, those of earlier runs "
                f"too (mode: {mode}). Run {maker} as well, and it has those of this run alone"
            )
