"""``compact:`` in a spec: what is refused, and what other groups may read of it."""

from __future__ import annotations

from typing import Any

import pytest

from unstuck import JobSpec, SpecError
from unstuck.coordinator.spec.plan import Plan, compile_plan

COMPACTS = {"name": "flights", "spark": False, "steps": [{"compact": "flights"}]}


def plan(*groups: dict[str, Any]) -> Plan:
    return compile_plan(JobSpec.model_validate({"name": "upkeep", "groups": list(groups)}))


def test_results_of_a_compact_step_can_be_used_in_conditions_and_sql() -> None:
    sql = "SELECT :results.flights.version AS version"
    reads = {"name": "reads", "needs": ["flights"], "steps": [{"sql": sql, "output": "versions"}]}
    after = {
        "name": "after",
        "needs": ["flights"],
        "when": "results.flights.version > 0",
        "spark": False,
    }
    plan(COMPACTS, reads, {**after, "steps": [{"python": "m:f"}]})


def test_one_group_compacts_one_dataset() -> None:
    """The results of the second would stand in place of those of the first."""
    both = {**COMPACTS, "steps": [{"compact": "flights"}, {"compact": "delays"}]}
    with pytest.raises((SpecError, ValueError), match="use a group for each dataset"):
        plan(both)
