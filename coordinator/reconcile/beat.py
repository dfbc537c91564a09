"""The scheduler of beat: RedBeat, with a message instead of a traceback if Redis refuses access."""

from __future__ import annotations

from redbeat import RedBeatScheduler

from unstuck.tasks.settings import settings
from unstuck.tasks.transport.refusals import fit_or_leave


class Scheduler(RedBeatScheduler):  # type: ignore[misc]
    """Checks Redis before RedBeat does."""

    def setup_schedule(self) -> None:
        fit_or_leave(settings())
        super().setup_schedule()
