"""Start and supervise the watchdog of this runner, and pass on its instructions.

It replaces a watchdog that dies or stays stopped, and ends the runner when no watchdog can be
started.
"""

# A thread that fails here ends the runner, which would go on to take attempts and lose each. The
# client acts first and logs afterwards, with a deadline and under no lock, because the log may
# hang.

from __future__ import annotations

import json
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any, NoReturn

import psutil

from unstuck.tasks.process.call_deadlines import call_in_thread, run_with_deadline
from unstuck.tasks.process.shutdown_flag import ShutdownFlag
from unstuck.tasks.process.stack_dump import StackDump
from unstuck.tasks.process.tree import ProcessState, end_strays, process_state
from unstuck.tasks.protocol.report import Failure
from unstuck.tasks.protocol.step_stack import SparkStage
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.watchdog.policy import Clock, Instruction
from unstuck.tasks.watchdog.runner_state import RunnerState, SharedRunnerState
from unstuck.tasks.watchdog.start import WatchdogProcess, start_watchdog

log = logging.getLogger(__name__)

_LOOKS = 10  # that see a watchdog stopped before it is killed
_MAX_RESTARTS = 5  # within a minute
_UNWATCHED = "and a runner without a watchdog keeps no lease and gets no cancel, so "
_OF_NO_ATTEMPT: dict[str, Any] = {
    "log": None,
    "clocks": {},
    "progress": "",
    "remark": "",
    "secrets": {},
    "stages": "",
}
_RESTART_AFTER = 0.05  # of a clock's time; a clock is not restarted sooner


