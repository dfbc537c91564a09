"""Tests whether Spark and its executors work on a host, before work and after a failure.

The runners of a worker share the result. After a failed trial, none of them takes Spark work until
a whole trial passes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import replace

from unstuck.tasks.driver.driver import Driver
from unstuck.tasks.driver.host_state import SharedHostState
from unstuck.tasks.errors import HostUnfit
from unstuck.tasks.host import may_run_spark, unfit_for_spark
from unstuck.tasks.protocol.failure import MAX_TEXT, describe, shorten
from unstuck.tasks.protocol.report import Failure, OutcomeKind
from unstuck.tasks.settings import Settings, whoami

log = logging.getLogger(__name__)

RETRY_AFTER = 30.0  # seconds from a whole trial that failed to the next
_shared: SharedHostState | None = None


def share_with_children() -> None:
    """Share the result of trials among the runners that this process forks. Raises: OSError."""
    global _shared
    _shared = SharedHostState.create()


class HostTrial:
    """Tests this host for one runner."""

    def __init__(
        self,
        driver: Driver,
        settings: Settings,
        queues: Collection[str],
        host: SharedHostState | None = None,
        retry_after: float = RETRY_AFTER,
    ) -> None:
        """Create the trial.

        Args:
            host: None: the state that the worker shares with its runners.
            retry_after: seconds from a whole trial that failed to the next.
        """
        self._driver, self._settings = driver, settings
        self._spark = may_run_spark(settings, queues)
        self._host = host or _shared or SharedHostState()
        self._retry_after = retry_after
        self._tried_arrow = False

    def before_work(self, clock: Callable[[], AbstractContextManager[None]]) -> str:
        """Return why this host must not take Spark work now, as a sentence; empty if it may.

        A running session was tested already. ``clock`` limits the time of a whole trial, which
        starts a session.
        """
        state = self._host.read()
        if not self._spark or (self._driver.running and not state.fault):
            return ""
        if state.fault and time.monotonic() < state.changed_at + self._retry_after:
            return state.fault
        fault = unfit_for_spark(self._settings)
        if state.fault and not fault:
            with clock():
                fault = self._whole()
        if fault:
            self._host.record(fault)
            return fault
        fault = self._host.clear(state)
        if state.fault and not fault:
            log.info("this host can run Spark again")
        return fault

    def first_session(self) -> None:
        """Run an Arrow function in the first session of this worker, before any step.

        Raises:
            HostUnfit: an executor of this host cannot run it. No step has started, so the group is
                handed back.
        """
        if not self._host.is_shared or not self._spark or not self._host.begin_arrow_trial():
            return
        if fault := self._arrow():
            self._host.record(fault)
            raise HostUnfit(f"the host of {whoami()} is unfit for Spark: {fault}")

    def judge(
        self, error: BaseException, failure: Failure, kind: OutcomeKind, ordered: Callable[[], bool]
    ) -> tuple[OutcomeKind, Failure]:
        """Decide which budget a failure is charged to; a group never pays for a fault of this host.

        A group for which no session could start is handed back, without a charge. A step that
        failed on an unfit host counts as a lost worker, because the step may have made the host
        unfit. ``ordered``: whether the attempt was told to end, which also ends the trial.
        """
        if not self._spark:
            return kind, failure
        if isinstance(error, HostUnfit):
            self._host.record(failure.text)
            return (OutcomeKind.RELEASED if self._host.is_shared else kind), failure
        if kind is not OutcomeKind.FAILED or self._driver.broken[0] or not self._driver.running:
            return kind, failure
        if (fault := self._after_failure(failure)) and not ordered():
            self._host.record(fault)
            text = (
                f"the host of {whoami()} is unfit for Spark: {fault}. The step had failed with "
                f"{failure.text}"
            )
            return OutcomeKind.LOST, replace(
                failure, code="HOST_UNFIT", text=shorten(text, MAX_TEXT)
            )
        return kind, failure

    def _after_failure(self, failure: Failure) -> str:
        if fault := unfit_for_spark(self._settings):
            return fault
        if self._tried_arrow or not failure.recoverable:
            return ""
        self._tried_arrow = True
        return self._arrow() and self._in_another_context()

    def _in_another_context(self) -> str:
        """Test the host again in a new context, without what steps left, such as a missing file."""
        self._driver.stop()
        return self._whole()

    def _whole(self) -> str:
        try:
            self._driver.start()
        except Exception as error:  # noqa: BLE001 - whatever keeps a session from starting
            return describe(error)
        return self._arrow()

    def _arrow(self) -> str:
        try:
            self._driver.try_arrow()
        except Exception as error:  # noqa: BLE001 - whatever Spark raises
            return f"a function over Arrow fails in an executor: {describe(error)}"
        return ""
