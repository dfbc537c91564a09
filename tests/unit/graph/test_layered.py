"""The layout of a graph: each node after what it needs, nothing on top of anything else, always the
same.
"""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from unstuck.graph.layered import Box, Layout, lay_out

SIZE = (120.0, 40.0)
Needs = dict[str, list[str]]


def laid_out(needs: Needs) -> Layout:
    return lay_out(dict.fromkeys(needs, SIZE), needs)


def some_graph(seed: int) -> Needs:
    chance = random.Random(seed)
    count = chance.randrange(1, 40)
    return {
        f"g{n}": [f"g{chance.randrange(n)}" for _ in range(chance.randrange(4))] if n else []
        for n in range(count)
    }


def apart(a: Box, b: Box) -> bool:
    return a.x + a.w <= b.x or b.x + b.w <= a.x or a.y + a.h <= b.y or b.y + b.h <= a.y


GRAPHS = [some_graph(seed) for seed in range(25)]


@pytest.mark.parametrize("needs", GRAPHS)
def test_each_node_is_drawn_to_the_right_of_its_needs(needs: Needs) -> None:
    boxes = laid_out(needs).boxes
    for name, its in needs.items():
        for need in its:
            assert boxes[need].x + boxes[need].w < boxes[name].x


@pytest.mark.parametrize("needs", GRAPHS)
def test_boxes_do_not_touch_and_lie_inside_the_picture(needs: Needs) -> None:
    layout = laid_out(needs)
    assert set(layout.boxes) == set(needs)
    for a, b in combinations(layout.boxes.values(), 2):
        assert apart(a, b)
    for box in layout.boxes.values():
        assert 0 <= box.x <= box.x + box.w <= layout.width + 0.1
        assert 0 <= box.y <= box.y + box.h <= layout.height + 0.1


@pytest.mark.parametrize("needs", GRAPHS)
def test_no_line_passes_through_a_box(needs: Needs) -> None:
    layout = laid_out(needs)
    for line in layout.lines:
        for (x1, y1), (x2, y2) in list(pairwise(line.points))[1::2]:  # where it passes a layer
            assert y1 == y2
            for box in layout.boxes.values():
                assert apart(box, Box(x1, y1, x2 - x1, 0)), (line, box)


@pytest.mark.parametrize("needs", GRAPHS)
def test_each_need_is_drawn_as_a_line_or_through_a_junction(needs: Needs) -> None:
    layout = laid_out(needs)
    drawn = {(line.source, line.target) for line in layout.lines}
    met = {(a, d) for a, b in drawn for c, d in drawn if b == c and b in layout.junctions}
    between = {pair for pair in drawn if not set(pair) & set(layout.junctions)}
    assert between | met == {(need, name) for name, its in needs.items() for need in its}


def test_the_same_graph_has_the_same_layout() -> None:
    needs = some_graph(7)
    assert laid_out(needs) == laid_out(needs)


def test_a_chain_is_a_straight_line() -> None:
    layout = laid_out({"a": [], "b": ["a"], "c": ["b"]})
    assert len({box.y for box in layout.boxes.values()}) == 1


def test_lines_do_not_cross_if_another_order_avoids_it() -> None:
    boxes = laid_out(
        {"a": [], "b": [], "c": [], "for_c": ["c"], "for_b": ["b"], "for_a": ["a"]}
    ).boxes
    before, after = (
        sorted(names, key=lambda name: boxes[name].y)
        for names in (("a", "b", "c"), ("for_a", "for_b", "for_c"))
    )
    assert [name.removeprefix("for_") for name in after] == before


def test_groups_with_many_common_needs_share_a_junction() -> None:
    needs: Needs = {f"a{n}": [] for n in range(20)} | {
        f"b{n}": [f"a{m}" for m in range(20)] for n in range(20)
    }
    layout = laid_out(needs)
    assert (len(layout.lines), len(layout.junctions)) == (40, 1)


def test_implied_lines_are_omitted_in_a_dense_graph() -> None:
    needs: Needs = {f"g{n}": [f"g{m}" for m in range(n)] for n in range(60)}
    assert len(laid_out(needs).lines) == 59


def test_groups_without_edges_are_drawn_side_by_side() -> None:
    layout = laid_out({f"g{n}": [] for n in range(36)})
    assert len({box.x for box in layout.boxes.values()}) == 6


def test_an_empty_graph_is_an_empty_picture() -> None:
    assert laid_out({}) == Layout(0.0, 0.0, {}, {}, ())
