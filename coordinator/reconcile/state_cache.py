"""The states of jobs that were decided lately, so that the next pass over one need not load it."""

from __future__ import annotations

import threading
from collections import OrderedDict

from unstuck.coordinator.model.state import JobState

MAX_AGE = 10.0  # seconds since it was loaded: a state that drifted from its records does harm no longer
MAX_GROUPS = 20_000  # of all states together, beyond the newest few
ALWAYS_KEPT = 64  # states, however many groups they have


class StateCache:
    """States by job; those that were not used for longest leave first. For several threads.

    All times are those of Redis, in seconds.
    """

    def __init__(self, max_groups: int = MAX_GROUPS, always_kept: int = ALWAYS_KEPT) -> None:
        self._max_groups, self._always_kept = max_groups, always_kept
        # When it was kept, the groups that it had then, and the state.
        self._states: OrderedDict[str, tuple[float, int, JobState]] = OrderedDict()
        self._groups = 0
        self._lock = threading.Lock()

    def keep(self, job: str, state: JobState, now: float) -> None:
        """Keep the state as it is after a pass."""
        with self._lock:
            self._drop(job)
            self._states[job] = (now, state.size, state)
            self._groups += state.size
            while self._one_too_many(now):
                self._drop(next(iter(self._states)))

    def take(self, job: str, now: float) -> JobState | None:
        """The state, unless it is too old. The pass that takes it changes it, so it is no longer kept."""
        with self._lock:
            state = self._drop(job)
        return state if state is not None and 0 <= now - state.loaded_at < MAX_AGE else None

    def look(self, job: str) -> JobState | None:
        """The state, to be read only."""
        return self._states.get(job, (0.0, 0, None))[2]

    def clear(self) -> None:
        """Forget all states."""
        with self._lock:
            self._states.clear()
            self._groups = 0

    def _one_too_many(self, now: float) -> bool:
        kept_at, _, _ = next(iter(self._states.values()))
        full = self._groups > self._max_groups and len(self._states) > self._always_kept
        return full or now - kept_at >= MAX_AGE

    def _drop(self, job: str) -> JobState | None:
        _, size, state = self._states.pop(job, (0.0, 0, None))
        self._groups -= size
        return state
