"""The runner: one prefork child of the worker, with its watchdog and its Spark driver.

It owns what lasts from one attempt to the next, and ends the processes that a step leaves. The
pool's parent has none.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import secrets
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from unstuck.tasks.driver.driver import Driver
from unstuck.tasks.driver.host_trial import HostTrial
from unstuck.tasks.errors import HostUnfit, NotBegun
from unstuck.tasks.host import LIGHT, java_is_gone, lacking, may_run_spark, worker_here
from unstuck.tasks.process import hang_alarm
from unstuck.tasks.process.call_deadlines import run_with_deadline
from unstuck.tasks.process.shutdown_flag import ShutdownFlag, ShutdownLevel
from unstuck.tasks.process.tree import adopt_orphans, children, end_strays, is_watchdog
from unstuck.tasks.protocol.failure import class_name
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.report import Done, Failure, OutcomeKind
from unstuck.tasks.protocol.staging import Staging
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.runner.attempt_host import AttemptHost, Held
from unstuck.tasks.runner.logs.attempt_log import set_levels
from unstuck.tasks.runner.snapshot import Code, ProcessSnapshot
from unstuck.tasks.runner.watchdog_client import WatchdogClient
from unstuck.tasks.settings import Settings, settings
from unstuck.tasks.steps.loaded import loaded
from unstuck.tasks.time_zone import use_zone
from unstuck.tasks.transport.lease import Lease
from unstuck.tasks.transport.redis_client import connect, persistently

log = logging.getLogger(__name__)


class Runner(AttemptHost):
    """A process that runs attempts, one after the other."""

    def __init__(
        self,
        settings: Settings,
        *,
        queues: Sequence[str],
        slots: int,
        shutdown_flag: ShutdownFlag | None = None,
    ) -> None:
        """Create the runner of this process.

        ``queues`` and ``shutdown_flag`` are those of the worker; ``slots`` runners share this
        machine.
        """
        # Made when it is needed. The watchdog removes it after the end of this process.
        temporary = Path(tempfile.gettempdir()) / f"unstuck-runner-{secrets.token_hex(4)}"
        super().__init__(settings, Driver(settings, slots=slots, temporary=temporary), temporary)
        self.id, self.runs_on = f"{self.name}-{secrets.token_hex(3)}", worker_here(settings)
        self.client: redis.Redis = connect(settings.redis_url)
        self.lease = Lease(
            self.client, Keys(settings.prefix), settings.lease_ttl, self.id, self.runs_on.bound
        )
        self.queues = tuple(queues)
        self._trial, self._unfit = HostTrial(self.driver, settings, queues), ""
        # When the session will have been idle for too long; None: it never is.
        self._idle_at: float | None = None
        self.replaced = False  # this process ends before it takes more work
        # Held while stray processes are ended, so that no attempt begins meanwhile.
        self._idle = threading.Lock()
        self._helpers: list[subprocess.Popen[bytes]] = []  # of an attempt; they end by themselves
        self._threads: list[threading.Thread] = []  # from before the attempt
        # Children from before the first attempt: of Celery plugins.
        self._before: frozenset[int] | None = None
        worker = {"worker": self.name, "worker_pid": os.getppid(), "queues": list(queues)}
        hello = {"runner": self.id, "temporary": str(self.temporary), **worker}
        self.shutdown_flag, self.slots = shutdown_flag, slots
        # A stopped watchdog renews nothing. Half a lease leaves the next one the time to renew
        # before it lapses.
        stopped = settings.lease_ttl / 2
        self.watchdog = WatchdogClient(
            hello, self._take_instruction, self._show_stages, shutdown_flag, max_stopped=stopped
        )
        self._code: Code | None = None
        adopt_orphans()
        self._prewarming = threading.Thread(target=self._prewarm, name="prewarm", daemon=True)
        if settings.spark_prewarm and may_run_spark(settings, queues):
            self._prewarming.start()

    @property
    def stopping(self) -> bool:
        """Whether the worker is shutting down, so that no further attempt starts."""
        return self.shutdown_flag is not None and self.shutdown_flag.level is not ShutdownLevel.WORK

    def may_still_take(self) -> bool:
        """Return whether this process may still take an attempt, shortly after `may_take`."""
        if self.replaced:
            return False
        if self.stopping:
            # A claim would be handed back at once. An offer that is left costs no epoch and goes to
            # another worker.
            log.info(
                "nothing is taken: this worker was told to stop. What stands ready goes to others"
            )
            return False
        if old := loaded.changed():
            self.replace()
            log.info(
                (
                    "nothing is taken: %s has changed since this runner loaded it, so the runner "
                    "is replaced"
                ),
                old,
            )
        return not old

    def may_take(self) -> bool:
        """Return whether this process may take an attempt now. If it is unfit, it is replaced."""
        if not self.may_still_take():
            return False
        if self._session_is_idle:
            # It had other work since. Its session would hold memory and executors for as long as
            # that goes on.
            self.replace()
            log.info("nothing is taken: %s. What stands ready goes to others", self._idle_for)
            return False
        unfit = self.driver.broken[1] or (
            "the Spark session of this runner has died" if self.driver.died else ""
        )
        if not unfit and not self.driver.running:
            with self._idle:  # the check may start a shell, which is no stray process
                unfit = (
                    "Java is gone from this host"
                    if java_is_gone(self.settings, self.queues)
                    else ""
                )
        if unfit:
            # A host without Java fails in seconds, and each claim would count as a lost worker.
            self.replace()
            log.error("nothing is taken: %s. What stands ready goes to others", unfit)
        return not unfit

    def takes_from(self, queues: Sequence[str]) -> list[str]:
        """Return the ``queues`` to take from now; only ``light`` on a host unfit for Spark."""
        unfit = self._trial.before_work(self._trial_clock)
        if unfit and unfit != self._unfit:
            log.warning("no Spark work is taken: %s. What stands ready goes to other hosts", unfit)
        self._unfit = unfit
        self.watchdog.show_unfit(unfit)
        if not unfit:
            return list(queues)
        if not self.driver.unused or self.driver.pids:
            self.replace()  # a JVM that could not be used is left behind
        return [queue for queue in queues if queue == LIGHT]

    @contextmanager
    def _trial_clock(self) -> Iterator[None]:
        hang_alarm.start(self.settings.session_timeout)
        with self._idle:  # what the trial starts is no stray process
            yield
        hang_alarm.start()

    def judge(
        self, error: BaseException, failure: Failure, kind: OutcomeKind
    ) -> tuple[OutcomeKind, Failure]:
        """Decide whether ``failure`` counts against the group or this host."""
        held = self.held
        seconds = None if held is None else self.settings.session_timeout
        with self.watchdog.clock("STEP_FAILED", seconds, class_name(error)):
            return self._trial.judge(
                error, failure, kind, lambda: held is not None and held.instruction is not None
            )

    def start_session(self, own: Mapping[str, str] | None = None) -> None:
        """Start a Spark session unless one runs. The first one tests the host.

        Raises: as `Driver.start`.
        """
        self.driver.start(own)
        self._trial.first_session()

    def may_take_at_once(self) -> bool:
        """Return `may_take` for a runner without a session, without a check that may hang."""
        return (
            self.driver.unused and not self.replaced and not self.stopping and not loaded.changed()
        )

    @contextmanager
    def holding(self, held: Held) -> Iterator[None]:
        """Hold the attempt during the block. Afterwards this process is clean or will be replaced.

        Raises:
            NotBegun: the attempt cannot be held.
        """
        token = held.token
        with self._idle:
            self.held = held
        try:
            self.watchdog.hold(token)
            hang_alarm.cancel()
            self._threads = threading.enumerate()
            if self._before is None:
                self._before = frozenset(children())
                threading.Thread(target=self._look_for_strays, name="strays", daemon=True).start()
        except Exception as error:
            self.held = None
            hang_alarm.start()
            # The pipe may be broken; the watchdog watches this process anyway.
            with suppress(Exception):
                self.watchdog.release()
            raise NotBegun(
                f"{self.name} had claimed {token} and could not begin it: {type(error).__name__}: "
                f"{error}. This runner is replaced, and the group is tried again; no retry: is "
                "used up. If it happens again, look at its host"
            ) from error
        try:
            yield
        finally:
            held.ended = True
            held.released.set()
            hang_alarm.start()
            self.watchdog.release()
            with self._idle:
                self.held = None
                strays = [] if held.left_nothing else self._end_strays()
            if left := [] if held.left_nothing else [*find_leaks(self._threads), *strays]:
                what = held.clean(", ".join(left))  # a step may have given a thread any name
                log.warning(
                    "%s left %s; this runner is replaced before it takes more work", token, what
                )
                self.replace()

    def looks_clean(self) -> bool:
        """Check whether the attempt left anything behind after its steps."""
        with self._idle:
            clean = not find_leaks(self._threads) and all(map(self._owns, children()))
        if self.held is not None:
            self.held.left_nothing = clean
        return clean

    def start_helper(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process of ours that may outlive an attempt. ``options`` are those of `Popen`.

        Raises:
            OSError: it cannot be started.
        """
        with self._idle:
            self._helpers = [helper for helper in self._helpers if helper.poll() is None]
            self._helpers.append(subprocess.Popen(command, **options))
            return self._helpers[-1]

    def snapshot(self) -> ProcessSnapshot:
        """Return a snapshot of this process before a step."""
        self._code = self._code or Code()  # before the first step of this process
        return ProcessSnapshot(self._code, others_import=self._prewarming.is_alive())

    def result_without_outputs(self, group: str, job: str) -> tuple[str, Done] | None:
        staging = Staging(self.client, Keys(self.settings.prefix))
        record: tuple[str, Done] | None = persistently(
            self.settings.dispatch_timeout, staging.result_without_outputs, group, job
        )
        return record

    def replace(self) -> None:
        """End this process before its next attempt; Celery starts another."""
        self.replaced = True
        from unstuck.tasks.worker.pool import recycle_this_process

        recycle_this_process()

    def session_used(self) -> None:
        """Start to count how long the session is idle. A prewarmed session is kept."""
        if self.driver.left:
            self.replace()
        from unstuck.tasks.worker.pool import recycle_this_process_at

        if self.settings.session_idle and not self.settings.spark_prewarm:
            self._idle_at = time.monotonic() + self.settings.session_idle
            recycle_this_process_at(self._idle_at)

    @property
    def _session_is_idle(self) -> bool:
        return self._idle_at is not None and time.monotonic() > self._idle_at

    @property
    def _idle_for(self) -> str:
        idle = f"{self.settings.session_idle:g}s (UNSTUCK_SESSION_IDLE)"
        return (
            f"the Spark session of this runner was not used for {idle}, so the runner is replaced"
        )

    def end_idle_session(self) -> None:
        """Stop a session that is idle, while this process waits for another one.

        For the main thread.
        """
        if self._session_is_idle and self.driver.running:
            self.replace()
            log.info("%s", self._idle_for)
            hang_alarm.start(self.settings.session_timeout)
            self.driver.stop()
            hang_alarm.cancel()

    def end(self) -> None:
        """End everything that this runner started, before the process ends."""
        hang_alarm.start(self.settings.session_timeout)
        self._end_strays()
        self.watchdog.end()
        self.driver.stop()

    def _look_for_strays(self) -> None:
        """While no attempt is held, end processes that a leftover thread starts."""
        while True:
            time.sleep(self.settings.lease_renew)
            with self._idle:
                strays = self._end_strays() if self.held is None else []
            if strays:
                message = (
                    "ended %s, started by a thread that an attempt left; this runner is replaced"
                )
                run_with_deadline(log.warning, message, ", ".join(strays))  # the log may hang
                self.replace()

    def _end_strays(self) -> list[str]:
        """End all child processes that an attempt left. Returns their names.

        The watchdog, the JVM and what was there before the first attempt stay.
        """
        try:
            return [f"the process {pid}" for pid in end_strays(self._owns)]
        except OSError as error:
            # No descriptor is free. The watchdog ends the processes together with this one.
            return [f"processes that cannot be listed ({error})"]

    def _owns(self, pid: int) -> bool:
        # While a session starts, its JVM cannot be told from other processes; the next check comes
        # soon.
        if (
            self._before is None
            or pid in self._before
            or self.driver.starting
            or pid in self.driver.pids
        ):
            return True
        if pid == self.watchdog.watchdog_pid:
            return True
        # The watchdog of a fresh runner that was killed reports the attempt, and ends by itself.
        return any(
            helper.pid == pid and helper.poll() is None for helper in self._helpers
        ) or is_watchdog(pid)

    def _prewarm(self) -> None:
        try:
            self.start_session()
        except Exception:
            log.exception(
                "the Spark session could not be started ahead; the first group will try again"
            )

    def _show_stages(self, token: Token) -> None:
        """Show what Spark runs for the attempt that is held."""
        held = self.held
        if held is not None and held.token == token and not self.driver.unused:
            self.watchdog.show_stages(token, self.driver.stages(held.clean))


