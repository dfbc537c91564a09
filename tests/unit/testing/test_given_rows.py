"""The rows of a test become datasets with the columns, values and types that they have."""

from __future__ import annotations

import datetime
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from unstuck import DatasetNotFound, OutputInvalid
from unstuck.testing import Unstuck

ANN = {"id": 1, "name": "ann"}
BEN = {"id": 2, "name": "ben"}


@pytest.mark.parametrize(
    "given",
    [
        [ANN, BEN],
        (row for row in [ANN, BEN]),
        pa.Table.from_pylist([ANN, BEN]),
        pd.DataFrame([ANN, BEN]),
        pl.DataFrame([ANN, BEN]),
    ],
    ids=["rows", "iterator", "arrow", "pandas", "polars"],
)
def test_rows_and_frames_of_any_library_are_published_unchanged(
    unstuck: Unstuck, given: Any
) -> None:
    assert unstuck.publish("customers", given) == 1
    assert unstuck.rows("customers") == [ANN, BEN]


def test_a_column_missing_in_a_row_is_null(unstuck: Unstuck) -> None:
    unstuck.publish("customers", [{"id": 1}, BEN])
    unstuck.publish("customers", [{"id": 3}], mode="append")
    found = unstuck.rows("customers", order_by="id")
    assert found == [{"id": 1, "name": None}, BEN, {"id": 3, "name": None}]


def test_a_schema_sets_types_and_refuses_mismatched_values(unstuck: Unstuck) -> None:
    schema = "id BIGINT, day DATE, amount DECIMAL(10,2)"
    unstuck.publish("sales", [{"id": 1, "day": datetime.date(2026, 3, 29)}], schema=schema)
    assert unstuck.rows("sales") == [{"id": 1, "day": datetime.date(2026, 3, 29), "amount": None}]
    assert str(unstuck.frame("sales", "arrow").schema.field("amount").type) == "decimal128(10, 2)"
    with pytest.raises(OutputInvalid, match="the column id is to be bigint, and holds the double"):
        unstuck.publish("sales", [{"id": 1.5}], schema=schema)
    assert len(unstuck.rows("sales")) == 1


def test_empty_rows_require_a_schema(unstuck: Unstuck) -> None:
    with pytest.raises(
        ValueError, match="customers has no rows, and so no columns: give them, as schema="
    ):
        unstuck.publish("customers", [])
    unstuck.publish("customers", [], schema="id BIGINT")
    assert unstuck.frame("customers", "arrow").column_names == ["id"]
    assert unstuck.rows("customers") == []


@pytest.mark.parametrize("wrong", [ANN, "id", 7, [1, 2], [ANN, None]], ids=repr)
def test_a_value_that_is_not_rows_is_refused_by_its_name(unstuck: Unstuck, wrong: Any) -> None:
    with pytest.raises(TypeError, match="customers is a list of rows"):
        unstuck.publish("customers", wrong)


def test_values_of_two_types_in_one_column_are_refused_by_name(unstuck: Unstuck) -> None:
    with pytest.raises(
        TypeError, match="customers: the values of the column id have no type in common"
    ):
        unstuck.publish("customers", [{"id": 1}, {"id": "two"}])


def test_a_dataset_is_replaced_or_appended_to_and_a_missing_one_is_an_error(
    unstuck: Unstuck,
) -> None:
    unstuck.publish("customers", [ANN])
    unstuck.publish("customers", [BEN])
    assert unstuck.rows("customers") == [BEN]
    unstuck.publish("customers", [ANN], mode="append")
    assert unstuck.rows("customers", order_by=["id", "name"]) == [ANN, BEN]
    assert list(unstuck.frame("customers")["id"]) == [2, 1]
    with pytest.raises(DatasetNotFound, match="published there: customers"):
        unstuck.rows("clients")


def test_two_tests_have_separate_warehouses(unstuck: Unstuck) -> None:
    with pytest.raises(DatasetNotFound, match="nothing yet"):
        unstuck.rows("customers")
