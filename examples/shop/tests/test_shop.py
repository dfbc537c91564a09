"""The shop, tested in one process: ``pytest`` in this folder, or in a copy of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from shop_steps import clean

from unstuck.testing import Unstuck

CUSTOMERS = [{"id": 1, "region": "eu"}, {"id": 2, "region": "us"}]
ORDERS = [
    {"id": 10, "customer": 1, "amount": 5.0},
    {"id": 11, "customer": 2, "amount": 7.5},
    {"id": 12, "customer": 2, "amount": None},
]
DAY = {"day": "2026-01-31"}


@pytest.fixture
def shop(unstuck: Unstuck) -> Unstuck:
    """A night with customers, and a file of orders."""
    unstuck.publish("customers", CUSTOMERS)
    unstuck.arrive("arrived", ORDERS)
    return unstuck


# -- steps alone -----------------------------------------------------------------------------------


def test_orders_without_an_amount_are_dropped(unstuck: Unstuck) -> None:
    done = unstuck.step(clean, inputs={"arrived": ORDERS}, spark=False)
    assert [order["id"] for order in done.rows()] == [10, 11]
    assert done.results == {"dropped": 1}


def test_an_order_of_an_unknown_customer_is_of_eu(unstuck: Unstuck) -> None:
    orders = [{"id": 13, "customer": 9, "amount": 1.0}]
    done = unstuck.sql(Path("sales.sql"), inputs={"orders": orders, "customers": CUSTOMERS})
    assert done.rows() == [{"id": 13, "amount": 1.0, "region": "eu"}]


# -- the whole job ---------------------------------------------------------------------------------


def test_a_night_is_a_report_by_region(shop: Unstuck) -> None:
    run = shop.run("shop.yaml", DAY)
    assert run.finished
    assert run.rows("report", order_by="region") == [
        {"region": "eu", "orders": 1, "amount": 5.0, **DAY},
        {"region": "us", "orders": 1, "amount": 7.5, **DAY},
    ]


def test_a_region_that_fails_twice_is_tried_a_third_time(shop: Unstuck) -> None:
    run = shop.run("shop.yaml", DAY, fail={"by_region[1]": TimeoutError("no answer")}, times=2)
    assert run.finished
    assert run.group("by_region[1]").attempts == 3
    assert run.group("by_region[0]").attempts == 1


def test_where_a_region_fails_for_good_nothing_is_published(shop: Unstuck) -> None:
    run = shop.run("shop.yaml", DAY, fail={"by_region[1]": TimeoutError("no answer")}, times=3)
    assert not run.finished
    assert "no answer" in run.why()
    assert run.published == []
    assert len(run.rows("sales")) == 2  # what was done can be looked at


def test_a_customer_that_is_there_twice_is_refused(shop: Unstuck) -> None:
    shop.publish("customers", [*CUSTOMERS, {"id": 1, "region": "us"}])
    run = shop.run("shop.yaml", DAY)
    reason = run.group("sales").reason
    assert reason is not None
    assert reason.code == "EXPECTATION_FAILED"


# -- what arrives ----------------------------------------------------------------------------------


def test_a_late_file_is_loaded_once_by_the_next_run(shop: Unstuck) -> None:
    assert shop.run("shop.yaml", DAY).finished
    shop.arrive("arrived", [{"id": 9, "customer": 1, "amount": 2.0}], file="late.csv")
    late = shop.run("shop.yaml", {"day": "2026-02-01"})
    assert [order["id"] for order in late.rows("sales")] == [9]
    assert [order["id"] for order in shop.rows("orders", order_by="id")] == [9, 10, 11]


def test_a_broken_file_is_named_with_its_line(shop: Unstuck) -> None:
    shop.arrive("arrived", "id,customer,amount\n14,one,3.0\n", file="broken.csv")
    run = shop.run("shop.yaml", DAY)
    assert not run.finished
    assert "broken.csv" in run.why()
    assert "line 2" in run.why()


# -- the schedule ----------------------------------------------------------------------------------


def test_the_night_on_which_clocks_are_set_forward_runs_once_for_its_day(shop: Unstuck) -> None:
    night = shop.at("2026-03-29 02:30", "shop.yaml")
    assert night.tick.isoformat() == "2026-03-29T03:00:00+02:00"
    assert len(shop.ticks("shop.yaml", "2026-03-29", "2026-03-30")) == 1
    assert {row["day"] for row in night.run().rows("report")} == {"2026-03-29"}