def find_leaks(threads: list[threading.Thread]) -> list[str]:
    """Return leftovers that only a new process removes: threads not in ``threads``, open files.

    Daemon threads are ignored, because libraries keep them for good.
    """
    left = [
        f"the thread {thread.name!r}"
        for thread in threading.enumerate()
        if thread not in threads and not thread.daemon
    ]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        count = len(os.listdir("/dev/fd"))
    except OSError as error:
        # Without a free descriptor, the open ones cannot be counted.
        count = limit if error.errno in (errno.EMFILE, errno.ENFILE) else 0
    if limit != resource.RLIM_INFINITY and count > limit / 2:
        # The next attempt might leave too few descriptors to look for leaks, or to start a
        # watchdog.
        left.append(f"{count} open files, of {limit} that it may have")
    return left


_runner: Runner | None = None


def start_runner(
    *,
    queues: Sequence[str],
    slots: int,
    shutdown_flag: ShutdownFlag | None = None,
    prewarm: bool = True,
) -> Runner:
    """Make this process a runner. Call it once.

    Args:
        prewarm: start a session ahead, if the settings say so; False where the group brings conf of
            its own.

    Raises:
        HostUnfit: this host lacks what a runner of these queues needs.
    """
    global _runner
    if lacks := lacking(settings(), queues):
        raise HostUnfit(lacks)
    use_zone(settings().time_zone)
    if os.getpgrp() != os.getpid():
        # In a group of its own, the runner and its JVM are killed together, without the worker.
        os.setpgid(0, 0)
    loaded.forget_changed()
    set_levels()
    runner_settings = (
        settings() if prewarm else settings().model_copy(update={"spark_prewarm": False})
    )
    _runner = Runner(runner_settings, queues=queues, slots=slots, shutdown_flag=shutdown_flag)
    return _runner


def this_runner() -> Runner:
    """The runner of this process.

    Raises:
        RuntimeError: no runner was made in this process.
    """
    if _runner is None or _runner.pid != os.getpid():
        raise RuntimeError(
            "this process is not a runner; attempts are run by: celery -A unstuck.tasks worker"
        )
    return _runner


def end_runner() -> None:
    """End this process's runner, if it has one."""
    if _runner is not None and _runner.pid == os.getpid():
        _runner.end()
