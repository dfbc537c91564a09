"""Lays out a graph in layers from left to right, with few crossings and straight lines (pure).

The steps are those of Sugiyama, Tagawa and Toda (1981): layers, the order within each layer, then
the positions. Positions are the least squares solution under minimum distances, which pooling of
adjacent nodes solves exactly.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import pairwise

GAP_X, GAP_Y = 56.0, 18.0  # between layers, and between boxes of a layer
LINE_Y = 10.0  # between two lines that pass a layer
ORDERINGS, PLACINGS = 12, 16  # sweeps over all layers
SWEPT = 50_000  # lines that all sweeps but the first two process
# Layers that all lines may pass; above it, lines that others imply are left out.
PASSED = 5_000
STRAIGHT = 8.0  # weight of a line that passes a layer; that of a box is 1
JUNCTION = (6.0, 6.0)

Size = tuple[float, float]
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """The upper left corner and the size of a node."""

    x: float
    y: float
    w: float
    h: float


@dataclass(frozen=True, slots=True)
class Edge:
    """One edge.

    A line between the points ``2n`` and ``2n + 1`` crosses a gap; the others pass a layer, level.
    """

    source: str
    target: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """A graph with positions.

    Attributes:
        junctions: boxes at which lines meet that would otherwise connect each pair of nodes.
    """

    width: float
    height: float
    boxes: Mapping[str, Box]
    junctions: Mapping[str, Box]
    lines: tuple[Edge, ...]


@dataclass(slots=True)
class _Node:
    """A node, a junction, or the point at which a long line passes a layer (``passing``)."""

    name: str
    size: Size
    passing: bool = False
    layer: int = 0
    y: float = 0.0
    before: list[_Node] = field(default_factory=list)
    after: list[_Node] = field(default_factory=list)

    @property
    def gap(self) -> float:
        return LINE_Y if self.passing else GAP_Y


def lay_out(sizes: Mapping[str, Size], needs: Mapping[str, Sequence[str]]) -> Layout:
    """Return positions for the nodes in ``sizes``, each to the right of the nodes that it needs.

    The same graph gets the same positions. Raises: CycleError.
    """
    dependencies = {
        name: tuple(dict.fromkeys(n for n in needs.get(name, ()) if n in sizes)) for name in sizes
    }
    nodes = {name: _Node(name, size) for name, size in sizes.items()}
    junctions = _join_lines(dependencies, nodes)
    order = _in_order(dependencies, nodes)
    if sum(node.layer - need.layer - 1 for node in order for need in node.before) > PASSED:
        dependencies = _without_implied(order)
        order = _in_order(dependencies, nodes)
    _spread_unbound(order)
    long_lines = {
        (need.name, node.name): _pass_layers(need, node)
        for node in order
        for need in tuple(node.before)
    }
    layers: list[list[_Node]] = [
        [] for _ in range(1 + max((node.layer for node in order), default=-1))
    ]
    for node in order:
        layers[node.layer].append(node)
    for passed in long_lines.values():
        for node in passed:
            layers[node.layer].append(node)
    layers = _fewest_crossings(layers)
    _place(layers)
    return _drawn(layers, nodes, junctions, long_lines)


def _join_lines(needs: dict[str, tuple[str, ...]], nodes: dict[str, _Node]) -> list[str]:
    """Add a junction between nodes and their common needs, where that takes fewer lines."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, dependencies in needs.items():
        alike.setdefault(dependencies, []).append(name)
    junctions: list[str] = []
    for dependencies, names in alike.items():
        if len(dependencies) * len(names) > len(dependencies) + len(names) + 1:
            junction = f"\0{len(junctions)}"  # not part of a name
            junctions.append(junction)
            nodes[junction] = _Node(junction, JUNCTION)
            needs[junction] = dependencies
            needs.update(dict.fromkeys(names, (junction,)))
    return junctions


