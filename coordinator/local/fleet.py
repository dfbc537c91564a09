"""The local fleet behind ``unstuck up``: Valkey, workers, coordinators and a beat, as children of one process.

The children are the ordinary Celery programs of a real fleet; this module starts, supervises and ends them. All state
is in Valkey and in the warehouse, so every process, this one included, can be killed at any time.
"""

from __future__ import annotations

import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from kombu.utils.url import maybe_sanitize_url
from redis import RedisError

from unstuck.coordinator.errors import FleetFailed
from unstuck.coordinator.local.console import Console, to_stdout
from unstuck.coordinator.local.home import Home, ServerState, server_state
from unstuck.coordinator.local.log_rotation import LOG_LIMIT
from unstuck.coordinator.local.process import Program, SupervisedProcess
from unstuck.coordinator.local.programs import Size, program_list, valkey
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.settings import Settings
from unstuck.tasks.transport.redis_client import broker_url

START_TRIES = 3  # a process that ended so often in a row before the fleet was ready will not come up


class LocalFleet:
    """A fleet on this machine. ``run()`` keeps it in the foreground; ``with LocalFleet() as fleet`` starts and ends it.

    Args:
        workers, coordinators, light, slots, light_slots, queues: see ``Size``.
        home: where logs and Valkey's data are kept; ``.unstuck`` in the current folder if None.
        redis_url: the Redis to use; ``UNSTUCK_REDIS_URL`` if None; an embedded Valkey if that is unset too.
        grace: seconds from asking a process to end until it is killed; if None, more than a worker needs to hand back.
        say: takes each line for the person at the terminal.
        programs: what to run instead of the Celery programs.
        await_redis: seconds within which an embedded Valkey must answer. One that is loading has all the time it needs.
        log_limit: bytes of each log; a larger one is rotated to NAME.log.1.
        rotate_every: seconds between two looks at the sizes of the logs.

    Raises: ValueError: a number that makes no fleet.
    """

    def __init__(
        self,
        workers: int = 1,
        coordinators: int = 1,
        light: int = 1,
        home: Path | str | None = None,
        redis_url: str | None = None,
        *,
        slots: int = 1,
        light_slots: int = 2,
        queues: Sequence[str] = ("spark",),
        grace: float | None = None,
        say: Callable[[str], None] | None = None,
        programs: Sequence[Program] | None = None,
        await_redis: float = 20.0,
        log_limit: int = LOG_LIMIT,
        rotate_every: float = 1.0,
    ) -> None:
        self.size = Size(workers, coordinators, light, slots, light_slots, tuple(queues))
        self.home = Home(home)
        self.settings = Settings()
        self.grace = self.settings.stop_within() + 5.0 if grace is None else grace
        self.processes: list[SupervisedProcess] = []
        self.ready = False
        self._stopping = threading.Event()
        self._given_url = redis_url or os.environ.get("UNSTUCK_REDIS_URL")
        self._programs = programs
        self._await_redis_for, self._log_limit, self._rotate_every = await_redis, log_limit, rotate_every
        self._say = Console(self.home.log("up"), say or to_stdout, log_limit)
        self._signaled = False
        self._ended = threading.Event()
        self._log_rotator: threading.Thread | None = None
        self._valkey: SupervisedProcess | None = None
        self._url = ""

    @property
    def redis_url(self) -> str:
        """Where the fleet's Redis is; known once it has been started."""
        return self._url

    @property
    def logs(self) -> Path:
        """The folder of the logs."""
        return self.home.path / "log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and return; ``wait_ready`` says when it can be used.

        Raises:
            FleetRunning: another fleet runs in this home.
            FleetFailed: there is no server program, or the server does not come up.
        """
        lock = self.home.lock()
        self._say.keeps = True
        try:
            self._log_rotator = threading.Thread(target=self._rotate_logs, name="rotate-logs", daemon=True)
            self._log_rotator.start()
            if self._given_url:
                self._url = self._given_url
            else:
                port = self.home.port()
                self._url = f"redis://127.0.0.1:{port}/0"
                # Valkey holds the lock of the home too, so no second server ever opens its data.
                self._valkey = self._supervise(valkey(self.home.valkey, port), pass_fds=[lock])
            if not self._redis_is_ready():
                return
            if self._valkey is not None:
                self.home.announce(self._url)
            suffix = f"-{os.getpid()}" if self._given_url else ""
            programs = self._programs
            if programs is None:
                programs = program_list(self.size, self._url, self.settings, suffix)
            for program in programs:
                self.processes.append(self._supervise(program))
        except BaseException:
            self.stop(grace=0.0)
            raise

    def wait_ready(self, timeout: float = 90.0) -> None:
        """Return once every worker and coordinator has answered and every process is up, or once ``stop`` was called.

        Raises:
            FleetFailed: a process keeps ending, or one did not answer within ``timeout`` seconds.
        """
        waiting = {one.program.node: one for one in self.processes if one.program.node}
        deadline = time.monotonic() + timeout
        while not self._stopping.is_set() and not self._signaled:
            for one in self.processes:
                if one.deaths >= START_TRIES:
                    raise FleetFailed(
                        f"{one.name} ended {one.deaths} times while it was starting. "
                        f"The end of its log ({one.log}):\n{one.log_tail()}"
                    )
            for node in self._ping(sorted(filter(None, waiting))):
                waiting.pop(node, None)
            if not waiting and all(one.settled for one in self.processes):
                self.ready = True
                return
            if time.monotonic() > deadline:
                silent = list(waiting.values()) or [one for one in self.processes if not one.settled]
                raise FleetFailed(
                    f"After {timeout:g} s there is no answer from {', '.join(one.name for one in silent)}. "
                    f"The end of the log of {silent[0].name} ({silent[0].log}):\n{silent[0].log_tail()}"
                )

    def stop(self, grace: float | None = None) -> None:
        """End everything: ask, wait ``grace`` seconds, kill what is left with all that it started. Never raises."""
        grace = self.grace if grace is None else grace
        self._stopping.set()
        self._end(self.processes, grace)
        # Valkey last: the others hand their attempts back through it.
        if self._valkey is not None:
            self._end([self._valkey], max(grace, 1.0))
            self.home.retract()
        self.processes, self._valkey = [], None
        if self._log_rotator is not None:
            self._ended.set()
            self._log_rotator.join()
            self._log_rotator = None
        self.home.unlock()

    def run(self, timeout: float = 90.0) -> int:
        """Keep the fleet in the foreground until Ctrl-C, SIGTERM or SIGHUP; a second hands back now, a third kills.

        Returns: 0 after a stop that was asked for; 1 if the fleet did not come up.
        Raises: FleetRunning, FleetFailed (from ``start``).
        """
        # A signal handler only sets a flag and writes a byte: it could find the lock of a threading.Event taken by the
        # thread that it interrupted.
        inbox, outbox = os.pipe()

        def note(number: int, frame: FrameType | None) -> None:
            self._signaled = True
            os.write(outbox, b"!")

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # An ignored signal stays ignored: under nohup the fleet outlives its terminal.
        before = {n: signal.signal(n, note) for n in numbers if signal.getsignal(n) is not signal.SIG_IGN}
        failures: list[str] = []
        stopper = threading.Thread(target=self._stop_and_tell, args=(outbox,), name="stopper", daemon=True)

        def await_ready() -> None:
            try:
                self.wait_ready(timeout)
                if self.ready:
                    self._say(self.welcome())
            except FleetFailed as error:
                failures.append(str(error))
                os.write(outbox, b"x")

        try:
            self._say(f"Starting {self.size} …")
            self.start()
            awaiter = threading.Thread(target=await_ready, name="await-ready", daemon=True)
            awaiter.start()
            os.read(inbox, 1)
            for failure in failures:
                self._say(failure)
            drain, now = self.settings.drain_grace, self.settings.stop_within(at_once=True)
            self._say(
                f"Stopping: what runs has {drain:g} s to end, and is then handed back. Ctrl-C again does that now."
            )
            stopper.start()
            killer = threading.Timer(now, self._kill)
            killer.daemon = True
            while (byte := os.read(inbox, 1)) != b".":
                if byte == b"!" and killer.ident is None:
                    self._say(f"Handing back; what has not ended in {now:g} s is killed. Ctrl-C again kills it now.")
                    killer.start()
                    for process in self.processes:
                        process.stop()  # a worker that gets a second SIGTERM hands back at once
                elif byte == b"!":
                    self._kill()
            killer.cancel()
            stopper.join()
            awaiter.join()
            self._say("Stopped. Jobs that were running go on when a fleet is up again.")
        finally:
            # Also after an error: the processes are asked to end before the kernel would kill them.
            if stopper.ident is None:
                self.stop()
            else:
                stopper.join()
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(inbox)
            os.close(outbox)
        return 1 if failures else 0

    def welcome(self) -> str:
        """What a person wants to know once it is ready: the line to submit with names what no other terminal knows."""
        url = maybe_sanitize_url(self._url)
        found = self._valkey is not None and self.home.path == Home().path  # by discover_redis_url()
        prefix = "" if found else f"UNSTUCK_REDIS_URL={url} "
        if self.settings.warehouse != str(Path("warehouse").resolve()):
            prefix += f"UNSTUCK_WAREHOUSE={shlex.quote(self.settings.warehouse)} "
        return "\n".join(
            (
                f"Ready: {self.size}, on {url}",
                f"  submit     {prefix}unstuck submit SPEC --wait   (in another terminal, from this folder)",
                f"  logs       {self.logs}",
                f"  warehouse  {self.settings.warehouse}",
                "  Ctrl-C stops everything.",
            )
        )

    def _supervise(self, program: Program, pass_fds: Sequence[int] = ()) -> SupervisedProcess:
        process = SupervisedProcess(program, self.home.log(program.name), self._say, self._log_limit, pass_fds)
        process.start()
        return process

    def _redis_is_ready(self) -> bool:
        """Wait until it answers; False if a signal said to end meanwhile.

        Raises:
            FleetFailed: it does not answer, or the embedded one does not come up.
        """
        url = maybe_sanitize_url(self._url)
        deadline = time.monotonic() + self._await_redis_for
        said = False
        while (state := server_state(self._url)) is not ServerState.READY:
            if self._signaled:
                return False
            if state is ServerState.LOADING:
                # No limit: a server with a large file would otherwise never come up again.
                deadline = time.monotonic() + self._await_redis_for
                if not said:
                    self._say(f"The Redis at {url} is loading its data; the fleet starts after that. Ctrl-C ends it.")
                said = True
            elif self._valkey is None:
                raise FleetFailed(f"No Redis answers at {url}. Start it, or unset UNSTUCK_REDIS_URL to use Valkey.")
            elif self._valkey.deaths >= START_TRIES or time.monotonic() > deadline:
                raise FleetFailed(
                    f"The embedded Valkey does not answer at {url}. "
                    f"The end of its log ({self._valkey.log}):\n{self._valkey.log_tail()}"
                )
            time.sleep(0.05)  # a server that is not there yet cannot be waited on
        return not self._signaled

    def _ping(self, nodes: list[str]) -> list[str]:
        """Those of these Celery nodes that answer within half a second."""
        from celery import Celery
        from kombu.exceptions import OperationalError

        if not nodes:
            self._stopping.wait(0.05)
            return []
        ours = {"global_keyprefix": Keys(self.settings.prefix).broker}
        app = Celery("unstuck.up", broker=broker_url(self._url), broker_transport_options=ours, set_as_current=False)
        try:
            with app.connection_for_write() as connection:
                replies = app.control.ping(destination=nodes, timeout=0.5, connection=connection)
        except (OperationalError, RedisError, OSError):
            self._stopping.wait(0.2)  # Valkey is being started again, or the fleet ended
            return []
        return [name for reply in replies for name in reply]

    def _end(self, processes: Sequence[SupervisedProcess], grace: float) -> None:
        for process in processes:
            process.stop()
        deadline = time.monotonic() + grace
        for process in processes:
            # A worker limits its own stop, but a worker that is frozen (SIGSTOP) does not: never wait without a limit.
            if not process.gone(deadline - time.monotonic()):
                for pid in process.kill():
                    self._say(f"{process.name}: pid {pid} could not be ended; see to it with: kill -9 {pid}")

    def _rotate_logs(self) -> None:
        reported: dict[str, str] = {}  # the last error of each process, said once
        while not self._ended.wait(self._rotate_every):
            for process in (*self.processes, *filter(None, [self._valkey])):
                try:
                    process.rotate_log()
                except OSError as error:
                    if reported.get(process.name) != str(error):
                        reported[process.name] = str(error)
                        self._say(f"{process.name}: its log may grow too large, since it cannot be rotated: {error}")

    def _kill(self) -> None:
        for process in self.processes:
            process.kill()

    def _stop_and_tell(self, outbox: int) -> None:
        try:
            self.stop()
        finally:
            os.write(outbox, b".")