class WatchdogClient:
    """Starts a watchdog for this process and keeps one alive."""

    def __init__(
        self,
        hello: dict[str, Any],
        on_instruction: Callable[[Token, Instruction, Failure | None], None],
        on_look: Callable[[Token], object] = lambda token: None,
        shutdown_flag: ShutdownFlag | None = None,
        *,
        max_stopped: float,
    ) -> None:
        """Start a watchdog.

        Args:
            hello: what the watchdog shows of this runner.
            on_instruction: called from a thread of the client with token, instruction, and for a
                timeout its failure.
            on_look: called from a thread of its own, whenever people want to see where an attempt
                stands.
            shutdown_flag: of the worker; every watchdog looks at it.
            max_stopped: seconds after which a watchdog that is stopped is replaced.
        """
        self._flag = None if shutdown_flag is None else shutdown_flag.read_fd
        self._pid = os.getpid()
        self._hello = {"pid": self._pid, "shutdown_flag": self._flag, **hello}
        self._on_instruction, self._on_look = on_instruction, on_look
        self._looks: Future[object] | None = None
        self._max_stopped = max_stopped
        self._lock = threading.RLock()
        self._state = RunnerState(idle=time.time())
        self._shared = SharedRunnerState.create()
        self._shared.write(self._state)
        self._stack = StackDump.install()
        self._restarts: list[float] = []
        self._ending = False
        self._process: WatchdogProcess  # assigned before the thread that follows it starts
        self._start()

    @property
    def watchdog_pid(self) -> int:
        """The pid of the watchdog, or of the next one if it is being started."""
        with self._lock:
            return self._process.pid

    def taken(self) -> None:
        """Record that this runner takes wake-ups, and so has not stalled."""
        self._tell(taken=time.time())

    def show_code(self, code: dict[str, str]) -> None:
        """Record the code that this runner runs, as digests by package."""
        with self._lock:
            if code != self._state.code:
                self._tell(code=code)

    def show_unfit(self, why: str) -> None:
        """Record why this runner takes no Spark work; empty if it does."""
        with self._lock:
            if why != self._state.unfit:
                self._tell(unfit=why)

    def hold(self, token: Token) -> None:
        """Let the watchdog renew the lease of ``token``, and report a loss of this runner."""
        self._tell(token=str(token), since=time.time(), **_OF_NO_ATTEMPT)

    def log_to(self, path: str | None) -> None:
        """Set the local log of the attempt, where the watchdog writes why it killed the runner."""
        self._tell(log=path)

    @contextmanager
    def clock(
        self, code: str, seconds: float | None, step: str = "", index: int = 0
    ) -> Iterator[None]:
        """Limit the block to ``seconds``, then instruct the runner, and kill it after the grace.

        The failure gets ``code``; ``step`` says what takes so long, ``index`` which step of the
        group. None: no limit;
        inf: none until an alter sets one.
        """
        if seconds is None:
            yield
            return
        with self._lock:
            self._tell(
                clocks={
                    **self._state.clocks,
                    code: Clock(code, seconds, time.monotonic(), step, index),
                }
            )
        try:
            yield
        finally:
            with self._lock:
                self._tell(
                    clocks={
                        name: limit for name, limit in self._state.clocks.items() if name != code
                    }
                )

    def restart_clock(self, code: str) -> None:
        """Restart the clock ``code`` if it runs, because its work makes progress. Cheap."""
        with self._lock:
            clocks, now = self._state.clocks, time.monotonic()
            clock = clocks.get(code)
            if clock is not None and now - clock.began >= clock.seconds * _RESTART_AFTER:
                self._tell(clocks={**clocks, code: replace(clock, began=now)})

    def progress(self, text: str) -> None:
        """Send ``text`` (JSON) with the next renewal."""
        self._tell(progress=text)

    def hide(self, secrets: Mapping[str, str]) -> None:
        """Let the watchdog remove ``secrets`` from everything that it shows of this attempt."""
        if secrets:
            self._tell(secrets=dict(secrets))

    def show_stages(self, token: Token, stages: Sequence[SparkStage]) -> None:
        """Record the stages that Spark runs for ``token``, if this runner still has it."""
        with self._lock:
            if self._state.token == str(token):
                self._tell(
                    stages=json.dumps([asdict(stage) for stage in stages]), stages_at=time.time()
                )

    def remark(self, text: str) -> None:
        """Add ``text`` to what the watchdog reports if this process dies in this attempt."""
        self._tell(remark=f" ({text})")

    def give_up(self, why: str) -> NoReturn:
        """End this runner. Its watchdog lives, and reports the attempt as lost with ``why``."""
        with suppress(Exception):  # what is broken may be what is needed for it
            self.remark(why)
        self._give_up(why, so="so ")

    def release(self) -> None:
        """Record that the attempt has ended, so that the watchdog stops renewing its lease."""
        self._tell(token=None, idle=time.time(), **_OF_NO_ATTEMPT)

    def end(self) -> None:
        """Do not replace the watchdog any more, since this process ends.

        The watchdog outlives it to end what it leaves.
        """
        with self._lock:
            self._ending = True

    def _tell(self, **changes: Any) -> None:
        with self._lock:
            if os.getpid() != self._pid:
                return  # a child that a step has forked holds nothing
            vars(self._state).update(changes)  # takes a tenth of the time of a copy
            self._shared.write(self._state)

    def _start(self) -> None:
        descriptors = {
            "shared": self._shared.descriptor,
            "stack": None if self._stack is None else self._stack.descriptor,
        }
        inherited = [
            descriptor
            for descriptor in (*descriptors.values(), self._flag)
            if descriptor is not None
        ]
        self._process = start_watchdog({**self._hello, **descriptors}, inherited)
        # Found before anybody can have waited for it: until then its pid is given to nobody else.
        watchdog = psutil.Process(self._process.pid)
        threading.Thread(
            target=self._follow, args=(self._process, watchdog), name="watchdog", daemon=True
        ).start()

    def _follow(self, process: WatchdogProcess, watchdog: psutil.Process) -> None:
        """Pass the watchdog's instructions on until it dies, and replace it."""
        try:
            self._pass_on(process, watchdog)
            status = process.wait()
            if self._replace(process, status):
                message = "the watchdog %d died (%d); another one took over"
                run_with_deadline(log.warning, message, process.pid, status)
        except Exception as error:  # noqa: BLE001
            # Nobody else reads the instructions of this watchdog.
            self._give_up(
                f"the instructions of the watchdog {process.pid} cannot be read any more: "
                f"{_described(error)}"
            )

    def _pass_on(self, process: WatchdogProcess, watchdog: psutil.Process) -> None:
        """Pass instructions on until the watchdog is dead. Kill it if it stays stopped."""
        assert process.stdout is not None
        # Looks are counted, not seconds: while the host slept, this process did not look either.
        every, stopped = self._max_stopped / _LOOKS, 0
        # Not select(), which refuses descriptors from 1024 on: a step may have had a thousand when
        # this pipe was made.
        instructions = select.poll()
        instructions.register(process.stdout, select.POLLIN)
        with process.stdout as lines:
            while True:
                if instructions.poll(every * 1000):
                    if not (line := lines.readline()):
                        return
                    instruction = json.loads(line)
                    if instruction["op"] == "look":
                        self._look(Token.parse(instruction["token"]))
                        continue
                    failure = (
                        Failure(**instruction["failure"]) if "failure" in instruction else None
                    )
                    self._on_instruction(
                        Token.parse(instruction["token"]),
                        Instruction(instruction["instruction"]),
                        failure,
                    )
                    continue
                try:
                    state = process_state(watchdog)
                except Exception as error:  # noqa: BLE001
                    # A step may hold every descriptor, or have replaced a builtin.
                    message = "the state of the watchdog %d cannot be read: %s"
                    with suppress(Exception):  # the log may need what is missing
                        run_with_deadline(log.warning, message, process.pid, error, seconds=0)
                    state = ProcessState.ALIVE
                stopped = stopped + 1 if state is ProcessState.STOPPED else 0
                if stopped == _LOOKS + 1:
                    process.kill()
                    message = "the watchdog %d was stopped for %.1fs and is killed"
                    run_with_deadline(
                        log.warning, message, process.pid, self._max_stopped, seconds=0
                    )

    def _look(self, token: Token) -> None:
        """Look where ``token`` stands, unless the look before this one hangs."""
        if self._looks is None or self._looks.done():
            with suppress(RuntimeError):  # no thread can be started
                self._looks = call_in_thread(lambda: self._on_look(token), "look")

    def _replace(self, process: WatchdogProcess, status: int) -> bool:
        """Start the next one; False if none is wanted."""
        with self._lock:
            if self._ending or process is not self._process:
                return False
            now = time.monotonic()
            self._restarts = [at for at in self._restarts if now - at < 60] + [now]
            if len(self._restarts) > _MAX_RESTARTS:
                self._give_up(
                    f"the watchdog died {len(self._restarts)} times within a minute, at last with "
                    f"{status}"
                )
            try:
                self._start()
            except (OSError, RuntimeError) as error:
                # No descriptor, process, thread or memory is left, or no Python is where ours was.
                self._give_up(
                    f"the watchdog {process.pid} died, and no other can be started: "
                    f"{_described(error)}"
                )
            return True

    def _give_up(self, why: str, so: str = _UNWATCHED) -> NoReturn:
        """End this runner, with all that it started; Celery starts another.

        A watchdog that lives reports the attempt as lost at once; otherwise the lease lapses.
        """
        try:
            try:
                # Without a wait: a step whose JVM is gone would report a failure of its own.
                end_strays(lambda pid: pid == self._process.pid, wait=0)
                what = "with all that it started"
            except OSError as error:
                what = f"with its process group (what else it started cannot be looked up: {error})"
            message = (
                "%s, %s%d ends itself %s; the worker starts another, and what it ran is "
                "given out again"
            )
            run_with_deadline(log.critical, message, why, so, self._pid, what)
        finally:
            os.killpg(0, signal.SIGKILL)
        raise AssertionError("a process outlives SIGKILL")


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
