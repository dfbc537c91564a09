"""Runs the background work of a coordinator on the thread of the caller."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from unstuck.coordinator.publishing.background import Work


class AtOnce:
    """Like ``Background``, without threads. It does not start work that is already running."""

    exhausted = False

    def __init__(self) -> None:
        self._keys: set[Hashable] = set()
        self._mutex = threading.Lock()

    def __call__(self, key: Hashable, place: str, work: Work, *, new_try: bool = False) -> bool:
        with self._mutex:
            if key in self._keys:
                return False
            self._keys.add(key)
        try:
            work(lambda: None)
        finally:
            with self._mutex:
                self._keys.discard(key)
        return False
