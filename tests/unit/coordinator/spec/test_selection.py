"""A part of a job: which groups run, what they read, and what is published of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from unstuck.coordinator.errors import NoSuchGroup
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.problems import SpecError
from unstuck.coordinator.spec.selection import GroupSelection, select


def group(name: str, *needs: str, **more: Any) -> dict[str, Any]:
    steps = [{"python": "m:f", "output": name}]
    return {"name": name, "needs": list(needs), "steps": steps, "spark": False, **more}


LOAD, CLEAN = group("load_a"), group("load_b")
MONTH = group("by_month", "load_a", "load_b", for_each={"month": [1, 2, 3]})
CHAIN = (LOAD, CLEAN, MONTH, group("total", "by_month"), group("report", "total"))


def selected(
    *groups: dict[str, Any], only: Any = (), after: Any = (), until: Any = (), **job: Any
) -> GroupSelection:
    return select(
        JobSpec.from_values({"name": "job", "groups": list(groups), **job}, None),
        only,
        after,
        until,
    )


def names(part: GroupSelection) -> list[str]:
    return [one.name for one in part.spec.groups]


def test_a_selection_runs_only_the_named_groups_or_those_from_or_until_them() -> None:
    assert names(selected(*CHAIN, only=["load_*"])) == ["load_a", "load_b"]
    assert names(selected(*CHAIN, after=["total"])) == ["total", "report"]
    assert names(selected(*CHAIN, until=["by_month"])) == ["load_a", "load_b", "by_month"]
    assert names(selected(*CHAIN, after=["load_a"], until=["total"])) == [
        "load_a",
        "by_month",
        "total",
    ]


def test_a_group_reads_the_published_outputs_of_unselected_groups() -> None:
    part = selected(*CHAIN, only=["report"])
    assert {name: one.dataset for name, one in part.spec.groups[0].inputs.items()} == {
        "total": "total"
    }  # type: ignore[union-attr]
    assert part.spec.groups[0].needs == ()
    assert part.lacking({"total"}) == ""
    assert "group report reads total of group total, which is left out" in part.lacking({"report"})


def test_a_fork_over_an_unselected_group_reads_its_values_from_the_dataset() -> None:
    fork = group("each", "load_a", for_each={"day": {"from": "load_a.day"}})
    part = selected(LOAD, fork, only=["each"])
    assert list(part.spec.groups[0].inputs) == ["load_a"]


def test_groups_behind_an_unselected_join_read_the_joined_groups() -> None:
    join = {"name": "all", "needs": ["load_a", "load_b"]}
    part = selected(LOAD, CLEAN, join, group("report", "all"), only=["report"])
    assert sorted(part.spec.groups[0].inputs) == ["load_a", "load_b"]


def test_a_selection_publishes_its_part_of_the_outputs_of_the_whole_job() -> None:
    assert selected(*CHAIN, until=["total"]).spec.publish == ()
    assert selected(*CHAIN, after=["total"]).spec.publish is None
    assert selected(*CHAIN, until=["total"], publish=["load_a", "report"]).spec.publish == (
        "load_a",
    )


def test_a_selection_keeps_checks_of_outputs_and_modes_of_those_it_publishes() -> None:
    outputs = {
        "report": {"mode": "append"},
        "load_a": {"mode": "append", "expect": {"rows": {"min": 1}}},
    }
    whole = {"outputs": outputs, "publish": ["report", "load_a"]}
    assert selected(*CHAIN, only=["report"], **whole).spec.outputs["report"].mode == "append"
    member = selected(*CHAIN, only=["by_month[1]", "load_a"], **whole).spec
    assert member.outputs["load_a"].mode != "append"
    assert member.outputs["load_a"].expect is not None


def test_a_fork_also_selected_as_a_whole_runs_completely_and_is_published() -> None:
    for only in (["by_month", "by_month[1]"], ["by_month[1]", "*"]):
        part = selected(*CHAIN[:3], only=only)
        assert (part.parts, part.spec.publish) == ((), None)
    assert selected(*CHAIN, only=["by_month[1]", "total"], after=["total"]).parts == ()


@pytest.mark.parametrize("value", [{"model": "small", "depth": 2}, 1, True, "1"])
def test_a_selected_member_has_its_value_of_any_kind(value: Any) -> None:
    fork = group("each", for_each={"of": [True, 1, "1", {"model": "small", "depth": 2}]})
    at = [json.dumps(one) for one in fork["for_each"]["of"]].index(json.dumps(value))
    both = selected(fork, only=[f"each[{at}]", "each[0]"]).spec.groups[0].fork_values
    assert list(map(repr, both or ())) == list(dict.fromkeys([repr(value), "True"]))


def test_a_selected_member_of_a_fork_runs_alone_and_publishes_nothing() -> None:
    part = selected(*CHAIN, only=["by_month[2]"])
    assert part.spec.groups[0].for_each == {"month": (3,)}
    assert part.spec.publish == ()
    assert part.parts == ("by_month",)


@pytest.mark.parametrize(
    ("only", "why"),
    [
        ("lod_a", "did you mean 'load_a'"),
        ("by_month[3]", "by_month has 3 members"),
        ("x_*", "it has: load_a, load_b"),
    ],
)
def test_an_unknown_group_is_refused_with_a_hint(only: str, why: str) -> None:
    with pytest.raises(NoSuchGroup, match=why):
        selected(*CHAIN, only=[only])


def test_a_condition_on_an_unselected_group_is_refused() -> None:
    asks = group("asks", "load_a", when="results.load_a.n > 1")
    with pytest.raises(SpecError, match="load_a"):
        selected(LOAD, asks, only=["asks"])
