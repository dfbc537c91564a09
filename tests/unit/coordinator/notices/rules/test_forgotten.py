"""What became of a problem that a target was notified of, by what Redis knows of its subject."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from tests.support.network.receivers import notice
from unstuck.coordinator.model.notice import Alert
from unstuck.coordinator.model.schedule_record import RunFailure, RunSuccess, ScheduleRecord
from unstuck.coordinator.notices.rules.expected import Expected
from unstuck.coordinator.notices.rules.forgotten import Fate, Subject, end_of, fate_of

AT = 1_800_000_000.0
DAY = 86400.0
NOTICE = notice(1, at=AT, since=AT - 10, problem="schedule:s")
OPEN = Alert(AT - 10, AT, ("ops",), ends=("ops",))
RECORD = ScheduleRecord("s", "c", "{}", "{}", "/w")
WELL = replace(RECORD, last_success=RunSuccess("j", AT + 20, AT + 30))
UNWELL = replace(WELL, failures=1, last_error=RunFailure("j", AT, AT, "STEP_FAILED", "it broke"))


def expected(judged: float, **told: Alert) -> Subject:
    return Subject.of_expected(
        Expected(judged={"late": judged}, alerts=told).to_json(), NOTICE.since
    )


@pytest.mark.parametrize(
    ("subject", "fate"),
    [
        (None, Fate.FORGOTTEN),
        (Subject.of_schedule(WELL), Fate.FORGOTTEN),
        (Subject.of_schedule(RECORD), Fate.OPEN),
        (Subject.of_schedule(UNWELL), Fate.OPEN),
        (Subject.of_schedule(replace(WELL, alerts={"late": OPEN})), Fate.OPEN),
        (
            Subject.of_schedule(replace(WELL, alerts={"failed": replace(OPEN, over=AT + 30)})),
            Fate.ENDED,
        ),
        (
            Subject.of_schedule(
                replace(WELL, alerts={"failed": replace(OPEN, at=AT - 99, over=AT - 50)})
            ),
            Fate.FORGOTTEN,
        ),
        (
            Subject.of_schedule(replace(WELL, alerts={"failed": replace(OPEN, to=("team",))})),
            Fate.OPEN,
        ),
        (expected(NOTICE.since), Fate.FORGOTTEN),
        (expected(NOTICE.since - DAY), Fate.OPEN),
        (expected(NOTICE.since, late=OPEN), Fate.OPEN),
        (Subject([], inf, "FINISHED"), Fate.FORGOTTEN),
        (Subject([], 0.0, "RUNNING"), Fate.OPEN),
    ],
)
def test_a_lost_problem_is_closed_if_its_subject_is_well_and_no_end_was_committed(
    subject: Subject | None, fate: Fate
) -> None:
    assert fate_of("ops", NOTICE, subject, AT + 60, 7 * DAY) is fate


def test_a_job_removed_by_retention_does_not_count_as_lost() -> None:
    assert fate_of("ops", NOTICE, None, AT + 8 * DAY, 7 * DAY) is Fate.ENDED


def test_two_coordinators_send_one_end_notice() -> None:
    first, second = (end_of("ops", NOTICE, None, AT + later) for later in (60, 61))
    assert first.id == second.id != NOTICE.id
    assert (first.event, first.problem, first.to) == ("recovered", "schedule:s", ("ops",))
