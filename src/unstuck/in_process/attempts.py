"""Attempts in this process: the runner's own path, without a lease, a watchdog and a worker.

Time limits and Ctrl-C interrupt the main thread. What a process alone can give is left out: nothing kills a step that
does not return to Python.
"""

from __future__ import annotations

import bdb
import logging
import math
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, cast

import redis

from unstuck.tasks.driver.driver import Driver
from unstuck.tasks.identity import release_here
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.runner.attempt import Attempt
from unstuck.tasks.runner.runner import Held, Runner
from unstuck.tasks.runner.snapshot import Code, ProcessSnapshot
from unstuck.tasks.runner.watchdog_client import WatchdogClient
from unstuck.tasks.settings import Settings, whoami
from unstuck.tasks.steps.context import Scratch
from unstuck.tasks.steps.execute import StepRaised, users_code
from unstuck.tasks.steps.work import Work
from unstuck.tasks.transport.lease import Claim, FinishAnswer
from unstuck.tasks.watchdog.policy import Clock, Instruction, timeout_failure

log = logging.getLogger(__name__)

_LIMITS = ("TIMEOUT", "STEP_TIMEOUT")  # of a spec; whoever waits for a session or a warehouse sees it, and can end it


class _Limits:
    """In the place of a watchdog: the time limits of a spec, and progress."""

    def __init__(self, over: Callable[[Clock], None]) -> None:
        """``over``: is told, in a thread, of a limit that has run out."""
        self._over = over
        self.progress: Callable[[str], None] = lambda text: None

    @contextmanager
    def clock(self, code: str, seconds: float | None, step: str = "", index: int = 0) -> Iterator[None]:
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

    def restart_clock(self, code: str) -> None: ...

    def log_to(self, path: str | None) -> None: ...

    def show_code(self, code: Mapping[str, str]) -> None: ...

    def remark(self, text: str) -> None: ...

    def give_up(self, why: str) -> NoReturn:
        raise RuntimeError(why)


class RunnerHere(Runner):
    """The runner of this process, which runs one attempt after the other and is never replaced.

    Attributes:
        interrupted: the user wants no more: by Ctrl-C, or by leaving the debugger.
        fails: by group, the error that its next attempts raise before their steps, and how many do.
    """

    def __init__(self, settings: Settings, spark: Callable[[], Any] | None = None) -> None:
        """``spark``: makes the session that attempts share, if it is not to be made here."""
        self.settings, self.name, self.pid = settings, whoami(), os.getpid()
        self.client = cast(redis.Redis, None)  # an attempt asks it for the job that a retry retries alone
        self.runs_on = release_here()
        self.temporary = Path(tempfile.gettempdir()) / f"unstuck-run-{secrets.token_hex(4)}"
        self.driver = Driver(settings, temporary=None if spark else self.temporary)
        self.watchdog = cast(WatchdogClient, _Limits(self._over))
        self.held: Held | None = None
        self.replaced = False
        self.interrupted = False
        self.fails: dict[str, tuple[BaseException | type[BaseException], int]] = {}
        self._spark = spark
        self._code = Code(watched=False)

    def run(self, claim: Claim, finish: Callable[[Token, Outcome, str], FinishAnswer]) -> None:
        """Run an attempt, and record its outcome."""
        _AttemptHere(self, claim.token, claim, finish).run()

    def close(self) -> None:
        """Stop the session, unless it is somebody else's, and remove the temporary files."""
        if self._spark is None:
            self.driver.stop()
        shutil.rmtree(self.temporary, ignore_errors=True)

    # -- as the runner of a worker, but for what needs the worker ----------------------------------------------

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
        assert self._code is not None
        return ProcessSnapshot(self._code, others_import=False)

    def start_helper(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, **options)

    def start_session(self, own: Mapping[str, str] | None = None) -> None:
        if self._spark is not None and not self.driver.running:
            self._spark()  # the driver finds it
        handler = signal.getsignal(signal.SIGINT)
        self.driver.start()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)  # Spark sets one of its own

    def session_used(self) -> None: ...

    def replace(self) -> None: ...

    def judge(self, error: BaseException, failure: Failure, kind: OutcomeKind) -> tuple[OutcomeKind, Failure]:
        return kind, failure

    # -- interrupts --------------------------------------------------------------------------------------------

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let Ctrl-C and time limits end what runs in the block. Outside of the main thread only ``ctx`` says so."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._interrupted)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        held = self.held
        if held is None or held.ended:
            if self.interrupted:
                raise KeyboardInterrupt  # a second time
            self.interrupted = True
            return
        if held.timeout is None:
            self.leave()
        raise KeyboardInterrupt

    def leave(self) -> None:
        """The user wants no more: end the attempt that runs, too."""
        self.interrupted = True
        if self.held is not None:
            self._take_instruction(self.held.token, Instruction.CANCEL, None)

    def _over(self, clock: Clock) -> None:
        """Called by a timer."""
        held = self.held
        if held is None or held.ended or held.instruction is not None:
            return
        self._take_instruction(held.token, Instruction.TIMEOUT, timeout_failure(clock))
        if signal.getsignal(signal.SIGINT) == self._interrupted:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


class _AttemptHere(Attempt):
    """An attempt that may be told to fail."""

    _runner: RunnerHere

    def _run_steps(self, work: Work, params: dict[str, Any], scratch: Scratch) -> None:
        error, times = self._runner.fails.get(self._token.group, (None, 0))
        if error is not None and times > 0:
            self._runner.fails[self._token.group] = error, times - 1
            with users_code():
                raise error
        super()._run_steps(work, params, scratch)

    def _ended_by(self, error: BaseException) -> Outcome | None:
        cause = error.error if isinstance(error, StepRaised) else error
        if isinstance(cause, KeyboardInterrupt | bdb.BdbQuit) and self._held.instruction is None:
            self._runner.leave()
        return super()._ended_by(error)
