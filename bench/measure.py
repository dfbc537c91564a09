"""What is measured: wall time, CPU seconds of every process, and the median and spread of several
rounds.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil


@dataclass
class Sample:
    """One round of one system in one case.

    Args:
        seconds: wall time of the whole round.
        units: how many groups, tasks or hops the round had.
        cpu: CPU seconds by role, user and system together: ``worker`` is its main process, see
            ``role_of``.
        extra: other figures, by name with their unit.
    """

    seconds: float = 0.0
    units: int = 1
    cpu: dict[str, float] = field(default_factory=dict)
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds per unit, of all processes together."""
        return 1000 * sum(self.cpu.values()) / self.units


@contextmanager
def measured(processes: dict[str, psutil.Process], units: int) -> Iterator[Sample]:
    """Measure the block: wall time, and the CPU time of the named process trees.

    A child that ends inside the block is counted by its parent, which reaps it.
    """
    sample = Sample(units=units)
    before = cpu_by_role(processes)
    started = time.perf_counter()
    yield sample
    sample.seconds = time.perf_counter() - started
    after = cpu_by_role(processes)
    sample.cpu = {role: round(after[role] - before[role], 3) for role in after | before}


def cpu_by_role(processes: dict[str, psutil.Process]) -> Counter[str]:
    """CPU seconds of the named process trees, with the children that they reaped, apart by role
    (``role_of``).
    """
    found: Counter[str] = Counter()
    for name, root in processes.items():
        for process in (root, *root.children(recursive=True)):
            try:
                role, times = role_of(process, name, root), process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            found[role] += times.user + times.system + times.children_user + times.children_system
    return found


def role_of(process: psutil.Process, name: str, root: psutil.Process) -> str:
    """The tree's name for its root. Below a worker there are ``runners``, their ``watchdogs``, and
    JVMs.

    Raises: psutil.NoSuchProcess.
    """
    if process == root or not name.startswith("worker"):
        return name
    if any("unstuck.tasks.watchdog" in part for part in process.cmdline()):
        return "watchdogs"
    return "JVMs" if process.name() == "java" else "runners"


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest value of several rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 2) -> str:
        if self.low == self.high:
            return f"{self.median:,.{digits}f}"
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f} to {self.high:,.{digits}f})"


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that ``percent`` of the values do not exceed."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]
