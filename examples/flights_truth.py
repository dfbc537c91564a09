"""The numbers of the flights pipeline, found with pandas alone: what ``flights.py`` is tested
against.

Shares with the pipeline only the place of the files. It never imports Spark, ``examples.flights``
or the readers of ``examples.nycflights``: a truth that runs the code it judges could not disagree
with it.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from examples.nycflights import table_path

KEYS = {
    "flights_by_carrier": ["carrier"],
    "flights_by_origin": ["origin"],
    "monthly": ["month"],
    "weather_delays": ["factor", "class"],
    "report": ["name"],
}


def _read(name: str) -> pd.DataFrame:
    return pd.read_csv(table_path(name), na_values=["NA"], keep_default_na=False)


def truth(year: int = 2013, late_after: int = 15) -> dict[str, pd.DataFrame]:
    """Every published dataset of the pipeline, by name, with the columns that are checked.

    ``report`` has ``name`` and ``number`` only: its sentences are for people. ``late_after`` is in
    minutes.
    """
    flights = _read("flights").query("year == @year").copy()
    flights["cancelled"] = flights.dep_time.isna()
    flights["diverted"] = flights.dep_time.notna() & flights.arr_delay.isna()
    flights["late"] = flights.dep_delay >= late_after
    found = {
        "flights_by_carrier": _by(flights, "carrier").merge(
            _read("airlines").rename(columns={"name": "airline"}), on="carrier"
        ),
        "flights_by_origin": _by(flights, "origin").assign(
            destinations=flights.groupby("origin").dest.nunique().to_numpy()
        ),
        "monthly": _by(flights, "month"),
        "weather_delays": _by_weather(flights),
    }
    found["report"] = _report(flights, found, late_after)
    return found


def _by(flights: pd.DataFrame, *keys: str) -> pd.DataFrame:
    return (
        flights.groupby(list(keys))
        .agg(
            flights=("origin", "size"),
            cancelled=("cancelled", "sum"),
            diverted=("diverted", "sum"),
            late=("late", "sum"),
            mean_dep_delay=("dep_delay", "mean"),
            mean_arr_delay=("arr_delay", "mean"),
        )
        .reset_index()
    )


def _by_weather(flights: pd.DataFrame) -> pd.DataFrame:
    weather = _read("weather")
    weather.loc[weather.wind_speed > 1000, "wind_speed"] = math.nan
    joined = flights.merge(
        weather, on=["origin", "time_hour"], how="left", suffixes=("", "_weather")
    )
    end = math.inf
    cuts = {
        "precipitation": pd.cut(
            joined.precip,
            [0, 0.01, 0.1, 0.3, end],
            right=False,
            labels=["none", "light", "moderate", "heavy"],
        ),
        "visibility": pd.cut(
            joined.visib,
            [0, 1, 5, 10, end],
            right=False,
            labels=["poor", "reduced", "good", "clear"],
        ),
        "wind": pd.cut(
            joined.wind_speed,
            [0, 10, 20, 30, end],
            right=False,
            labels=["calm", "breeze", "strong", "near gale"],
        ),
    }
    tables = []
    for factor, classes in cuts.items():
        classed = joined.assign(**{"class": classes.astype(object).fillna("unknown")})
        tables.append(_by(classed, "class").assign(factor=factor))
    return pd.concat(tables, ignore_index=True)


def _report(flights: pd.DataFrame, found: dict[str, pd.DataFrame], late_after: int) -> pd.DataFrame:
    carriers, origins, months = (
        found[name] for name in ("flights_by_carrier", "flights_by_origin", "monthly")
    )
    by_weather = found["weather_delays"].set_index(["factor", "class"]).mean_dep_delay
    aged = flights.merge(
        _read("planes")[["tailnum", "year"]], on="tailnum", suffixes=("", "_built")
    )
    numbers = {
        "flights scheduled": len(flights),
        "cancelled": flights.cancelled.sum(),
        "diverted, or no arrival on record": flights.diverted.sum(),
        f"departed {late_after} minutes late or more": flights.late.sum(),
        "departure delay": flights.dep_delay.mean(),
        "arrival delay": flights.arr_delay.mean(),
        "busiest carrier": carriers.flights.max(),
        "latest carrier, on arrival": carriers.mean_arr_delay.max(),
        "earliest carrier, on arrival": carriers.mean_arr_delay.min(),
        "slowest airport, departure delay": origins.mean_dep_delay.max(),
        "worst month, departure delay": months.mean_dep_delay.max(),
        "best month, departure delay": months.mean_dep_delay.min(),
        "most cancellations in a month": months.cancelled.max(),
        "departure delay without precipitation": by_weather["precipitation", "none"],
        "departure delay in heavy precipitation": by_weather["precipitation", "heavy"],
        "departure delay in clear sight": by_weather["visibility", "clear"],
        "departure delay in poor visibility": by_weather["visibility", "poor"],
        "mean age of the aircraft": (aged.year - aged.year_built).mean(),
    }
    return pd.DataFrame(
        {"name": list(numbers), "number": [float(number) for number in numbers.values()]}
    )


def disagreements(dataset: str, found: list[dict[str, Any]], true: pd.DataFrame) -> list[str]:
    """Where the rows ``found`` in a published dataset differ from the truth; one sentence each,
    none if they agree.

    Numbers agree when they are equal to nine digits: a mean depends on the order of its sum.
    """
    keys = KEYS[dataset]

    def by_key(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
        return {tuple(row[key] for key in keys): row for row in rows}

    expected, actual = by_key(true.to_dict("records")), by_key(found)
    said = (
        [f"{dataset} has {len(found)} rows, for {len(actual)} keys"]
        if len(found) != len(actual)
        else []
    )
    said += [f"{dataset} has no row {key}" for key in expected.keys() - actual.keys()]
    said += [
        f"{dataset} has a row {key} that is not true" for key in actual.keys() - expected.keys()
    ]
    for key in expected.keys() & actual.keys():
        for column, value in expected[key].items():
            other = actual[key].get(column)
            same = (
                other == value
                if isinstance(value, str) or other is None
                else math.isclose(other, value, rel_tol=1e-9)
            )
            if not same:
                said.append(f"{dataset} {key}: {column} is {other}, not {value}")
    return sorted(said)
