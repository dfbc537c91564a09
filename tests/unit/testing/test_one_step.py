"""A step alone has the context of a worker: inputs, parameters, results, outputs, and the same
refusals.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pyarrow.compute as pc
import pytest

from unstuck import InputMissing, OutputInvalid
from unstuck.testing import Unstuck

ORDERS = [{"id": 1, "region": 2}, {"id": 2, "region": 3}]


def of_region(spark: None, ctx: Any, region: int, least: int = 0) -> Any:
    orders = ctx.input("orders")
    ctx.progress(1, 2)
    ctx.result("rows", orders.num_rows)
    return orders.filter(pc.equal(orders["region"], region))


def test_a_step_gets_inputs_and_parameters_and_its_frame_is_read_back(unstuck: Unstuck) -> None:
    done = unstuck.step(of_region, inputs={"orders": ORDERS}, params={"region": 2}, spark=False)
    assert done.rows() == [ORDERS[0]]
    assert list(done.frame()["id"]) == [1]
    assert done.outputs == {"of_region": 1}
    assert done.results == {"rows": 2}
    assert done.progress == [(1, 2)]


def test_a_step_may_be_a_partial_or_a_lambda(unstuck: Unstuck) -> None:
    assert unstuck.step(
        partial(of_region, region=3), inputs={"orders": ORDERS}, spark=False
    ).rows() == [ORDERS[1]]
    assert (
        unstuck.step(
            lambda spark, ctx: ctx.input("orders"), inputs={"orders": ORDERS}, spark=False
        ).rows()
        == ORDERS
    )


def test_a_step_writes_several_outputs_and_reads_results_and_published_data(
    unstuck: Unstuck,
) -> None:
    def both(spark: None, ctx: Any) -> str:
        assert ctx.results("clean") == {"rows": 2}
        assert ctx.published("customers").num_rows == 1
        ctx.output("all").write(ctx.input("orders"))
        ctx.output("none").write(ctx.input("orders").slice(0, 0))
        return "done"

    unstuck.publish("customers", [{"id": 1}])
    done = unstuck.step(
        both, inputs={"orders": ORDERS}, results={"clean": {"rows": 2}}, spark=False
    )
    assert done.value == "done"
    assert done.outputs == {"all": 2, "none": 0}
    assert (done.rows("all"), done.rows("none")) == (ORDERS, [])
    with pytest.raises(KeyError, match="wrote no output 'nobody'; it wrote: all, none"):
        done.rows("nobody")
    with pytest.raises(KeyError, match="the step has the outputs: all, none; name one"):
        done.rows()


def test_an_input_without_rows_has_the_columns_of_its_schema(unstuck: Unstuck) -> None:
    none = unstuck.table([], "id BIGINT, region INT")
    assert (
        unstuck.step(of_region, inputs={"orders": none}, params={"region": 2}, spark=False).rows()
        == []
    )


def test_a_step_error_propagates_to_the_test_and_a_mismatched_call_is_refused(
    unstuck: Unstuck,
) -> None:
    def fails(spark: None, ctx: Any) -> None:
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError, match="no answer"):
        unstuck.step(fails, spark=False)
    with pytest.raises(Exception, match="of_region needs region; the step has regoin"):
        unstuck.step(of_region, inputs={"orders": ORDERS}, params={"regoin": 2}, spark=False)
    with pytest.raises(InputMissing, match="there is no input 'orders'; there are: order"):
        unstuck.step(of_region, inputs={"order": ORDERS}, params={"region": 2}, spark=False)


def test_values_refused_by_a_worker_are_also_refused_in_tests(unstuck: Unstuck) -> None:
    def records(spark: None, ctx: Any) -> None:
        ctx.result("at", object())

    def writes(spark: None, ctx: Any) -> None:
        ctx.output("orders").write(ctx.input("orders"))

    with pytest.raises(OutputInvalid, match="is not a JSON value"):
        unstuck.step(records, spark=False)
    with pytest.raises(OutputInvalid, match="the output orders has the name of an input"):
        unstuck.step(writes, inputs={"orders": ORDERS}, spark=False)


def test_a_step_runs_in_the_time_zone_of_the_fleet_and_the_test_in_its_own(
    unstuck: Unstuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    seen: list[str] = []
    unstuck.step(lambda spark, ctx: seen.append(os.environ["TZ"]), spark=False)
    assert seen == ["UTC"]
    assert os.environ["TZ"] == "Asia/Tokyo"
