"""The scheduler of beat: RedBeat's, which ends with a sentence where Redis refuses it, and not with
tracebacks.
"""

from __future__ import annotations

from redbeat import RedBeatScheduler

from unstuck.tasks.settings import settings
from unstuck.tasks.transport.refusals import fit_or_leave


class Scheduler(RedBeatScheduler):  # type: ignore[misc]
    """Looks at Redis before RedBeat does."""

    def setup_schedule(self) -> None:
        fit_or_leave(settings())
        super().setup_schedule()
