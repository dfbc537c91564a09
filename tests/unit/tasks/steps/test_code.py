"""What stands for the code of a group."""

from __future__ import annotations

from unstuck.tasks.spec.group import GroupSpec
from unstuck.tasks.spec.work_order import FrozenInputs, GroupPlan, WorkOrder
from unstuck.tasks.steps.code import code_of


def code(*steps: str, version: str | None = None) -> str:
    spec = GroupSpec.model_validate({"name": "a", "steps": [{"sql": text} for text in steps], "code_version": version})
    return code_of(WorkOrder(plan=GroupPlan(group=spec, warehouse="/w"), frozen=FrozenInputs()))


def test_the_code_of_sql_is_its_text() -> None:
    assert code("SELECT 1") == code("SELECT 1")
    assert code("SELECT 1").startswith("sql:")
    assert len({code("SELECT 1"), code("SELECT 2"), code("SELECT 1", "SELECT 2"), code("SELECT 1, SELECT 2")}) == 4
    assert code("SELECT 1", version="v1") == "version v1"
