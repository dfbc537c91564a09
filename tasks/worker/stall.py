"""A worker that has stalled: it is connected, has a free runner and takes nothing. It hands back its work and ends."""

from __future__ import annotations

from typing import Any

from unstuck.tasks.process.shutdown_flag import ShutdownLevel
from unstuck.tasks.transport.stall_detector import Ears
from unstuck.tasks.worker.shutdown import this_worker


class WorkerEars(Ears):
    """The stall detector of a worker."""

    parting = (
        "though messages wait there and it has an idle runner (UNSTUCK_DEAF_AFTER). It hands back what it runs and "
        "ends, so that its supervisor restarts it; no job is lost by that"
    )

    def at_work(self) -> bool:
        worker = this_worker()
        return worker is not None and worker.sign.level is ShutdownLevel.WORK

    def give_up(self) -> None:
        worker = this_worker()
        if worker is not None:
            worker.give_up()

    def free(self, consumer: Any) -> bool:
        """Also true if a runner says so: a main process whose loop hangs believes its runners at work for ever."""
        if super().free(consumer):
            return True
        worker = this_worker()
        return worker is not None and worker.seats is not None and worker.seats.free
