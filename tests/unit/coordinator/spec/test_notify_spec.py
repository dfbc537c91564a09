"""``notify:`` of a spec: what it takes, and that wrong input is refused with its place and what was
expected.
"""

from __future__ import annotations

import json

import pytest

from tests.support.jobs.specs import minimal, told
from unstuck.coordinator.spec.model import JobSpec
from unstuck.coordinator.spec.notify_spec import Condition, Late, Usual, late_of

GROUPS = "groups:\n  - {name: a, steps: [{python: 'm:f', output: flights}]}\n"


def refused(rule: str, more: str = "") -> str:
    """The one problem of a spec with this rule, which stands in line 2."""
    (line,) = told(f"name: x\nnotify: [{rule}]\n{more}{GROUPS}")
    assert line.startswith("s.yaml:2:"), line
    return line.partition(": ")[2]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            "{on: [fail], to: ops}",
            "notify[0].on[0]: expected a condition, one of failed, halted, finished, recovered",
        ),
        ("{on: [fail], to: ops}", "not 'fail'; did you mean 'failed'?"),
        ("{on: [7], to: ops}", "notify[0].on[0]: expected a condition, one of failed"),
        ("{on: failed, to: ops}", "notify[0].on: expected a list, not 'failed'"),
        ("{on: [], to: ops}", "notify[0].on: expected at least one value"),
        (
            "{on: [retrying_for], to: ops}",
            "notify[0].on[0]: retrying_for needs a value, as retrying_for: 15m",
        ),
        ("{on: [late], to: ops}", 'late needs a value, as late: "06:00", or "06:00 MON-FRI"'),
        (
            "{on: [{failed: 5m}], to: ops}",
            "notify[0].on[0]: failed takes no value; write failed alone",
        ),
        (
            "{on: [{retrying: 5m}], to: ops}",
            "unknown field 'retrying'; did you mean 'retrying_for'?",
        ),
        (
            "{on: [{retrying_for: soon}], to: ops}",
            "notify[0].on[0].retrying_for: expected a duration such as 15s",
        ),
        ("{on: [{retrying_for: 0}], to: ops}", "a time of zero is over before it begins"),
        (
            "{on: [{retrying_for: null}], to: ops}",
            "expected one condition with its value, as retrying_for: 15m",
        ),
        (
            "{on: [{running_for: 3 x normal}], to: ops}",
            "or a multiple of the runs before, as 3 x usual",
        ),
        ("{on: [{running_for: 1 x usual}], to: ops}", "expected more than once the usual time"),
        (
            "{on: [{running_for: 1h, retrying_for: 1h}], to: ops}",
            "expected one condition with its value",
        ),
        ("{on: [failed, failed], to: ops}", "notify[0].on: failed: named twice in one rule"),
        ("{on: [recovered], to: ops}", "notify[0].on: recovered tells the end of a problem"),
        ("{on: [failed]}", "notify[0]: 'to' is missing"),
        ("{on: [failed], to: []}", "notify[0].to: expected at least one value"),
        ("{on: [failed], to: a b}", "notify[0].to: expected a name (letters, digits, _ . and -"),
        ("{on: [failed], to: 7}", "notify[0].to: expected a list, not the number 7"),
        ("{on: [failed], to: ops, for: 5m}", "unknown field 'for'"),
        ("{on: [{late: '06:00 MON Europe/Berlim'}], to: ops}", "did you mean Europe/Berlin"),
        ("{on: [{behind: 5m}], to: ops}", "notify[0].on[0].behind: behind is told of a schedule"),
        ("failed", "notify[0]: expected a mapping, not 'failed'"),
    ],
)
def test_an_invalid_rule_is_refused_with_its_place_and_the_expected_form(
    rule: str, words: str
) -> None:
    assert words in refused(rule)


@pytest.mark.parametrize(
    "late", ["6 o'clock", "24:00", "6:00", "06:00 MON-FRI-SUN", "06:00 MONDAY", "06:00,MON"]
)
def test_an_invalid_local_time_is_refused_with_its_place(late: str) -> None:
    words = refused(f'{{on: [{{late: "{late}"}}], to: ops}}', "schedule: {every: 10s}\n")
    assert words.startswith("notify[0].on[0].late: expected ")


def test_a_backlog_rule_is_refused_without_a_stream() -> None:
    words = refused("{on: [{behind: 5m}], to: ops}", "schedule: {every: 10s}\n")
    assert (
        words
        == "notify[0].on[0].behind: no group of the job reads a stream, so nothing can be behind"
    )


def test_days_of_a_local_time_may_be_ranges_across_the_end_of_the_week() -> None:
    assert late_of("06:00") == Late(6, 0, frozenset(range(7)))
    assert late_of("23:59  mon-fri") == Late(23, 59, frozenset(range(5)))
    assert late_of("00:00 SAT-MON, wed") == Late(0, 0, frozenset((5, 6, 0, 2)))
    assert late_of("06:00 SUN") == Late(6, 0, frozenset((6,)))
    assert late_of("06:00 SUN America/Argentina/Salta") == Late(
        6, 0, frozenset((6,)), "America/Argentina/Salta"
    )
    assert late_of("06:00 UTC") == Late(6, 0, frozenset(range(7)), "UTC")


def test_a_rule_is_stored_normalized_and_read_back() -> None:
    written = [
        {
            "on": ["failed", {"retrying_for": "15m"}, {"running_for": "3 x usual"}, "recovered"],
            "to": "ops",
        },
        {"on": [{"late": "06:00 MON-FRI"}, {"running_for": 90}], "to": ["team", "on-call"]},
    ]
    spec = JobSpec.model_validate(minimal(schedule={}, notify=written))
    assert [rule.to for rule in spec.notify] == [("ops",), ("team", "on-call")]
    assert spec.notify[0].conditions == (
        Condition("failed"),
        Condition("retrying_for", 900.0),
        Condition("running_for", Usual(3.0)),
        Condition("recovered"),
    )
    assert spec.notify[1].conditions == (
        Condition("late", Late(6, 0, frozenset(range(5)))),
        Condition("running_for", 90.0),
    )
    assert JobSpec.model_validate_json(spec.to_json()) == spec
    assert json.loads(spec.to_json())["notify"][0]["on"][1] == {"retrying_for": 900.0}
