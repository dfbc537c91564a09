"""The home of a local fleet: one folder with its lock, its address, its logs and its Valkey's data.

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
        """Take the home for this process; returns the file descriptor that holds the lock.

        The embedded Valkey inherits the descriptor, so the home stays locked until the server of a
        killed fleet ends.

        Raises:
            FleetRunning: another process holds it; the sentence names its pid.
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
        """Give the home back. The lock file stays: removing it would let two processes lock two
        files.
        """
        if self._lock is not None:
            # Explicitly: a process that could not be ended may still hold the descriptor.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None

    def port(self) -> int:
        """A port for the embedded server: the one of last time while it is free, so that open
        terminals go on.
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
        """The password of the embedded server: that of last time, so that open terminals go on."""
        words = self.config.read_text().split() if self.config.exists() else []
        if len(words) != 2:
            words = ["requirepass", secrets.token_hex(16)]
            _write_privately(self.config, " ".join(words))
        return words[1]

    def web_token(self) -> Path:
        """The file with the token of the page: that of last time, so that who is logged in stays
        so.
        """
        file = self.path / "web.token"
        if not file.exists():
            _write_privately(file, secrets.token_urlsafe(24))
        return file

    def login_file(self, page: str) -> Path:
        """A file that a browser opens to log in at ``page``: so the token stands on no terminal and
        in no command line.

        After Jupyter, which writes such a file too.
        """
        file = self.path / "page.html"
        token = self.web_token().read_text().strip()
        link = f"{page}login?user={quote(user_here(), safe='')}#{token}"
        go = f'<meta http-equiv="refresh" content="0; url={link}">'
        _write_privately(file, f"<!doctype html>{go}<title>Unstuck</title>")
        return file

    @property
    def config(self) -> Path:
        """The file from which the embedded server reads its password; a command line is shown by
        ``ps``.
        """
        return self.valkey / "password.conf"

    @property
    def reach(self) -> str:
        """The variable that a shell sets to reach the fleet; the password is in the file alone."""
        return f'UNSTUCK_REDIS_URL="$(cat {shlex.quote(str(self._url_file))})"'

    def announce(self, url: str) -> None:
        """Write the address of the fleet for other terminals of this user, whole or not at all."""
        _write_privately(self._url_file, url)

    def retract(self) -> None:
        """The fleet is gone: its address must not be found any more."""
        self._url_file.unlink(missing_ok=True)

    @property
    def address(self) -> str | None:
        """The address of the fleet that was started here and has not ended in good order, or
        None.
        """
        return address_of(self.path)


def _write_privately(path: Path, line: str) -> None:
    """Write or replace a file that no other account of this host may read."""
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{line}\n")
    draft.replace(path)


def ping(url: str) -> None:
    """Return if a Redis or Valkey that has loaded its data answers there within a second.

    Raises:
        redis.BusyLoadingError: it reads its data from disk, which takes minutes where they are
        large. redis.RedisError: no answer, or a refusal.
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
    """True if a process of this host accepts a connection there, on the loopback address."""
    with socket.socket() as sock:
        sock.settimeout(1.0)
        return sock.connect_ex(("127.0.0.1", port)) == 0


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
