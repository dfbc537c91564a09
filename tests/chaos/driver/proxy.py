"""The proxy: a TCP link per process between the fleet and Redis, that can be cut, held,
half-opened, or lose replies.

It never looks into what it carries. A fault is only ever one that TCP allows: bytes may stop, or
the connection may end, but a connection that has lost bytes is never used again.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
CHUNK = 65536


class ProxiedConnection:
    """One client of a link, and the connection to the server that was made for it."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client, self.server = client, server
        self.drops_replies = False  # what the server says is dropped
        self.half_open = False  # the server's side is gone, and the client is not told
        self.lost = 0  # bytes that were dropped

    def abort(self) -> None:
        for writer in (self.client, self.server):
            _reset(writer)


class Link:
    """One process's way to the server.

    Its faults are called through ``ChaosProxy``, in the proxy's thread.
    """

    def __init__(self, name: str, target: int) -> None:
        self.name = name
        self.port = 0
        self._target = target
        self._connections: set[ProxiedConnection] = set()
        self._drops_replies = False
        self._up, self._down = asyncio.Event(), asyncio.Event()  # requests pass; replies pass
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        self.hold(False)
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # The faults.

    def cut(self) -> int:
        """Reset every connection. Returns how many."""
        for connection in self._connections:
            connection.abort()
        return len(self._connections)

    def drop_replies(self, on: bool) -> int:
        """Requests arrive and replies do not; off: connections that lost a byte are reset.

        Returns how many.
        """
        self._drops_replies = on
        for connection in self._connections:
            connection.drops_replies = on
            if not on and connection.lost:
                connection.abort()
        return len(self._connections)

    def half_open(self) -> int:
        """The server's side of every connection ends, and the client never hears of it: a host that
        went away.

        It stays so for these connections for ever; new ones work.
        """
        for connection in self._connections:
            connection.half_open = True
            _reset(connection.server)
        return len(self._connections)

    def hold(self, on: bool) -> int:
        """Nothing passes either way, and new connections hang too; off: all of it goes on, nothing
        was lost.
        """
        for event in (self._up, self._down):
            _turn(event, not on)
        return len(self._connections)

    def hold_requests(self, on: bool) -> int:
        """What was asked before is answered, and nothing more can be asked; off: it is asked."""
        _turn(self._up, not on)
        return len(self._connections)

    # What it carries.

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._up.wait()
            back, forth = await asyncio.open_connection("127.0.0.1", self._target)
        except (OSError, asyncio.CancelledError):
            _reset(writer)  # as a server that is down does
            self._tasks.discard(task)
            return
        connection = ProxiedConnection(writer, forth)
        connection.drops_replies = self._drops_replies
        self._connections.add(connection)
        replies = asyncio.create_task(self._replies(connection, back))
        try:
            await self._requests(connection, reader)
        except (OSError, asyncio.CancelledError):
            connection.half_open = False
        finally:
            replies.cancel()
            connection.abort()
            self._connections.discard(connection)
            self._tasks.discard(task)

    async def _requests(self, connection: ProxiedConnection, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            await self._up.wait()
            if not connection.half_open:
                try:
                    connection.server.write(data)
                    await connection.server.drain()
                except OSError:
                    if not connection.half_open:
                        raise

    async def _replies(self, connection: ProxiedConnection, back: asyncio.StreamReader) -> None:
        try:
            while data := await back.read(CHUNK):
                await self._down.wait()
                if connection.drops_replies:
                    connection.lost += len(data)
                elif connection.lost:
                    break
                else:
                    connection.client.write(data)
                    await connection.client.drain()
        except OSError:
            pass  # the end of a connection, however it comes, is handled below
        if not connection.half_open:
            _reset(connection.client)


class ChaosProxy:
    """The links, in a thread of their own. ``with ChaosProxy(port) as proxy: port =
    proxy.link("spark-1").port``.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self.links: dict[str, Link] = {}

    def __enter__(self) -> ChaosProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for link in self.links.values():
            self._await(link.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def link(self, name: str) -> Link:
        """A new link to the server."""
        link = Link(name, self._target)
        self._await(link.listen())
        self.links[name] = link
        return link

    def do(self, fault: Callable[[], T]) -> T:
        """Call a fault of a link where its connections live."""

        async def call() -> T:
            return fault()

        return self._await(call())

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _turn(event: asyncio.Event, on: bool) -> None:
    if on:
        event.set()
    else:
        event.clear()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST: no farewell, nothing flushed."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        with suppress(OSError):  # it is closed already
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
