"""The groups that led to an output."""

from __future__ import annotations

from unstuck.coordinator.spec.lineage import led_to


def test_the_lineage_of_a_group_includes_itself_and_all_predecessors() -> None:
    needs = {"a": (), "b": (), "join": ("a", "b"), "c": ("join",), "d": ("a",), "e": ("c", "d")}
    assert led_to(needs, {"a", "b", "c", "d"}) == {
        "a": {"a"},
        "b": {"b"},
        "c": {"a", "b", "c"},
        "d": {"a", "d"},
    }
    assert led_to({}, {"x"}) == {"x": {"x"}}


def test_the_lineage_of_the_last_group_of_a_long_chain_is_computed_once() -> None:
    needs = {str(n): (str(n - 1),) if n else () for n in range(10_000)}
    assert led_to(needs, {"9999"}) == {"9999": {"9999"}}
