"""The process that runs attempts: a runner of a worker, or the process of ``unstuck run``."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unstuck.tasks.driver.driver import Driver
from unstuck.tasks.errors import WarehouseTrouble
from unstuck.tasks.identity import release_here
from unstuck.tasks.process.call_deadlines import run_with_deadline
from unstuck.tasks.protocol.failure import describe
from unstuck.tasks.protocol.report import Done, Failure, OutcomeKind
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.runner.snapshot import ProcessSnapshot
from unstuck.tasks.runner.watchdog_client import WatchdogClient
from unstuck.tasks.settings import Settings, whoami
from unstuck.tasks.watchdog.policy import Instruction

log = logging.getLogger(__name__)

WAREHOUSE_TIMEOUT = "WAREHOUSE_TIMEOUT"  # the code of its failure
# Errors that mean a shortage of this process or its host.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)


@dataclass
class Held:
    """The attempt that this process runs, and the instructions for it.

    Attributes:
        clean: removes the secrets of the attempt from a text.
        instruction: the strongest instruction so far; None if the attempt may continue.
        timeout: failure of the first timeout that expired.
        ended: whether the steps are over, so that later instructions are ignored.
        left_nothing: whether a check found that the attempt left nothing behind.
        released: set when this process no longer holds the attempt.
    """

    token: Token
    clean: Callable[[str], str]
    instruction: Instruction | None = None
    timeout: Failure | None = None
    ended: bool = False
    left_nothing: bool = False
    released: threading.Event = field(default_factory=threading.Event)


class AttemptHost(ABC):
    """Runs attempts, one after the other.

    Attributes:
        watchdog: receives the state of the attempt; each kind of host has its own.
        temporary: folder for temporary files of this process.
        held: the running attempt.
    """

    watchdog: WatchdogClient
    held: Held | None = None

    def __init__(self, settings: Settings, driver: Driver, temporary: Path) -> None:
        self.settings, self.driver, self.temporary = settings, driver, temporary
        self.name, self.pid, self.runs_on = whoami(), os.getpid(), release_here()

    @abstractmethod
    def holding(self, held: Held) -> AbstractContextManager[None]:
        """Hold the attempt during the block. Raises: NotBegun: it cannot be held."""

    @abstractmethod
    def snapshot(self) -> ProcessSnapshot:
        """Return a snapshot of this process before a step."""

    @abstractmethod
    def start_helper(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process of ours that may outlive an attempt; ``options`` are those of `Popen`.

        Raises: OSError.
        """

    @abstractmethod
    def start_session(self, own: Mapping[str, str] | None = None) -> None:
        """Start a Spark session, unless one runs; ``own``: its conf. Raises: as `Driver.start`."""

    @abstractmethod
    def session_used(self) -> None:
        """Record that an attempt no longer uses the session."""

    @abstractmethod
    def replace(self) -> None:
        """Let this process run no other attempt."""

    @abstractmethod
    def judge(
        self, error: BaseException, failure: Failure, kind: OutcomeKind
    ) -> tuple[OutcomeKind, Failure]:
        """Decide whether ``failure`` counts against the group or this host."""

    @abstractmethod
    def result_without_outputs(self, group: str, job: str) -> tuple[str, Done] | None:
        """Return the staging and result of ``group`` in another ``job``; None if it has outputs.

        Raises: redis.RedisError.
        """

    @contextmanager
    def warehouse_clock(self, warehouse: str, what: str) -> Iterator[None]:
        """Limit our own use of the warehouse, which may hang for ever.

        The limit applies to each answer of the warehouse, so ten thousand quick answers are fine.

        Args:
            warehouse: its address; empty if it is not used, so that no clock runs.
            what: the operation, as words before "the warehouse".

        Raises:
            WarehouseTrouble: it answers with an error, which is no fault of this runner.
        """
        seconds = self.settings.warehouse_timeout if warehouse else None
        where = f"{what} the warehouse {warehouse} on {self.name}"
        with self.watchdog.clock(WAREHOUSE_TIMEOUT, seconds, where):
            try:
                yield
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    raise
                raise WarehouseTrouble(f"{where} failed: {describe(error)}") from error

    def _take_instruction(
        self, token: Token, instruction: Instruction, failure: Failure | None
    ) -> None:
        held = self.held
        if held is None or held.token != token or held.ended:
            return
        # Before the instruction, after which others read the timeout.
        held.timeout = held.timeout or failure
        first = held.instruction is None
        if held.instruction is None or instruction.strength > held.instruction.strength:
            held.instruction = instruction
        if first:
            threading.Thread(
                target=self._interrupt, args=(held,), name="interrupt", daemon=True
            ).start()
            # With a deadline, since this thread reads the instructions.
            run_with_deadline(log.warning, "%s is told to end: %s", token, instruction)

    def _interrupt(self, held: Held) -> None:
        """Cancel the Spark jobs until the session is closed.

        A cancel before a job starts has no effect (measured).
        """
        self.driver.cancel(str(held.token))
        while not held.released.wait(0.25):
            self.driver.cancel(str(held.token))
