"""A pandas frame is stored whole: an index that is more than row numbers, and values of two kinds,
are refused.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest

from unstuck.tasks.errors import OutputInvalid
from unstuck.tasks.frames.output import table_of

SALES = pd.DataFrame({"region": ["n", "s", "n"], "amount": [1, 2, 4]})
FIVE = datetime(2024, 1, 1, 5)


@pytest.mark.parametrize(
    ("frame", "named"),
    [
        (SALES.groupby("region").sum(), "region"),
        (SALES.assign(id=[7, 8, 9]).set_index("id"), "id"),
        (SALES.set_index(["region", "amount"]).assign(n=1), "region, amount"),
        (SALES.describe(), "count"),
        (pd.DataFrame({"n": [1]}, index=pd.to_datetime(["2024-01-01"])), "2024-01-01"),
    ],
)
def test_a_data_index_is_refused_with_a_remedy(frame: pd.DataFrame, named: str) -> None:
    with pytest.raises(OutputInvalid, match=rf"index .*{named}.*reset_index\(\)"):
        table_of(frame)


@pytest.mark.parametrize(
    "frame",
    [
        SALES[SALES.amount > 1],
        pd.concat([SALES, SALES]),
        SALES.iloc[0:0],
        pd.DataFrame(columns=["a"], index=pd.Index([], dtype=object)),
        SALES.groupby("region", as_index=False).sum(),
        SALES.set_index("region", drop=False),
    ],
)
def test_row_numbers_and_an_index_duplicated_as_a_column_are_dropped(frame: pd.DataFrame) -> None:
    table = table_of(frame)
    assert (table.column_names, len(table)) == ([*frame.columns], len(frame))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([date(2024, 1, 1), FIVE], "row 2: 2024-01-01 05:00:00"),
        ([None, date(2024, 1, 1), pd.Timestamp(FIVE)], "row 3: 2024-01-01 05:00:00"),
        ([FIVE, FIVE.replace(tzinfo=UTC)], r"row 2: 2024-01-01 05:00:00\+00:00"),
        ([FIVE.replace(tzinfo=UTC), pd.NaT, FIVE], "row 3: 2024-01-01 05:00:00"),
        ([[date(2024, 1, 1)], None, (pd.NaT, FIVE)], "row 3: 2024-01-01 05:00:00"),
        ([np.array([date(2024, 1, 1), FIVE], dtype=object)], "row 1: 2024-01-01 05:00:00"),
        (
            [[{"a": date(2024, 1, 1)}], float("nan"), [None, {"b": 1}, {"a": FIVE}]],
            "row 3: 2024-01-01 05:00:00",
        ),
        (
            [{"a": FIVE.replace(tzinfo=UTC)}, {"a": pd.NaT}, {"a": FIVE}],
            "row 3: 2024-01-01 05:00:00",
        ),
        ([[FIVE], [FIVE, FIVE.replace(tzinfo=UTC)]], r"row 2: 2024-01-01 05:00:00\+00:00"),
    ],
)
def test_dates_times_and_zoned_times_cannot_be_mixed(values: list[Any], said: str) -> None:
    with pytest.raises(OutputInvalid, match=rf"the column at(\.a)? mixes .*{said}.*to_datetime"):
        table_of(pd.DataFrame({"at": pd.Series(values, dtype=object)}))


def test_dates_and_times_cannot_be_mixed_in_a_categorical() -> None:
    with pytest.raises(OutputInvalid, match=r"mixes dates and times.* row 2"):
        table_of(pd.DataFrame({"at": pd.Series([date(2024, 1, 1), FIVE], dtype="category")}))


def test_a_categorical_of_timestamps_is_stored_as_timestamps() -> None:
    at = pd.Series(pd.to_datetime([FIVE, None, FIVE]).tz_localize("US/Eastern"))
    table = table_of(
        pd.DataFrame({"at": at.astype("category"), "n": pd.Series([3, None, 1], dtype="category")})
    )
    assert str(table["at"].type) == "timestamp[us, tz=UTC]"
    assert table.to_pylist()[0] == {"at": datetime(2024, 1, 1, 10, tzinfo=UTC), "n": 3}
    assert table.to_pylist()[1] == {"at": None, "n": None}


def test_one_kind_of_time_with_nulls_is_stored() -> None:
    table = table_of(
        pd.DataFrame(
            {
                "day": pd.Series([date(2024, 1, 1), None, pd.NaT], dtype=object),
                "at": pd.Series([FIVE, pd.NaT, pd.Timestamp(FIVE)], dtype=object),
                "in_list": pd.Series([[{"a": FIVE}], [], [{"a": pd.NaT}, {}]], dtype=object),
                "never": pd.Series([pd.NaT, pd.NaT, pd.NaT], dtype=object),
            }
        )
    )
    assert table["day"].to_pylist() == [date(2024, 1, 1), None, None]
    assert table["at"].to_pylist() == [FIVE, None, FIVE]
    assert table["in_list"].to_pylist() == [[{"a": FIVE}], [], [{"a": None}, {"a": None}]]
    assert table["never"].null_count == 3
