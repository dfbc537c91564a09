"""The groups that led to an output."""

from __future__ import annotations

from unstuck.coordinator.spec.lineage import led_to


def test_a_group_is_led_to_by_itself_and_by_those_before_it_through_any_group() -> None:
    needs = {"a": (), "b": (), "join": ("a", "b"), "c": ("join",), "d": ("a",), "e": ("c", "d")}
    assert led_to(needs, {"a", "b", "c", "d"}) == {
        "a": {"a"},
        "b": {"b"},
        "c": {"a", "b", "c"},
        "d": {"a", "d"},
    }
    assert led_to({}, {"x"}) == {"x": {"x"}}


def test_a_long_chain_of_which_only_the_last_group_is_asked_for_is_read_once() -> None:
    needs = {str(n): (str(n - 1),) if n else () for n in range(10_000)}
    assert led_to(needs, {"9999"}) == {"9999": {"9999"}}
