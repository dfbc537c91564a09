"""The local fleet behind ``unstuck up``: Valkey, workers, coordinators, a beat and the page.

They are the ordinary programs of a real fleet, as children of one process, which starts,
supervises and stops them. All state is in Valkey and in the warehouse, so every process, this one
included, can be killed at any time.
"""

from __future__ import annotations

import os
import queue
import shlex
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from unstuck.coordinator.errors import FleetFailed
from unstuck.local.fleet_logs import Console, rotate
from unstuck.local.home import Home, free_port, ping
from unstuck.local.process import Program, SupervisedProcess
from unstuck.local.programs import Size, page, program_list, valkey
from unstuck.local.source import SourceWatch
from unstuck.tasks.protocol.keys import CONTROL_QUEUE, Keys
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.processes import ProcessRegistry
from unstuck.tasks.redis_url import has_password, without_password
from unstuck.tasks.settings import Settings
from unstuck.tasks.transport.redis_client import connect

DEFAULT_SIZE = Size()
PAGE_PORT = 8620  # or another one, if this is taken
# Ends of a process in a row, before the fleet is ready, after which the start has failed.
START_TRIES = 3
# Seconds within which an embedded Valkey must answer, or report that it loads its data.
VALKEY_TIMEOUT = 20.0
LOG_LIMIT = 20_000_000  # bytes of a log; a larger one is rotated to NAME.log.1
SCAN_INTERVAL_S = 0.5  # between two scans of the source of steps
SIGNAL_WITHIN = 0.5  # seconds until a signal is noticed that did not interrupt the wait
ROTATE_EVERY = 1.0  # seconds between two checks of the sizes of the logs


