"""What is measured: wall time, CPU seconds of every process, and the median and spread of several rounds."""

from __future__ import annotations

import statistics
import time
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
        cpu: CPU seconds by process name, user and system together.
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
    before = {name: tree_cpu(process) for name, process in processes.items()}
    started = time.perf_counter()
    yield sample
    sample.seconds = time.perf_counter() - started
    sample.cpu = {name: round(tree_cpu(process) - before[name], 3) for name, process in processes.items()}


def tree_cpu(root: psutil.Process) -> float:
    """CPU seconds of a process, its living descendants, and the ones that they reaped."""
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


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