def _in_order(needs: Mapping[str, Sequence[str]], nodes: Mapping[str, _Node]) -> list[_Node]:
    """Return the nodes with their lines and layers, each after the nodes that it needs.

    Each is one layer after the last node that it needs, or later if that shortens more lines.
    """
    order = [nodes[name] for name in TopologicalSorter(needs).static_order()]
    for node in order:
        node.before, node.after = [nodes[need] for need in needs[node.name]], []
    for node in order:
        for need in node.before:
            need.after.append(node)
        node.layer = max((need.layer + 1 for need in node.before), default=0)
    for node in reversed(order):
        if len(node.after) > len(node.before):
            node.layer = min(later.layer for later in node.after) - 1
    return order


def _without_implied(order: Sequence[_Node]) -> dict[str, tuple[str, ...]]:
    """Return the needs of each node without those that another need implies."""
    bit = {node.name: 1 << n for n, node in enumerate(order)}
    earlier: dict[str, int] = {}
    for node in order:
        earlier[node.name] = 0
        for need in node.before:
            earlier[node.name] |= earlier[need.name]
        node.before = [need for need in node.before if not earlier[node.name] & bit[need.name]]
        for need in node.before:
            earlier[node.name] |= bit[need.name]
    return {node.name: tuple(need.name for need in node.before) for node in order}


def _spread_unbound(order: Sequence[_Node]) -> None:
    """Put the nodes without lines side by side, not into one long column."""
    unbound = [node for node in order if not node.before and not node.after]
    deepest = max((node.layer for node in order), default=0)
    columns = max(deepest + 1, min(6, math.isqrt(len(unbound))))
    for n, node in enumerate(unbound):
        node.layer = n % columns


def _pass_layers(source: _Node, target: _Node) -> list[_Node]:
    """Add a node to each layer between the two, so that each line ends in the next layer."""
    passed = [
        _Node(f"{source.name}\0{target.name}", (0.0, 0.0), True, layer)
        for layer in range(source.layer + 1, target.layer)
    ]
    if passed:
        chain = [source, *passed, target]
        for n, node in enumerate(passed, 1):
            node.before, node.after = [chain[n - 1]], [chain[n + 1]]
        source.after[source.after.index(target)] = passed[0]
        target.before[target.before.index(source)] = passed[-1]
    return passed


