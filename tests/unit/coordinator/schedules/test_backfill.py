"""Ticks of the past that a person asked for: which are run, in what order, and what a pause or a failure leads to."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import Backfill, Run, ScheduleRecord, tick_text
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.schedules.backfill import Wanted
from unstuck.coordinator.schedules.decide_schedule import decide, policy_of, settled
from unstuck.coordinator.schedules.run_outcome import RunSeen
from unstuck.coordinator.schedules.schedule_commands import (
    BackfillCommand,
    ScheduleCommand,
    backfill_command,
    begin_backfill,
    command,
    set_again,
)
from unstuck.coordinator.schedules.submission import not_submitted, submitted

T0 = 1_800_000_000.0  # a whole hour
HOUR = 3600.0
FAILED = Reason("STEP_FAILED", "it broke")


def made(**policy: Any) -> ScheduleRecord:
    policy = policy or {"every": "1h"}
    return set_again(None, ScheduleRecord("s", "c", "{}", json.dumps(policy), "/w", set_by="ann"), T0).record


def key(hours: float, number: int = 1) -> str:
    return f"s@{tick_text(T0 + hours * HOUR)}" + (f"/{number}" if number > 1 else "")


class Play:
    """A schedule of every hour, whose ticks before T0 are backfilled; the clock stands at T0 plus ``seconds``."""

    def __init__(self, record: ScheduleRecord | None = None) -> None:
        self.record, self.seconds = record or made(), 1.0
        self.jobs: dict[str, RunSeen] = {}  # by key, which stands for the id
        self.begun: list[str] = []
        self.events: list[dict[str, Any]] = []

    @property
    def backfill(self) -> Backfill:
        assert self.record.backfill is not None
        return self.record.backfill

    def give(self, first: float = -5, last: float = -1, **more: Any) -> str:
        """A backfill of these hours, with the word and the text of its answer."""
        policy = policy_of(self.record.policy)
        wanted = Wanted.between(policy, tick_text(T0 + first * HOUR), tick_text(T0 + last * HOUR), **more)
        result = begin_backfill(self.record, wanted, T0 + self.seconds, "bob")
        self.record = result.record
        return f"{result.answer}: {result.text}"

    def command(self, given: BackfillCommand) -> str:
        result = backfill_command(self.record, given, T0 + self.seconds, "bob")
        self.record = result.record
        return result.answer

    def decide(self, seconds: float = 1.0) -> list[str]:
        """Decide so much later, and submit. Returns the keys of the runs that go on."""
        self.seconds += seconds
        now = T0 + self.seconds
        decision = decide(self.record, self.jobs, now)
        self.record = decision.record
        self.events += decision.events
        for run in decision.submits(now):
            name = run.key("s")
            if name not in self.jobs:
                self.begun.append(name)
                self.jobs[name] = RunSeen(Status.RUNNING, by=run.by or "clock")
            noted = submitted(self.record, run, name, self.jobs[name].by, now)
            assert noted is not None
            self.record = settled(noted[0], now)
            self.events.append(noted[1])
        return [run.job for run in self.backfill.runs]

    def ends(self, status: Status = Status.FINISHED, **more: Any) -> list[str]:
        """All runs of the backfill end so, and the schedule is decided."""
        for run in self.backfill.runs:
            seen = self.jobs[run.job]
            if not seen.status.terminal:
                self.jobs[run.job] = replace(seen, status=status, ended_at=T0 + self.seconds, **more)
        return self.decide()


@pytest.mark.parametrize(("backwards", "order"), [(False, [-3, -2, -1]), (True, [-1, -2, -3])])
def test_its_ticks_are_run_one_after_the_other_under_their_keys(backwards: bool, order: list[int]) -> None:
    play = Play()
    assert play.give(-3, -1, backwards=backwards).startswith("DONE: the backfill of schedule s is on record: 0 of 3")
    assert play.decide() == [key(order[0])]
    assert play.decide() == [key(order[0])]
    assert play.ends() == [key(order[1])]
    play.ends()
    assert play.ends() == []
    assert play.begun == [key(hours) for hours in order]
    assert (play.backfill.status, play.backfill.progress) == ("ENDED", "3 of 3 ticks (3 well)")
    assert play.record.cursor == T0
    assert [event["kind"] for event in play.events][-1] == "BACKFILL_ENDED"


def test_at_most_so_many_runs_go_on_as_were_asked_for_and_more_can_be_asked_for_later() -> None:
    play = Play()
    play.give(parallel=2)
    assert play.decide() == [key(-5), key(-4)]
    assert play.give(parallel=2).startswith("ALREADY: ")
    assert play.give(parallel=3).startswith("DONE: ")
    assert play.decide() == [key(-5), key(-4), key(-3)]


def test_the_runs_of_the_clock_go_on_beside_it_and_only_ticks_that_have_come_are_run() -> None:
    play = Play()
    play.give(-2, 10, parallel=2)
    assert play.backfill.total == 3  # the tick of T0 among them
    play.decide(2 * HOUR)
    assert [run.job for run in play.record.runs] == [key(2)]
    play.ends()
    play.ends()
    assert play.begun == [key(2), key(-2), key(-1), key(0)]


def test_a_tick_that_had_a_run_is_left_as_it_is_unless_it_is_to_be_made_again() -> None:
    for redo, begun, told in (
        ("none", [key(-1)], "3 of 3 ticks (1 well, 2 had a run before)"),
        ("failed", [key(-2, 2), key(-1)], "3 of 3 ticks (2 well, 1 had a run before)"),
        ("all", [key(-3, 3), key(-2, 2), key(-1)], "3 of 3 ticks (3 well)"),
    ):
        play = Play()
        play.jobs = {
            key(-3): RunSeen(Status.FAILED, reason=FAILED, by="clock"),
            key(-3, 2): RunSeen(Status.FINISHED, by="clock"),
            key(-2): RunSeen(Status.FAILED, reason=FAILED, by="clock"),
        }
        play.give(-3, -1, redo=redo)
        play.decide()
        for _ in range(9):
            play.ends()
        assert play.begun == begun, redo
        assert play.backfill.progress == told


def test_of_a_tick_that_had_a_run_the_log_says_that_it_stands_and_not_that_it_was_submitted() -> None:
    play = Play()
    play.jobs = {
        key(-2): RunSeen(Status.FAILED, reason=FAILED, by="schedule s"),
        key(-2, 2): RunSeen(Status.FAILED, reason=FAILED, by="schedule s"),
    }
    play.give(-2, -1, redo="failed")
    play.decide()
    for _ in range(5):
        play.ends()
    submits = [
        (event["kind"], event["job"]) for event in play.events if event["kind"] in ("RUN_SUBMITTED", "RUN_STANDS")
    ]
    assert submits == [
        ("RUN_STANDS", key(-2)),
        ("RUN_STANDS", key(-2, 2)),
        ("RUN_SUBMITTED", key(-2, 3)),
        ("RUN_SUBMITTED", key(-1)),
    ]


def test_a_run_of_the_clock_that_a_backfill_notes_for_it_was_submitted() -> None:
    """A coordinator has died between its submit and the note, and the tick is one of the backfill."""
    play = Play(replace(made(), runs=(Run(T0),)))
    play.give(-1, 0, backwards=True)
    decided = decide(play.record, {key(0): RunSeen(Status.RUNNING, by="schedule s")}, T0 + 2)
    (_, of_backfill) = decided.submits(T0 + 2)
    noted = submitted(decided.record, of_backfill, key(0), "schedule s", T0 + 2)
    assert noted is not None
    assert [run.job for run in noted[0].going_on] == [key(0), key(0)]
    assert noted[1]["kind"] == "RUN_SUBMITTED"


def test_a_failed_run_is_made_again_from_its_finished_work_and_a_good_one_from_the_start() -> None:
    play = Play()
    play.jobs = {
        key(-2): RunSeen(Status.FAILED, reason=FAILED, by="clock"),
        key(-1): RunSeen(Status.FINISHED, by="clock"),
    }
    play.give(-2, -1, redo="all", parallel=2)
    play.decide()
    play.decide()
    assert [(run.key("s"), run.retry_of) for run in play.backfill.runs] == [(key(-2, 2), key(-2)), (key(-1, 2), "")]


def test_given_again_after_its_end_it_runs_only_what_is_missing() -> None:
    play = Play()
    play.give(-2, -1)
    play.decide()
    play.ends()
    play.ends()
    play.give(-3, -1)
    play.decide()
    for _ in range(4):
        play.ends()
    assert play.begun == [key(-2), key(-1), key(-3)]
    assert play.backfill.progress == "3 of 3 ticks (1 well, 2 had a run before)"


def test_a_pause_holds_until_a_person_resumes_and_what_goes_on_may_end() -> None:
    play = Play()
    play.give()
    play.decide()
    assert play.command(BackfillCommand.PAUSE) == "DONE"
    assert play.command(BackfillCommand.PAUSE) == "ALREADY"
    assert play.ends() == play.decide(1000) == []
    assert play.backfill.status == "PAUSED"
    assert play.give().startswith("ALREADY: the backfill of schedule s is PAUSED: 1 of 5")
    assert play.command(BackfillCommand.RESUME) == "DONE"
    assert play.command(BackfillCommand.RESUME) == "ALREADY"
    assert play.decide() == [key(-4)]


def test_it_waits_while_its_schedule_is_paused() -> None:
    play = Play()
    play.record = settled(command(play.record, ScheduleCommand.PAUSE, T0 + 1, "ann").record, T0 + 1)
    assert "it waits until the schedule is resumed" in play.give()
    assert play.decide() == []
    play.record = settled(command(play.record, ScheduleCommand.RESUME, T0 + 2, "ann").record, T0 + 2)
    assert play.decide() == [key(-5)]


def test_a_cancel_ends_it_for_good_when_its_runs_have_ended_and_another_may_be_given() -> None:
    play = Play()
    play.give()
    play.decide()
    assert play.give(-9, -1).startswith("REFUSED: ")
    assert play.command(BackfillCommand.CANCEL) == "DONE"
    assert play.backfill.status == "CANCELING"
    assert play.command(BackfillCommand.RESUME) == "ALREADY"
    assert play.ends() == []
    assert (play.backfill.status, play.backfill.progress) == ("CANCELED", "1 of 5 ticks (1 well)")
    assert play.command(BackfillCommand.CANCEL) == "ALREADY"
    assert play.command(BackfillCommand.RESUME) == "REFUSED"
    assert play.give(-9, -1).startswith("DONE: ")
    stopped = command(play.record, ScheduleCommand.STOP, T0 + 9, "ann").record
    assert stopped.backfill is not None
    assert stopped.backfill.canceled


def test_after_a_failure_the_next_tick_waits_longer_each_time_and_too_many_in_a_row_halt_it() -> None:
    play = Play(made(every="1h", retry={"max": 2, "backoff": "10s"}))
    play.give()
    play.decide()
    assert play.ends(Status.FAILED, reason=FAILED) == play.decide(8) == []
    assert play.decide(2) == [key(-4)]
    play.ends(Status.FAILED, reason=FAILED)
    assert play.decide(18) == []
    assert play.decide(2) == [key(-3)]
    play.ends(Status.FAILED, reason=FAILED)
    assert play.decide(1000) == []
    assert (play.backfill.status, play.backfill.progress) == ("HALTED", "3 of 5 ticks (3 failed)")
    assert play.backfill.halted == Reason("RETRIES_EXHAUSTED", "3 runs failed in a row; the last: it broke")
    assert play.command(BackfillCommand.RESUME) == "DONE"
    assert play.decide() == [key(-2)]
    play.ends(Status.FAILED, reason=FAILED)
    assert play.backfill.failures == 1
    assert play.record.failures == 0  # of the runs by the clock


def test_a_run_that_can_never_be_submitted_halts_it_and_a_resume_tries_again() -> None:
    play = Play()
    play.give()
    now = T0 + 2
    play.record = decide(play.record, {}, now).record
    (run,) = play.backfill.runs
    noted = not_submitted(play.record, run, Reason("SPEC_INVALID", "it is wrong"), True, now)
    assert noted is not None
    play.record = noted[0]
    assert play.decide(1000) == [""]
    assert (play.backfill.status, play.begun, play.record.status) == ("HALTED", [], "WAITING")
    play.command(BackfillCommand.RESUME)
    assert play.decide() == [key(-5)]


def test_a_store_that_was_rolled_back_submits_the_same_run_again() -> None:
    play = Play()
    play.give()
    play.decide()
    play.jobs.clear()
    assert play.decide() == [key(-5)]
    assert play.begun == [key(-5), key(-5)]


@pytest.mark.parametrize(
    ("policy", "first", "last", "more", "words"),
    [
        ({"after": ["raw"]}, -2, -1, {}, "it has no ticks"),
        ({}, -2, -1, {}, "it has no ticks"),
        ({"every": "1h"}, -1, -2, {}, "is after --to 2027-01-15T06:00:00+00:00"),
        ({"every": "1h"}, -0.6, -0.5, {}, "no tick from"),
        ({"every": "1h"}, 1, 2, {}, "no tick from"),
        ({"every": "1s"}, -5, -1, {}, "more than 10,000 ticks"),
        ({"every": "1h"}, -2, -1, {"parallel": 0}, "--parallel: expected 1 to 100"),
    ],
)
def test_what_cannot_be_backfilled_is_refused(
    policy: dict[str, Any], first: float, last: float, more: dict[str, Any], words: str
) -> None:
    record = replace(made(), policy=json.dumps(policy))
    assert words in Play(record).give(first, last, **more)


def test_a_date_is_a_whole_day_in_the_zone_of_the_schedule() -> None:
    policy = policy_of(json.dumps({"cron": "0 0,12 * * *", "zone": "America/New_York"}))
    wanted = Wanted.between(policy, "2026-03-07", "2026-03-08")
    assert [tick_text(tick.timestamp()) for tick in wanted.ticks(policy, T0)] == [
        "2026-03-07T05:00:00Z",
        "2026-03-07T17:00:00Z",
        "2026-03-08T05:00:00Z",
        "2026-03-08T16:00:00Z",
    ]
    with pytest.raises(ValueError, match="expected a time with its offset from UTC"):
        Wanted.between(policy, "2026-03-07T00:00", "2026-03-08")


def test_its_ticks_stay_those_of_the_trigger_that_the_schedule_had_when_it_was_given() -> None:
    play = Play()
    play.give(-3, -1)
    play.decide()
    play.record = replace(play.record, policy=json.dumps({"every": "10m"}))
    for _ in range(4):
        play.ends()
    assert [name for name in play.begun if name in (key(-3), key(-2), key(-1))] == [key(-3), key(-2), key(-1)]
    assert play.backfill.progress == "3 of 3 ticks (3 well)"
