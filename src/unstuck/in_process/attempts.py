"""Attempts in this process: the runner's own path, without a lease, a watchdog and a worker.

Time limits and Ctrl-C interrupt the main thread. Nothing kills a step that does not return to
Python, since only a process of its own could.
"""

from __future__ import annotations

import bdb
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO, cast

from unstuck.in_process.spark_here import SparkHere
from unstuck.tasks.driver.driver import Driver
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind
from unstuck.tasks.protocol.secrets import Secrets
from unstuck.tasks.protocol.token import Token, split_member
from unstuck.tasks.runner.attempt import Attempt
from unstuck.tasks.runner.attempt_host import AttemptHost, Held
from unstuck.tasks.runner.logs.attempt_log import logging_restored
from unstuck.tasks.runner.snapshot import Code, ProcessSnapshot
from unstuck.tasks.runner.watchdog_client import WatchdogClient
from unstuck.tasks.settings import Settings
from unstuck.tasks.steps.context import Scratch
from unstuck.tasks.steps.execute import StepRaised, users_code
from unstuck.tasks.steps.work import Work
from unstuck.tasks.time_zone import in_zone
from unstuck.tasks.transport.lease import Claim, FinishAnswer
from unstuck.tasks.watchdog.policy import Clock, Instruction, timeout_failure
from unstuck.tasks.watchdog.runner_state import RunnerState

# Limits of a spec. A person sees a wait for a session or a warehouse, and can end it.
_LIMITS = ("TIMEOUT", "STEP_TIMEOUT")


# Seconds that Spark has to end the jobs of an attempt before the thread that waits is interrupted.
_LEAVES = 2.0

Failing = Mapping[str, BaseException | type[BaseException]]


