"""The server: one Valkey with an append-only file, that is stopped, killed, frozen and started
again on its port.

``appendfsync always``: what it acknowledged stands, also after SIGKILL. With ``everysec``, as
fleets run by default, a crash may take the last second with it, and a submit that was acknowledged
in that second is beyond the promise.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.support.servers import answers, free_port, server_binary, wait_until
from unstuck.local.parent_death import tied


class Server:
    """One Valkey.

    Args:
        folder: of its data and log.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it and return once it has loaded its data and answers."""
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "auto-aof-rewrite-percentage": "0",  # the account of the pools is read from the file
            "maxmemory-policy": "noeviction",
            "logfile": str(self.folder / "valkey.log"),
            # A title is written over the environment, by which the suite's reaper knows it.
            "set-proc-title": "no",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen(tied([server_binary(), *words]), start_new_session=True)
        wait_until(lambda: answers(self.url), 30, "Valkey to answer")

    def end(self, number: signal.Signals) -> None:
        """End it with SIGTERM (it writes what it has) or SIGKILL, and wait."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGCONT)
            self._process.send_signal(number)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
