"""The state of a runner, in memory that it shares with its watchdog.

The runner writes it and the watchdog reads it, without a system call. The memory outlives the
runner, so the watchdog can report the attempt of a dead runner.
"""

from __future__ import annotations

import marshal
import mmap
import zlib
from dataclasses import dataclass, field, fields, replace

from unstuck.tasks.process.anonymous_file import anonymous_file
from unstuck.tasks.watchdog.policy import Clock

_HALF = 1 << 16  # bytes
_HEAD = 8  # bytes before the text of a half: its length and its checksum


@dataclass
class RunnerState:
    """The state of a runner and its attempt. Times are epoch seconds, except in ``clocks``.

    Attributes:
        token: attempt that the runner has claimed; None without one.
        since: when it claimed that attempt, or the last one; 0 if it never claimed one.
        idle: since when it has no attempt.
        taken: when it last received a wake-up, even without an offer; 0 if never.
        log: path of the attempt's log on this machine.
        clocks: active timeouts by code, in seconds of the monotonic clock.
        progress: the last progress, as JSON.
        stages: the stages that Spark ran at ``stages_at``, as JSON.
        remark: text to add to the report if the runner dies in this attempt.
        code: digests of the packages whose steps the runner has run.
        secrets: secrets of the attempt, by variable; None if they do not fit into the memory.
        unfit: why the runner takes no Spark work; empty if it does.
    """

    token: str | None = None
    since: float = 0.0
    idle: float = 0.0
    taken: float = 0.0
    log: str | None = None
    clocks: dict[str, Clock] = field(default_factory=dict)
    progress: str = ""
    remark: str = ""
    code: dict[str, str] = field(default_factory=dict)
    unfit: str = ""
    secrets: dict[str, str] | None = field(default_factory=dict)
    stages: str = ""
    stages_at: float = 0.0

    def to_bytes(self) -> bytes:
        """Serialize the state into at most half of the memory.

        A state that does not fit loses its secrets and stages first, then its progress and code,
        and its texts are cut. The reader runs the same Python, so `marshal` is safe; it takes a
        third of the time of JSON.
        """
        clocks = [(c.code, c.seconds, c.began, c.step, c.index) for c in self.clocks.values()]
        data = marshal.dumps([*{**vars(self), "clocks": clocks}.values()])
        if len(data) <= _HALF - _HEAD:
            return data
        if self.secrets or self.stages:
            return replace(self, secrets=None, stages="").to_bytes()
        cut = {name: replace(clock, step=clock.step[:500]) for name, clock in self.clocks.items()}
        short = RunnerState(
            self.token, self.since, self.idle, self.taken, self.log, cut, remark=self.remark[:500]
        )
        return replace(short, unfit=self.unfit[:500], secrets=None).to_bytes()

    @classmethod
    def parse(cls, data: bytes) -> RunnerState:
        if not data:
            return cls()
        values = dict(zip(_FIELDS, marshal.loads(data), strict=True))
        values["clocks"] = {clock[0]: Clock(*clock) for clock in values["clocks"]}
        return cls(**values)


_FIELDS = tuple(attribute.name for attribute in fields(RunnerState))


class SharedRunnerState:
    """Memory with room for two states, of which at least one is complete at any moment.

    The first byte is the number of the half that was written last.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, 1 + 2 * _HALF)
        self._read: tuple[bytes, RunnerState] = (b"", RunnerState())

    @classmethod
    def create(cls) -> SharedRunnerState:
        """Allocate the memory. Raises: OSError: no memory or no descriptor is left."""
        return cls(anonymous_file("unstuck-runner-state", 1 + 2 * _HALF))

    def write(self, state: RunnerState) -> None:
        """Store ``state``. Only one thread of one process may write."""
        data = state.to_bytes()
        half = 1 - self._memory[0]
        at = 1 + half * _HALF
        self._memory[at + _HEAD : at + _HEAD + len(data)] = data
        self._memory[at : at + _HEAD] = len(data).to_bytes(4) + zlib.crc32(data).to_bytes(4)
        self._memory[0] = half

    def read(self) -> RunnerState:
        """Return the state that was written last.

        Raises:
            ValueError: neither half has a valid state, so another program wrote to this memory.
        """
        # A read is repeated each time that the writer overtook this process.
        for _ in range(1000):
            at = 1 + self._memory[0] * _HALF
            head = self._memory[at : at + _HEAD]
            length = int.from_bytes(head[:4])
            if head == self._read[0]:
                return self._read[1]
            data = self._memory[at + _HEAD : at + _HEAD + length]
            if zlib.crc32(data).to_bytes(4) == head[4:]:
                self._read = (head, RunnerState.parse(data))
                return self._read[1]
        raise ValueError(
            "the memory that the runner shares with its watchdog has no valid state of the runner"
        )
