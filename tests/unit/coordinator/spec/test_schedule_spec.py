"""``schedule:`` of a spec: what it takes, and that wrong input is refused with its place and what
was expected.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.jobs.specs import minimal, told
from unstuck.coordinator.schedules.trigger import next_tick
from unstuck.coordinator.spec.model import JobSpec, SpecError, SpecProblem
from unstuck.coordinator.spec.schedule_spec import ScheduleSpec

GROUPS = "groups:\n  - {name: a, steps: [{python: 'm:f', output: flights}]}\n"


def refused(schedule: str) -> str:
    """The one problem of a spec with this schedule, which stands in line 2."""
    (line,) = told(f"name: x\nschedule: {schedule}\n{GROUPS}")
    assert line.startswith("s.yaml:2:"), line
    return line.partition(": ")[2]


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("{cron: 30 2 * * *}", "schedule: cron: has no zone"),
        ("{cron: 30 2 * * *, zone: europe/berlin}", "did you mean Europe/Berlin"),
        ("{cron: 30 2 * * *, zone: New York}", "did you mean America/New_York"),
        (
            "{cron: 30 2 * * *, zone: CET}",
            "schedule.zone: 'CET' is no time zone; expected UTC, or a name of IANA",
        ),
        ("{cron: 30 2 * *, zone: UTC}", "schedule.cron: expected five fields"),
        ('{cron: "@daily", zone: UTC}', "write 0 0 * * *"),
        ("{cron: 0 30 2 * * *, zone: UTC}", "for seconds, use every:"),
        ("{cron: 30 24 * * *, zone: UTC}", "schedule.cron: '24' is no hour; expected 0 to 23"),
        ("{cron: 30 2 * JUNE *, zone: UTC}", "'JUNE' is no month; expected 1 to 12, or JAN to DEC"),
        ("{cron: 0 0 30 2 *, zone: UTC}", "'0 0 30 2 *' never comes"),
        ("{cron: 0 0 31 4-6/2 *, zone: UTC}", "never comes"),
        ("{every: 0.5s}", "schedule.every: expected whole seconds, at least 1s, not 0.5s"),
        ("{every: 1500ms}", "expected whole seconds"),
        ("{every: 10s, jitter: 10s}", "the jitter is not below every:"),
        ("{every: 10s, after: [raw]}", "every and after: a schedule has one trigger"),
        ("{every: 10s, cron: 0 0 * * *, zone: UTC}", "cron and every: a schedule has one trigger"),
        (
            "{after: raw}",
            "schedule.after: expected a list of datasets, or all_of: with such a list, not 'raw'",
        ),
        ("{after: []}", "schedule.after: expected at least one value"),
        ("{after: [raw, 7]}", "schedule.after[1]: expected text, not the number 7"),
        ("{after: [raw, raw]}", "schedule.after: raw: named twice"),
        ("{after: {}}", "schedule.after: expected a list of datasets"),
        ("{after: {all: [raw]}}", "unknown field 'all'; did you mean 'all_of'?"),
        ("{after: [flights]}", "schedule.after[0]: the job publishes 'flights' itself"),
        (
            "{after: {all_of: [raw, flights]}}",
            "schedule.after.all_of[1]: the job publishes 'flights' itself",
        ),
        ("{every: 10s, only_if: arrived}", "schedule.only_if: no group of the job reads a stream"),
        (
            "{every: 10s, overlap: queue}",
            "schedule.overlap: expected skip, wait or allow, not 'queue'",
        ),
        ("{every: 10s, retry: {max: -1}}", "schedule.retry.max: expected 0 or more"),
        (
            "{every: 10s, retry: {tries: 3}}",
            "unknown field 'tries'; known: max, backoff, max_backoff",
        ),
        ("{every: 10s, keep_runs: 0}", "schedule.keep_runs: expected 1 or more"),
        (
            "{every: 10s, until: 2026-12-31T18:00:00}",
            "schedule.until: expected a time with its offset from UTC",
        ),
        ("{every: 10s, until: 2026-02-31T18:00:00Z}", "expected a time with its offset"),
        ("{evry: 10s}", "unknown field 'evry'; did you mean 'every'?"),
        ("10s", "schedule: expected a mapping, not '10s'"),
    ],
)
def test_an_invalid_schedule_is_refused_with_its_place_and_the_expected_form(
    schedule: str, words: str
) -> None:
    assert words in refused(schedule)


def test_a_schedule_is_stored_as_written_without_defaults() -> None:
    by_hand = JobSpec.model_validate(minimal(schedule={})).schedule
    assert by_hand == ScheduleSpec()
    assert (by_hand.overlap, by_hand.missed, by_hand.missed_within) == ("skip", "latest", 86400)
    assert (by_hand.retry.max, by_hand.keep_runs, by_hand.jitter) == (10, 100, 0)
    written = {
        "cron": "30 2 * * mon-fri",
        "zone": "Europe/Berlin",
        "until": "2026-12-31T18:00:00+01:00",
        "retry": {"max": 3},
    }
    spec = JobSpec.model_validate(minimal(schedule=written))
    assert json.loads(spec.to_json())["schedule"] == written
    assert JobSpec.model_validate_json(spec.to_json()) == spec
    for after in (["raw"], {"any_of": ["raw"]}):
        schedule = JobSpec.model_validate(minimal(schedule={"after": after})).schedule
        assert schedule is not None
        assert schedule.after is not None
        assert schedule.after.datasets == ("raw",)
        assert (
            ScheduleSpec.model_validate(schedule.model_dump(mode="json", exclude_unset=True))
            == schedule
        )


def test_a_schedule_may_follow_an_unpublished_dataset_of_its_job() -> None:
    groups = [
        {"name": "a", "steps": [{"python": "m:f", "output": "flights"}]},
        {"name": "b", "needs": ["a"], "steps": [{"python": "m:f", "output": "report"}]},
    ]
    JobSpec.model_validate({"name": "x", "schedule": {"after": ["flights"]}, "groups": groups})
    with pytest.raises(SpecError, match="the job publishes 'flights' itself"):
        JobSpec.model_validate(
            {
                "name": "x",
                "schedule": {"after": ["flights"]},
                "publish": ["flights", "report"],
                "groups": groups,
            }
        )


def problems(data: dict[str, Any]) -> tuple[SpecProblem, ...]:
    try:
        JobSpec.model_validate(data)
    except SpecError as error:
        return error.problems
    return ()


CRON = st.text(alphabet="0123456789*/-,#LWlwMONFRIAUG @", max_size=30)


@given(
    st.one_of(
        CRON,
        st.lists(CRON.map(lambda text: text.replace(" ", "")), min_size=5, max_size=5).map(
            " ".join
        ),
    )
)
def test_any_cron_text_is_accepted_or_refused_with_its_place(text: str) -> None:
    data = minimal(schedule={"cron": text, "zone": "UTC"})
    places = {problem.path for problem in problems(data)}
    assert places <= {"schedule.cron"}
    if not places:
        assert next_tick(
            ScheduleSpec.model_validate(data["schedule"]), datetime(2026, 11, 27, tzinfo=UTC)
        )