def _fewest_crossings(layers: list[list[_Node]]) -> list[list[_Node]]:
    """Sort each layer by the mean position of the neighbors, from left to right and back."""
    best, fewest = layers, _crossings(layers)
    lines = sum(len(node.after) for layer in layers for node in layer)
    for sweep in range(max(2, min(ORDERINGS, SWEPT // (lines + 1)))):
        if not fewest:
            break
        rightwards = sweep % 2 == 0
        layers = _swept(layers, rightwards)
        if (count := _crossings(layers)) < fewest:
            best, fewest = layers, count
    return best


def _swept(layers: Sequence[list[_Node]], rightwards: bool) -> list[list[_Node]]:
    """Sort each layer, in the direction of the sweep, by the layer that was sorted before it."""
    swept = list(layers)
    for n in range(1, len(swept)) if rightwards else range(len(swept) - 2, -1, -1):
        swept[n] = _by_neighbours(swept[n], swept[n - 1 if rightwards else n + 1], rightwards)
    return swept


def _by_neighbours(
    layer: Sequence[_Node], sorted_layer: Sequence[_Node], rightwards: bool
) -> list[_Node]:
    """Sort ``layer`` by the mean place of the neighbours that each node has in ``sorted_layer``.

    A node without a neighbour there keeps its place; nodes without any line come last.
    """
    places = {id(node): place for place, node in enumerate(sorted_layer)}

    def mean_place(place: int, node: _Node) -> float:
        if not node.before and not node.after:
            return math.inf
        neighbours = node.before if rightwards else node.after
        if not neighbours:
            return place
        return sum(places[id(neighbour)] for neighbour in neighbours) / len(neighbours)

    keys = {id(node): mean_place(place, node) for place, node in enumerate(layer)}
    return sorted(layer, key=lambda node: keys[id(node)])


def _crossings(layers: Sequence[Sequence[_Node]]) -> int:
    count = 0
    for left, right in pairwise(layers):
        places = {id(node): place for place, node in enumerate(right)}
        ends: list[int] = []  # of the lines seen so far, sorted
        for node in left:
            line_ends = sorted(places[id(neighbour)] for neighbour in node.after)
            count += sum(len(ends) - bisect_right(ends, end) for end in line_ends)
            for end in line_ends:
                insort(ends, end)
    return count


def _place(layers: Sequence[Sequence[_Node]]) -> None:
    for layer in layers:
        _place_layer(layer, [node.y for node in layer])
    for sweep in range(PLACINGS):
        rightwards = sweep % 2 == 0
        for layer in layers if rightwards else reversed(layers):
            targets = []
            for node in layer:
                beside = (node.before or node.after) if rightwards else (node.after or node.before)
                middle = sorted(neighbour.y for neighbour in beside)[
                    (len(beside) - 1) // 2 : len(beside) // 2 + 1
                ]
                targets.append(sum(middle) / len(middle) if middle else node.y)
            _place_layer(layer, targets)


def _place_layer(layer: Sequence[_Node], targets: Sequence[float]) -> None:
    """Set the middle of each node as close to ``targets`` as the distances allow."""
    offsets = [0.0]
    for above, below in pairwise(layer):
        offsets.append(
            offsets[-1] + (above.size[1] + below.size[1]) / 2 + max(above.gap, below.gap)
        )
    runs: list[tuple[float, float, int]] = []  # weighted sum, weight and count of nodes that touch
    for node, target, offset in zip(layer, targets, offsets, strict=False):
        weight = STRAIGHT if node.passing else 1.0
        run = ((target - offset) * weight, weight, 1)
        while runs and runs[-1][0] / runs[-1][1] > run[0] / run[1]:
            above_run = runs.pop()
            run = (above_run[0] + run[0], above_run[1] + run[1], above_run[2] + run[2])
        runs.append(run)
    placed = (total / weight for total, weight, count in runs for _ in range(count))
    for node, start, offset in zip(layer, placed, offsets, strict=False):
        node.y = start + offset


@dataclass(frozen=True, slots=True)
class _Coordinates:
    """Turns the layer and the middle of a node into coordinates, from the origin on.

    Attributes:
        top: the upper edge of the highest node.
        lefts, widths: of each layer.
        junctions: names of the nodes that keep their own width, in the middle of their layer.
    """

    top: float
    lefts: Sequence[float]
    widths: Sequence[float]
    junctions: Set[str]

    def box(self, node: _Node) -> Box:
        left, width, y = self.lefts[node.layer], self.widths[node.layer], node.y - node.size[1] / 2
        if node.name in self.junctions:
            left, width = left + (width - node.size[0]) / 2, node.size[0]
        return Box(left, round(y - self.top, 1), width, node.size[1])

    def points(self, source: _Node, passed: Sequence[_Node], target: _Node) -> Iterator[Point]:
        """Yield the points of an edge from ``source`` to ``target``, by way of ``passed``."""
        start, end = self.box(source), self.box(target)
        yield start.x + start.w, round(source.y - self.top, 1)
        for node in passed:
            y, x = round(node.y - self.top, 1), self.lefts[node.layer]
            yield from ((x, y), (x + self.widths[node.layer], y))
        yield end.x, round(target.y - self.top, 1)


def _drawn(
    layers: Sequence[Sequence[_Node]],
    nodes: Mapping[str, _Node],
    junctions: Iterable[str],
    long_lines: Mapping[tuple[str, str], Sequence[_Node]],
) -> Layout:
    """Return the layout from the places of all nodes, moved to the origin."""
    top = min((node.y - node.size[1] / 2 for layer in layers for node in layer), default=0.0)
    widths = [max(node.size[0] for node in layer) for layer in layers]
    lefts = [sum(widths[:n]) + n * GAP_X for n in range(len(layers))]
    between = set(junctions)
    coordinates = _Coordinates(top, lefts, widths, between)
    lines = tuple(
        Edge(source, target, tuple(coordinates.points(nodes[source], passed, nodes[target])))
        for (source, target), passed in long_lines.items()
    )
    placed = {name: coordinates.box(node) for name, node in nodes.items()}
    boxes = {name: box for name, box in placed.items() if name not in between}
    bottoms = (node.y + node.size[1] / 2 - top for layer in layers for node in layer)
    width = lefts[-1] + widths[-1] if layers else 0.0
    return Layout(
        width, max(bottoms, default=0.0), boxes, {name: placed[name] for name in between}, lines
    )
