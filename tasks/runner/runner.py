"""The runner: one prefork child of the worker, with its watchdog and its one Spark driver.

It owns what lasts from one attempt to the next: its name, its connection, its leash, its session. It must exist
in the child only, never in the parent, and at most once in a process; what one attempt does stands in
``tasks.runner.attempt``. It adopts the orphans below it, so it sees each process that a step leaves, and ends it.
"""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import redis

from unstuck.tasks.errors import HostUnfit, NotBegun
from unstuck.tasks.failpoint_arming import arm_this_process
from unstuck.tasks.host import java_is_gone, lacking, may_run_spark
from unstuck.tasks.process import hang_alarm
from unstuck.tasks.process.deadlines import run_with_deadline
from unstuck.tasks.process.shutdown_flag import ShutdownFlag, ShutdownLevel
from unstuck.tasks.process.tree import adopt_orphans, children, end_strays, is_watchdog
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.lease import Lease
from unstuck.tasks.protocol.report import Failure
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.runner.leaks import LeakCheck
from unstuck.tasks.runner.snapshot import Code, ProcessSnapshot
from unstuck.tasks.runner.watchdog_client import WatchdogClient
from unstuck.tasks.settings import Settings, settings, whoami
from unstuck.tasks.steps.spark import Driver
from unstuck.tasks.transport.redis_client import connect
from unstuck.tasks.watchdog.policy import Order

log = logging.getLogger(__name__)


@dataclass
class Held:
    """The attempt that this process holds, and what it was told about it.

    Attributes:
        order: the strongest order so far; None while it may go on.
        timeout: the failure that a timeout is, once one has run out.
        ordered: set together with the first order.
        ended: set when the steps are over, one way or the other: from then on it hears no order.
        left: set when this process holds it no longer.
        clean: takes the secrets of the attempt out of a text.
    """

    token: Token
    order: Order | None = None
    timeout: Failure | None = None
    ordered: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)
    clean: Callable[[str], str] = str


