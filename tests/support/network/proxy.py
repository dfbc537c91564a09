"""A TCP proxy in front of a Redis, for tests that need a connection which breaks, or is open and
carries nothing.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from contextlib import suppress


class Proxy:
    """Passes bytes on, both ways, until a connection is muted: then it stays open, and everything
    is swallowed.

    That is what a firewall does which has forgotten an idle connection.

    Attributes:
        lost: how many replies ``lose`` has lost.
    """

    def __init__(self, port: int) -> None:
        """``port``: of the server on this machine."""
        self.lost = 0
        self._part, self._silent, self._random = 0.0, False, random.Random(0)
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
        """Mute all connections of now over which ``word`` was ever sent to the server. Returns how
        many.

        ``after``: bytes that the server may still say on each.
        """
        found = [line for line in list(self._lines) if word in line.words and not line.ended]
        for line in found:
            line.last_words = after
            line.muted = True
        return len(found)

    def lose(self, part: float, *, silent: bool) -> None:
        """From now on lose this part of all replies, with the connections on which they were to
        come.

        ``silent``: such a connection stays open, muted; else it is closed.
        """
        self._part, self._silent = part, silent

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
                line = _Line(
                    client, socket.create_connection(("127.0.0.1", self._to)), self._closes
                )
                self._lines.append(line)
                line.start()  # known before a word goes through, so that `mute` finds it

    def _closes(self, line: _Line) -> bool:
        """Perhaps lose the reply that has come for ``line``; True if ``line`` is to be closed for
        it.
        """
        if line.muted or self._random.random() >= self._part:
            return False
        self.lost += 1
        line.muted = True
        return not self._silent


class _Line:
    """One connection through the proxy. ``closes``: asked before each reply; True: the reply and
    the line are lost.
    """

    def __init__(
        self, client: socket.socket, server: socket.socket, closes: Callable[[_Line], bool]
    ) -> None:
        self._closes = closes
        self.muted = False
        self.last_words = 0
        self.ended = False
        self.words: set[bytes] = set()
        self._sockets = (client, server)
        self._pumps = [
            threading.Thread(target=self._pump, args=(client, server, True), daemon=True),
            threading.Thread(target=self._pump, args=(server, client, False), daemon=True),
        ]

    def start(self) -> None:
        for pump in self._pumps:
            pump.start()

    def _pump(self, source: socket.socket, target: socket.socket, asking: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if asking:
                    self.words.update(data.upper().split())
                if not asking and self._closes(self):
                    break
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
