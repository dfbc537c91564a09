"""What a client refuses before it stores a job."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.cli.conftest import ByHand
from unstuck import SpecError
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.testing.published_data import publish_frame

MADE = {"name": "made", "steps": [{"sql": "SELECT 1 AS id", "output": "made"}]}


def reading(table: str) -> dict[str, Any]:
    steps = [{"sql": f"SELECT * FROM {table}", "output": "report"}]
    return {
        "name": "sales",
        "groups": [MADE, {"name": "report", "needs": ["made"], "steps": steps}],
    }


def test_an_unknown_table_is_refused_at_submit_retry_and_schedule_set(
    hand: ByHand,
) -> None:
    publish_frame(
        Warehouse(hand.settings.warehouse), "orders", pa.table({"id": [1]}), "replace", ()
    )
    refused = "did you mean the published dataset 'orders'"
    with pytest.raises(SpecError, match=refused):
        hand.client.submit(reading("oders"))
    with pytest.raises(SpecError, match=refused):
        hand.client.schedules.set(
            {**reading("oders"), "schedule": {"cron": "0 2 * * *", "zone": "UTC"}}
        )
    assert not hand.client.jobs()
    assert not hand.client.schedules.names()
    job = hand.submit({"name": "a"})
    hand.decide(job)
    hand.fail(job, "a", "no")
    with pytest.raises(SpecError, match=refused):
        hand.client.retry(job, spec=reading("oders"))