class Runner:
    """What one process needs to run attempts, one after the other."""

    def __init__(
        self,
        settings: Settings,
        *,
        queues: Sequence[str],
        slots: int,
        shutdown_flag: ShutdownFlag | None = None,
    ) -> None:
        """``queues`` and ``shutdown_flag`` are those of the worker; ``slots`` runners share this machine."""
        self.settings = settings
        self.pid = os.getpid()
        self.name = whoami()
        self.id = f"{self.name}-{secrets.token_hex(3)}"
        self.client: redis.Redis = connect(settings.redis_url)
        self.lease = Lease(self.client, Keys(settings.prefix), settings.lease_ttl)
        self.driver = Driver(settings, slots=slots)
        self._queues = tuple(queues)
        self.held: Held | None = None
        self._idle = threading.Lock()  # held while strays are ended, so that no attempt begins meanwhile
        self._helpers: list[subprocess.Popen[bytes]] = []  # of an attempt; they end by themselves
        self._before: frozenset[int] | None = None  # children from before the first attempt: those of Celery plugins
        hello = {"runner": self.id, "worker": self.name, "worker_pid": os.getppid(), "queues": list(queues)}
        self.shutdown_flag, self.slots = shutdown_flag, slots
        # A stopped watchdog renews nothing. Half a lease leaves the next one the time to renew before it lapses.
        self.watchdog = WatchdogClient(hello, self._hear, shutdown_flag, patience=settings.lease_ttl / 2)
        self._code: Code | None = None
        adopt_orphans()
        self._prewarming = threading.Thread(target=self._prewarm, name="prewarm", daemon=True)
        if settings.spark_prewarm and may_run_spark(settings, queues):
            self._prewarming.start()

    @property
    def stopping(self) -> bool:
        """True once the worker was told to stop: no attempt is begun any more."""
        return self.shutdown_flag is not None and self.shutdown_flag.level is not ShutdownLevel.WORK

    @property
    def unfit(self) -> bool:
        """True once Java is gone from this host, and no session is up that needs it no more."""
        if self.driver.running:
            return False
        with self._idle:  # it may start a shell, which is no stray
            return java_is_gone(self.settings, self._queues)

    @contextmanager
    def holding(self, token: Token) -> Iterator[Held]:
        """This process holds ``token`` until the block ends; afterwards it is clean, or asks to be replaced.

        Raises:
            NotBegun: it cannot be held; this process asks to be replaced.
        """
        with self._idle:
            held = self.held = Held(token)
        try:
            self.watchdog.hold(token)
            hang_alarm.cancel()
            leak_check = LeakCheck()
            if self._before is None:
                self._before = frozenset(children())
                threading.Thread(target=self._look_for_strays, name="strays", daemon=True).start()
        except Exception as error:
            self.held = None
            hang_alarm.start()
            self.replace()
            with suppress(Exception):  # that may be what is broken; the watchdog looks at this process by itself
                self.watchdog.release()
            raise NotBegun(
                f"{self.name} had claimed {token} and could not begin it: {type(error).__name__}: {error}. This runner "
                "is replaced, and the group is tried again; no retry: is used up. If it happens again, look at its host"
            ) from error
        try:
            yield held
        finally:
            held.ended.set()
            held.left.set()
            hang_alarm.start()
            self.watchdog.release()
            with self._idle:
                self.held = None
                strays = self._end_strays()
            if left := [*leak_check.found(), *strays]:
                what = held.clean(", ".join(left))  # a thread has the name that the step gave it
                log.warning("%s left %s; this runner is replaced before it takes more work", token, what)
                self.replace()

    def start_helper(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process that is no stray, although it may outlive an attempt. ``options``: those of `Popen`.

        Raises:
            OSError: it cannot be started.
        """
        with self._idle:
            self._helpers = [helper for helper in self._helpers if helper.returncode is None]
            self._helpers.append(subprocess.Popen(command, **options))
            return self._helpers[-1]

    def snapshot(self) -> ProcessSnapshot:
        """This process as it is before a step."""
        self._code = self._code or Code()  # before the first step of this process
        return ProcessSnapshot(self._code, others_import=self._prewarming.is_alive())

    def replace(self) -> None:
        """End this process before its next attempt; Celery starts another."""
        from unstuck.tasks.worker.pool import recycle_this_process

        recycle_this_process()

    def end(self) -> None:
        """This process is about to end in good order."""
        hang_alarm.start(self.settings.session_timeout)
        self._end_strays()
        self.watchdog.end()
        self.driver.stop()

    def _look_for_strays(self) -> None:
        """End what a thread starts that an attempt left, while nothing is held."""
        while True:
            time.sleep(self.settings.lease_renew)
            with self._idle:
                strays = self._end_strays() if self.held is None else []
            if strays:
                said = "started by a thread that an attempt left, and ended: %s; this runner is replaced"
                run_with_deadline(log.warning, said, ", ".join(strays))  # the log may hang
                self.replace()

    def _end_strays(self) -> list[str]:
        """End all processes below this one that an attempt left. Returns their names.

        The watchdog and the JVM stay, with what these started, and what was there before the first attempt.
        """
        try:
            return [f"the process {pid}" for pid in end_strays(self._owns)]
        except OSError as error:  # the step left no descriptor; the watchdog ends them with this process
            return [f"processes that cannot be listed ({error})"]

    def _owns(self, pid: int) -> bool:
        # While a session starts its JVM cannot be told from others; the next look comes soon.
        if self._before is None or pid in self._before or self.driver.starting:
            return True
        if any(helper.pid == pid and helper.returncode is None for helper in self._helpers):
            return True
        if pid == self.watchdog.watchdog_pid or pid in self.driver.pids:
            return True
        # The watchdog of a fresh runner that was killed reports this, and ends by itself.
        return is_watchdog(pid)

    def _prewarm(self) -> None:
        try:
            self.driver.start()
        except Exception:
            log.exception("the Spark session could not be started ahead; the first group will try again")

    def _hear(self, token: Token, order: Order, failure: Failure | None) -> None:
        """An order from the watchdog, in its thread."""
        held = self.held
        if held is None or held.token != token or held.ended.is_set():
            return
        held.timeout = held.timeout or failure  # before the order: whoever sees that looks here
        if held.order is None or order.strength > held.order.strength:
            held.order = order
        if not held.ordered.is_set():
            held.ordered.set()
            threading.Thread(target=self._interrupt, args=(held,), name="interrupt", daemon=True).start()
            run_with_deadline(log.warning, "%s is told to end: %s", token, order)  # this thread hears the watchdog

    def _interrupt(self, held: Held) -> None:
        """Cancel the attempt's Spark jobs again and again: a cancel before a job starts has no effect (measured).

        Until the session is left: a streaming query that is stopped there ends with its jobs.
        """
        while True:
            self.driver.cancel(str(held.token))
            if held.left.wait(0.25):
                return


_runner: Runner | None = None


def start_runner(*, queues: Sequence[str], slots: int, shutdown_flag: ShutdownFlag | None = None) -> Runner:
    """Make this process a runner. Called once, in the child.

    Raises:
        HostUnfit: this host lacks what a runner of these queues needs.
    """
    global _runner
    if lacks := lacking(settings(), queues):
        raise HostUnfit(lacks)
    if os.getpgrp() != os.getpid():
        # A group of its own: the runner and its JVM end together, and the worker above is not hit with them.
        os.setpgid(0, 0)
    arm_this_process(os.environ)
    _runner = Runner(settings(), queues=queues, slots=slots, shutdown_flag=shutdown_flag)
    return _runner


def this_runner() -> Runner:
    """The runner of this process.

    Raises:
        RuntimeError: this process is none.
    """
    if _runner is None or _runner.pid != os.getpid():
        raise RuntimeError("this process is not a runner; attempts are run by: celery -A unstuck.tasks worker")
    return _runner


def end_runner() -> None:
    """End this process's runner, if it has one."""
    if _runner is not None and _runner.pid == os.getpid():
        _runner.end()
