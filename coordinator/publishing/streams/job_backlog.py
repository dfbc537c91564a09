"""The backlog of a job: what has arrived for its streams since they were published, asked without
Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from unstuck.coordinator.model.backlog import Backlog, StreamBacklog
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.plan import compile_plan
from unstuck.tasks.streams.arrived.stream_look import Look, Looks
from unstuck.tasks.warehouse.log import Warehouse


class BacklogLooks:
    """Looks at the streams of jobs.

    One object for the life of a process, so that an idle stream costs little.
    """

    def __init__(self) -> None:
        self._looks = Looks()

    def look(self, spec: JobSpec, warehouse: Warehouse) -> dict[str, Look]:
        """By the address of each stream that the groups of ``spec`` read, what a job would find
        now.

        Raises: LogBroken, WarehouseNewer, OSError: the warehouse could not be read.
        """
        plan, looks = compile_plan(spec), dict[str, Look]()
        state = warehouse.state()
        for group in plan.groups.values():
            for stream in group.spec.streams.values():
                datasets = {name: state.get(name) for name in plan.appended_by(group)}
                looks[stream.stream] = self._looks.look(stream, datasets, warehouse.storage)
        return looks


def backlog_of(looks: Mapping[str, Look], before: Backlog | None, now: float) -> Backlog:
    """The backlog by looks at ``now``; ``before``: by the looks before them."""
    previous = {} if before is None else before.streams
    return Backlog(
        now, {address: _noted(look, previous.get(address), now) for address, look in looks.items()}
    )


def _noted(look: Look, before: StreamBacklog | None, now: float) -> StreamBacklog:
    backlog = StreamBacklog(
        new=look.new,
        changed=look.changed,
        bytes=look.bytes,
        looked=look.looked,
        ignored=look.ignored,
        lag=dict(look.lag),
        next=dict(look.next),
        trouble=look.trouble[:500],
        known=look.reachable,
    )
    if look.trouble or not look.reachable:  # what was unread still is, as far as anybody knows
        return (
            backlog
            if before is None
            else replace(backlog, since=before.since, seen_to=before.seen_to)
        )
    if not look.new:
        return backlog
    if look.oldest is not None:
        return replace(backlog, since=look.oldest)
    # Without times, what was unread at an earlier look has waited since then, until the position is
    # behind it.
    at = dict(look.next) or {0: look.looked - look.new}
    if (
        before is not None
        and before.since
        and any(at.get(partition, 0) < to for partition, to in before.seen_to.items())
    ):
        return replace(backlog, since=before.since, seen_to=before.seen_to)
    return replace(
        backlog,
        since=now,
        seen_to={
            partition: begin + look.lag.get(partition, look.new) for partition, begin in at.items()
        },
    )
