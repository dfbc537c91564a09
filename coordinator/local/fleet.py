"""The local fleet behind ``unstuck up``: Valkey, workers, coordinators and a beat, as children of one process.

The children are the ordinary Celery programs that a real fleet runs; this file only starts, keeps and ends them.
It must never hold state of its own: all of it is in Valkey and in the warehouse, so that any of these processes,
this one included, can be killed at any time.
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

import psutil
from kombu.utils.url import maybe_sanitize_url
from redis import RedisError

from unstuck.coordinator.errors import FleetFailed, FleetRunning
from unstuck.coordinator.local.console import Voice, to_stdout
from unstuck.coordinator.local.home import Answer, Home, ask, discover_redis_url
from unstuck.coordinator.local.log_rotation import LOG_LIMIT
from unstuck.coordinator.local.process import Child, Command
from unstuck.coordinator.local.programs import Size, crew, valkey
from unstuck.coordinator.local.reaper import Guard
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.settings import Settings
from unstuck.tasks.transport.redis_client import broker_url

__all__ = ["FleetFailed", "FleetRunning", "LocalFleet", "Size", "crew", "discover_redis_url", "valkey"]

HOPELESS = 3  # deaths in a row, before the fleet was ever ready, after which starting it makes no sense


class LocalFleet:
    """A fleet on this machine. ``run()`` keeps it in the foreground; ``with LocalFleet() as fleet`` starts and ends it.

    Args:
        workers, coordinators, light, slots, light_slots, queues: see ``Size``.
        home: where logs and Valkey's data are kept; ``.unstuck`` in the current folder if None.
        redis_url: the Redis to use; ``UNSTUCK_REDIS_URL`` if None; an embedded Valkey if that is unset too.
        grace: seconds from asking a process to end until it is killed; if None, more than a worker needs to hand back.
        say: takes each line for the person at the terminal.
        commands: what to run instead of the Celery programs.
        await_redis: seconds within which an embedded Valkey must answer. One that is loading has all the time it needs.
        log_limit: bytes of each log; a larger one is put aside as NAME.log.1.
        look: seconds between two looks at the sizes of the logs.

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
        commands: Sequence[Command] | None = None,
        await_redis: float = 20.0,
        log_limit: int = LOG_LIMIT,
        look: float = 1.0,
    ) -> None:
        self.size = Size(workers, coordinators, light, slots, light_slots, tuple(queues))
        self.home = Home(home)
        self.settings = Settings()
        self.grace = self.settings.stop_within() + 5.0 if grace is None else grace
        self.children: list[Child] = []
        self.ready = False
        self._stopping = threading.Event()
        self._given_url = redis_url or os.environ.get("UNSTUCK_REDIS_URL")
        self._commands = commands
        self._await_redis_for, self._log_limit, self._look = await_redis, log_limit, look
        self._say = Voice(self.home.log("up"), say or to_stdout, log_limit)
        self._told = False  # by a signal; no Event, whose lock a handler could find taken by its own thread
        self._ended = threading.Event()
        self._looker: threading.Thread | None = None
        self._valkey: Child | None = None
        self._guard: Guard | None = None
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
            self._guard = Guard(lock, self.home.log("guard"), self._say)
            self._looker = threading.Thread(target=self._look_after, name="look-after", daemon=True)
            self._looker.start()
            if self._given_url:
                self._url = self._given_url
            else:
                port = self.home.port()
                self._url = f"redis://127.0.0.1:{port}/0"
                self._valkey = self._keep(valkey(self.home.valkey, port))
            if not self._redis_is_ready():
                return
            if self._valkey is not None:
                self.home.announce(self._url)
            suffix = f"-{os.getpid()}" if self._given_url else ""
            commands = self._commands
            for command in crew(self.size, self._url, self.settings, suffix) if commands is None else commands:
                self.children.append(self._keep(command))
        except BaseException:
            self.stop(grace=0.0)
            raise

    def wait_ready(self, timeout: float = 90.0) -> None:
        """Return once every worker and coordinator has answered and every process is up, or once ``stop`` was called.

        Raises:
            FleetFailed: a process keeps ending, or one did not answer within ``timeout`` seconds.
        """
        waiting = {child.command.node: child for child in self.children if child.command.node}
        deadline = time.monotonic() + timeout
        while not self._stopping.is_set() and not self._told:
            for child in self.children:
                if child.deaths >= HOPELESS:
                    raise FleetFailed(
                        f"{child.name} ended {child.deaths} times while it was starting. "
                        f"The end of its log ({child.log}):\n{child.last_words()}"
                    )
            for node in self._ping(sorted(filter(None, waiting))):
                waiting.pop(node, None)
            if not waiting and all(child.settled for child in self.children):
                self.ready = True
                return
            if time.monotonic() > deadline:
                silent = list(waiting.values()) or [child for child in self.children if not child.settled]
                raise FleetFailed(
                    f"After {timeout:g} s there is no answer from {', '.join(child.name for child in silent)}. "
                    f"The end of the log of {silent[0].name} ({silent[0].log}):\n{silent[0].last_words()}"
                )

    def stop(self, grace: float | None = None) -> None:
        """End everything: ask, wait ``grace`` seconds, kill what is left with all that it started. Never raises."""
        grace = self.grace if grace is None else grace
        self._stopping.set()
        self._end(self.children, grace)
        # Valkey last: the others hand their attempts back through it.
        if self._valkey is not None:
            self._end([self._valkey], max(grace, 1.0))
            self.home.retract()
        self.children, self._valkey = [], None
        if self._looker is not None:
            self._ended.set()
            self._looker.join()
            self._looker = None
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None
        self.home.unlock()

    def run(self, timeout: float = 90.0) -> int:
        """Keep the fleet in the foreground until Ctrl-C, SIGTERM or SIGHUP; a second hands back now, a third kills.

        Returns: 0 after a stop that was asked for; 1 if the fleet did not come up.
        Raises: FleetRunning, FleetFailed (from ``start``).
        """
        # Signal handlers only set a flag and write a byte: a handler that set a threading.Event could find its lock
        # taken by the very thread it interrupted.
        inbox, outbox = os.pipe()

        def note(number: int, frame: FrameType | None) -> None:
            self._told = True
            os.write(outbox, b"!")

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # One that is ignored stays so: nohup means that the fleet outlives its terminal.
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
            while (told := os.read(inbox, 1)) != b".":
                if told == b"!" and killer.ident is None:
                    self._say(f"Handing back; what has not ended in {now:g} s is killed. Ctrl-C again kills it now.")
                    killer.start()
                    for child in self.children:
                        child.stop()  # a worker that is told twice hands back at once
                elif told == b"!":
                    self._kill()
            killer.cancel()
            stopper.join()
            awaiter.join()
            self._say("Stopped. Jobs that were running go on when a fleet is up again.")
        finally:
            # Whatever went wrong above: what runs is asked to end, and not left to the guard, which kills.
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

    def _keep(self, command: Command) -> Child:
        assert self._guard is not None
        child = Child(command, self.home.log(command.name), self._guard, self._say, self._log_limit)
        child.start()
        return child

    def _redis_is_ready(self) -> bool:
        """Wait until it answers; False if a signal said to end meanwhile.

        Raises:
            FleetFailed: it does not answer, or the embedded one does not come up.
        """
        url = maybe_sanitize_url(self._url)
        deadline = time.monotonic() + self._await_redis_for
        said = False
        while (answer := ask(self._url)) is not Answer.READY:
            if self._told:
                return False
            if answer is Answer.LOADING:
                # It lives, and what it reads may be large: no limit, or a large file could never be brought up again.
                deadline = time.monotonic() + self._await_redis_for
                if not said:
                    self._say(f"The Redis at {url} is loading its data; the fleet starts after that. Ctrl-C ends it.")
                said = True
            elif self._valkey is None:
                raise FleetFailed(f"No Redis answers at {url}. Start it, or unset UNSTUCK_REDIS_URL to use Valkey.")
            elif self._valkey.deaths >= HOPELESS or time.monotonic() > deadline:
                raise FleetFailed(
                    f"The embedded Valkey does not answer at {url}. "
                    f"The end of its log ({self._valkey.log}):\n{self._valkey.last_words()}"
                )
            time.sleep(0.05)  # a server that is not there yet cannot be waited on
        return not self._told

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

    def _end(self, children: Sequence[Child], grace: float) -> None:
        for child in children:
            child.stop()
        deadline = time.monotonic() + grace
        for child in children:
            # A worker has a limit of its own, which does not help when it is stopped (SIGSTOP): never wait without one.
            if not child.gone(deadline - time.monotonic()):
                for pid in child.kill():
                    self._say(f"{child.name}: pid {pid} could not be ended; see to it with: kill -9 {pid}")

    def _look_after(self) -> None:
        troubles: dict[str, str] = {}  # by child: what was said of it last
        while not self._ended.wait(self._look):
            for child in (*self.children, *filter(None, [self._valkey])):
                try:
                    child.look_after()
                except (OSError, psutil.Error) as error:
                    if troubles.get(child.name) != str(error):
                        troubles[child.name] = str(error)
                        self._say(f"{child.name}: its log may grow too large, since it cannot be seen to: {error}")

    def _kill(self) -> None:
        for child in self.children:
            child.kill()

    def _stop_and_tell(self, outbox: int) -> None:
        try:
            self.stop()
        finally:
            os.write(outbox, b".")
