"""The screen: a live table of who lives and what is done to whom; plain lines where there is no
terminal.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tests.chaos.driver.faults import Injected
from tests.chaos.driver.fleet import ChaosFleet
from tests.chaos.driver.load import Load
from tests.chaos.driver.watch import Watch


class Screen:
    """What the driver shows. ``quiet``: nothing at all, for ``--json``."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=quiet)
        self._quiet = quiet
        self._began = time.monotonic()
        self._live: Live | None = None
        self._last: deque[str] = deque(maxlen=8)
        self._shown: dict[str, Injected] = {}
        self._mutex = threading.Lock()

    def __enter__(self) -> Screen:
        if not self._quiet and self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, line: str) -> None:
        """One thing that happened."""
        stamped = f"{time.monotonic() - self._began:6.1f}  {line}"
        with self._mutex:
            self._last.append(stamped)
            if self._live is None and not self._quiet:
                sys.stdout.write(stamped + "\n")
                sys.stdout.flush()

    def dealt(self, injected: Injected) -> None:
        self.say(f"{injected.fault:<18} {injected.victim:<14} {injected.what}")
        self._shown[injected.victim] = injected

    def undone(self, injected: Injected) -> None:
        self.say(f"{injected.fault:<18} {injected.victim:<14} is over")
        if self._shown.get(injected.victim) is injected:
            del self._shown[injected.victim]

    def show(self, fleet: ChaosFleet, load: Load, watch: Watch, left: float) -> None:
        """Draw everything again, where there is a terminal."""
        if self._live is None:
            return
        table = Table("process", "pid", "now", "done to it", box=None, pad_edge=False)
        for name in (*fleet.names, "redis", "app"):
            pid = (
                fleet.server.pid
                if name == "redis"
                else None
                if name == "app"
                else fleet.child(name).pid
            )
            injected = self._shown.get(name)
            state = "[green]up[/]" if pid or name == "app" else "[red]down[/]"
            style = "red" if injected is not None and injected.undo is not None else "dim"
            done = f"[{style}]{injected.what}[/]" if injected else ""
            table.add_row(name, str(pid or ""), state, done)
        head = Text(
            f"{left:4.0f} s left · {len(load.accepted)} submitted · {load.ended} ended · "
            f"{load.open} open · {load.refused} submits repeated · {len(watch.open)} recovering"
        )
        with self._mutex:
            self._live.update(Group(head, table, Text("\n".join(self._last))))
