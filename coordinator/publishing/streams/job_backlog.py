"""Reads the backlog of a job: the input of its streams since the last publish, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from unstuck.coordinator.model.backlog import Backlog, StreamBacklog
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.plan import compile_plan
from unstuck.tasks.streams.arrived.stream_look import Look, Looks
from unstuck.tasks.warehouse.log import Warehouse


class BacklogLooks:
    """Reads the backlogs of jobs. A process keeps one instance, so an idle stream costs little."""

    def __init__(self) -> None:
        self._looks = Looks()

    def look(self, spec: JobSpec, warehouse: Warehouse) -> dict[str, Look]:
        """Return by address what a job would read now from each stream of ``spec``.

        Raises: LogBroken, WarehouseNewer, OSError: the warehouse cannot be read.
        """
        plan, looks = compile_plan(spec), dict[str, Look]()
        state = warehouse.state()
        for group in plan.groups.values():
            for stream in group.spec.streams.values():
                datasets = {name: state.get(name) for name in plan.appended_by(group)}
                looks[stream.stream] = self._looks.look(stream, datasets, warehouse.storage)
        return looks


def backlog_of(looks: Mapping[str, Look], before: Backlog | None, now: float) -> Backlog:
    """Return the backlog at ``now``; ``before`` is the previous backlog."""
    previous = {} if before is None else before.streams
    streams = {
        address: _noted(look, previous.get(address, StreamBacklog()), now)
        for address, look in looks.items()
    }
    return Backlog(now, streams)


def _noted(look: Look, before: StreamBacklog, now: float) -> StreamBacklog:
    backlog = StreamBacklog(
        new=look.new,
        changed=look.changed,
        bytes=look.bytes,
        looked=look.looked,
        ignored=look.ignored,
        lag=dict(look.lag),
        next=dict(look.next),
        trouble=look.trouble[:500],
        reachable=look.reachable,
    )
    as_before = replace(backlog, since=before.since, seen_to=before.seen_to)
    if look.trouble or not look.reachable:
        return as_before  # what was unread still is, as far as is known
    if not look.new:
        return backlog
    if look.oldest is not None:
        return replace(backlog, since=look.oldest)
    # Without times, an unread part waits since the look that saw it first, until the position has
    # passed it.
    at = dict(look.next) or {0: look.looked - look.new}
    if as_before.since and any(at.get(part, 0) < to for part, to in as_before.seen_to.items()):
        return as_before
    seen_to = {part: begin + look.lag.get(part, look.new) for part, begin in at.items()}
    return replace(backlog, since=now, seen_to=seen_to)
