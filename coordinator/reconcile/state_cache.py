"""The states of jobs that were decided lately, so that the next pass over one need not load it."""

from __future__ import annotations

import threading
from collections import OrderedDict

from unstuck.coordinator.model.state import JobState

MAX_GROUPS = 20_000


class StateCache:
    """States by job; the least recently used leave when all together have too many groups. For several threads."""

    def __init__(self, max_groups: int = MAX_GROUPS) -> None:
        """``max_groups``: of all states together. One state is kept however large it is."""
        self._max_groups = max_groups
        self._states: OrderedDict[str, tuple[int, JobState]] = OrderedDict()  # with the groups that it had when kept
        self._groups = 0
        self._lock = threading.Lock()

    def keep(self, job: str, state: JobState) -> None:
        """Keep the state as it is after a pass."""
        with self._lock:
            self._drop(job)
            self._states[job] = (state.size, state)
            self._groups += state.size
            while self._groups > self._max_groups and len(self._states) > 1:
                self._drop(next(iter(self._states)))

    def take(self, job: str) -> JobState | None:
        """The state, which is no longer kept: the pass that takes it changes it, and two passes never share one."""
        with self._lock:
            return self._drop(job)

    def look(self, job: str) -> JobState | None:
        """The state, to be read only."""
        return self._states.get(job, (0, None))[1]

    def clear(self) -> None:
        """Forget all states."""
        with self._lock:
            self._states.clear()
            self._groups = 0

    def _drop(self, job: str) -> JobState | None:
        size, state = self._states.pop(job, (0, None))
        self._groups -= size
        return state
