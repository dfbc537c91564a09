"""Planted bugs: behavior that is replaced on purpose, and the rule that must detect it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.simulation.stage.history import HistoryResult

MAX_SEEDS = 1000  # histories that one search plays at most
NEAR = 20  # histories from its seed on, in which the default test suite must detect a bug

Simulate = Callable[..., HistoryResult]
Patch = tuple[Any, str, Any]
"""A module or class, the name of its attribute, and the value while the bug is planted."""
MakePatches = Callable[[], list[Patch]]


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """A bug that a simulator must detect.

    Attributes:
        behavior: What the product does while the bug is planted, in one sentence.
        rule: The rule that the bug must break.
        seed: Where the default test suite starts to search: the seed of a short history that
            breaks the rule. If histories change, the seed is updated: ``make mutants`` prints
            others. None for a bug that only ``make mutants`` plants.
        make_patches: Returns new patches. A patch may keep state for the histories of one search.
        simulate: Plays the history of a seed.
    """

    name: str
    behavior: str
    rule: str
    seed: int | None
    make_patches: MakePatches
    simulate: Simulate

    def search(self, start: int, limit: int = MAX_SEEDS) -> HistoryResult | None:
        """Return the first history that breaks the rule, or None after ``limit`` seeds."""
        with self.planted():
            for seed in range(start, start + limit):
                history = self.simulate(seed)
                if history.promise == self.rule:
                    return history
        return None

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant the bug inside the ``with`` block."""
        with ExitStack() as stack:
            for owner, name, value in self.make_patches():
                stack.enter_context(patch.object(owner, name, value))
            yield


class PlantedBugs:
    """The planted bugs of one simulator, in the order of their definition."""

    def __init__(self, simulate: Simulate) -> None:
        self._simulate = simulate
        self._bugs: list[PlantedBug] = []

    def __iter__(self) -> Iterator[PlantedBug]:
        return iter(self._bugs)

    def plant(self, rule: str, *, seed: int | None = None) -> Callable[[MakePatches], PlantedBug]:
        """Register the decorated function, which returns patches, as a planted bug.

        The name of the function is the name of the bug. Its docstring describes the behavior.
        """

        def register(make_patches: MakePatches) -> PlantedBug:
            name = make_patches.__name__.replace("_", " ")
            behavior = make_patches.__doc__ or name
            bug = PlantedBug(name, behavior, rule, seed, make_patches, self._simulate)
            self._bugs.append(bug)
            return bug

        return register
