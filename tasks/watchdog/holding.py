"""Share memory between a runner, which writes its state, and its watchdog, which reads it.

It costs no system call, so a short attempt costs the watchdog nothing. What was written stays when
the runner dies.
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
class Holding:
    """The state of a runner and its attempt. Times are epoch seconds, those of clocks monotonic.

    Attributes:
        token: the attempt that the runner holds; None: none.
        since: when it claimed that attempt, or the last one; 0: it has claimed none.
        idle: since when it holds none.
        taken: when it last took a wake-up, whatever came of it; 0: never.
        log: the file of the attempt's log on this machine.
        clocks: the times that run out, by code.
        progress: the last progress (JSON).
        stages: what Spark runs (JSON), as it was at ``stages_at``.
        remark: what is added to the report if the runner dies in this attempt.
        code: digests of the packages whose steps it has run.
        secrets: those that the attempt was given, by variable; None: they have no room here.
        unfit: why it takes no Spark work; empty if it does.
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
        """Serialize into half of the memory at most.

        Without room, secrets and stages are left out, then progress and code; texts are cut.

        The reader is a process of the same Python, so `marshal` will do, which takes a third of the
        time of JSON.
        """
        clocks = [(c.code, c.seconds, c.began, c.step, c.index) for c in self.clocks.values()]
        data = marshal.dumps([*{**vars(self), "clocks": clocks}.values()])
        if len(data) <= _HALF - _HEAD:
            return data
        if self.secrets or self.stages:
            return replace(self, secrets=None, stages="").to_bytes()
        cut = {name: replace(clock, step=clock.step[:500]) for name, clock in self.clocks.items()}
        short = Holding(
            self.token, self.since, self.idle, self.taken, self.log, cut, remark=self.remark[:500]
        )
        return replace(short, unfit=self.unfit[:500], secrets=None).to_bytes()

    @classmethod
    def parse(cls, data: bytes) -> Holding:
        if not data:
            return cls()
        values = dict(zip(_FIELDS, marshal.loads(data), strict=True))
        values["clocks"] = {clock[0]: Clock(*clock) for clock in values["clocks"]}
        return cls(**values)


_FIELDS = tuple(attribute.name for attribute in fields(Holding))


class SharedHolding:
    """The shared memory. One of its two halves is complete at any moment.

    The first byte says which half is the last that is whole.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, 1 + 2 * _HALF)
        self._read: tuple[bytes, Holding] = (b"", Holding())

    @classmethod
    def create(cls) -> SharedHolding:
        """Raises: OSError: there is no room or no descriptor for it."""
        return cls(anonymous_file("unstuck-holding", 1 + 2 * _HALF))

    def write(self, holding: Holding) -> None:
        """For one thread of one process at a time."""
        data = holding.to_bytes()
        half = 1 - self._memory[0]
        at = 1 + half * _HALF
        self._memory[at + _HEAD : at + _HEAD + len(data)] = data
        self._memory[at : at + _HEAD] = len(data).to_bytes(4) + zlib.crc32(data).to_bytes(4)
        self._memory[0] = half

    def read(self) -> Holding:
        """The state that was written last.

        Raises:
            ValueError: neither half holds what a runner writes: something else wrote to this
                memory.
        """
        for _ in range(
            1000
        ):  # a look may meet a writer that has overtaken it, once for each time it was not let run
            at = 1 + self._memory[0] * _HALF
            head = self._memory[at : at + _HEAD]
            length = int.from_bytes(head[:4])
            if head == self._read[0]:
                return self._read[1]
            data = self._memory[at + _HEAD : at + _HEAD + length]
            if zlib.crc32(data).to_bytes(4) == head[4:]:
                self._read = (head, Holding.parse(data))
                return self._read[1]
        raise ValueError(
            "the memory that the runner shares with its watchdog holds no text of the runner's"
        )
