"""What a marker is known by."""

from __future__ import annotations

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
