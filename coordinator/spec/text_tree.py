"""The values of a text as a tree that remembers where each stood, so that a later problem can name line and column.

Knows nothing of YAML, JSON or job specs; it is what their readers build. It holds the bounds on size and depth, so
that no reader can forget them: a small file never becomes a large value.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from unstuck.coordinator.spec.problems import MAX_PROBLEMS, Loc, Problem, SpecError, shorten

MAX_NODES = 500_000  # with every alias counted as what it stands for: the bound on alias bombs
MAX_DEPTH = 40  # well below the depth at which Python's own recursion ends


class Place(NamedTuple):
    """Line and column, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Node:
    """One value and where it stands.

    Attributes:
        keys: for a mapping, where each key stands.
        size: how many values it stands for, itself included and aliases counted in full.
        height: how many levels there are below it.
    """

    value: str | int | float | bool | list[Node] | dict[str, Node] | None
    place: Place
    keys: dict[str, Place] = field(default_factory=dict)
    size: int = 1
    height: int = 0

    @classmethod
    def branch(cls, value: list[Node] | dict[str, Node], place: Place, keys: dict[str, Place] | None = None) -> Node:
        """A list or a mapping of finished nodes."""
        children = value.values() if isinstance(value, dict) else value
        height = 1 + max((child.height for child in children), default=0)
        return cls(value, place, keys or {}, 1 + sum(child.size for child in children), height)


class Tree:
    """A tree in the making: what the readers report to."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self.size = 0

    def refuse(self, message: str, place: Place | None = None, loc: Loc = ()) -> SpecError:
        """The error that ends the reading at once, with all that was found before."""
        return SpecError([*self.problems, Problem(message, loc, False, self.source, *(place or (None, None)))])

    def note(self, message: str, place: Place, loc: Loc) -> None:
        """A problem that does not keep the rest from being read, unless there are very many."""
        if len(self.problems) >= MAX_PROBLEMS:
            raise self.refuse("more problems follow; the reading ends here", place)
        self.problems.append(Problem(message, loc, False, self.source, *place))

    def count(self, place: Place, loc: Loc, size: int = 1, height: int = 0) -> None:
        """Account for ``size`` more values at ``loc``, of which the deepest is ``height`` levels below it.

        Raises:
            SpecError: too many, or too deep.
        """
        self.size += size
        if self.size > MAX_NODES:
            raise self.refuse(f"more than {MAX_NODES:,} values, with aliases counted as what they stand for", place)
        if len(loc) + height > MAX_DEPTH:
            raise self.refuse(f"nested more than {MAX_DEPTH} levels deep", place)

    def take_key(self, key: str, place: Place, keys: dict[str, Place], loc: Loc) -> None:
        """Enter ``key`` of the mapping at ``loc``; the first of two equal keys is kept."""
        if key in keys:
            self.note(
                f"{shorten(key)} stands twice in one mapping, first on line {keys[key].line}; keep one",
                place,
                (*loc, key),
            )
        else:
            keys[key] = place


@dataclass(frozen=True, slots=True)
class Reading:
    """A text that was read: its values, and the way back from a value to its place."""

    source: str
    root: Node
    problems: tuple[Problem, ...] = ()

    def data(self) -> Any:
        """Plain values: text, numbers, true, false, None, lists and dicts."""
        return _plain(self.root, {})

    def located(self, problem: Problem) -> Problem:
        """``problem`` with the line and column of its place, or of the nearest place around it that is written."""
        node, place = self.root, self.root.place
        for depth, part in enumerate(problem.loc, start=1):
            child = None
            if isinstance(part, str) and isinstance(node.value, dict):
                child = node.value.get(part)
            elif isinstance(part, int) and isinstance(node.value, list) and part < len(node.value):
                child = node.value[part]
            if child is None:
                break
            place = child.place
            if problem.on_key and depth == len(problem.loc):
                place = node.keys.get(str(part), place)  # a key that `<<` brought in has no place here
            node = child
        return replace(problem, source=self.source, line=place.line, column=place.column)


def _plain(node: Node, done: dict[int, Any]) -> Any:
    """Plain values of ``node``; what several aliases stand for is built once and shared."""
    value = node.value
    if not isinstance(value, dict | list):
        return value
    if id(value) not in done:
        if isinstance(value, dict):
            done[id(value)] = {key: _plain(child, done) for key, child in value.items()}
        else:
            done[id(value)] = [_plain(child, done) for child in value]
    return done[id(value)]