class LocalFleet:
    """A fleet on this machine.

    ``run()`` keeps it in the foreground. ``with LocalFleet() as fleet`` starts and stops it.

    Args:
        home: the folder of its logs and of Valkey's data; by default ``.unstuck`` in this folder.
        redis_url: the Redis to use; by default ``UNSTUCK_REDIS_URL``, or an embedded Valkey.
        grace: seconds between SIGTERM and SIGKILL; by default more than a worker needs to hand
            back.
        say: receives each line for the user; by default standard output.
        programs: the programs to run instead of the Celery programs.
        reload: restart a worker when the code of steps that it ran changes below the working
            folder, or in a folder of PYTHONPATH.
        web: serve the page of the fleet.
    """

    def __init__(
        self,
        size: Size = DEFAULT_SIZE,
        home: Path | str | None = None,
        redis_url: str | None = None,
        *,
        grace: float | None = None,
        say: Callable[[str], None] | None = None,
        programs: Sequence[Program] | None = None,
        reload: bool = False,
        web: bool = False,
    ) -> None:
        self.size = size
        self.home = Home(home)
        self.settings = Settings(redis_url=redis_url) if redis_url else Settings()
        self.grace = self.settings.stop_within() + 5.0 if grace is None else grace
        self.processes: list[SupervisedProcess] = []
        self.redis_url = ""  # set once the Redis has been started
        self._given_url = (
            self.settings.redis_url if "redis_url" in self.settings.model_fields_set else None
        )
        self._programs = programs
        self._reload = reload
        self._page_port = 0 if web else None
        self._say = Console(self.home.logs / "up.log", say, self.settings.log)
        # Reentrant: a signal handler would wait forever for the lock of an Event that its own
        # thread holds.
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._valkey: SupervisedProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and return. `wait_ready` waits until it can be used.

        Raises:
            FleetRunning: another fleet runs in this home.
            FleetFailed: there is no server program, or the server does not start.
        """
        lock = self.home.lock()
        self._say.keeps = True
        try:
            threading.Thread(target=self._rotate_logs, name="rotate-logs", daemon=True).start()
            if self._given_url:
                self.redis_url = self._given_url
            else:
                port = self.home.port()
                # Any account of this host can connect to the loopback address.
                self.redis_url = f"redis://:{self.home.password()}@127.0.0.1:{port}/0"
                # Valkey holds the lock of the home too, so no second server ever opens its data.
                self._valkey = self._supervise(
                    valkey(self.home.valkey, port, self.home.config), pass_fds=[lock]
                )
            if not self._redis_is_ready():
                return
            if self._valkey is not None:
                self.home.announce(self.redis_url)
            suffix = f"-{os.getpid()}" if self._given_url else ""
            programs = self._programs
            if programs is None:
                programs = program_list(self.size, self.redis_url, self.settings, suffix)
            if self._page_port is not None:
                self._page_port = free_port(PAGE_PORT)
                programs = [
                    *programs,
                    page(self._page_port, self.home.web_token(), self.redis_url, self.settings),
                ]
            # Later changes concern files that workers do not import.
            source = self._source() if self._reload else None
            for program in programs:
                self.processes.append(self._supervise(program))
            if source is not None:
                threading.Thread(
                    target=self._restart_changed, args=(source,), name="reload", daemon=True
                ).start()
        except BaseException:
            self.stop(grace=0.0)
            raise

    def wait_ready(self, timeout: float = 90.0) -> bool:
        """Wait until every process has answered. Returns False after a signal.

        Raises:
            FleetFailed: a process keeps ending, or did not answer within ``timeout`` seconds.
        """
        silent = {
            process.program.node: process for process in self.processes if process.program.node
        }
        deadline = time.monotonic() + timeout
        while self._signals.empty():
            for process in self.processes:
                if process.deaths >= START_TRIES:
                    raise FleetFailed(
                        f"{process.name} ended {process.deaths} times while it was starting. "
                        f"The end of its log ({process.log}):\n{process.log_tail()}"
                    )
            for node in self._ping(sorted(silent)):
                silent.pop(node, None)
            waited_for = [
                *silent.values(),
                *(process for process in self.processes if not process.up),
            ]
            if not waited_for:
                return True
            if time.monotonic() > deadline:
                names, first = (
                    ", ".join(dict.fromkeys(process.name for process in waited_for)),
                    waited_for[0],
                )
                raise FleetFailed(
                    f"There is no answer from {names} after {timeout:g} s. "
                    f"The end of the log of {first.name} ({first.log}):\n{first.log_tail()}"
                )
        return False

    def stop(self, grace: float | None = None) -> None:
        """Stop everything: send SIGTERM, wait ``grace`` seconds, and kill the remaining processes.

        Never raises.
        """
        grace = self.grace if grace is None else grace
        self._end(self.processes, grace)
        # Valkey last: the others hand their attempts back through it.
        if self._valkey is not None:
            self._end([self._valkey], max(grace, 1.0))
            self.home.retract()
        self.processes, self._valkey = [], None
        self._stopped.set()
        self.home.unlock()

    def run(self) -> int:
        """Keep the fleet in the foreground until Ctrl-C, SIGTERM or SIGHUP.

        A second signal hands running attempts back at once, a third kills all processes.

        Returns: 0 after a stop; 1 if the fleet did not start.
        Raises: FleetRunning, FleetFailed (from ``start``).
        """
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # An ignored signal stays ignored: under nohup the fleet outlives its terminal.
        handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        before = {
            number: signal.signal(number, lambda *_: self._signals.put(None)) for number in handled
        }
        failed = False
        try:
            self._say(f"Starting {self.size} …")
            self.start()
            try:
                if self.wait_ready():
                    self._say(self.welcome())
                self._wait_for_a_signal()
            except FleetFailed as error:
                failed = True
                self._say(str(error))
            self._say(
                f"Stopping: running attempts have {self.settings.drain_grace:g} s to end, and are "
                "then handed back. Ctrl-C again hands them back now."
            )
            self.stop()
            self._say("Stopped. Running jobs continue when a fleet is up again.")
        finally:
            # Also after an error: the processes are asked to end before the kernel would kill them.
            self.stop()
            for number, handler in before.items():
                signal.signal(number, handler)
        return int(failed)

    def _wait_for_a_signal(self) -> None:
        """Return once a signal has requested the stop.

        The wait has a timeout. The kernel may deliver a signal to another thread; Python then
        handles it in this one, but only when this one runs again, and a wait without a timeout is
        not interrupted.
        """
        while True:
            with suppress(queue.Empty):
                return self._signals.get(timeout=SIGNAL_WITHIN)

    def welcome(self) -> str:
        """Return the greeting. Its submit command has all that other terminals do not know."""
        url = self.redis_url
        # So that `with_local_fleet` finds it.
        discoverable = self._valkey is not None and self.home.path == Home().path
        secret = self._valkey is None and has_password(url)  # it is not printed; the user knows it
        reach = (
            self.home.reach if self._valkey is not None else f"UNSTUCK_REDIS_URL={shlex.quote(url)}"
        )
        prefix = "" if discoverable or secret else f"{reach} "
        where = ", and with this UNSTUCK_REDIS_URL" if secret and not discoverable else ""
        if self.settings.warehouse != str(Path("warehouse").resolve()):
            prefix += f"UNSTUCK_WAREHOUSE={shlex.quote(self.settings.warehouse)} "
        return "\n".join(
            (
                f"Ready: {self.size}, on {without_password(url)}",
                (
                    f"  submit     {prefix}unstuck submit SPEC --wait   (in another terminal, from "
                    f"this folder{where})"
                ),
                *(
                    [f"  reach      export {self.home.reach}   (workers, flower, apps)"]
                    if self._valkey
                    else []
                ),
                *([f"  page       {self._page()}"] if self._page_port else []),
                f"  logs       {self.home.logs}",
                f"  warehouse  {self.settings.warehouse}",
                "  Ctrl-C stops everything.",
            )
        )

    def _page(self) -> str:
        url = f"http://127.0.0.1:{self._page_port}/"
        return f"{url}   (this file logs you in: {self.home.login_file(url).as_uri()})"

    def _supervise(self, program: Program, pass_fds: Sequence[int] = ()) -> SupervisedProcess:
        process = SupervisedProcess(
            program, self.home.logs / f"{program.name}.log", self._say, pass_fds
        )
        process.start()
        return process

    def _redis_is_ready(self) -> bool:
        """Wait until Redis answers. Returns False after a signal.

        Raises:
            FleetFailed: it does not answer, or the embedded server does not start.
        """
        url = without_password(self.redis_url)
        deadline = time.monotonic() + VALKEY_TIMEOUT
        loading = False
        while self._signals.empty():
            try:
                ping(self.redis_url)
                return True
            except redis.BusyLoadingError:
                # No limit: a server with a large file would otherwise never come up again.
                deadline = time.monotonic() + VALKEY_TIMEOUT
                if not loading:
                    self._say(
                        f"The Redis at {url} is loading its data; the fleet starts after that. "
                        "Ctrl-C ends it."
                    )
                loading = True
            except redis.RedisError:
                if self._valkey is None:
                    why = (
                        f"No Redis answers at {url}. Start it, or unset UNSTUCK_REDIS_URL to "
                        "use "
                        "Valkey."
                    )
                    raise FleetFailed(why) from None
                if self._valkey.deaths >= START_TRIES or time.monotonic() > deadline:
                    raise FleetFailed(
                        f"The embedded Valkey does not answer at {url}. "
                        f"The end of its log ({self._valkey.log}):\n{self._valkey.log_tail()}"
                    ) from None
            time.sleep(0.05)  # there is nothing to wait on before the server listens
        return False

    @cached_property
    def _celery(self) -> Any:
        from unstuck.tasks.transport.celery_app import celery_app  # slow to import

        app = celery_app(
            "unstuck.up",
            (CONTROL_QUEUE,),
            self.settings.model_copy(update={"redis_url": self.redis_url}),
        )
        # A server that hangs must not keep the main thread, which ends the fleet at a signal.
        app.conf.broker_transport_options |= {"socket_timeout": 1.0, "socket_connect_timeout": 1.0}
        return app

    def _ping(self, nodes: list[str]) -> list[str]:
        """Return the Celery nodes of ``nodes`` that answer within half a second."""
        from kombu.exceptions import OperationalError

        if not nodes:
            time.sleep(0.05)
            return []
        try:
            with self._celery.connection_for_write() as connection:
                replies = self._celery.control.ping(
                    destination=nodes, timeout=0.5, connection=connection
                )
        except (OperationalError, redis.RedisError, OSError):
            time.sleep(0.2)  # Valkey is being started again, or the fleet ended
            return []
        return [name for reply in replies for name in reply]

    def _end(self, processes: Sequence[SupervisedProcess], grace: float) -> None:
        """Send SIGTERM to all processes, and kill those that do not end in time.

        A first signal shortens that time, a second ends it.
        """
        deadline = time.monotonic() + grace
        for process in processes:
            process.stop()
        hurried = False
        # A worker limits its own stop, but a worker that is frozen (SIGSTOP) does not: never wait
        # without a limit.
        while not all(process.gone for process in processes) and time.monotonic() < deadline:
            try:
                self._signals.get(timeout=0.05)
            except queue.Empty:
                continue
            if hurried:
                break
            hurried, now = True, self.settings.stop_within(at_once=True)
            self._say(
                f"Handing back; processes that do not end in {now:g} s are killed. Ctrl-C again "
                "kills them now."
            )
            deadline = min(deadline, time.monotonic() + now)
            for process in processes:
                process.stop()  # a worker that gets a second SIGTERM hands back at once
        for process in processes:
            for pid in [] if process.gone else process.kill():
                self._say(f"{process.name}: pid {pid} could not be killed. Try: kill -9 {pid}")

    def _source(self) -> SourceWatch:
        """Watch the folders in which workers find the code of steps, without installed packages."""
        folders = [
            os.getcwd(),
            *filter(os.path.isdir, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
        ]
        return SourceWatch(
            dict.fromkeys(folders), without=(self.home.path, self.settings.warehouse)
        )

    def _restart_changed(self, source: SourceWatch) -> None:
        """Restart workers whenever the source of steps that they ran has changed.

        Others need no restart: a runner that loaded a changed file is replaced before it takes
        work.
        """
        while not self._stopped.wait(SCAN_INTERVAL_S):
            if changed := source.changed():
                self._restart_workers({path: source.packages_of(path) for path in changed})

    def _restart_workers(self, packages: Mapping[str, set[str]]) -> None:
        """Restart the workers that ran steps of changed files. ``packages``: of each file."""
        code = self._code_of_workers()
        changed_packages = set[str]().union(*packages.values())
        workers = [process for process in self.processes if code[process.pid] & changed_packages]
        if not workers:
            return
        ran = set[str]().union(*(code[worker.pid] for worker in workers))
        files = [os.path.relpath(path) for path, names in packages.items() if names & ran]
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        self._say(
            f"{files[0]}{more} changed: restarting {', '.join(worker.name for worker in workers)}. "
            f"Running attempts have {self.settings.drain_grace:g} s to end, and are then handed "
            "back."
        )
        for worker in workers:
            worker.restart()

    def _code_of_workers(self) -> defaultdict[int | None, set[str]]:
        """Return the packages whose steps each worker ran, by pid; empty if Redis is away."""
        code = defaultdict[int | None, set[str]](set)
        with suppress(redis.RedisError), connect(self.redis_url) as client:
            for process in ProcessRegistry(client, Keys(self.settings.prefix)).read():
                if isinstance(process, RunnerInfo) and process.host == os.uname().nodename:
                    code[process.worker_pid] |= process.code.keys()
        return code

    def _rotate_logs(self) -> None:
        while not self._stopped.wait(ROTATE_EVERY):
            for log in self.home.logs.glob("*.log"):
                with suppress(OSError):  # removed, or tried again at the next check
                    rotate(log, LOG_LIMIT)
