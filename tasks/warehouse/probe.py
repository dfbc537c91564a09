"""The lookout: which warehouse a process sees, looked at now and then, and off its path. For people only.

Runners and coordinators that see different folders under one path are found so before a job fails over it. A look may
hang for as long as a dead mount does, so it has a thread of its own, and nobody ever waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from unstuck.tasks.settings import Settings
from unstuck.tasks.warehouse.log import Warehouse

EVERY = 60.0  # seconds from the end of one look to the next
EVERY_NONE = 5.0  # the same, while there is no warehouse: the first submit makes one, and people ask right after it
PATIENCE = 10.0  # seconds after which a look that has not ended is itself what is seen


class Lookout:
    """Looks at the warehouse that this process was set to (UNSTUCK_WAREHOUSE); never changes anything there.

    A process that was not set to any is told the warehouse by each job, and has nothing to look at. Nor has one whose
    warehouse is no folder: an object store is not mounted, and asking it would cost each process a client.
    ``clock`` is monotonic seconds.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._uri = settings.warehouse if "warehouse" in settings.model_fields_set else None
        self._folder = self._uri is not None and ("://" not in self._uri or self._uri.startswith("file:"))
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._began = 0.0
        self._ended: float | None = None
        self._last: dict[str, Any] = {}
        self._last_began = 0.0  # the look that saw it

    def seen(self, at: float) -> dict[str, Any]:
        """What was seen last, and begin a new look if it is time. Never waits and never raises.

        Args:
            at: the time by the clock of the store, in seconds.

        Returns:
            ``warehouse``: the address, if this process was set to one; ``warehouse_id``: empty if there is none at it,
            absent if that is not known; ``warehouse_trouble``: why not, in words; ``warehouse_looked_at``: when that
            look began, by the clock of ``at``.
        """
        if self._uri is None:
            return {}
        if not self._folder:
            return {"warehouse": self._uri}
        now = self._clock()
        if self._thread is not None and self._thread.is_alive():
            waits = now - self._began
            hangs = {"warehouse_trouble": f"no answer for {waits:.0f}s"}
            return self._told(hangs if waits > PATIENCE else self._known(at, now))
        if self._ended is None or now - self._ended >= (EVERY_NONE if self._last.get("warehouse_id") == "" else EVERY):
            self._began = now
            try:
                self._thread = threading.Thread(target=self._look, args=(self._uri,), name="lookout", daemon=True)
                self._thread.start()
            except RuntimeError as error:  # no more threads on this machine: tried again with the next question
                self._thread, self._last = None, {"warehouse_trouble": str(error)}
        return self._told(self._known(at, now))

    def _known(self, at: float, now: float) -> dict[str, Any]:
        """What the last look saw; nothing before the first has ended."""
        return {**self._last, "warehouse_looked_at": at - (now - self._last_began)} if self._last else {}

    def _told(self, what: dict[str, Any]) -> dict[str, Any]:
        return {"warehouse": self._uri, **what}

    def _look(self, uri: str) -> None:
        try:
            self._last = {"warehouse_id": Warehouse(uri).identity() or ""}
        except (OSError, ValueError) as error:
            self._last = {"warehouse_trouble": f"{type(error).__name__}: {error}"}
        finally:
            self._last_began, self._ended = self._began, self._clock()
