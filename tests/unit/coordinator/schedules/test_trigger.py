"""The ticks of a schedule: over daylight saving, leap days and changed rules, and the same on every
host.
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.paths import ROOT
from unstuck.coordinator.schedules.trigger import next_tick, previous_tick, start_delay, ticks
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def shown(schedule: ScheduleSpec, after: str, to: str) -> list[str]:
    """The ticks as a person in the zone of the schedule reads them."""
    found = list(ticks(schedule, at(after), at(to)))
    assert all(tick.tzinfo is UTC for tick in found)
    return [f"{tick.astimezone(schedule.time_zone):%m-%dT%H:%M%z}" for tick in found]


def cron(text: str, zone: str, **more: Any) -> ScheduleSpec:
    return ScheduleSpec(cron=text, zone=zone, **more)


@pytest.mark.parametrize(
    ("text", "zone", "after", "to", "expected"),
    [
        # Forward in Berlin: 02:00 +01:00 is 03:00 +02:00. A gap: once, at the first instant after
        # it.
        (
            "30 2 * * *",
            BERLIN,
            "2026-03-28T00:00Z",
            "2026-03-30T12:00Z",
            ["03-28T02:30+0100", "03-29T03:00+0200", "03-30T02:30+0200"],
        ),
        ("0,30 2 * * *", BERLIN, "2026-03-29T00:00Z", "2026-03-29T12:00Z", ["03-29T03:00+0200"]),
        ("0 2,3 * * *", BERLIN, "2026-03-29T00:00Z", "2026-03-29T12:00Z", ["03-29T03:00+0200"]),
        (
            "0 */2 * * *",
            BERLIN,
            "2026-03-29T00:00Z",
            "2026-03-29T02:00Z",
            ["03-29T03:00+0200", "03-29T04:00+0200"],
        ),
        ("*/30 2 * * *", BERLIN, "2026-03-29T00:00Z", "2026-03-29T12:00Z", ["03-29T03:00+0200"]),
        # Back in Berlin: 03:00 +02:00 is 02:00 +01:00. A fold: once, the first time.
        (
            "30 2 * * *",
            BERLIN,
            "2026-10-24T12:00Z",
            "2026-10-26T12:00Z",
            ["10-25T02:30+0200", "10-26T02:30+0100"],
        ),
        (
            "*/30 2 * * *",
            BERLIN,
            "2026-10-24T12:00Z",
            "2026-10-25T12:00Z",
            ["10-25T02:00+0200", "10-25T02:30+0200"],
        ),
        (
            "0 */2 * * *",
            BERLIN,
            "2026-10-24T23:00Z",
            "2026-10-25T03:00Z",
            ["10-25T02:00+0200", "10-25T04:00+0100"],
        ),
        ("15 2,3 * * *", BERLIN, "2026-10-25T00:20Z", "2026-10-25T12:00Z", ["10-25T03:15+0100"]),
        # Every hour, or some minutes of every hour: each hour that passes counts, and no other.
        (
            "30 * * * *",
            BERLIN,
            "2026-10-24T23:00Z",
            "2026-10-25T02:00Z",
            ["10-25T01:30+0200", "10-25T02:30+0200", "10-25T02:30+0100"],
        ),
        (
            "30 * * * *",
            BERLIN,
            "2026-03-29T00:00Z",
            "2026-03-29T02:00Z",
            ["03-29T01:30+0100", "03-29T03:30+0200"],
        ),
        # New York changes at other dates, at 02:00 as the clock shows it.
        (
            "30 2 * * *",
            NEW_YORK,
            "2026-03-07T12:00Z",
            "2026-03-09T12:00Z",
            ["03-08T03:00-0400", "03-09T02:30-0400"],
        ),
        (
            "30 1 * * 0,1",
            NEW_YORK,
            "2026-10-31T12:00Z",
            "2026-11-02T12:00Z",
            ["11-01T01:30-0400", "11-02T01:30-0500"],
        ),
        # Lord Howe moves by half an hour: 02:00 +10:30 is 02:30 +11:00, and 02:00 +11:00 is 01:30
        # +10:30.
        (
            "15 2 * * *",
            LORD_HOWE,
            "2026-10-03T00:00Z",
            "2026-10-05T00:00Z",
            ["10-04T02:30+1100", "10-05T02:15+1100"],
        ),
        ("0,30 2 * * *", LORD_HOWE, "2026-10-03T00:00Z", "2026-10-04T00:00Z", ["10-04T02:30+1100"]),
        (
            "45 1 * * *",
            LORD_HOWE,
            "2026-04-04T00:00Z",
            "2026-04-06T00:00Z",
            ["04-05T01:45+1100", "04-06T01:45+1030"],
        ),
        # The leap day, and the days after it.
        (
            "0 0 29 2 *",
            "UTC",
            "2026-01-01T00:00Z",
            "2033-01-01T00:00Z",
            ["02-29T00:00+0000", "02-29T00:00+0000"],
        ),
        (
            "0 12 L 2 *",
            "UTC",
            "2027-01-01T00:00Z",
            "2028-12-31T00:00Z",
            ["02-28T12:00+0000", "02-29T12:00+0000"],
        ),
        # Samoa went over the date line: its clocks never showed the 30th of December 2011.
        (
            "0 9 * * *",
            "Pacific/Apia",
            "2011-12-29T00:00Z",
            "2011-12-31T12:00Z",
            ["12-29T09:00-1000", "12-31T00:00+1400", "12-31T09:00+1400"],
        ),
        # Moscow gave up daylight saving in 2011 and moved to +03:00 for good in 2014.
        (
            "30 1 26,27 10 *",
            "Europe/Moscow",
            "2010-01-01T00:00Z",
            "2014-12-31T00:00Z",
            [
                "10-26T01:30+0400",
                "10-27T01:30+0400",
                "10-26T01:30+0400",
                "10-27T01:30+0400",
                "10-26T01:30+0400",
                "10-27T01:30+0400",
                "10-26T01:30+0400",
                "10-27T01:30+0400",
                "10-26T01:30+0400",
                "10-27T01:30+0300",
            ],
        ),
        # A zone that was merged into another one keeps its name; Sao Paulo, without daylight saving
        # since 2019, had it at midnight.
        (
            "0 6 1 1 *",
            "Europe/Kiev",
            "2026-12-01T00:00Z",
            "2027-02-01T00:00Z",
            ["01-01T06:00+0200"],
        ),
        (
            "0 0 4 11 *",
            "America/Sao_Paulo",
            "2018-01-01T00:00Z",
            "2020-01-01T00:00Z",
            ["11-04T01:00-0200", "11-04T00:00-0300"],
        ),
    ],
)
def test_a_cron_tick_occurs_once_despite_clock_changes(
    text: str, zone: str, after: str, to: str, expected: list[str]
) -> None:
    assert shown(cron(text, zone), after, to) == expected


def test_ticks_are_later_than_the_start_and_not_later_than_the_end() -> None:
    nightly = cron("30 2 * * *", BERLIN)
    first = at("2026-11-27T01:30Z")
    assert next_tick(nightly, first - timedelta(microseconds=1)) == first
    assert next_tick(nightly, first) == first + timedelta(days=1)
    assert list(ticks(nightly, first, first + timedelta(days=1))) == [first + timedelta(days=1)]
    assert next_tick(nightly, first.astimezone(nightly.time_zone)) == first + timedelta(days=1)


def test_every_counts_from_the_epoch_and_not_from_the_set() -> None:
    ten = ScheduleSpec(every=10)
    assert next_tick(ten, at("2026-11-27T01:30:03.5Z")) == at("2026-11-27T01:30:10Z")
    assert next_tick(ten, at("2026-11-27T01:30:10Z")) == at("2026-11-27T01:30:20Z")
    assert next_tick(ScheduleSpec(every="7d"), at("2026-11-27T00:00Z")) == at(
        "2026-12-03T00:00Z"
    )  # a Thursday
    assert next_tick(ScheduleSpec(every="7s"), at("1969-12-31T23:59:50Z")) == at(
        "1969-12-31T23:59:53Z"
    )


def test_dataset_manual_and_ended_schedules_have_no_clock_ticks() -> None:
    now = at("2026-11-27T00:00Z")
    for schedule in (ScheduleSpec(), ScheduleSpec(after=["flights"])):
        assert next_tick(schedule, now) is previous_tick(schedule, now) is None
        assert list(ticks(schedule, now, at("2027-11-27T00:00Z"))) == []
    ending = ScheduleSpec(every="1h", until="2026-11-27T03:00:00+01:00")
    assert shown(ending, "2026-11-27T00:00Z", "2026-11-28T00:00Z") == ["11-27T01:00+0000"]
    assert next_tick(ending, at("2026-11-27T01:00Z")) is None


@pytest.mark.parametrize(
    ("schedule", "before", "expected"),
    [
        (ScheduleSpec(every=10), "2026-11-27T01:30:10Z", "2026-11-27T01:30:00Z"),
        (ScheduleSpec(every=10), "2026-11-27T01:30:10.000001Z", "2026-11-27T01:30:10Z"),
        (cron("30 2 * * *", BERLIN), "2026-03-29T01:00Z", "2026-03-28T01:30Z"),
        (cron("30 2 * * *", BERLIN), "2026-03-30T00:30Z", "2026-03-29T01:00Z"),
        (cron("30 2 * * *", BERLIN), "2026-10-25T01:30Z", "2026-10-25T00:30Z"),
        (cron("0 0 29 2 *", "UTC"), "2028-02-29T00:00Z", "2024-02-29T00:00Z"),
        (
            ScheduleSpec(every="1h", until="2026-01-01T00:30Z"),
            "2026-11-27T00:00Z",
            "2026-01-01T00:00Z",
        ),
    ],
)
def test_the_previous_tick_is_the_last_one_strictly_earlier(
    schedule: ScheduleSpec, before: str, expected: str
) -> None:
    assert previous_tick(schedule, at(before)) == at(expected)


FIELD = st.sampled_from(["*", "0", "30", "1,2,3", "*/2", "2-4", "*/7"])


@given(
    FIELD,
    FIELD.filter(lambda field: field != "30"),
    st.sampled_from([BERLIN, NEW_YORK, LORD_HOWE]),
    st.data(),
)
def test_ticks_do_not_depend_on_the_start_of_the_search(
    minute: str, hour: str, zone: str, data: st.DataObject
) -> None:
    schedule = cron(f"{minute} {hour} * * *", zone)
    begin = at(
        data.draw(st.sampled_from(["2026-03-28T18:00Z", "2026-10-24T18:00Z", "2026-04-04T06:00Z"]))
    )
    end = begin + timedelta(hours=16)
    every = list(ticks(schedule, begin, end))
    assert every == sorted(set(every))
    middle = begin + timedelta(seconds=data.draw(st.integers(0, 16 * 3600)))
    assert [tick for tick in every if tick > middle] == list(ticks(schedule, middle, end))
    assert previous_tick(schedule, middle) == next(
        (t for t in reversed(every) if t < middle), None
    ) or not (every and every[0] < middle)


@pytest.mark.variant
def test_ticks_do_not_depend_on_the_zone_or_zone_data_of_the_host() -> None:
    program = (
        "from datetime import datetime\n"
        "from unstuck.coordinator.schedules.trigger import ticks\n"
        "from unstuck.coordinator.spec.schedule_spec import ScheduleSpec\n"
        "for schedule in (ScheduleSpec(cron='30 2 * * *', zone='Europe/Berlin'), "
        "ScheduleSpec(every='8h')):\n"
        "    begin, end = map(datetime.fromisoformat, ('2026-10-24T00:00Z', '2026-10-27T00:00Z'))\n"
        "    print(*ticks(schedule, begin, end))\n"
    )
    said = set()
    for zone, path in (
        ("UTC", ""),
        ("America/New_York", "/nowhere"),
        ("Australia/Lord_Howe", str(ROOT)),
        ("EST5", ""),
    ):
        env = {**os.environ, "TZ": zone, "PYTHONTZPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True
        )
        said.add(done.stdout)
    (lines,) = said
    assert "2026-10-25 00:30:00+00:00 2026-10-26 01:30:00+00:00" in lines


def test_jitter_depends_on_the_name_and_does_not_move_the_tick() -> None:
    plain, spread = cron("0 0 * * *", "UTC"), cron("0 0 * * *", "UTC", jitter="10m")
    now = at("2026-11-27T00:00Z")
    assert next_tick(plain, now) == next_tick(spread, now)
    assert start_delay(plain, "a") == timedelta()
    delays = [start_delay(spread, f"load_{n}") for n in range(100)]
    assert delays == [start_delay(spread, f"load_{n}") for n in range(100)]
    assert timedelta() <= min(delays) < timedelta(minutes=1)
    assert timedelta(minutes=9) < max(delays) < timedelta(minutes=10)
