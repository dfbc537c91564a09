"""Share between the runners of a worker whether its host can run Spark."""

from __future__ import annotations

import fcntl
import mmap
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from unstuck.tasks.process.anonymous_file import anonymous_file

# The time of the last change, the bytes of the fault, and whether an Arrow function was tried.
_HEAD = struct.Struct("dH?")
_SIZE = 2048


@dataclass(frozen=True, slots=True)
class HostState:
    """What the runners of a worker know about their host.

    Attributes:
        changed_at: monotonic seconds of this host when ``fault`` was recorded; 0 if never.
        fault: why the host cannot run Spark; empty if nothing is wrong.
        arrow_tried: whether a runner has begun to try an Arrow function.
    """

    changed_at: float = 0.0
    fault: str = ""
    arrow_tried: bool = False


class SharedHostState:
    """The state of this host, in memory that forked runners share.

    A file lock makes each change atomic. The kernel releases the lock of a process that dies.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """Create the state. ``descriptor``: of the shared file; None: one process has the state."""
        self.descriptor = descriptor
        self._memory = mmap.mmap(-1 if descriptor is None else descriptor, _SIZE)

    @classmethod
    def create(cls) -> SharedHostState:
        """Create a state that children of this process share. Raises: OSError."""
        return cls(anonymous_file("unstuck-host-state", _SIZE))

    @property
    def is_shared(self) -> bool:
        """Whether the runners of a worker share this state."""
        return self.descriptor is not None

    def read(self) -> HostState:
        """Return the current state."""
        with self._locked():
            return self._load()

    def record(self, fault: str) -> None:
        """Record a fault of this host."""
        with self._locked():
            self._store(replace(self._load(), changed_at=time.monotonic(), fault=fault))

    def clear(self, checked: HostState) -> str:
        """Record that nothing is wrong, unless another runner recorded a result meanwhile.

        Args:
            checked: the state when the check of the host began.

        Returns: the fault that is on record now; empty if none.
        """
        with self._locked():
            state = self._load()
            if state.changed_at == checked.changed_at:
                self._store(replace(state, changed_at=time.monotonic(), fault=""))
                return ""
            return state.fault

    def begin_arrow_trial(self) -> bool:
        """Return True to the first runner that asks, which then tries an Arrow function."""
        with self._locked():
            state = self._load()
            self._store(replace(state, arrow_tried=True))
            return not state.arrow_tried

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self.descriptor is None:
            yield
            return
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    def _load(self) -> HostState:
        changed_at, length, arrow_tried = _HEAD.unpack_from(self._memory)
        fault = self._memory[_HEAD.size : _HEAD.size + length].decode(errors="replace")
        return HostState(changed_at, fault, arrow_tried)

    def _store(self, state: HostState) -> None:
        data = state.fault.encode(errors="replace")[: _SIZE - _HEAD.size]
        self._memory[_HEAD.size : _HEAD.size + len(data)] = data
        _HEAD.pack_into(self._memory, 0, state.changed_at, len(data), state.arrow_tried)
