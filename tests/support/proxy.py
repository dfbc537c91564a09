"""A TCP proxy in front of a Redis, for tests that need a connection which is open and carries nothing any more."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """Passes bytes on, both ways, until a connection is muted: then it stays open, and everything is swallowed.

    That is what a firewall does which has forgotten an idle connection.
    """

    def __init__(self, port: int) -> None:
        """``port``: of the server on this machine."""
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lines: list[_Line] = []
        self._accepting = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._accepting.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def mute(self, word: bytes, *, after: int = 0) -> int:
        """Mute all connections of now over which ``word`` was ever sent to the server. Returns how many.

        ``after``: bytes that the server may still say on each.
        """
        found = [line for line in list(self._lines) if word in line.words and not line.ended]
        for line in found:
            line.last_words = after
            line.muted = True
        return len(found)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        for line in self._lines:
            line.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                self._lines.append(_Line(client, socket.create_connection(("127.0.0.1", self._to))))


class _Line:
    """One connection through the proxy."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.muted = False
        self.last_words = 0
        self.ended = False
        self.words: set[bytes] = set()
        self._sockets = (client, server)
        self._pumps = [
            threading.Thread(target=self._pump, args=(client, server, True), daemon=True),
            threading.Thread(target=self._pump, args=(server, client, False), daemon=True),
        ]
        for pump in self._pumps:
            pump.start()

    def _pump(self, source: socket.socket, target: socket.socket, asking: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if asking:
                    self.words.update(data.upper().split())
                if not self.muted:
                    target.sendall(data)
                elif not asking:
                    target.sendall(data[: self.last_words])
                    self.last_words -= min(self.last_words, len(data))
        self.ended = True
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for pump in self._pumps:
            pump.join()
        for one in self._sockets:
            one.close()
