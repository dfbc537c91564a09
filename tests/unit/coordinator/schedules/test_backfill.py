"""Ticks of the past that a person asked for: which are run, in what order, and what a pause or a
failure leads to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import Backfill, Redo, Run, ScheduleRecord
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.model.tick import Tick, TickOutcome, tick_text, ticks_changed
from unstuck.coordinator.schedules.backfill import Wanted
from unstuck.coordinator.schedules.decide_schedule import decide, settled
from unstuck.coordinator.schedules.run_outcome import RunSeen
from unstuck.coordinator.schedules.schedule_commands import (
    backfill_command,
    begin_backfill,
    command,
    set_again,
    skip,
)
from unstuck.coordinator.schedules.steps import policy_of
from unstuck.coordinator.schedules.submission import not_submitted, submitted

T0 = 1_800_000_000.0  # a whole hour
HOUR = 3600.0
FAILED = Reason("STEP_FAILED", "it broke")


def made(**policy: Any) -> ScheduleRecord:
    policy = policy or {"every": "1h"}
    return set_again(
        None, ScheduleRecord("s", "c", "{}", json.dumps(policy), "/w", set_by="ann"), T0
    ).record


def key(hours: float, number: int = 1) -> str:
    return f"s@{tick_text(T0 + hours * HOUR)}" + (f"/{number}" if number > 1 else "")


class BackfillPlay:
    """A schedule of every hour, whose ticks before T0 are backfilled; the clock stands at T0 plus
    ``seconds``.
    """

    def __init__(self, record: ScheduleRecord | None = None) -> None:
        self.record, self.seconds = record or made(), 1.0
        self.jobs: dict[str, RunSeen] = {}  # by key, which stands for the id
        self.ticks: dict[float, Tick] = {}
        self.begun: list[str] = []
        self.events: list[dict[str, Any]] = []

    @property
    def backfill(self) -> Backfill:
        assert self.record.backfill is not None
        return self.record.backfill

    def give(self, first: float = -5, last: float = -1, **more: Any) -> str:
        """A backfill of these hours, with the word and the text of its answer."""
        policy = policy_of(self.record.policy)
        wanted = Wanted.between(
            policy, tick_text(T0 + first * HOUR), tick_text(T0 + last * HOUR), **more
        )
        result = begin_backfill(self.record, wanted, self.ticks, T0 + self.seconds, "bob")
        self.record = result.record
        return f"{result.answer}: {result.text}"

    def command(self, given: str) -> str:
        result = backfill_command(self.record, given, T0 + self.seconds, "bob")
        self.record = result.record
        return result.answer

    def decide(self, seconds: float = 1.0) -> list[str]:
        """Decide so much later, and submit. Returns the keys of the runs that go on."""
        self.seconds += seconds
        now = T0 + self.seconds
        decision = decide(self.record, self.jobs, now, ticks_of_backfill=self.ticks)
        self.record = decision.record
        self.note(decision.events)
        for run in decision.submits(now):
            name = run.key("s")
            if name not in self.jobs:
                self.begun.append(name)
                self.jobs[name] = RunSeen(Status.RUNNING, backfill=run.backfill)
            noted = submitted(self.record, run, name, self.jobs[name].backfill, now)
            assert noted is not None
            self.record = settled(noted[0], now)
            self.note(noted[1])
        return [run.job for run in self.backfill.active]

    def note(self, events: Iterable[dict[str, Any]]) -> None:
        """Write events, and the ticks that they change, as a commit does."""
        events = list(events)
        self.events += events
        self.ticks |= {tick.at: tick for tick in ticks_changed(events)}

    def had(self, hours: float, status: Status, number: int = 1) -> None:
        """The current run of the tick at ``hours`` has ended so, by the clock."""
        name, at = key(hours, number), T0 + hours * HOUR
        self.jobs[name] = RunSeen(status, reason=None if status is Status.FINISHED else FAILED)
        outcome = TickOutcome.DONE if status is Status.FINISHED else TickOutcome.FAILED
        self.ticks[at] = Tick(at, outcome, number, name)

    def skip(self, hours: float) -> str:
        at = T0 + hours * HOUR
        result = skip(
            self.record, self.ticks.get(at, Tick(at)), (), T0 + self.seconds, "bob", "no source"
        )
        self.record = settled(result.record, T0 + self.seconds)
        self.note(result.events)
        return f"{result.answer}: {result.text}"

    def ends(self, status: Status = Status.FINISHED, **more: Any) -> list[str]:
        """All runs of the backfill end so, and the schedule is decided."""
        for run in self.backfill.active:
            seen = self.jobs.get(run.job)
            if seen is not None and not seen.status.terminal:
                self.jobs[run.job] = replace(
                    seen, status=status, ended_at=T0 + self.seconds, **more
                )
        return self.decide()


@pytest.mark.parametrize(("backwards", "order"), [(False, [-3, -2, -1]), (True, [-1, -2, -3])])
def test_ticks_of_a_backfill_run_one_after_the_other_under_their_keys(
    backwards: bool, order: list[int]
) -> None:
    play = BackfillPlay()
    assert play.give(-3, -1, backwards=backwards).startswith(
        "DONE: the backfill of schedule s is on record: 0 of 3 ticks are done"
    )
    assert play.decide() == [key(order[0])]
    assert play.decide() == [key(order[0])]
    assert play.ends() == [key(order[1])]
    play.ends()
    assert play.ends() == []
    assert play.begun == [key(hours) for hours in order]
    assert (play.backfill.status, play.backfill.progress) == ("DONE", "3 of 3 ticks are done")
    assert play.record.cursor == T0
    assert [event["kind"] for event in play.events][-1] == "BACKFILL_ENDED"


def test_the_number_of_parallel_runs_is_limited_and_can_be_raised() -> None:
    play = BackfillPlay()
    play.give(parallel=2)
    assert play.decide() == [key(-5), key(-4)]
    assert play.give(parallel=2).startswith("ALREADY: ")
    assert play.give(parallel=3).startswith("DONE: ")
    assert play.decide() == [key(-5), key(-4), key(-3)]


def test_clock_runs_continue_beside_a_backfill_and_only_past_ticks_run() -> None:
    play = BackfillPlay()
    play.give(-2, 10, parallel=2)
    assert play.backfill.total == 3  # the tick of T0 among them
    play.decide(2 * HOUR)
    assert [run.job for run in play.record.runs] == [key(2)]
    play.ends()
    play.ends()
    assert play.begun == [key(2), key(-2), key(-1), key(0)]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize(
    "policy", [{"every": "1h"}, {"cron": "0 * * * *", "zone": "UTC"}], ids=["every", "cron"]
)
def test_every_tick_reruns_in_the_given_order_with_any_parallelism(
    backwards: bool, parallel: int, policy: dict[str, Any]
) -> None:
    play = BackfillPlay(made(**policy))
    hours = [-4, -3, -2, -1]
    for hour in hours:
        play.had(hour, Status.FINISHED)
    play.give(-4, -1, redo="all", backwards=backwards, parallel=parallel)
    play.decide()
    while not play.backfill.over:
        assert len(play.backfill.active) <= parallel
        play.ends()
    assert play.begun == [key(hour, 2) for hour in sorted(hours, reverse=backwards)]
    assert play.backfill.progress == "4 of 4 ticks are done"


@pytest.mark.parametrize(
    ("redo", "begun", "progress"),
    [
        ("none", [key(-1)], "2 of 3 ticks are done, 1 had failed before and are left as they are"),
        ("failed", [key(-2, 4), key(-1)], "3 of 3 ticks are done"),
        ("all", [key(-3, 3), key(-2, 4), key(-1)], "3 of 3 ticks are done"),
    ],
)
def test_the_outcome_of_the_current_run_decides_whether_a_tick_reruns(
    redo: Redo, begun: list[str], progress: str
) -> None:
    play = BackfillPlay()
    play.had(-3, Status.FINISHED, number=2)
    play.had(-2, Status.FINISHED)
    play.had(-2, Status.FAILED, number=3)
    play.give(-3, -1, redo=redo)
    play.decide()
    for _ in range(9):
        play.ends()
    assert play.begun == begun
    assert play.backfill.progress == progress
    assert all(event["kind"] != "RUN_STANDS" for event in play.events)


def test_a_tick_run_by_the_clock_is_left_to_the_clock() -> None:
    play = BackfillPlay(replace(made(), runs=(Run(T0),)))
    play.give(-1, 0, backwards=True)
    assert play.decide() == [key(-1)]
    assert [run.job for run in play.record.runs] == [key(0)]


def test_a_backfill_fails_once_for_any_number_of_failed_runs() -> None:
    play = BackfillPlay(made(every="1h", retry={"max": 0}))
    play.give(-3, -1, parallel=3)
    play.decide()
    first, second, third = [run.job for run in play.backfill.active]
    for job in (first, second, third):
        play.jobs[job] = replace(play.jobs[job], status=Status.FAILED, reason=FAILED)
        play.decide()
    assert len(play.backfill.failed) == 3
    assert [event["kind"] for event in play.events].count("BACKFILL_FAILED") == 1


def test_a_stop_after_the_last_run_does_not_cancel_the_backfill() -> None:
    play = BackfillPlay()
    play.give(-1, -1)
    (run,) = play.decide()
    play.jobs[run] = replace(play.jobs[run], status=Status.FINISHED, ended_at=T0)
    play.record = command(play.record, "stop", T0 + play.seconds, "bob").record
    play.decide()
    assert (play.backfill.status, play.backfill.progress) == ("DONE", "1 of 1 ticks are done")


def test_a_failed_run_reuses_its_finished_work_and_a_good_one_restarts() -> None:
    play = BackfillPlay()
    play.had(-2, Status.FAILED)
    play.had(-1, Status.FINISHED)
    play.give(-2, -1, redo="all", parallel=2)
    play.decide()
    assert [(run.key("s"), run.retry_of) for run in play.backfill.runs] == [
        (key(-2, 2), key(-2)),
        (key(-1, 2), ""),
    ]


def test_a_repeated_backfill_runs_only_missing_ticks() -> None:
    play = BackfillPlay()
    play.give(-2, -1)
    play.decide()
    play.ends()
    play.ends()
    play.give(-3, -1)
    play.decide()
    for _ in range(4):
        play.ends()
    assert play.begun == [key(-2), key(-1), key(-3)]
    assert play.backfill.progress == "3 of 3 ticks are done"


def test_a_paused_backfill_waits_for_a_resume_and_active_runs_may_end() -> None:
    play = BackfillPlay()
    play.give()
    play.decide()
    assert play.command("pause") == "DONE"
    assert play.command("pause") == "ALREADY"
    assert play.ends() == play.decide(1000) == []
    assert play.backfill.status == "PAUSED"
    assert play.give().startswith("ALREADY: the backfill of schedule s is PAUSED: 1 of 5")
    assert play.command("resume") == "DONE"
    assert play.command("resume") == "ALREADY"
    assert play.decide() == [key(-4)]


def test_a_backfill_waits_while_its_schedule_is_paused() -> None:
    play = BackfillPlay()
    play.record = settled(command(play.record, "pause", T0 + 1, "ann").record, T0 + 1)
    assert "it waits until the schedule is resumed" in play.give()
    assert play.decide() == []
    play.record = settled(command(play.record, "resume", T0 + 2, "ann").record, T0 + 2)
    assert play.decide() == [key(-5)]


def test_a_cancel_ends_a_backfill_permanently_after_its_runs() -> None:
    play = BackfillPlay()
    play.give()
    play.decide()
    assert play.give(-9, -1).startswith("REFUSED: ")
    assert play.command("cancel") == "DONE"
    assert play.backfill.status == "CANCELING"
    assert play.command("resume") == "ALREADY"
    assert play.ends() == []
    assert (play.backfill.status, play.backfill.progress) == ("CANCELED", "1 of 5 ticks are done")
    assert play.command("cancel") == "ALREADY"
    assert play.command("resume") == "REFUSED"
    assert play.give(-9, -1).startswith("DONE: ")
    stopped = command(play.record, "stop", T0 + 9, "ann").record
    assert stopped.backfill is not None
    assert stopped.backfill.canceled


RETRYING = {"every": "1h", "retry": {"max": 1, "backoff": "10s"}}


def test_a_failed_tick_is_retried_before_the_next_and_then_fails_the_backfill() -> None:
    play = BackfillPlay(made(**RETRYING))
    play.give()
    play.decide()
    assert play.ends(Status.FAILED, reason=FAILED) == play.decide(8) == [""]
    assert play.decide(2) == [key(-5, 2)]
    assert play.ends(Status.FAILED, reason=FAILED) == play.decide(1000) == []
    assert play.begun == [key(-5), key(-5, 2)]
    assert (play.backfill.status, play.backfill.progress) == (
        "FAILED",
        f"0 of 5 ticks are done, 1 failed ({tick_text(T0 - 5 * HOUR)})",
    )
    assert [event["kind"] for event in play.events].count("BACKFILL_FAILED") == 1
    assert play.record.failures == 0  # of the runs by the clock
    assert play.command("resume") == "DONE"
    assert play.decide() == [key(-5, 3)], "the tick that failed, not the one after it"
    assert play.ends() == [key(-4)]


def test_a_skipped_failed_tick_blocks_nothing() -> None:
    play = BackfillPlay(made(every="1h", retry={"max": 0}))
    play.give(-3, -1)
    play.decide()
    play.ends(Status.FAILED, reason=FAILED)
    assert play.skip(-2.5).startswith("REFUSED: "), "no such tick"
    assert play.skip(-3) == f"DONE: tick {tick_text(T0 - 3 * HOUR)} of schedule s is skipped"
    assert play.skip(-3).startswith("ALREADY: ")
    assert play.decide() == [key(-2)]
    assert play.skip(-2).startswith(
        f"REFUSED: tick {tick_text(T0 - 2 * HOUR)} of schedule s cannot be skipped: job"
    )
    play.ends()
    play.ends()
    assert (play.backfill.status, play.backfill.progress) == ("DONE", "3 of 3 ticks are done")
    assert play.skip(-1).startswith("REFUSED: ")


def test_on_failure_continue_runs_other_ticks_and_the_backfill_is_failed_until_canceled() -> None:
    play = BackfillPlay(made(every="1h", retry={"max": 0}, on_failure="continue"))
    play.give(-3, -1)
    play.decide()
    assert play.ends(Status.FAILED, reason=FAILED) == [key(-2)]
    assert play.ends() == [key(-1)]
    play.ends()
    failed = tick_text(T0 - 3 * HOUR)
    assert (play.backfill.status, play.backfill.progress) == (
        "FAILED",
        f"2 of 3 ticks are done, 1 failed ({failed})",
    )
    assert list(play.record.problems) == ["backfill"]
    assert play.command("cancel") == "DONE"
    play.decide()
    assert (play.backfill.status, list(play.record.problems)) == ("CANCELED", [])


def cumulative() -> BackfillPlay:
    return BackfillPlay(replace(made(**RETRYING), builds_on="balance"))


def test_cumulative_ticks_run_in_order_without_gaps() -> None:
    play = cumulative()
    play.had(-5, Status.FINISHED)
    play.had(-4, Status.FAILED)
    play.give()
    assert play.decide() == [key(-4, 2)], "a tick that failed before is run again"
    play.ends(Status.FAILED, reason=Reason("DATASET_CHANGED", "another job has published"))
    assert play.decide(10) == [key(-4, 3)]
    for hours in (-3, -2, -1):
        assert play.ends() == [key(hours)]
    assert play.ends() == []
    assert play.backfill.status == "DONE"
    assert play.record.last_success is not None
    assert play.record.last_success.tick == T0 - HOUR


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"parallel": 4},
            (
                "builds on the one before (balance), so its ticks run one at a time: leave "
                "--parallel out"
            ),
        ),
        ({"backwards": True}, "leave --backwards out"),
        ({"redo": "all"}, "--from-here` runs that tick and all later ones again, in order"),
        ({"first": -5, "last": -4}, f"--from {tick_text(T0 - 5 * HOUR)} --from-here`"),
    ],
)
def test_cumulative_ticks_cannot_run_out_of_order(more: dict[str, Any], words: str) -> None:
    play = cumulative()
    play.had(-3, Status.FINISHED)
    answer = play.give(**more)
    assert answer.startswith("REFUSED: ")
    assert words in answer


def test_the_clock_waits_for_a_backfill_that_its_runs_depend_on() -> None:
    play = cumulative()
    play.give(-2, -1)
    play.decide()
    play.decide(2 * HOUR)
    assert play.record.runs == ()
    play.ends()
    play.ends()
    play.decide()
    assert [run.job for run in play.record.runs] == [key(2)]
    assert play.give(-1, 1).startswith("REFUSED: "), "a run of the clock goes on"


def test_reruns_start_from_the_version_published_by_the_previous_tick() -> None:
    play = cumulative()
    for hours in (-3, -2, -1):
        play.had(hours, Status.FINISHED)
    policy = policy_of(play.record.policy)
    wanted = Wanted.between(policy, tick_text(T0 - 2 * HOUR), None, redo="all", from_here=True)
    play.record = begin_backfill(play.record, wanted, play.ticks, T0 + 1, "bob", reads=7).record
    assert (play.backfill.first, play.backfill.reads) == (T0 - 2 * HOUR, 7)
    play.decide()
    for _ in range(3):
        play.ends()
    assert play.begun == [key(-2, 2), key(-1, 2), key(0)]


def test_a_run_that_can_never_be_submitted_halts_the_backfill_until_a_resume() -> None:
    play = BackfillPlay()
    play.give()
    now = T0 + 2
    play.record = decide(play.record, {}, now).record
    (run,) = play.backfill.runs
    noted = not_submitted(play.record, run, Reason("SPEC_INVALID", "it is wrong"), True, now)
    assert noted is not None
    play.record = noted[0]
    assert play.decide(1000) == []
    assert (play.backfill.status, play.begun, play.record.status) == ("FAILED", [], "WAITING")
    play.command("resume")
    assert play.decide() == [key(-5)]


def test_a_rolled_back_store_submits_the_same_run_again() -> None:
    play = BackfillPlay()
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
def test_an_impossible_backfill_is_refused(
    policy: dict[str, Any], first: float, last: float, more: dict[str, Any], words: str
) -> None:
    record = replace(made(), policy=json.dumps(policy))
    assert words in BackfillPlay(record).give(first, last, **more)


def test_a_date_means_a_whole_day_in_the_zone_of_the_schedule() -> None:
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


@pytest.mark.parametrize(
    ("day", "count", "first", "last"),
    [
        ("2026-10-24", 24, "2026-10-23T22:00:00Z", "2026-10-24T21:00:00Z"),
        ("2026-10-25", 25, "2026-10-24T22:00:00Z", "2026-10-25T22:00:00Z"),
        ("2026-03-29", 23, "2026-03-28T23:00:00Z", "2026-03-29T21:00:00Z"),
    ],
)
@pytest.mark.parametrize("backwards", [False, True])
def test_the_day_of_a_clock_change_has_all_its_hours(
    day: str, count: int, first: str, last: str, backwards: bool
) -> None:
    policy = policy_of(json.dumps({"cron": "0 * * * *", "zone": "Europe/Berlin"}))
    wanted = Wanted.between(policy, day, day, backwards=backwards)
    texts = [tick_text(tick.timestamp()) for tick in wanted.ticks(policy, T0)]
    assert len(texts) == count
    assert (texts[0], texts[-1]) == ((last, first) if backwards else (first, last))


def test_a_backfill_keeps_the_ticks_of_its_original_trigger() -> None:
    play = BackfillPlay()
    play.give(-3, -1)
    play.decide()
    play.record = replace(play.record, policy=json.dumps({"every": "10m"}))
    for _ in range(4):
        play.ends()
    assert [name for name in play.begun if name in (key(-3), key(-2), key(-1))] == [
        key(-3),
        key(-2),
        key(-1),
    ]
    assert play.backfill.progress == "3 of 3 ticks are done"
