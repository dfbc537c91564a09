"""``compact:`` in a spec: what is refused, and what other groups may read of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from unstuck import JobSpec, SpecError
from unstuck.coordinator.spec.plan import Plan, compile_plan

COMPACTS = {"name": "flights", "spark": False, "steps": [{"compact": "flights"}]}


def plan(*groups: dict[str, Any]) -> Plan:
    return compile_plan(JobSpec.model_validate({"name": "upkeep", "groups": list(groups)}))


def test_its_results_are_read_in_conditions_and_sql() -> None:
    sql = "SELECT :results.flights.version AS version"
    reads = {"name": "reads", "needs": ["flights"], "steps": [{"sql": sql, "output": "versions"}]}
    after = {"name": "after", "needs": ["flights"], "when": "results.flights.version > 0", "spark": False}
    plan(COMPACTS, reads, {**after, "steps": [{"python": "m:f"}]})


def test_one_group_compacts_one_dataset() -> None:
    """The results of the second would stand in place of those of the first."""
    both = {**COMPACTS, "steps": [{"compact": "flights"}, {"compact": "delays"}]}
    with pytest.raises((SpecError, ValueError), match="use a group for each dataset"):
        plan(both)


def test_a_retry_takes_over_other_work_and_no_compaction() -> None:
    """The dataset has new small files by then."""
    other = {"name": "other", "spark": False, "steps": [{"python": "m:f"}]}
    stored = plan(COMPACTS, other).group_plans("/w", "id", adopts=("before",))
    assert {name: json.loads(one).get("adopts") for name, one in stored.items()} == {
        "flights": None,
        "other": ["before"],
    }
