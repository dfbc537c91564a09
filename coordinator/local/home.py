"""The home of a local fleet: one folder with its lock, its address, its logs and its Valkey's data.

A home says who runs in it and where that fleet can be reached. It must never be shared by two fleets at a time:
the lock is the kernel's (``flock``), so it cannot outlive the processes that hold it.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
from contextlib import suppress
from enum import Enum
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from unstuck.coordinator.errors import FleetRunning
from unstuck.tasks.settings import Settings

DEFAULT_HOME = Path(".unstuck")
_PORTS = range(20_000, 32_000)


class Home:
    """One folder, made on first use.

    Args:
        path: the folder; ``.unstuck`` in the current folder if None.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = Path(path or DEFAULT_HOME).expanduser().resolve()
        self._lock: int | None = None

    @property
    def valkey(self) -> Path:
        """The folder of the embedded server's data."""
        return self.path / "valkey"

    @property
    def url_file(self) -> Path:
        """Where other terminals read the address of the running fleet."""
        return self.path / "redis.url"

    def log(self, name: str) -> Path:
        """The log file of one process of the fleet."""
        return self.path / "log" / f"{name}.log"

    def lock(self) -> int:
        """Take the home for this process; returns the file descriptor that holds the lock.

        The guard inherits the descriptor, so that the home stays locked until a killed fleet is cleared away.

        Raises:
            FleetRunning: another process holds it; the sentence names its pid.
        """
        for folder in (self.valkey, self.path / "log"):
            folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path / "up.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(lock, 32).decode(errors="replace").strip()
            os.close(lock)
            raise FleetRunning(self._who(pid)) from None
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        self._lock = lock
        return lock

    def _who(self, pid: str) -> str:
        if pid.isdigit() and _exists(int(pid)):
            return (
                f"A fleet runs in {self.path} already (pid {pid}). Use it from this folder, stop it with "
                f"'kill {pid}', or start another one with --home."
            )
        return f"The fleet killed in {self.path} (pid {pid or 'unknown'}) is being cleared away; try again in a moment."

    def unlock(self) -> None:
        """Give the home back. The lock file stays: removing it would let two processes lock two files."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def port(self) -> int:
        """A port for the embedded server: the one of last time while it is free, so that open terminals go on."""
        remembered = self.valkey / "port"
        with suppress(OSError, ValueError):
            port = int(remembered.read_text())
            if _bindable(port):
                return port
        port = free_port()
        remembered.write_text(f"{port}\n")
        return port

    def announce(self, url: str) -> None:
        """Write the address of the fleet for other terminals, whole or not at all."""
        draft = self.url_file.with_suffix(".new")
        draft.write_text(f"{url}\n")
        draft.replace(self.url_file)

    def retract(self) -> None:
        """The fleet is gone: its address must not be found any more."""
        self.url_file.unlink(missing_ok=True)

    def address(self) -> str | None:
        """The address of the fleet that runs here, or None. A stale file (a killed fleet) counts as none."""
        try:
            url = self.url_file.read_text().strip()
        except OSError:
            return None
        return url if url and answers(url) else None


def discover_redis_url(home: Path | str | None = None) -> str:
    """The Redis to talk to: ``UNSTUCK_REDIS_URL``, else the local fleet of this folder, else the default.

    Args:
        home: the home of the local fleet; ``.unstuck`` in the current folder if None.

    Raises:
        pydantic.ValidationError: a setting is wrong, the address among them.
    """
    settings = Settings()
    if "redis_url" in settings.model_fields_set:
        return settings.redis_url
    return Home(home).address() or settings.redis_url


class Answer(Enum):
    """What a Redis or Valkey says when it is asked."""

    READY = "ready"
    LOADING = "loading"  # it reads its data from disk, which takes minutes where they are large
    NONE = "none"  # within the time it was given, or a refusal


def answers(url: str, timeout: float = 1.0) -> bool:
    """True if a Redis or Valkey that has loaded its data answers there within ``timeout`` seconds."""
    return ask(url, timeout) is Answer.READY


def ask(url: str, timeout: float = 1.0) -> Answer:
    """What the Redis or Valkey there answers within ``timeout`` seconds."""
    with redis.Redis.from_url(
        url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=Retry(NoBackoff(), 0)
    ) as client:
        try:
            return Answer.READY if client.ping() else Answer.NONE
        except redis.BusyLoadingError:
            return Answer.LOADING
        except redis.RedisError:
            return Answer.NONE


def free_port() -> int:
    """A port on the loopback address that nobody listens at, for a server that is to start again at the same one.

    None of those that systems give to outgoing connections (from 32768 on Linux, from 49152 elsewhere): while a server
    of such a port is away, a client that tries it again and again may be given that very port, and be connected with
    itself; the server then cannot come back.

    Raises:
        OSError: none of 1,000 ports could be bound.
    """
    for port in random.sample(_PORTS, 1000):
        if _bindable(port):
            return port
    raise OSError(f"no port of {_PORTS.start} to {_PORTS.stop - 1} is free on 127.0.0.1")


def _bindable(port: int) -> bool:
    """True if nobody else has this port on the loopback address."""
    with socket.socket() as sock:
        # As Valkey does: connections of the last run that linger in TIME_WAIT do not count.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
