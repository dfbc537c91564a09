"""Large graphs: folded by level and state, small, and with what each box needs."""

from __future__ import annotations

import random

from unstuck.coordinator.model.status import GroupState
from unstuck.graph.folding import MAX_BOXES, MAX_LEVELS, folded_groups
from unstuck.graph.job_graph import GraphGroup, job_graph


def href(state: str) -> str:
    return f"?state={state}"


def test_a_small_graph_has_a_box_for_each_group() -> None:
    groups = [GraphGroup(f"g{n}", (), "RUNNING") for n in range(MAX_BOXES)]
    assert folded_groups(groups, href) is groups


def test_groups_of_one_level_and_state_share_a_box_that_lists_them() -> None:
    states = {7: "FAILED", 8: "RUNNING"}
    groups = [
        GraphGroup("all", [f"g{n}" for n in range(5000)], "WAITING", href="#all"),
        GraphGroup("source", ["left out"], "SUCCEEDED", href="#source"),
        *(GraphGroup(f"g{n}", ["source"], states.get(n % 10, "SUCCEEDED")) for n in range(5000)),
    ]
    source, *folds, last = folded_groups(groups, href)
    assert (source.name, source.needs, source.href) == ("source", [], "#source")
    assert [(fold.label, dict(fold.census), fold.href, fold.needs) for fold in folds] == [
        ("level 2", {"FAILED": 500}, "?state=FAILED", ["source"]),
        ("level 2", {"RUNNING": 500}, "?state=RUNNING", ["source"]),
        ("level 2", {"SUCCEEDED": 4000}, "?state=SUCCEEDED", ["source"]),
    ]
    assert (last.name, last.needs) == ("all", [fold.name for fold in folds])


def test_levels_of_a_deep_graph_are_merged_in_order() -> None:
    chain = [GraphGroup(f"g{n}", [f"g{n - 1}"] if n else [], "SUCCEEDED") for n in range(5000)]
    folds = folded_groups(chain, href)
    assert len(folds) == MAX_LEVELS
    assert (folds[0].label, folds[-1].label) == ("level 1 to 417", "level 4588 to 5000")
    assert [fold.needs for fold in folds[1:]] == [[fold.name] for fold in folds[:-1]]


def test_the_picture_of_any_graph_is_small() -> None:
    """Random needs and all states on each level: the largest folded graph that there can be."""
    chance = random.Random(5)
    states = [str(state) for state in GroupState]
    groups = [
        GraphGroup(
            f"group_{n}",
            [f"group_{chance.randrange(max(0, n - 400), n)}" for _ in range(3)] if n > 50 else [],
            chance.choice(states),
        )
        for n in range(5000)
    ]
    drawn = job_graph(folded_groups(groups, href), "job")
    assert len(drawn) < 150_000
    assert drawn.count('class="box"') <= MAX_LEVELS * len(states)
