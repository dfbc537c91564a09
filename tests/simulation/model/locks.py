"""How long the lock of a coordinator that died keeps the others off a job, where the clock was set
back meanwhile.
"""

from __future__ import annotations

from tests.simulation.model.store import ModelStore
from tests.simulation.model.stored import StoredJob

RESPECTED = 60.0  # seconds; a lock that reads as longer is taken away (lock_job.lua)


class Locks:
    """Locks that read as longer than a term since the clock was set back; without that, one costs
    its term at most.
    """

    def __init__(self, core: ModelStore) -> None:
        self._core = core
        self._until: dict[str, float] = {}

    def free_at(self, job: StoredJob) -> float:
        """When the others could decide ``job`` again, by a clock that nobody sets; 0 if no lock
        outlived its term.
        """
        ahead = job.lock[1] - self._core.now
        if self._core.set_back and self._core.lock_term < ahead <= RESPECTED:
            self._until[job.record.id] = self._core.steady + ahead
        return self._until.get(job.record.id, 0.0)
