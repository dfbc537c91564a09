"""The home of a local fleet: one folder with its lock, its address, its logs and its Valkey data.

Two fleets never share a home. The kernel keeps the lock (``flock``), so the lock ends with the
processes that hold it.
"""

from __future__ import annotations

import fcntl
import os
import random
import secrets
import shlex
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import psutil

from unstuck.coordinator.errors import FleetRunning
from unstuck.coordinator.fleet_address import DEFAULT_HOME, address_file, address_of
from unstuck.tasks.identity import user_here
from unstuck.tasks.transport.redis_client import connect

_PORTS = range(20_000, 32_000)


class Home:
    """One folder, made on first use.

    Args:
        path: the folder; ``.unstuck`` in the current folder if None.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = Path(path or DEFAULT_HOME).expanduser().resolve()
        self.valkey = self.path / "valkey"  # the folder of the embedded server's data
        self.logs = self.path / "log"
        self._url_file = address_file(self.path)
        self._lock: int | None = None

    def lock(self) -> int:
        """Lock the home for this process. Returns the file descriptor that holds the lock.

        The embedded Valkey inherits the descriptor, so the home stays locked until the server of a
        killed fleet ends.

        Raises:
            FleetRunning: another process holds it; the message has its pid.
        """
        for folder in (self.valkey, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        self.valkey.chmod(0o700)  # all specs and parameters are in it
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
        if pid.isdigit() and psutil.pid_exists(int(pid)):
            return (
                f"A fleet runs in {self.path} already (pid {pid}). Use it from this folder, stop "
                f"it with 'kill {pid}', or start another one with --home."
            )
        return (
            f"The fleet in {self.path} (pid {pid or 'unknown'}) was killed, and its Valkey has not "
            "ended yet; try again in a moment."
        )

    def unlock(self) -> None:
        """Unlock the home. The lock file stays: without it, two processes could lock two files."""
        if self._lock is not None:
            # Explicitly: a process that could not be ended may still hold the descriptor.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None

    def port(self) -> int:
        """Return a port for the embedded server: the last one if it is free, so open terminals
        still work.
        """
        remembered = self.valkey / "port"
        with suppress(OSError, ValueError):
            port = int(remembered.read_text())
            if _bindable(port):
                return port
        port = free_port()
        remembered.write_text(f"{port}\n")
        return port

    def password(self) -> str:
        """Return the password of the embedded server, which stays the same."""
        words = self.config.read_text().split() if self.config.exists() else []
        if len(words) != 2:
            words = ["requirepass", secrets.token_hex(16)]
            _write_privately(self.config, " ".join(words))
        return words[1]

    def web_token(self) -> Path:
        """Return the file with the token of the page, which stays the same for open logins."""
        file = self.path / "web.token"
        if not file.exists():
            _write_privately(file, secrets.token_urlsafe(24))
        return file

    def login_file(self, page: str) -> Path:
        """Write a file that logs a browser in at ``page``, so the token is in no command line.

        Jupyter writes such a file too.
        """
        file = self.path / "page.html"
        token = self.web_token().read_text().strip()
        link = f"{page}login?user={quote(user_here(), safe='')}#{token}"
        go = f'<meta http-equiv="refresh" content="0; url={link}">'
        _write_privately(file, f"<!doctype html>{go}<title>Unstuck</title>")
        return file

    @property
    def config(self) -> Path:
        """Write the file with the password of the embedded server: ``ps`` shows command lines."""
        return self.valkey / "password.conf"

    @property
    def reach(self) -> str:
        """Return the environment variable by which a shell connects to the fleet.

        Only the file has the password.
        """
        return f'UNSTUCK_REDIS_URL="$(cat {shlex.quote(str(self._url_file))})"'

    def announce(self, url: str) -> None:
        """Write the address of the fleet for other terminals of this user, atomically."""
        _write_privately(self._url_file, url)

    def retract(self) -> None:
        """Remove the address of the fleet."""
        self._url_file.unlink(missing_ok=True)

    @property
    def address(self) -> str | None:
        """The address of the last fleet here that has not stopped in good order; None if none."""
        return address_of(self.path)


def _write_privately(path: Path, line: str) -> None:
    """Write or replace a file that other accounts of this host cannot read."""
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{line}\n")
    draft.replace(path)


def ping(url: str) -> None:
    """Return if a Redis or Valkey that has loaded its data answers within a second.

    Raises:
        redis.BusyLoadingError: it loads its data from disk, which may take minutes.
        redis.RedisError: no answer, or an error.
    """
    with connect(url, timeout=1.0, repeats=0) as client:
        client.ping()


def free_port(*preferred: int) -> int:
    """Return a free port on the loopback address, for a server that may restart on the same port.

    The first free port of ``preferred`` is returned, if there is one.

    The port is never an ephemeral one (from 32768 on Linux, from 49152 elsewhere). While a server
    on an ephemeral port is down, a client that retries may get that very port for its outgoing
    connection and connect to itself. The server could then not bind the port again.

    Raises:
        OSError: none of 1,000 ports could be bound.
    """
    for port in (*preferred, *random.sample(_PORTS, 1000)):
        if _bindable(port):
            return port
    raise OSError(f"no port of {_PORTS.start} to {_PORTS.stop - 1} is free on 127.0.0.1")


def listens(port: int) -> bool:
    """Return whether a process accepts connections at this port of the loopback address."""
    with socket.socket() as sock:
        sock.settimeout(1.0)
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _bindable(port: int) -> bool:
    """Return whether this port of the loopback address is free."""
    with socket.socket() as sock:
        # As Valkey does: connections of the last run that linger in TIME_WAIT do not count.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