class _Limits(WatchdogClient):
    """Replaces a watchdog: time limits of a spec, progress, and the secrets of steps.

    Attributes:
        off: a user is at the terminal, so no time limit of this attempt counts.
        secrets: of all attempts so far.
    """

    def __init__(self, over: Callable[[Clock], None], shown: Callable[[str], None]) -> None:
        """Create the limits.

        ``over`` is called in a thread when a limit has expired, ``shown`` with the progress of the
        attempt.
        """
        self._over, self._shown = over, shown
        self._pid, self._lock, self._state = (
            os.getpid(),
            threading.RLock(),
            RunnerState(idle=time.time()),
        )
        self.off, self.secrets = False, Secrets()

    @contextmanager
    def clock(
        self, code: str, seconds: float | None, step: str = "", index: int = 0
    ) -> Iterator[None]:
        if seconds is None or math.isinf(seconds) or code not in _LIMITS:
            yield
            return
        clock = Clock(code, seconds, time.monotonic(), step, index)
        timer = threading.Timer(seconds, self._over, (clock,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def give_up(self, why: str) -> NoReturn:
        raise RuntimeError(why)

    def _tell(self, **changes: Any) -> None:
        """Report to nobody but the viewers of progress and output."""
        if new_secrets := changes.get("secrets"):
            self.secrets = Secrets.of({**self.secrets.values, **new_secrets})
        with self._lock:
            self._state = replace(self._state, **changes)
        if changes.get("progress") and os.getpid() == self._pid:
            self._shown(changes["progress"])


class _Terminal:
    """Standard input of a terminal, which reports that it is about to be read."""

    def __init__(self, stream: TextIO, read: Callable[[], None]) -> None:
        self._stream, self._read = stream, read

    def __getattr__(self, name: str) -> Any:
        # ``input()`` asks for the descriptor.
        if name in ("fileno", "read", "readline", "readlines", "buffer"):
            self._read()
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        self._read()
        return iter(self._stream)


class RunnerHere(AttemptHost):
    """The runner of this process, which runs attempts one by one and is never replaced.

    Attributes:
        interrupted: the user ended the run by Ctrl-C, or by leaving the debugger.
        left_with: the error by which the user ended the run, for callers that end as well.
        leaves: errors that say so where a step raises them.
        on_input: called when a step reads from the terminal.
    """

    def __init__(
        self,
        settings: Settings,
        driver: Callable[[], Driver] | None = None,
        progress: Callable[[Token, str], None] = lambda token, text: None,
    ) -> None:
        """Create the runner.

        Args:
            driver: returns the driver that attempts share, when one first needs Spark; None: one of
                this runner.
            progress: called with the progress of the running attempt.
        """

        def shown(text: str) -> None:
            if self.held is not None:
                progress(self.held.token, text)

        temporary = Path(tempfile.gettempdir()) / f"unstuck-run-{secrets.token_hex(4)}"
        self._spark = SparkHere(settings, temporary)
        self._driver_now = driver or (lambda: self._spark.driver)
        super().__init__(settings, self._spark.driver, temporary)
        self.watchdog = self._limits = _Limits(self._over, shown)
        self.interrupted = self._on_spark = False
        self.left_with: BaseException | None = None
        self.leaves: tuple[type[BaseException], ...] = (KeyboardInterrupt, bdb.BdbQuit)
        self.on_input: Callable[[], None] = lambda: None
        self._code = Code(watched=False)
        self._fail: Failing = {}
        self._times = 0
        self._failed: dict[str, int] = {}  # by group or member, how many attempts were made to fail

    @property
    def secrets(self) -> Secrets:
        """Return all secrets that steps of this process were given so far."""
        return self._limits.secrets

    def make_fail(self, fail: Failing, times: int) -> None:
        """Make the first ``times`` attempts of each group or member raise its error."""
        self._fail, self._times, self._failed = fail, times, {}

    def failing(self, group: str) -> BaseException | type[BaseException] | None:
        """Return the error that the running attempt of ``group`` is to raise."""
        error = self._fail.get(group, self._fail.get(split_member(group)[0]))
        self._failed[group] = self._failed.get(group, 0) + 1
        if error is None or self._failed[group] > self._times:
            return None
        return error.with_traceback(None) if isinstance(error, BaseException) else error

    def run(self, claim: Claim, finish: Callable[[Token, Outcome, str], FinishAnswer]) -> None:
        """Run an attempt, and record its outcome."""
        self._on_spark, self._limits.off = claim.work_order.group.spark, False
        # The log of an attempt sets log levels, which would stay.
        with in_zone(self.settings.time_zone), logging_restored():
            _AttemptHere(self, claim.token, claim, finish).run()

    def close(self) -> None:
        """Stop the session, unless other code started it, and remove the temporary files."""
        self._spark.stop()
        shutil.rmtree(self.temporary, ignore_errors=True)

    # -- as the runner of a worker, but for what needs the worker ----------------------------------

    @contextmanager
    def holding(self, held: Held) -> Iterator[None]:
        self.held = held
        try:
            yield
        finally:
            held.ended = True
            held.released.set()
            self.held = None

    def snapshot(self) -> ProcessSnapshot:
        return ProcessSnapshot(self._code, others_import=False)

    def start_helper(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, **options)

    def start_session(self, own: Mapping[str, str] | None = None) -> None:
        handler = signal.getsignal(signal.SIGINT)
        self.driver = self._driver_now()
        self.driver.start()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)  # Spark sets one of its own

    def session_used(self) -> None: ...

    def replace(self) -> None: ...

    def judge(
        self, error: BaseException, failure: Failure, kind: OutcomeKind
    ) -> tuple[OutcomeKind, Failure]:
        return kind, failure

    def result_without_outputs(self, group: str, job: str) -> None:
        """Return nothing: no run retries another."""

    # -- interrupts --------------------------------------------------------------------------------

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let Ctrl-C and time limits end the code in the block.

        Outside of the main thread only ``ctx`` reports it.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before, stdin = signal.signal(signal.SIGINT, self._interrupted), sys.stdin
        if stdin is not None and stdin.isatty():
            sys.stdin = cast(TextIO, _Terminal(stdin, self._at_terminal))
        try:
            yield
        finally:
            sys.stdin = stdin
            signal.signal(signal.SIGINT, before)

    def _at_terminal(self) -> None:
        if self.held is not None and not self.held.ended:
            self._limits.off = True
            self.on_input()

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        held = self.held
        if held is None or held.ended:
            if self.interrupted:
                raise KeyboardInterrupt  # a second time
            self.leave()
            return
        # With limits off, a debugger uses Ctrl-C itself.
        if held.instruction is None and not self._limits.off:
            self.leave()
            # Does not ask the JVM: this may interrupt a call to it.
            if self._on_spark and not self.driver.unused:
                self._interrupt_later(held)
                return
        raise KeyboardInterrupt

    def leave(self, error: BaseException | None = None) -> None:
        """End the running attempt because the user has ended the run, by ``error`` or Ctrl-C."""
        self.interrupted, self.left_with = True, error or KeyboardInterrupt()
        if self.held is not None and not self.held.ended:
            self._take_instruction(self.held.token, Instruction.CANCEL, None)

    def _over(self, clock: Clock) -> None:
        """Handle the end of a timer."""
        held = self.held
        if held is None or held.ended or held.instruction is not None or self._limits.off:
            return
        self._take_instruction(held.token, Instruction.TIMEOUT, timeout_failure(clock))
        if signal.getsignal(signal.SIGINT) == self._interrupted:
            self._interrupt_later(held)

    def _interrupt_later(self, held: Held) -> None:
        """Interrupt the main thread. Before that, Spark gets a moment to end its jobs."""

        def interrupt() -> None:
            if not held.released.wait(_LEAVES if self._on_spark else 0.0):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        threading.Thread(target=interrupt, name="interrupt", daemon=True).start()


class _AttemptHere(Attempt):
    """An attempt that may be made to fail."""

    _runner: RunnerHere

    def _run_steps(self, work: Work, params: dict[str, Any], scratch: Scratch) -> None:
        if (error := self._runner.failing(self._token.group)) is not None:
            with users_code():
                raise error
        super()._run_steps(work, params, scratch)

    def _ended_by(self, error: BaseException) -> Outcome | None:
        cause = error.error if isinstance(error, StepRaised) else error
        if isinstance(cause, self._runner.leaves) and self._held.instruction is None:
            self._runner.leave(cause)
        return super()._ended_by(error)
