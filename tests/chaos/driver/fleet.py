"""The fleet under chaos: the ordinary local fleet, each process on a link of its own to a server of
ours.

It starts, finds and ends processes; what is done to them is in ``faults``. On the way out, also by
Ctrl-C or an error, every process is ended by its id; if the driver itself is killed, the kernel
ends them with it.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.chaos.driver.proxy import ChaosProxy
from tests.chaos.driver.server import Server
from tests.support.failpoints import arming
from tests.support.programs.processes import below, command_line
from unstuck import Client, Settings
from unstuck.coordinator.store.job_queries import Queries
from unstuck.local.local_fleet import LocalFleet
from unstuck.local.process import SupervisedProcess
from unstuck.local.programs import Size, program_list
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.transport.redis_client import connect
from unstuck.views.fleet_view import fleet_of

QUICK = {
    "UNSTUCK_LEASE_TTL": "3s",
    "UNSTUCK_LEASE_RENEW": "500ms",
    "UNSTUCK_SWEEP_EVERY": "500ms",
    "UNSTUCK_REPORT_IDLE": "2s",
    "UNSTUCK_LOCK_TTL": "2s",
    "UNSTUCK_DISPATCH_TIMEOUT": "3s",
    "UNSTUCK_CANCEL_GRACE": "2s",
    "UNSTUCK_DRAIN_GRACE": "1s",
}
SPARK = {
    "UNSTUCK_SPARK_MASTER": "local[1]",
    "UNSTUCK_SPARK_PREWARM": "true",
    "UNSTUCK_SPARK_CONF": '{"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}',
}


class ChaosFleet:
    """Two coordinators, a beat, workers with and without Spark, and the server between them.

    Args:
        folder: for all of its files.
        settings: ``UNSTUCK_*`` of every process; the defaults for what is not named.
        say: takes what the supervisor says.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, str], size: Size, say: Callable[[str], None]
    ) -> None:
        self.folder, self.size = folder, size
        self.warehouse = folder / "warehouse"
        self.ran = folder / "ran"
        self.ran.touch()
        self.arms = folder / "arms"
        self.arms.mkdir()
        self._env = {
            **SPARK,
            **settings,
            "UNSTUCK_WAREHOUSE": str(self.warehouse),
            **arming(self.arms),
        }
        self._say = say
        self._stack = ExitStack()

    def __enter__(self) -> ChaosFleet:
        try:
            return self._start()
        except BaseException:
            self._stack.close()
            raise

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> ChaosFleet:
        data = self.folder / "valkey"
        data.mkdir()
        self.server = Server(data)
        self._stack.callback(self.server.end, signal.SIGKILL)
        self.server.start()
        self.proxy = self._stack.enter_context(ChaosProxy(self.server.port))
        # Its own eye, past all links: short waits, no repeats, since the server may be away.
        self.eye = redis.Redis.from_url(
            self.server.url,
            decode_responses=True,
            socket_timeout=0.5,
            socket_connect_timeout=0.5,
            retry=Retry(NoBackoff(), 0),
        )
        self._stack.callback(self.eye.close)
        self.keys = Keys("unstuck")
        self.queries = Queries(self.eye, self.keys)
        self.patient = connect(self.server.url)  # for the ledger: by then the server is there
        self._stack.callback(self.patient.close)
        self.patient_queries = Queries(self.patient, self.keys)
        self.settings = local = Settings(warehouse=str(self.warehouse), **_fields(self._env))
        programs = [
            replace(one, env={**one.env, **self._env, "UNSTUCK_REDIS_URL": self._url(one.name)})
            for one in program_list(self.size, self.server.url, local)
        ]
        self.client = Client(local.model_copy(update={"redis_url": self._url("app")}))
        self._stack.callback(self.client.close)
        self.local = LocalFleet(
            home=self.folder / "home",
            redis_url=self.server.url,
            programs=programs,
            grace=3.0,
            say=self._say,
        )
        self._stack.callback(self.local.stop)
        self.local.start()
        return self

    def ready(self, timeout: float = 180.0) -> None:
        """Raises: FleetFailed: not every process is up in time."""
        self.local.wait_ready(timeout)

    def whole(self) -> bool:
        """Every runner and every coordinator of the processes that run now has described itself,
        and lately.
        """
        seen = fleet_of(self.eye, self.keys, 15.0)
        runners = Counter(one.worker_pid for one in seen.runners if not one.silent)
        coordinators = {one.pid for one in seen.coordinators if not one.silent}
        slots = {
            name: self.size.slots if name.startswith("spark-") else self.size.light_slots
            for name in self.workers
        }
        return all(self.child(name).steady for name in self.names) and (
            all(runners[self.child(name).pid or 0] >= number for name, number in slots.items())
            and all(self.child(name).pid in coordinators for name in self.coordinators)
        )

    def _url(self, name: str) -> str:
        return f"redis://127.0.0.1:{self.proxy.link(name).port}/0"

    # Who is there.

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.local.processes]

    @property
    def workers(self) -> list[str]:
        return [name for name in self.names if name.startswith(("spark-", "light-"))]

    @property
    def queues(self) -> list[str]:
        """The queues on which its workers listen."""
        return ["light", "spark"]

    @property
    def coordinators(self) -> list[str]:
        return [name for name in self.names if name.startswith("coordinator-")]

    def child(self, name: str) -> SupervisedProcess:
        return next(one for one in self.local.processes if one.name == name)

    def main(self, name: str) -> psutil.Process | None:
        """The process of this name; None while it is down."""
        pid = self.child(name).pid
        try:
            return None if pid is None else psutil.Process(pid)
        except psutil.NoSuchProcess:
            return None

    def tree(self, name: str) -> list[psutil.Process]:
        """The process and all that lives below it; none for a link without a process, the app's."""
        main = self.main(name) if name in self.names else None
        try:
            return [] if main is None else [main, *below(main)]
        except psutil.NoSuchProcess:
            return []

    def runners(self, name: str) -> list[psutil.Process]:
        """The prefork children of a worker."""
        main = self.main(name)
        try:
            found = [] if main is None else main.children()
        except psutil.NoSuchProcess:
            return []
        return [
            one
            for one in found
            if (line := command_line(one)) and "unstuck.tasks.watchdog" not in line
        ]

    def watchdogs(self, name: str) -> list[psutil.Process]:
        return [one for one in self.tree(name) if "unstuck.tasks.watchdog" in command_line(one)]


def _fields(env: Mapping[str, str]) -> dict[str, Any]:
    """The settings in ``env`` as the constructor of Settings takes them; not what is JSON, which no
    client needs.
    """
    left_out = ("UNSTUCK_SPARK_CONF", "UNSTUCK_WAREHOUSE")
    return {
        name.removeprefix("UNSTUCK_").lower(): value
        for name, value in env.items()
        if name.startswith("UNSTUCK_") and name not in left_out
    }


def plain(line: str) -> None:
    """One line for people."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
