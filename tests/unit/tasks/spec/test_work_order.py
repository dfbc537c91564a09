"""What a marker is known by."""

from __future__ import annotations

from typing import Any

import pytest

from unstuck.tasks.spec.group import FrozenInputs, GroupPlan, GroupSpec, WorkOrder


def test_work_of_an_earlier_release_is_known_after_an_upgrade() -> None:
    """A new field that a group does not use must not make all its work to be done again."""
    steps = [
        {"python": "steps:load", "params": {"day": "2013-01-01"}},
        {"sql": "SELECT 1 AS one", "output": "ones"},
    ]
    spec = GroupSpec.model_validate({"name": "g", "steps": steps})
    order = WorkOrder(plan=GroupPlan(group=spec, warehouse="/w"), frozen=FrozenInputs())
    assert order.fingerprint == "0c27302f92bc3340ccade0b6b2582eb7"


@pytest.mark.parametrize(
    ("group", "plan", "stale"),
    [
        ({"steps": [{"sql": "SELECT 1"}]}, {}, False),
        ({"steps": [{"sql": "SELECT :day"}]}, {}, True),
        ({"steps": [{"sql": "SELECT :\nday"}]}, {}, True),
        ({"steps": [{"sql": "SELECT 1", "output": "o"}]}, {"checks": {"o": {"partitions": {"d": [":day"]}}}}, True),
        ({"steps": [{"python": "m:f"}]}, {}, True),
        ({"steps": [{"sql": "SELECT 1"}, {"python": "m:f"}]}, {}, True),
        ({"steps": [{"sql": "SELECT 1"}], "hooks": {"on_success": "m:f"}}, {}, True),
    ],
)
def test_a_parameter_that_a_group_of_sql_does_not_name_does_not_make_its_work_stale(
    group: dict[str, Any], plan: dict[str, Any], stale: bool
) -> None:
    def made(day: int) -> str:
        given = GroupPlan(
            group=GroupSpec(name="g", **group), params={"day": day}, warehouse="/w", warehouse_id="w", **plan
        )
        return WorkOrder(plan=given, frozen=FrozenInputs()).fingerprint

    assert (made(1) != made(2)) is stale
