"""What a pass knows before it decides: the environment of the decision, and the state that an earlier pass kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from unstuck.coordinator.model.decision import Environment, PublishResult
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.store.jobs import Begun, Store
from unstuck.tasks.protocol.token import split_member
from unstuck.tasks.settings import Settings

CACHE_SECONDS = 1.0
CACHE_JOBS = 64


class EnvironmentReader:
    """Reads the environment of each decision. ``ids`` mints fresh random words."""

    def __init__(self, store: Store, settings: Settings, ids: Callable[[], str]) -> None:
        self._store = store
        self._settings = settings
        self._ids = ids
        self._slots: tuple[float, dict[str, int]] = (0.0, {})

    def read(self, state: JobState, begun: Begun, everything: bool, published: PublishResult | None) -> Environment:
        """The environment of a decision on ``state``, in a pass that looks at ``everything`` or at some groups.

        Raises: redis.RedisError.
        """
        settings = self._settings
        slots = self._slots_listening(begun.now)
        resend: Mapping[str, int] = {}
        overdue = begun.now - settings.dispatch_timeout
        queued = state.by_state[GroupState.QUEUED] if everything else {}
        if late := {
            state.plan.groups[split_member(group_id)[0]].spec.queue_name
            for group_id in queued
            if state.groups[group_id].hinted_at <= overdue or state.groups[group_id].hinted_at > begun.now
        }:
            resend = self._store.resend_allowance(sorted(late), slots)
        return Environment(
            now=begun.now,
            nonce=self._ids(),
            takeover=begun.takeover(settings.sweep_every),
            slots=slots,
            resend=resend,
            dispatch_timeout=settings.dispatch_timeout,
            dispatch_window=settings.dispatch_window,
            lease_ttl=settings.lease_ttl,
            cancel_deadline=settings.cancel_deadline,
            published=published,
        )

    def _slots_listening(self, now: float) -> dict[str, int]:
        """Runners per queue, asked for at most once a second."""
        at, slots = self._slots
        if not 0 <= now - at < CACHE_SECONDS:
            slots = self._store.slots(now, 3 * self._settings.lease_renew + 1)
            self._slots = (now, slots)
        return slots


class StateCache:
    """States of busy jobs, kept for up to a second and used again if the stored commit id is still the same.

    A pass takes a state out while it works on it, so two threads never share one.
    """

    def __init__(self) -> None:
        self.states: dict[str, tuple[float, JobState]] = {}
        self._mutex = threading.Lock()

    def take(self, job: str, now: float) -> JobState | None:
        with self._mutex:
            at, state = self.states.pop(job, (0.0, None))
        return state if 0 <= now - at < CACHE_SECONDS else None

    def keep(self, job: str, now: float, state: JobState) -> None:
        with self._mutex:
            self.states[job] = (now, state)
            while len(self.states) > CACHE_JOBS:
                del self.states[next(iter(self.states))]
