"""Read the id of the warehouse that a process sees, from time to time, in a thread.

It finds runners and coordinators that see different folders under one path before a job fails.
Nobody waits for a read, since one of a dead mount may hang.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from unstuck.tasks.protocol.process_info import WarehouseSeen
from unstuck.tasks.settings import Settings
from unstuck.tasks.warehouse.log import Warehouse

EVERY = 60.0  # seconds from the end of one read to the next
# The same, while there is no warehouse: the first submit makes one, and people ask right after it.
EVERY_NONE = 5.0
ANSWERS_WITHIN = 10.0  # seconds after which a read that has not ended is itself the answer


class WarehouseProbe:
    """Reads the warehouse of UNSTUCK_WAREHOUSE if it is a folder.

    An object store is not mounted, and reading it would cost each process a client. ``clock``
    returns monotonic seconds.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._uri = settings.warehouse if "warehouse" in settings.model_fields_set else None
        self._folder = self._uri is not None and (
            "://" not in self._uri or self._uri.startswith("file:")
        )
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._began = 0.0
        self._ended: float | None = None
        # ``looked_at`` is by the clock of this process; None: no read has ended.
        self._last = WarehouseSeen(self._uri)

    def seen(self, at: float) -> WarehouseSeen:
        """Return the warehouse as last seen, and start a new read if it is due.

        Never waits and never raises.

        Args:
            at: the time by the clock of Redis, in seconds.
        """
        if self._uri is None or not self._folder:
            return self._last
        now = self._clock()
        if self._thread is not None and self._thread.is_alive():
            if now - self._began > ANSWERS_WITHIN:
                return WarehouseSeen(self._uri, trouble=f"no answer for {now - self._began:.0f}s")
        elif self._is_due(now):
            self._begin(self._uri, now)
        if self._last.looked_at is None:
            return self._last
        return replace(self._last, looked_at=at - (now - self._last.looked_at))

    def _is_due(self, now: float) -> bool:
        every = EVERY_NONE if self._last.id == "" else EVERY
        return self._ended is None or now - self._ended >= every

    def _begin(self, uri: str, now: float) -> None:
        self._began = now
        try:
            self._thread = threading.Thread(
                target=self._read, args=(uri,), name="probe", daemon=True
            )
            self._thread.start()
        except RuntimeError as error:  # no more threads: tried again with the next question
            self._thread = None
            self._last = WarehouseSeen(uri, trouble=str(error), looked_at=now)

    def _read(self, uri: str) -> None:
        began = self._began
        try:
            self._last = WarehouseSeen(uri, Warehouse(uri).identity() or "", looked_at=began)
        except (OSError, ValueError) as error:
            self._last = WarehouseSeen(
                uri, trouble=f"{type(error).__name__}: {error}", looked_at=began
            )
        finally:
            self._ended = self._clock()
