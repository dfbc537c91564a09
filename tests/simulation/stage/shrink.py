"""A history that breaks a promise, shrunk: fewer jobs, fewer commands, fewer things that go wrong.

Whatever is left out is left out by its number, and the dice are thrown all the same: up to the
first thing that did not happen, the history is the one of the seed. What is kept is kept because
the same promise stands without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.stage.history import WHOLE, HistoryResult, Part, simulate

RUNS = 300  # histories that are played at most to shrink one


@dataclass(frozen=True, slots=True)
class Shrunk:
    """What is left of a history, and how it ends."""

    seed: int
    part: Part
    whole: HistoryResult
    result: HistoryResult
    runs: int
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)  # what is left, of how many

    def explained(self) -> str:
        """For a person: what is left, and all of its steps."""
        left = ", ".join(f"{few} of {many} {name}" for name, (few, many) in self.counts.items())
        lines = "\n".join(f"    {line}" for line in self.result.trace)
        return (
            f"seed {self.seed}, shrunk ({left}; {self.runs} histories were played for it):\n"
            f"  {self.result.text}\n  All {len(self.result.trace)} steps:\n{lines}\n"
            f"  Replay it with: {self.result.command} --shrink {self.seed}\n"
        )


def shrink(
    seed: int,
    runs: int = RUNS,
    history: Callable[..., HistoryResult] = simulate,
    **how: Any,
) -> Shrunk | None:
    """The history of ``seed`` with as little in it as breaks the same promise; None if it breaks
    none.

    Args:
        runs: how many histories may be played.
        history: plays it.
        how: as for ``history``.
    """
    whole = history(seed, **how)
    if whole.kept:
        return None
    played = 1

    def breaks(part: Part) -> bool:
        nonlocal played
        played += 1
        return history(seed, part=part, **how).promise == whole.promise

    part = WHOLE
    for name in ("requests", "jobs", "faults", "requests"):
        every = getattr(part, name)
        if every is None:
            every = frozenset(range(1, getattr(whole, name) + 1))
        part = _fewest(part, name, every, breaks, lambda: played < runs)
    result = history(seed, part=part, keep_all=True, **how)
    left = {name: len(getattr(part, name)) for name in ("jobs", "requests", "faults")}
    names = {"jobs": "jobs", "requests": "commands", "faults": "faults"}
    counts = {names[name]: (few, getattr(whole, name)) for name, few in left.items()}
    return Shrunk(seed, part, whole, result, played, counts)


def _fewest(
    part: Part,
    name: str,
    kept: frozenset[int],
    breaks: Callable[[Part], bool],
    more: Callable[[], bool],
) -> Part:
    """Leave out what can be left out of ``kept``: halves first, then quarters, in the end one by
    one.
    """
    if kept and more() and breaks(found := replace(part, **{name: frozenset()})):
        return found
    size = max(1, len(kept) // 2)
    while more():
        left_out = False
        numbers = sorted(kept)
        for first in range(0, len(numbers), size):
            fewer = kept - set(numbers[first : first + size])
            if len(fewer) < len(kept) and more() and breaks(replace(part, **{name: fewer})):
                kept, left_out = fewer, True
        if size == 1 and not left_out:
            break
        if not left_out:
            size = max(1, size // 2)
    return replace(part, **{name: kept})


def explained(result: HistoryResult) -> str:
    """What a person needs to see of a failing seed."""
    lines = "\n".join(f"    {line}" for line in result.trace)
    return (
        f"seed {result.seed} broke a promise.\n  {result.text}\n  The last {len(result.trace)} "
        f"steps:\n{lines}\n"
        f"  Replay it with: {result.command} --trace {result.seed}\n"
    )
