"""Durations: a strict grammar and one bound, for text and for numbers alike."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstuck.coordinator.spec import json_schema as schema
from unstuck.tasks.duration import LONGEST, SHORTEST, parse_duration, since_time
from unstuck.tasks.time_zone import in_zone


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0.0),
        ("0", 0.0),
        ("0s", 0.0),
        (90, 90.0),
        (0.5, 0.5),
        ("90", 90.0),
        ("500ms", 0.5),
        ("1ms", 0.001),
        (" 1H30M ", 5400.0),
        ("1d2h3m4s5ms", 93784.005),
        ("1.5h", 5400.0),
        ("36500d", LONGEST),
        (LONGEST, LONGEST),
    ],
)
def test_a_duration_is_parsed_to_seconds(value: Any, seconds: float) -> None:
    assert parse_duration(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        *(
            "99999999d",
            "36501d",
            "9" * 400 + "d",
            "9" * 5000,
            "0" * 5000 + "x",
            LONGEST + 1,
            1e12,
            10**5000,
        ),
        *(float("inf"), float("nan"), "inf", "nan", -1, "-1s"),
        *("1h1h", "1m1h", "5s5s", "1h-30m", "1h 30m", "", "h", "s1"),
        *("٣s", "１s", "1_0", "+5", "5.", ".5s", "1e3", "1e-07", "0x10s"),
        *(1e-07, "0.5ms", SHORTEST / 2),
        *(True, False, None, b"5s", [5]),
    ],
    ids=lambda value: "10**5000" if isinstance(value, int) and value > 1e15 else repr(value)[:20],
)
def test_an_invalid_duration_is_refused_with_a_short_message(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^expected a duration") as caught:
        parse_duration(value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-10-25T01:30", "2026-10-24T23:30Z"),
        ("2026-10-25T02:30", "2026-10-25T00:30Z"),  # the first of the two
        ("2026-10-25T02:30+01:00", "2026-10-25T01:30Z"),
        ("2026-10-25T03:30", "2026-10-25T02:30Z"),
        ("2026-03-29T03:30", "2026-03-29T01:30Z"),
    ],
)
def test_an_instant_around_a_clock_change_is_parsed_as_local_time(text: str, instant: str) -> None:
    with in_zone("Europe/Berlin"):
        assert since_time(text) == datetime.fromisoformat(instant).timestamp()


@given(
    st.from_regex(r"\A([0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h|d)){0,3}\Z") | st.floats() | st.integers()
)
def test_a_parsed_duration_can_be_stored_and_read_back(value: Any) -> None:
    try:
        seconds = parse_duration(value)
    except ValueError:
        return
    assert parse_duration(json.loads(json.dumps(seconds))) == seconds


@pytest.mark.variant
@given(st.text("0123456789.dhms ", max_size=8))
def test_the_schema_for_editors_accepts_the_same_durations(text: str) -> None:
    (pattern,) = set(re.findall(r'"pattern": ("\^\\\\s[^"]*")', schema.schema_text()))
    try:
        parse_duration(text)
    except ValueError:
        return
    assert re.search(json.loads(pattern), text) is not None
