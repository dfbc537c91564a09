"""Of which changes of a schedule somebody is told: each problem once, and its end; ``late``
whatever holds it up.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.unit.coordinator.schedules.test_decide_schedule import FAILED, T0, Play
from unstuck.coordinator.model.backlog import Backlog, StreamBacklog
from unstuck.coordinator.model.notice import Notice
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import ScheduleRecord
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.notices.message import message_of
from unstuck.coordinator.notices.rules.late_deadlines import deadlines
from unstuck.coordinator.reconcile.schedule_notices import ScheduleNotices
from unstuck.coordinator.schedules.backfill import Wanted
from unstuck.coordinator.schedules.decide_schedule import ScheduleDecision, decide, settled
from unstuck.coordinator.schedules.run_outcome import RunSeen
from unstuck.coordinator.schedules.schedule_commands import (
    backfill_command,
    begin_backfill,
    command,
    set_again,
)
from unstuck.coordinator.schedules.steps import policy_of
from unstuck.coordinator.schedules.submission import not_submitted
from unstuck.coordinator.spec.notify_spec import FleetRule, late_of

HOUR, DAY = 3600.0, 86400.0
ALL = ["failed", "halted", "finished", "recovered"]


class Telling(Play):
    """A schedule with rules, and the notices of each commit."""

    def __init__(
        self, on: list[Any], notices: ScheduleNotices | None = None, at: float = 0.0, **policy: Any
    ) -> None:
        policy = policy or {"every": "60s", "retry": {"max": 2, "backoff": "10s"}}
        spec = {"schedule": policy, **({"notify": [{"on": on, "to": "ops"}]} if on else {})}
        new = ScheduleRecord("s", "c", json.dumps(spec), json.dumps(policy), "/w", set_by="ann")
        super().__init__(set_again(None, new, T0 + at).record)
        self.rules = notices or ScheduleNotices()
        self.notices: list[Notice] = []
        self.backlog: Backlog | None = None

    def at(self, seconds: float) -> ScheduleDecision:
        before, now = self.record, T0 + seconds
        same = decide(before, self.runs, now)
        after, notices, due = self.rules.completed(
            before, same.record, same.events, same.due, now, backlog=self.backlog
        )
        self.notices += [Notice.from_json(text) for text in notices]
        self.record = replace(
            before, alerts=after.alerts
        )  # decided once more, and submitted, below
        decision = super().at(seconds)
        self.due = due
        return decision

    @property
    def told(self) -> list[str]:
        return [one.event for one in self.notices]


def test_a_failing_schedule_and_its_recovery_are_notified_once() -> None:
    play = Telling(["failed", "recovered"])
    play.at(60)
    play.fails(61)
    play.at(71)
    play.fails(72)
    assert play.told == ["failed"]
    play.at(92)
    play.ends(Status.FINISHED, 95, version=4)
    assert play.told == ["failed", "recovered"]
    failed, well = play.notices
    assert failed.problem == well.problem
    assert failed.id != well.id
    assert failed.first_error == "STEP_FAILED: it broke"
    assert (failed.status, failed.kind, failed.name, failed.to) == (
        "RETRYING",
        "schedule",
        "s",
        ("ops",),
    )
    assert "unstuck schedule why s" in failed.commands
    assert failed.next.startswith("try 2 of ")
    assert "job s@" in well.text
    assert "version 4" in well.text


def test_a_failure_repaired_within_one_check_is_notified_with_its_end() -> None:
    play = Telling(
        ["failed", "recovered"], every="60s", overlap="allow", retry={"max": 2, "backoff": "1s"}
    )
    play.at(60)
    play.at(120)
    first, second = play.submitted
    play.runs |= {
        first: RunSeen(Status.FAILED, T0 + 121, FAILED),
        second: RunSeen(Status.FINISHED, T0 + 122),
    }
    play.at(123)
    assert play.told == ["failed", "recovered"]


def test_a_recurring_problem_is_notified_again_after_half_an_hour_if_still_open() -> None:
    play = Telling(
        ["failed", "recovered"],
        every="60s",
        retry={"max": 1000, "backoff": "10s", "max_backoff": "10s"},
    )
    at = 0.0
    for _ in range(5):  # it flaps
        at += 120
        play.at(at)
        play.fails(at + 1)
        play.at(at + 11)
        play.ends(Status.FINISHED, at + 12)
    assert play.told == ["failed", "recovered"]
    play.at(at + 120)
    play.fails(at + 121)
    assert play.due is not None
    assert play.due <= T0 + 121 + 1800
    while at < 2400:
        at += 60
        play.at(at)
        if play.record.runs:
            play.fails(at)
    assert play.told == ["failed", "recovered", "failed"]


def test_each_halt_is_notified_and_ended_by_a_successful_resume() -> None:
    play = Telling(["halted", "recovered"])
    play.at(60)
    play.ends(Status.FAILED, 61, FAILED, final=True)
    assert play.told == ["halted"]
    assert play.notices[0].text.startswith("no further try can mend it: it broke")
    assert "unstuck schedule resume s" in play.notices[0].commands
    play.at(300)
    play.command("resume", 310)
    play.at(310)
    assert play.told == ["halted"], "nothing is well yet"
    play.ends(Status.FAILED, 311, FAILED, final=True)
    assert play.told == ["halted", "halted"]
    assert play.notices[0].id != play.notices[1].id
    play.command("resume", 320)
    play.at(320)
    play.ends(Status.FINISHED, 321)
    assert play.told == ["halted", "halted", "recovered"]


def test_a_failure_that_halts_sends_one_notice_also_to_failure_subscribers() -> None:
    rule = FleetRule.model_validate({"on": ["failed", "recovered"], "to": "boss"})
    play = Telling(["failed", "halted", "recovered"], ScheduleNotices((rule,)))
    play.at(60)
    play.ends(Status.FAILED, 61, FAILED, final=True)
    play.at(120)
    assert [(one.event, one.to) for one in play.notices] == [
        ("halted", ("ops",)),
        ("failed", ("boss",)),
    ]
    play.command("resume", 130)
    play.at(130)
    play.fails(131)
    assert len(play.notices) == 2, "it is not well yet"
    play.at(141)
    play.ends(Status.FINISHED, 142)
    assert [(notice.event, notice.to) for notice in play.notices[2:]] == [
        ("recovered", ("ops",)),
        ("recovered", ("boss",)),
    ]


def test_a_long_retrying_schedule_is_notified_once() -> None:
    play = Telling(
        [{"retrying_for": "5m"}, "recovered"], every="60s", retry={"max": 100, "backoff": "60s"}
    )
    play.at(60)
    play.fails(61)
    assert play.due == T0 + 61 + 60
    at = 61.0
    while at < 900:
        at += 60
        play.at(at)
        if play.record.runs:
            play.fails(at)
        assert (play.told == []) is (at < 361)
    play.at(2000)
    play.ends(Status.FINISHED, 2001)
    assert play.told == ["retrying_for", "recovered"]
    assert play.notices[0].since == T0 + 61


def test_a_run_that_cannot_be_submitted_for_long_is_notified() -> None:
    play = Telling([{"retrying_for": "30s"}])
    decision = decide(play.record, {}, T0 + 60)
    (run,) = decision.submits(T0 + 60)
    noted = not_submitted(
        decision.record, run, Reason("NOT_SUBMITTED", "the warehouse is away"), False, T0 + 60
    )
    assert noted is not None
    standing = settled(noted[0], T0 + 60)
    for seconds, told in ((80, 0), (90, 1)):
        standing, notices, _ = play.rules.completed(standing, standing, (), None, T0 + seconds)
        assert len(notices) == told
    assert "the warehouse is away" in Notice.from_json(notices[0]).text


def test_a_backfill_that_fails_continues_and_ends_is_notified_once_each() -> None:
    play = Telling(
        ["failed", "finished", "recovered"], every="60s", retry={"max": 0, "backoff": "1s"}
    )
    wanted = Wanted.between(
        policy_of(play.record.policy), "2027-01-01T00:00:00Z", "2027-01-01T00:01:00Z"
    )
    given = begin_backfill(play.record, wanted, {}, T0 + 5, "ann")
    assert given.answer == "DONE", given.text
    play.record = given.record

    def ends(at: float, status: Status, reason: Reason | None = None) -> None:
        play.at(at)
        assert play.record.backfill is not None
        (run,) = play.record.backfill.runs
        play.runs[run.job] = RunSeen(status, T0 + at + 1, reason, backfill=run.backfill)
        play.at(at + 1)

    ends(6, Status.FAILED, FAILED)
    assert play.told == ["failed"]
    assert play.notices[0].text.startswith(
        "its backfill is FAILED, 0 of 2 ticks are done, 1 failed (2027-01-01T00:00"
    )
    assert "unstuck schedule resume-backfill s" in play.notices[0].commands
    play.record = backfill_command(play.record, "resume", T0 + 10).record
    play.at(11)
    assert play.told == ["failed"], "a resume alone mends nothing"
    ends(12, Status.FINISHED)
    ends(13, Status.FINISHED)
    assert play.told == ["failed", "recovered", "finished"]
    assert play.notices[2].text == "its backfill is DONE, 2 of 2 ticks are done"


def test_canceling_a_failed_backfill_is_not_called_a_recovery() -> None:
    play = Telling(["failed", "recovered"], every="60s", retry={"max": 0, "backoff": "1s"})
    wanted = Wanted.between(
        policy_of(play.record.policy), "2027-01-01T00:00:00Z", "2027-01-01T00:01:00Z"
    )
    play.record = begin_backfill(play.record, wanted, {}, T0 + 5, "ann").record
    play.at(6)
    assert play.record.backfill is not None
    (run,) = play.record.backfill.runs
    play.runs[run.job] = RunSeen(Status.FAILED, T0 + 7, FAILED, backfill=run.backfill)
    play.at(8)
    play.record = backfill_command(play.record, "cancel", T0 + 10).record
    play.at(11)
    assert play.told == ["failed", "recovered"]
    title = message_of(play.notices[1], "", T0 + 12).title
    assert title == "schedule s's backfill is CANCELED, which ends the earlier problem"


def test_each_successful_run_is_notified_if_requested() -> None:
    play = Telling(["finished"])
    for at in (60, 120, 180):
        play.at(at)
        play.ends(Status.FINISHED, at + 1)
    assert play.told == ["finished"] * 3
    assert len({one.id for one in play.notices}) == 3
    assert [one.job for one in play.notices] == play.submitted


def test_a_file_unread_for_too_long_is_notified_even_during_a_pause() -> None:
    play = Telling([{"behind": "10m"}, "recovered"])
    play.command("pause", 5)
    play.backlog = Backlog(T0 + 500, {"/in": StreamBacklog(new=3, bytes=10, looked=9, since=T0)})
    play.at(500)
    assert play.told == []
    play.backlog = replace(play.backlog, at=T0 + 600)
    play.at(600)
    play.at(660)
    assert play.told == ["behind"]
    assert play.notices[0].text.startswith("/in: 3 unread files, 0.0 MB, the oldest for 10m")
    assert "paused by bob" in play.notices[0].text
    play.backlog = Backlog(T0 + 720, {"/in": StreamBacklog(looked=9)})
    play.at(720)
    assert play.told == ["behind", "recovered"]
    assert play.notices[1].text.startswith("nothing unread waits that long any more; ")
    other = Telling([{"behind": "10m"}])
    other.at(60)
    other.backlog = Backlog(T0 + 700, {"/in": StreamBacklog(new=1, looked=1, since=T0)})
    other.ends(Status.FINISHED, 701)
    assert other.told == [], "the run may have read it since"


def test_changing_a_rule_with_an_open_problem_does_not_suppress_its_end() -> None:
    play = Telling([{"behind": "10m"}, "failed", "recovered"])
    play.backlog = Backlog(T0 + 900, {"s": StreamBacklog(new=1, since=T0 + 100)})
    play.at(901)
    rules = [{"on": [{"behind": "20m"}, "failed", "recovered"], "to": "ops"}]
    play.record = replace(
        play.record, spec=json.dumps({**json.loads(play.record.spec), "notify": rules})
    )
    play.ends(Status.FINISHED, 960)
    assert play.told == ["behind", "recovered"]
    play.at(1020)
    play.fails(1021)
    play.at(1031)
    play.ends(Status.FINISHED, 1032)
    assert play.told == ["behind", "recovered", "failed", "recovered"]


@pytest.mark.parametrize("rules", [[{"on": ["failed", "recovered"], "to": "boss"}], []])
def test_a_target_removed_from_a_rule_is_notified_of_the_end_of_its_problem(
    rules: list[Any],
) -> None:
    play = Telling(["failed", "recovered"])
    play.at(60)
    play.fails(61)
    play.record = replace(
        play.record, spec=json.dumps({**json.loads(play.record.spec), "notify": rules})
    )
    play.at(71)
    play.ends(Status.FINISHED, 72)
    assert [(one.event, one.to) for one in play.notices] == [
        ("failed", ("ops",)),
        ("recovered", ("ops",)),
    ]


def test_stopping_a_schedule_notifies_informed_targets_that_the_problem_ended() -> None:
    play = Telling(["failed", "recovered"])
    play.at(60)
    play.fails(61)
    play.record = command(play.record, "stop", T0 + 70, "ann").record
    play.at(71)
    play.at(72)
    assert play.told == ["failed", "recovered"]
    failed, over = play.notices
    assert (over.problem, over.status) == (failed.problem, "STOPPED")
    assert over.text == "it is stopped for good"
    assert (
        message_of(over, "", over.at).title
        == "schedule s is STOPPED, which ends the earlier problem"
    )


def test_fleet_rules_apply_to_schedules_with_matching_names() -> None:
    both = [
        {"on": ["failed"], "to": "a", "names": ["s*"]},
        {"on": ["failed"], "to": "b", "names": ["x"]},
    ]
    rules = tuple(FleetRule.model_validate(one) for one in both)
    play = Telling([], ScheduleNotices(rules))
    play.at(60)
    play.fails(61)
    assert [one.to for one in play.notices] == [("a",)]
    none = Telling([])
    none.at(60)
    none.fails(61)
    assert (none.notices, none.record.alerts) == ([], {})


BERLIN = ZoneInfo("Europe/Berlin")


def berlin(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


def nightly(late: str = "06:00", made: str = "2026-11-20T12:00", **more: Any) -> Telling:
    policy = {"cron": "30 2 * * *", "zone": "Europe/Berlin", "retry": {"max": 0}, **more}
    return Telling([{"late": late}, "recovered"], at=berlin(made) - T0, **policy)


def well(play: Telling, night: str, hours: float = 1.0) -> None:
    """The tick of this night, whose run takes so many hours."""
    tick = berlin(f"{night}T02:30") - T0
    play.at(tick)
    play.ends(Status.FINISHED, tick + hours * HOUR)


def test_late_is_notified_once_a_night_without_a_successful_run() -> None:
    play = nightly()
    well(play, "2026-11-21")
    play.at(berlin("2026-11-21T06:00") - T0)
    assert play.told == []
    assert play.due == berlin("2026-11-22T02:30")
    play.at(berlin("2026-11-22T02:30") - T0)
    assert play.due is not None
    play.at(berlin("2026-11-22T05:59") - T0)
    assert play.due <= berlin("2026-11-22T06:00")
    assert play.told == []
    play.at(berlin("2026-11-22T06:00") - T0)
    play.at(berlin("2026-11-22T06:30") - T0)
    assert play.told == ["late"], "its run hangs"
    assert play.notices[0].text.startswith(
        "no run has ended well by 06:00 of 2026-11-22 (Europe/Berlin); the last that did was that "
        "of 2026-11-21T01:30:00Z; job s@2026-11-22T01:30:00Z goes on"
    )
    play.ends(Status.FINISHED, berlin("2026-11-22T07:10") - T0)
    assert play.told == ["late", "recovered"]


def test_each_late_night_of_a_pause_is_notified_with_its_cause() -> None:
    play = nightly()
    play.command("pause", berlin("2026-11-20T13:00") - T0)
    for day in (21, 22, 23):
        play.at(berlin(f"2026-11-{day}T06:00:01") - T0)
    assert play.told == ["late"] * 3
    assert len({one.id for one in play.notices}) == 3
    assert "it is paused by bob" in play.notices[0].text
    assert "since 2026-11-20T12:00:00Z" in play.notices[0].text


def test_after_an_outage_late_is_notified_only_for_the_last_night() -> None:
    play = nightly()
    well(play, "2026-11-21")
    play.at(berlin("2026-11-24T11:00") - T0)
    assert play.told == ["late"]
    assert "by 06:00 of 2026-11-24" in play.notices[0].text


def test_halted_schedules_and_schedules_with_failed_runs_are_late() -> None:
    play = nightly()
    tick = berlin("2026-11-21T02:30") - T0
    play.at(tick)
    play.ends(Status.FAILED, tick + 60, FAILED, final=True)
    play.at(berlin("2026-11-21T06:00") - T0)
    assert play.told == ["late"]
    assert "HALTED" in play.notices[0].text
    failing = nightly()
    failing.at(tick)
    failing.fails(tick + 60)
    failing.at(berlin("2026-11-21T06:00") - T0)
    assert failing.told == ["late"]


def test_an_idle_schedule_is_checked_when_a_run_becomes_late() -> None:
    """Else a run that failed for good is told as late only after the next tick."""
    play = nightly(cron="30 2 * * 6")  # 21 November 2026 is a Saturday
    play.at(berlin("2026-11-21T02:30") - T0)
    play.fails(berlin("2026-11-21T02:40") - T0)
    assert play.due == berlin("2026-11-21T06:00")
    play.at(play.due - T0)
    assert play.told == ["late"]
    play.command("pause", berlin("2026-11-21T07:00") - T0)
    assert play.due == berlin("2026-11-22T06:00")


def test_a_new_schedule_is_not_late_for_earlier_ticks() -> None:
    play = nightly(made="2026-11-21T04:00")
    play.at(berlin("2026-11-21T06:00:01") - T0)
    assert play.told == []
    play.at(berlin("2026-11-22T06:00:01") - T0)
    assert play.told == ["late"]


def test_the_run_of_the_previous_day_never_counts_for_this_night() -> None:
    play = nightly()
    tick = berlin("2026-11-21T02:30") - T0
    play.at(tick)
    play.at(tick + 3.5 * HOUR)
    play.ends(Status.FINISHED, tick + 10 * HOUR)
    assert play.told == ["late", "recovered"]
    play.command("pause", berlin("2026-11-21T14:00") - T0)
    play.at(berlin("2026-11-22T06:00:01") - T0)
    assert play.told[-1] == "late"
    assert "of 2026-11-22" in play.notices[-1].text


def test_weekday_deadlines_also_work_for_weekly_schedules() -> None:
    play = nightly("06:00 MON-FRI")
    play.command("pause", berlin("2026-11-20T13:00") - T0)
    for day in (21, 22, 23):  # Saturday, Sunday, Monday
        play.at(berlin(f"2026-11-{day}T06:00:01") - T0)
    assert [one.text[:53] for one in play.notices] == [
        "no run has ended well by 06:00 of 2026-11-23 (Europe/"
    ]
    weekly = nightly("06:00", cron="0 3 * * 6", made="2026-11-20T12:00")
    weekly.at(berlin("2026-11-21T03:00") - T0)
    weekly.ends(Status.FINISHED, berlin("2026-11-21T03:10") - T0)
    for day in range(21, 28):
        weekly.at(berlin(f"2026-11-{day}T06:00:01") - T0)
    assert weekly.told == []
    weekly.at(berlin("2026-11-28T06:00:01") - T0)
    assert weekly.told == ["late"]


def test_a_clock_that_was_ahead_suppresses_no_later_night() -> None:
    play = nightly()
    play.command("pause", berlin("2026-11-20T13:00") - T0)
    play.at(berlin("2027-11-20T13:00") - T0)
    assert play.told == ["late"]
    play.at(berlin("2026-11-21T06:00:01") - T0)
    assert play.told == ["late", "late"]


@pytest.mark.parametrize(
    ("late", "now", "at", "next_at"),
    [
        # The clock is set forward at 02:00: 02:30 is the first instant after the gap.
        (
            "02:30 Europe/Berlin",
            "2026-03-29T03:00+02:00",
            "2026-03-29T03:00+02:00",
            "2026-03-30T02:30+02:00",
        ),
        (
            "02:30 Europe/Berlin",
            "2026-03-29T01:59+01:00",
            "2026-03-28T02:30+01:00",
            "2026-03-29T03:00+02:00",
        ),
        # It is set back at 03:00: the first 02:30 counts, once.
        (
            "02:30 Europe/Berlin",
            "2026-10-25T02:30+02:00",
            "2026-10-25T02:30+02:00",
            "2026-10-26T02:30+01:00",
        ),
        (
            "02:30 Europe/Berlin",
            "2026-10-25T02:45+01:00",
            "2026-10-25T02:30+02:00",
            "2026-10-26T02:30+01:00",
        ),
        (
            "06:00 America/New_York",
            "2026-11-27T12:00Z",
            "2026-11-27T06:00-05:00",
            "2026-11-28T06:00-05:00",
        ),
        ("06:00 MON,WED", "2026-11-27T12:00Z", "2026-11-25T06:00Z", "2026-11-30T06:00Z"),
    ],
)
def test_a_deadline_occurs_once_a_day_despite_clock_changes(
    late: str, now: str, at: str, next_at: str
) -> None:
    found = deadlines(late_of(late), "UTC", datetime.fromisoformat(now).timestamp())
    wanted = [datetime.fromisoformat(text).timestamp() for text in (at, next_at)]
    assert [found.at, found.next_at] == wanted


def test_a_deadline_concerns_the_ticks_of_the_previous_day_or_the_last_tick() -> None:
    now = datetime.fromisoformat("2026-11-27T06:00Z").timestamp()
    by_hour = deadlines(late_of("06:00"), "UTC", now, '{"every":"1h"}')
    assert (by_hour.counts_from, by_hour.asks_for) == (now - DAY, now - HOUR)
    monthly = deadlines(late_of("06:00"), "UTC", now, '{"cron":"0 3 1 * *","zone":"UTC"}')
    assert (
        datetime.fromtimestamp(monthly.asks_for, ZoneInfo("UTC")).isoformat()
        == "2026-11-01T03:00:00+00:00"
    )
    assert monthly.counts_from < monthly.asks_for
    by_hand = deadlines(late_of("06:00"), "UTC", now)
    assert (by_hand.counts_from, by_hand.asks_for) == (now - DAY, now)
