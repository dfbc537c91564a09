"""The backlog of a job: what has arrived for its streams since they were published, asked without Spark."""

from __future__ import annotations

from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.plan import compile_plan
from unstuck.tasks.streams.stream_look import Look, Looks
from unstuck.tasks.warehouse.log import Warehouse


class Backlog:
    """Looks at the streams of jobs. One object for the life of a process, so that an idle stream costs little."""

    def __init__(self) -> None:
        self._looks = Looks()

    def look(self, spec: JobSpec, warehouse: Warehouse) -> dict[str, Look]:
        """By the address of each stream that the groups of ``spec`` read, what a job would find now.

        Raises: LogBroken, WarehouseNewer, OSError: the warehouse could not be read.
        """
        plan, found = compile_plan(spec), dict[str, Look]()
        state = warehouse.state()
        for group in plan.groups.values():
            for stream in group.spec.streams.values():
                datasets = {name: state.get(name) for name in plan.appended_by(group)}
                found[stream.stream] = self._looks.look(stream, datasets, warehouse.storage)
        return found
