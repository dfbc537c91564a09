"""What a marker is known by."""

from __future__ import annotations

from typing import Any

import pytest

from unstuck.tasks.protocol.secrets import Secrets
from unstuck.tasks.spec.group import GroupSpec
from unstuck.tasks.spec.work_order import FrozenInputs, GroupPlan, WorkOrder
from unstuck.tasks.steps import step_params as steps_params
from unstuck.tasks.steps.step_params import Reads, noted


def test_work_of_an_earlier_release_is_reused_after_an_upgrade() -> None:
    """A new field that a group does not use must not make all its work to be done again."""
    steps = [
        {"python": "steps:load", "params": {"day": "2013-01-01"}},
        {"sql": "SELECT 1 AS one", "output": "ones"},
    ]
    spec = GroupSpec.model_validate({"name": "g", "steps": steps})
    order = WorkOrder(plan=GroupPlan(group=spec, warehouse="/w"), frozen=FrozenInputs())
    assert order.fingerprint == "9544e1ecd28845c31dd7cc44a7931dcf"


@pytest.mark.parametrize(
    ("group", "plan", "stale"),
    [
        ({"steps": [{"sql": "SELECT 1"}]}, {}, False),
        ({"steps": [{"sql": "SELECT :day"}]}, {}, True),
        ({"steps": [{"sql": "SELECT :\nday"}]}, {}, True),
        (
            {"steps": [{"sql": "SELECT 1", "output": "o"}]},
            {"checks": {"o": {"partitions": {"d": [":day"]}}}},
            True,
        ),
        ({"steps": [{"python": "m:f"}]}, {}, False),
        ({"steps": [{"python": "m:f"}], "params": {"night": 1}}, {}, False),
        ({"steps": [{"python": "m:f"}], "for_each": {"n": {"param": "day"}}}, {}, True),
        ({"steps": [{"python": "m:f"}], "for_each": {"day": [1, 2]}}, {}, True),
    ],
)
def test_a_parameter_unused_by_a_group_does_not_make_its_work_stale(
    group: dict[str, Any], plan: dict[str, Any], stale: bool
) -> None:
    def made(day: int, read: list[str] | None) -> str:
        given = GroupPlan(
            group=GroupSpec(name="g", **group),
            params={"day": day},
            warehouse="/w",
            warehouse_id="w",
            **plan,
        )
        return WorkOrder(plan=given, frozen=FrozenInputs(value=day)).fingerprint_of(read)

    assert (made(1, ["other"]) != made(2, ["other"])) is stale
    assert made(1, ["other", "day"]) != made(2, ["other", "day"])
    assert made(1, None) != made(2, None)


def order(**params: Any) -> WorkOrder:
    group = GroupSpec.model_validate({"name": "g", "params": params, "steps": [{"python": "m:f"}]})
    return WorkOrder(plan=GroupPlan(group=group, warehouse="/w"), frozen=FrozenInputs())


@pytest.mark.parametrize(
    ("now", "differing"),
    [
        ({"day": 1, "key": "${secret:KEY}"}, []),
        ({"day": 1, "key": "${secret:KEY}", "other": 3}, []),
        ({"day": 2, "key": "${secret:KEY}"}, ["day"]),
        ({"key": "${secret:OTHER}"}, ["day", "key"]),
        ({"day": 1, "key": "${secret:KEY}", "absent": None}, ["absent"]),
    ],
)
def test_the_fingerprint_includes_parameters_read_and_parameters_found_missing(
    now: dict[str, Any], differing: list[str]
) -> None:
    before = order(day=1, key="${secret:KEY}", other=2)
    given = Reads()
    for name in ("day", "key", "absent"):
        given.note(name)
    kept = noted(before, "a job of this test", given, Secrets())
    assert kept is not None
    assert list(kept) == ["absent", "day", "key"]
    again = order(**now)
    assert steps_params.differing(again, kept) == differing
    assert (again.fingerprint_of(kept) == before.fingerprint_of(kept)) is (not differing)


def test_a_name_that_contains_a_secret_is_not_recorded() -> None:
    secrets = Secrets({"KEY": "hunter2000"})
    secrets.resolve("${secret:KEY}")
    given = Reads()
    given.note("hunter2000")
    assert noted(order(day=1), "another job of this test", given, secrets) is None
