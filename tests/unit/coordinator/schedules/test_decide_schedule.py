"""What is decided about a schedule: which tick gets a run, which is skipped and why, and what a
failure leads to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from unstuck.coordinator.explain.explanation import AT_WORK
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.schedule_record import (
    Run,
    RunSuccess,
    ScheduleIntent,
    ScheduleRecord,
    ScheduleStatus,
    derive,
)
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.model.tick import tick_text
from unstuck.coordinator.schedules.decide_schedule import TERM, ScheduleDecision, decide, settled
from unstuck.coordinator.schedules.explain import explain_schedule
from unstuck.coordinator.schedules.run_outcome import RunSeen
from unstuck.coordinator.schedules.schedule_commands import JUDGES, command, set_again
from unstuck.coordinator.schedules.schedule_state import state_of
from unstuck.coordinator.schedules.steps import CLOCKS_DIFFER, NOT_READ, LogSeen, policy_of
from unstuck.coordinator.schedules.submission import not_submitted, nothing_new, submitted
from unstuck.coordinator.schedules.trigger import start_delay

T0 = 1_800_000_000.0  # a whole multiple of 60 and 10
FAILED = Reason("STEP_FAILED", "it broke")


def record(**policy: Any) -> ScheduleRecord:
    policy = policy or {"every": "60s"}
    new = ScheduleRecord(
        "s", "c", json.dumps({"schedule": policy}), json.dumps(policy), "/w", set_by="ann"
    )
    return set_again(None, new, T0).record


class Play:
    """A schedule, with what becomes of its runs."""

    def __init__(self, start: ScheduleRecord) -> None:
        self.record, self.now = start, T0
        self.runs: dict[str, RunSeen] = {}
        self.events: list[dict[str, Any]] = []
        self.submitted: list[str] = []
        self.due: float | None = T0

    def at(self, seconds: float) -> ScheduleDecision:
        """Decide ``T0 + seconds``, and submit what is to be submitted."""
        self.now = T0 + seconds
        decision = decide(self.record, self.runs, self.now)
        self.record, self.due = decision.record, decision.due
        self.events += decision.events
        for run in decision.submits(self.now):
            noted = submitted(self.record, run, run.key("s"), run.backfill, self.now)
            assert noted is not None
            self.record = settled(noted[0], self.now)
            self.runs[run.key("s")] = RunSeen(Status.RUNNING)
            self.submitted.append(run.key("s"))
        return decision

    def ends(
        self, status: Status, seconds: float, reason: Reason | None = None, **more: Any
    ) -> ScheduleDecision:
        """The oldest run ends, and the schedule is decided."""
        self.runs[self.record.runs[0].job] = RunSeen(status, T0 + seconds, reason, **more)
        return self.at(seconds)

    def fails(self, seconds: float, **more: Any) -> ScheduleDecision:
        return self.ends(Status.FAILED, seconds, FAILED, **more)

    def command(self, given: str, seconds: float | None = None) -> str:
        self.now = self.now if seconds is None else T0 + seconds
        result = command(self.record, given, self.now, "bob", "why not")
        self.record = settled(result.record, self.now)
        self.events += result.events
        return result.answer

    @property
    def status(self) -> str:
        return str(self.record.status)

    def skipped(self) -> list[tuple[str, str]]:
        return [
            (event["code"], event["text"]) for event in self.events if event["kind"] == "SKIPPED"
        ]


def published(seconds: float) -> LogSeen:
    """The warehouse log with the package of one tick."""
    return LogSeen(
        0.0, {T0 + seconds: RunSuccess("j", T0 + seconds, T0 + seconds + 5, 7, {"out": 3})}
    )


def test_a_tick_with_a_published_package_is_done_and_not_skipped() -> None:
    unread = decide(record(), {}, T0 + 301, log=NOT_READ)
    assert (unread.record.cursor, unread.events, unread.read_log_since) == (T0, (), T0 + 60)
    assert "4 ticks skipped" in state_of(unread.record, T0 + 301, None).waits
    decision = decide(unread.record, {}, T0 + 301, log=published(120))
    skipped, done, others = decision.events
    assert skipped["text"].startswith(f"1 tick skipped, {tick_text(T0 + 60)}:")
    assert (done["kind"], done["tick"], done["version"]) == ("RUN_FINISHED", tick_text(T0 + 120), 7)
    assert others["text"].startswith(
        f"2 ticks skipped, {tick_text(T0 + 180)} to {tick_text(T0 + 240)}:"
    )
    assert [run.tick for run in decision.record.runs] == [T0 + 300]
    assert decision.record.last_success is not None
    assert decision.record.last_success.rows == {"out": 3}


def test_a_resume_does_not_skip_a_tick_with_a_published_package() -> None:
    paused = settled(command(record(), "pause", T0 + 1).record, T0 + 1)
    resumed = command(paused, "resume", T0 + 130, log=published(120))
    kinds = [(event["kind"], event.get("code")) for event in resumed.events]
    assert kinds == [("USER_RESUME", None), ("SKIPPED", "PAUSED"), ("RUN_FINISHED", "DONE")]
    known = replace(published(120), noted=[T0 + 120])
    again = command(paused, "resume", T0 + 130, log=known)
    assert len(again.events) == 2, "the index of ticks has its run"


def key(seconds: float, number: int = 1) -> str:
    return f"s@{tick_text(T0 + seconds)}" + (f"/{number}" if number > 1 else "")


def test_each_tick_is_one_run_and_the_next_tick_is_awaited() -> None:
    play = Play(record())
    play.at(30)
    assert (play.submitted, play.status, play.due) == ([], "WAITING", T0 + 60)
    play.at(60.4)
    assert (play.submitted, play.status) == ([key(60)], "RUNNING")
    play.ends(Status.FINISHED, 70, version=3, rows={"out": 5})
    assert (play.status, play.due) == ("WAITING", T0 + 120)
    assert play.record.last_success is not None
    assert play.record.last_success.version == 3
    play.at(120)
    assert play.submitted == [key(60), key(120)]


def test_a_run_with_a_remainder_is_followed_immediately_by_another() -> None:
    play = Play(record())
    play.at(60)
    play.ends(Status.FINISHED, 70.25, left=3)
    play.ends(Status.FINISHED, 71.5, left=1)
    assert (play.submitted, play.status) == ([key(60), key(70.25), key(71.5)], "RUNNING")
    told = explain_schedule(state_of(play.record, T0 + 72, None), AT_WORK, {})
    assert "1 files or offsets, beyond the bound" in " ".join(fact.text for fact in told.facts)
    play.ends(Status.FINISHED, 72)
    assert (play.status, play.due, play.skipped()) == ("WAITING", T0 + 120, [])
    play.at(120)
    play.ends(Status.FINISHED, 190, left=1)
    play.ends(Status.FINISHED, 200)
    assert play.submitted[3:] == [key(120), key(190)]
    assert play.skipped() == [
        ("OVERLAP", f"1 tick skipped, {tick_text(T0 + 180)}: the run before was not over")
    ]


def test_a_run_for_a_remainder_never_uses_the_key_of_a_tick() -> None:
    play = Play(record())
    play.at(60)
    play.ends(Status.FINISHED, 120, left=3)
    play.ends(Status.FINISHED, 121)
    assert play.submitted == [key(60), key(120.001)]
    assert [text.split(":")[0] for _, text in play.skipped()] == ["1 tick skipped, 2027-01-15T08"]


def test_a_remainder_waits_for_pauses_and_retries_but_not_beyond_the_end() -> None:
    play = Play(
        record(every="60s", until="2027-01-15T08:05:00Z", retry={"max": 3, "backoff": "10s"})
    )
    play.at(60)
    play.command("pause", 65)
    play.ends(Status.FINISHED, 70, left=3)
    assert (play.submitted, play.status) == ([key(60)], "PAUSED")
    play.command("resume", 80)
    play.at(80)
    play.fails(81)
    play.at(91)
    assert play.submitted == [key(60), key(70), key(70, 2)]
    play.ends(Status.FINISHED, 301, left=3)
    assert (play.submitted[3:], play.status) == ([], "FINISHED")


def test_an_empty_or_canceled_remainder_run_waits_for_the_next_tick() -> None:
    for end in (Status.CANCELED, None):
        play = Play(record())
        play.at(60)
        play.ends(Status.FINISHED, 70, left=3)
        if end is not None:
            play.ends(end, 75)
        else:
            noted = nothing_new(play.record, replace(play.record.runs[0], job=""), T0 + 75)
            assert noted is None, "it is submitted"
            (run,) = play.record.runs
            found = nothing_new(
                replace(play.record, runs=(replace(run, job=""),)), replace(run, job=""), T0 + 75
            )
            assert found is not None
            play.record = settled(found[0], T0 + 75)
            play.at(75)
        assert (play.submitted, play.due) == ([key(60), key(70)], T0 + 120)


def test_an_unrecorded_run_is_submitted_again_with_the_same_key_and_id() -> None:
    start = record()
    first = decide(start, {}, T0 + 60)
    again = decide(first.record, {}, T0 + 65)
    (one,), (other,) = first.submits(T0 + 60), again.submits(T0 + 65)
    assert one.key("s") == other.key("s") == key(60)
    assert one.job_id("s") == other.job_id("s")
    assert again.record.cursor == T0 + 60


def test_several_missed_ticks_are_one_event_and_one_run() -> None:
    play = Play(record())
    play.at(60 * 12 + 1)
    assert play.submitted == [key(720)]
    assert play.skipped() == [
        (
            "MISSED",
            f"11 ticks skipped, {tick_text(T0 + 60)} to {tick_text(T0 + 660)}: nobody could run "
            "them in time, and `missed` is `latest`",
        )
    ]


def test_all_missed_ticks_run_in_order_if_configured() -> None:
    play = Play(record(every="60s", missed="all", missed_within="5m"))
    play.at(601)
    for seconds in (610, 620, 630, 640, 650):
        play.ends(Status.FINISHED, seconds)
    assert play.submitted == [key(at) for at in (360, 420, 480, 540, 600)]
    assert [text.split(",")[0] for _, text in play.skipped()] == ["5 ticks skipped"]
    play.at(660)
    assert play.submitted[-1] == key(660)


def test_no_missed_tick_runs_if_configured() -> None:
    play = Play(record(every="5m", missed="none"))
    play.at(899)
    assert (play.submitted, play.due) == ([], T0 + 900)
    play.at(903)
    assert play.submitted == [key(900)], "a tick that comes just now is not missed"


def test_ticks_during_a_run_are_skipped_as_overlap() -> None:
    play = Play(record())
    play.at(60)
    play.at(130)
    assert play.submitted == [key(60)]
    play.ends(Status.FINISHED, 185)
    assert play.skipped() == [
        (
            "OVERLAP",
            (
                f"2 ticks skipped, {tick_text(T0 + 120)} to {tick_text(T0 + 180)}: the run before "
                "was not over"
            ),
        )
    ]
    assert play.due == T0 + 240


def test_a_tick_waits_for_the_previous_run_if_configured() -> None:
    play = Play(record(every="60s", overlap="wait"))
    play.at(60)
    play.at(130)
    assert play.submitted == [key(60)]
    play.ends(Status.FINISHED, 131)
    assert play.submitted == [key(60), key(120)]


def test_runs_overlap_if_configured() -> None:
    play = Play(record(every="60s", overlap="allow"))
    play.at(60)
    play.at(120)
    assert play.submitted == [key(60), key(120)]
    play.ends(Status.FINISHED, 125)
    assert [run.job for run in play.record.runs] == [key(120)]
    assert play.status == "RUNNING"


def test_a_failed_run_is_retried_under_its_tick_until_it_succeeds() -> None:
    play = Play(record())
    play.at(60)
    play.fails(61)
    assert (play.status, play.due) == ("RETRYING", T0 + 71)
    play.at(71)
    assert (play.submitted[-1], play.status) == (key(60, 2), "RETRYING")
    assert play.record.runs[0].retry_of == key(60)
    play.fails(72)
    assert play.due == T0 + 92, "the wait doubles"
    play.at(92)
    assert (play.submitted[-1], play.record.failures) == (key(60, 3), 2)
    play.ends(Status.FINISHED, 93)
    assert (play.status, play.record.failures, play.record.first_error) == ("WAITING", 0, None)


def test_only_a_success_or_a_resume_resets_the_failure_count() -> None:
    play = Play(record())
    play.at(60)
    play.fails(61)
    play.at(71)
    play.ends(Status.CANCELED, 72, Reason("USER_CANCELED", "by a person"))
    assert (play.record.failures, play.status) == (1, "RETRYING")
    play.at(120)
    play.fails(121)
    assert play.record.failures == 2
    assert play.command("run") == "DONE"
    assert play.record.failures == 2
    play.command("pause")
    assert play.record.failures == 2
    play.command("resume")
    assert play.record.failures == 0


def test_exhausted_retries_halt_the_schedule_and_a_resume_retries_the_tick() -> None:
    play = Play(record(every="60s", retry={"max": 1}))
    play.at(60)
    play.fails(61)
    play.at(71)
    play.fails(72)
    assert play.status == "HALTED"
    assert play.record.halted is not None
    assert play.record.halted.code == "RETRIES_EXHAUSTED"
    play.at(500)
    assert play.submitted == [key(60), key(60, 2)]
    assert play.command("resume") == "DONE"
    assert (play.status, play.record.failures) == ("RETRYING", 0)
    play.at(501)
    assert play.submitted[-1] == key(60, 3)


def test_an_unrecoverable_failure_halts_the_schedule_immediately() -> None:
    play = Play(record())
    play.at(60)
    play.fails(61, final=True)
    assert play.status == "HALTED"
    assert play.record.halted is not None
    assert play.record.halted.code == "STEP_FAILED"


def test_a_spec_that_cannot_be_submitted_halts_until_it_is_set_again() -> None:
    decision = decide(record(), {}, T0 + 60)
    (run,) = decision.submits(T0 + 60)
    noted = not_submitted(
        decision.record, run, Reason("SPEC_INVALID", "no such version"), True, T0 + 60
    )
    assert noted is not None
    halted = decide(settled(noted[0], T0 + 60), {}, T0 + 60).record
    assert halted.status is ScheduleStatus.HALTED
    policy = json.dumps({"every": "60s"})
    mended = replace(
        halted, spec=json.dumps({"schedule": {"every": "60s"}, "more": 1}), policy=policy
    )
    again = decide(settled(set_again(halted, mended, T0 + 62).record, T0 + 62), {}, T0 + 62)
    assert [one.key("s") for one in again.submits(T0 + 62)] == [key(60)]


def retrying_two_ticks() -> Play:
    """Two ticks have failed, and the retries of both wait for an hour."""
    play = Play(record(every="60s", overlap="allow", retry={"backoff": "1h", "max_backoff": "1h"}))
    for tick in (60, 120):
        play.at(tick)
        play.fails(tick + 1)
    return play


@pytest.mark.parametrize("given", ["resume", "set", "run", "pause and run"])
def test_a_run_that_can_never_be_submitted_keeps_retries_of_other_ticks_waiting(
    given: str,
) -> None:
    play = retrying_two_ticks()
    decision = decide(play.record, play.runs, T0 + 180)
    (run,) = decision.submits(T0 + 180)
    noted = not_submitted(
        decision.record, run, Reason("SPEC_INVALID", "no such version"), True, T0 + 180
    )
    assert noted is not None
    play.record = settled(noted[0], T0 + 180)
    play.at(181)
    assert (play.status, len(play.submitted)) == ("HALTED", 2)
    if given == "set":
        changed = replace(play.record, spec='{"other": 1}')
        play.record = settled(set_again(play.record, changed, T0 + 182).record, T0 + 182)
    else:
        answers = [play.command(word, 182) for word in given.split(" and ")]
        assert set(answers) == {"DONE"}
    play.at(183)
    assert sorted(play.submitted[2:]) == sorted([key(60, 2), key(120, 2), key(180)])


def test_a_run_that_cannot_be_submitted_yet_keeps_retries_of_other_ticks_waiting() -> None:
    play = retrying_two_ticks()
    decision = decide(play.record, play.runs, T0 + 180)
    (run,) = decision.submits(T0 + 180)
    noted = not_submitted(
        decision.record, run, Reason("WAREHOUSE_SILENT", "no answer"), False, T0 + 180
    )
    assert noted is not None
    play.record = settled(noted[0], T0 + 180)
    assert play.command("run", 181) == "DONE"
    play.at(182)
    assert sorted(play.submitted[2:]) == sorted([key(60, 2), key(120, 2)])


@pytest.mark.parametrize("first", [60, 120], ids=["oldest tick first", "newest tick first"])
def test_the_end_of_one_retry_does_not_affect_that_of_another_tick(first: int) -> None:
    play = retrying_two_ticks()
    retries = sorted(play.record.retries, key=lambda run: run.tick, reverse=first == 120)
    play.record = replace(play.record, retries=tuple(retries))
    assert play.command("run", 130) == "DONE"
    play.at(131)
    assert play.submitted[2:] == [key(first, 2), key(180 - first, 2)]
    play.fails(132)
    play.ends(Status.FINISHED, 133)
    assert play.record.runs == ()
    assert play.command("run", 134) == "DONE"
    play.at(135)
    assert play.submitted[4:] == [key(first, 3)]


def test_an_unreachable_warehouse_is_retried_and_not_counted_as_failure() -> None:
    decision = decide(record(), {}, T0 + 60)
    (run,) = decision.submits(T0 + 60)
    noted = not_submitted(
        decision.record, run, Reason("WAREHOUSE_SILENT", "no answer"), False, T0 + 60
    )
    assert noted is not None
    waiting = decide(settled(noted[0], T0 + 60), {}, T0 + 61)
    assert (waiting.record.status, waiting.record.failures) == (ScheduleStatus.RETRYING, 0)
    assert waiting.submits(T0 + 61) == []
    assert waiting.due == T0 + 70
    assert len(waiting.submits(T0 + 70)) == 1


def test_a_cron_schedule_continues_after_a_permanently_failed_tick_and_stays_retrying() -> None:
    play = Play(record(cron="*/10 * * * *", zone="UTC", retry={"max": 1}))
    play.at(600)
    play.fails(601)
    play.at(611)
    play.fails(612)
    assert (play.status, play.due) == ("RETRYING", T0 + 1200)
    play.at(1200)
    assert (play.submitted[-1], play.status) == (key(1200), "RETRYING")
    play.ends(Status.FINISHED, 1201)
    assert play.status == "WAITING"


def test_only_a_resume_ends_a_pause() -> None:
    play = Play(record())
    play.at(60)
    play.command("pause", 61)
    play.fails(62)
    assert play.status == "PAUSED"
    play.at(7200)
    assert play.submitted == [key(60)]
    play.command("resume", 7201)
    assert play.skipped() == [
        (
            "PAUSED",
            f"119 ticks skipped, {tick_text(T0 + 120)} to {tick_text(T0 + 7200)}: paused by bob",
        )
    ]
    play.at(7201)
    assert play.submitted[-1] == key(60, 2), "what had failed is tried at once"


def test_a_manual_run_belongs_to_no_tick_even_during_a_pause() -> None:
    play = Play(record())
    play.command("pause", 10)
    assert play.command("run", 20.5) == "DONE"
    assert play.command("run", 20.6) == "ALREADY"
    play.at(21)
    assert (play.submitted, play.status) == (["s@2027-01-15T08:00:20.500Z/by-hand"], "PAUSED")
    play.ends(Status.FINISHED, 30)
    assert play.record.cursor == T0


def test_a_schedule_without_further_ticks_is_finished() -> None:
    play = Play(record(every="60s", until=tick_text(T0 + 130)))
    play.at(120)
    play.at(200)
    assert play.status == "RUNNING"
    play.ends(Status.FINISHED, 201)
    assert (play.submitted, play.status, play.due) == ([key(120)], "FINISHED", None)


def test_a_changed_trigger_counts_from_now() -> None:
    start = record()
    policy = json.dumps({"every": "90s"})
    new = replace(start, spec=json.dumps({"schedule": {"every": "90s"}}), policy=policy)
    play = Play(settled(set_again(start, new, T0 + 1000).record, T0 + 1000))
    play.at(1001)
    assert (play.submitted, play.due) == ([], T0 + 1080)


def test_a_run_whose_job_left_the_store_is_submitted_again() -> None:
    play = Play(record())
    play.at(60)
    play.runs.clear()
    play.at(61)
    assert play.submitted == [key(60), key(60)]


def test_a_stopped_schedule_follows_its_active_run_and_starts_none() -> None:
    play = Play(record())
    play.at(60)
    assert play.command("stop", 61) == "DONE"
    play.at(300)
    assert (play.submitted, play.status) == ([key(60)], "STOPPED")
    assert play.due is not None
    play.ends(Status.FINISHED, 310)
    assert (play.status, play.due, play.record.runs) == ("STOPPED", None, ())


STANDS: dict[ScheduleStatus, ScheduleRecord] = {
    ScheduleStatus.WAITING: record(),
    ScheduleStatus.RUNNING: replace(record(), runs=(Run(T0, job="j"),)),
    ScheduleStatus.RETRYING: replace(record(), failures=1, retries=(Run(T0, 2, next_at=T0 + 60),)),
    ScheduleStatus.PAUSED: replace(record(), intent=ScheduleIntent.PAUSE),
    ScheduleStatus.HALTED: replace(record(), halted=Reason("RETRIES_EXHAUSTED", "no try is left")),
    ScheduleStatus.STOPPED: replace(record(), intent=ScheduleIntent.STOP),
    ScheduleStatus.FINISHED: replace(record(), over=True),
}
ANSWERS = {
    # status: (pause, resume, run, stop, set), and the status after each
    "WAITING": ("PAUSED", "ALREADY", "WAITING", "STOPPED", "WAITING"),
    "RUNNING": ("PAUSED", "ALREADY", "ALREADY", "STOPPED", "RUNNING"),
    "RETRYING": ("PAUSED", "REFUSED", "RETRYING", "STOPPED", "RETRYING"),
    "PAUSED": ("ALREADY", "WAITING", "PAUSED", "STOPPED", "PAUSED"),
    "HALTED": ("PAUSED", "WAITING", "WAITING", "STOPPED", "WAITING"),
    "STOPPED": ("REFUSED", "REFUSED", "REFUSED", "ALREADY", "REFUSED"),
    "FINISHED": ("REFUSED", "REFUSED", "REFUSED", "ALREADY", "REFUSED"),
}


@pytest.mark.parametrize("status", ScheduleStatus)
def test_every_command_has_its_documented_effect_in_every_status(status: ScheduleStatus) -> None:
    standing = settled(STANDS[status], T0)
    assert derive(standing) is status
    changed = replace(standing, spec='{"other": 1}')
    results = [command(standing, given, T0 + 5, "bob", "because") for given in JUDGES]
    results.append(set_again(standing, changed, T0 + 5))
    told = []
    for result in results:
        told.append(
            str(settled(result.record, T0 + 5).status)
            if result.answer == "DONE"
            else str(result.answer)
        )
        assert standing.name in result.text
        if result.answer == "REFUSED":
            assert str(status) in result.text
            assert "unstuck schedule" in result.text, "it says what to do instead"
    assert tuple(told) == ANSWERS[status]
    assert list(JUDGES) == ["pause", "resume", "run", "stop"]


def test_resuming_a_retrying_schedule_is_refused_with_advice_to_run_it() -> None:
    result = command(settled(STANDS[ScheduleStatus.RETRYING], T0), "resume", T0)
    assert result.answer == "REFUSED"
    assert "unstuck schedule run s" in result.text


def test_setting_the_same_spec_again_changes_nothing() -> None:
    start = record()
    assert set_again(start, replace(start, set_by="eve"), T0 + 5).answer == "ALREADY"


def test_with_overlap_a_retry_does_not_wait_for_the_next_tick() -> None:
    play = Play(record(every="1h", overlap="allow", retry={"backoff": "10s"}))
    play.at(3600)
    play.fails(3601)
    assert play.due == T0 + 3611


def after(
    published: Mapping[str, tuple[int, float]], seconds: float, start: ScheduleRecord
) -> ScheduleDecision:
    return decide(start, {}, T0 + seconds, published)


def test_new_dataset_versions_during_a_run_cause_one_more_run() -> None:
    start = replace(record(after=["a", "b"]), followed={"a": 4})
    assert after({"a": (4, T0 - 5)}, 10, start).record.runs == ()
    first = after({"a": (5, T0 + 9.25)}, 10, start)
    (run,) = first.submits(T0 + 10)
    assert run.key("s") == key(9.25), (
        "the time of the version, so that it is the same again after a rollback"
    )
    going_on = replace(first.record, runs=(replace(run, job="j"),))
    more = {"a": (7, T0 + 30.0), "b": (6, T0 + 20.0)}
    assert decide(going_on, {"j": RunSeen(Status.RUNNING)}, T0 + 40, more).submits(T0 + 40) == []
    second = decide(going_on, {"j": RunSeen(Status.FINISHED, T0 + 50)}, T0 + 50, more)
    assert [one.key("s") for one in second.submits(T0 + 50)] == [key(30)]
    assert second.record.followed == {"a": 7, "b": 6}
    assert decide(second.record, {}, T0 + 60, more).record.followed == {"a": 7, "b": 6}


def test_a_schedule_on_several_datasets_waits_for_all_of_them() -> None:
    start = record(after={"all_of": ["a", "b"]})
    assert after({"a": (5, T0 + 9)}, 10, start).submits(T0 + 10) == []
    both = after({"a": (5, T0 + 9), "b": (6, T0 + 12)}, 13, start)
    assert [one.key("s") for one in both.submits(T0 + 13)] == [key(12)]


def test_a_run_after_a_dataset_waits_for_its_full_jitter() -> None:
    start = record(after=["a"], jitter="1d")
    delay = start_delay(policy_of(start.policy), start.name).total_seconds()
    assert delay > 2 * CLOCKS_DIFFER
    published = {"a": (5, T0 + 9)}
    waiting = after(published, 10, start)
    assert waiting.submits(T0 + 10) == []
    assert waiting.due == T0 + 9 + delay
    view = state_of(waiting.record, T0 + 10, None, published)
    assert view.waits == "a is new, and it begins a little later"
    assert after(published, 8 + delay, waiting.record).submits(T0 + 8 + delay) == []
    begun = after(published, 9 + delay, waiting.record)
    assert [run.key("s") for run in begun.submits(T0 + 9 + delay)] == [key(9)]


def test_frequent_publishes_do_not_postpone_the_run_after_a_dataset() -> None:
    decided = after({"a": (5, T0 + 9)}, 10, record(after=["a"], jitter="1d"))
    delay = (decided.due or 0.0) - (T0 + 9)
    often = {"a": (6, T0 + 8 + delay)}
    decided = after(often, 9 + delay, decided.record)
    assert [run.key("s") for run in decided.submits(T0 + 9 + delay)] == [key(8 + delay)]
    idle = replace(decided.record, runs=())
    assert after(often, 10 + delay, idle).submits(T0 + 10 + delay) == []
    later = T0 + 20 + delay
    decided = decide(idle, {}, later, {"a": (7, later)})
    assert decided.due == later + delay, "the next version has a delay of its own"


def test_a_version_and_a_remainder_in_the_same_millisecond_make_two_runs() -> None:
    """One tick is one job, and so one of the two would be lost."""
    start = record(after=["a"], overlap="allow")
    first = Run(T0 + 5, job="first", at=T0 + 5)
    left = {"first": RunSeen(Status.FINISHED, T0 + 9, left=3)}
    published = {"a": (5, T0 + 9)}
    decided = decide(replace(start, runs=(first,)), left, T0 + 10, published)
    assert [run.key("s") for run in decided.submits(T0 + 10)] == [key(9), key(9.001)]
    running = {"first": RunSeen(Status.RUNNING)}
    version_first = decide(replace(start, runs=(first,)), running, T0 + 9, published).record
    decided = decide(version_first, left, T0 + 10, published)
    assert [run.key("s") for run in decided.submits(T0 + 10)] == [key(9), key(9.001)]
    ended = replace(version_first, runs=(first,))
    decided = decide(ended, left, T0 + 10, published)
    assert [run.key("s") for run in decided.submits(T0 + 10)] == [key(9.001)]


def test_a_changed_trigger_drops_the_delay_of_an_earlier_version() -> None:
    waiting = after({"a": (5, T0)}, 10, record(after=["a"], jitter="1d")).record
    policy = json.dumps({"after": ["a", "b"], "jitter": "1d"})
    changed = replace(waiting, spec='{"other": 1}', policy=policy, followed={"a": 5})
    changed = set_again(waiting, changed, T0 + 20).record
    late = T0 + 3 * 86400
    decided = decide(changed, {}, late, {"b": (6, late)})
    assert decided.submits(late) == []
    assert decided.record.new_at == late


@pytest.mark.parametrize("jitter", ["0s", "1d"])
def test_a_version_published_by_a_fast_clock_does_not_delay_its_run(jitter: str) -> None:
    start = record(after=["a"], jitter=jitter)
    ahead = 10 + CLOCKS_DIFFER + 1
    assert len(after({"a": (5, T0 + ahead)}, 10, start).submits(T0 + 10)) == 1


def test_an_unsubmitted_run_waits_during_a_pause_and_is_dropped_by_a_stop() -> None:
    pending = decide(record(), {}, T0 + 60).record
    paused = settled(command(pending, "pause", T0 + 61, "bob").record, T0 + 61)
    held = decide(paused, {}, T0 + 70)
    assert (held.submits(T0 + 70), held.record.status) == ([], ScheduleStatus.PAUSED)
    resumed = settled(command(held.record, "resume", T0 + 80).record, T0 + 80)
    assert [run.key("s") for run in decide(resumed, {}, T0 + 80).submits(T0 + 80)] == [key(60)]
    stopped = settled(command(pending, "stop", T0 + 61).record, T0 + 61)
    ended = decide(stopped, {}, T0 + 62)
    assert (ended.submits(T0 + 62), ended.record.runs, ended.due) == ([], (), None)
    job = Run(T0 + 60).job_id("s")
    stored = decide(stopped, {job: RunSeen(Status.RUNNING)}, T0 + 62)
    assert [run.job for run in stored.record.runs] == [job], (
        "it was stored before the stop, and nobody had noted that"
    )
    assert stored.events[0]["kind"] == "RUN_SUBMITTED"


def test_a_retry_does_not_wait_for_a_clock_that_was_set_back() -> None:
    play = Play(record())
    play.at(7200)
    play.fails(7201)
    play.at(100)
    assert play.submitted[-1] == key(7200, 2)


def test_a_schedule_with_a_pending_retry_is_not_finished() -> None:
    """Where runs may overlap, the ticks are gone through beside the retry."""
    play = Play(
        record(every="60s", overlap="allow", retry={"backoff": "10s"}, until=tick_text(T0 + 61))
    )
    play.at(60)
    play.fails(70)
    assert (play.status, play.due) == ("RETRYING", T0 + 80)
    play.at(80)
    assert play.submitted == [key(60), key(60, 2)]
    play.ends(Status.FINISHED, 90)
    assert play.status == "FINISHED"


def test_a_slow_submit_is_not_checked_again_immediately() -> None:
    """A schedule that were due again at once would take the whole turn of the sweep."""
    decision = decide(record(), {}, T0 + 60)
    (run,) = decision.submits(T0 + 60)
    noted = not_submitted(
        decision.record, run, Reason("WAREHOUSE_SILENT", "no answer"), False, T0 + 60
    )
    assert noted is not None
    later = decide(settled(noted[0], T0 + 60), {}, T0 + 90)
    assert len(later.submits(T0 + 90)) == 1
    assert later.due == T0 + 90 + TERM
    assert decide(settled(noted[0], T0 + 60), {}, T0 + 90, term=0.5).due == T0 + 90.5


def test_versions_with_decreasing_times_are_separate_ticks() -> None:
    """Two publishers have clocks that differ.

    Two runs under one key would be one job, and a version be lost.
    """
    for number in range(1000):
        start = replace(record(after=["a"]), cursor=T0 + number / 1000)
        (run,) = after({"a": (5, T0)}, 10, start).submits(T0 + 10)
        assert tick_text(run.tick) == tick_text(T0 + (number + 1) / 1000)


@pytest.mark.parametrize("was", ["failed", "not submitted"])
def test_a_manual_run_during_a_pause_retries_the_failed_run(was: str) -> None:
    play = Play(record())
    if was == "failed":
        play.at(60)
        play.fails(61)
    else:
        decision = decide(play.record, {}, T0 + 60)
        (run,) = decision.submits(T0 + 60)
        noted = not_submitted(
            decision.record, run, Reason("WAREHOUSE_SILENT", "no answer"), False, T0 + 60
        )
        assert noted is not None
        play.record = settled(noted[0], T0 + 60)
    play.command("pause", 62)
    assert play.command("run", 63) == "DONE"
    play.at(63)
    assert (play.submitted[-1], play.status) == (key(60, 2 if was == "failed" else 1), "PAUSED")
    assert play.command("run", 64) == "ALREADY"


@pytest.mark.parametrize(
    ("policy", "status"),
    [
        ({"retry": {"max": 3}}, "WAITING"),
        ({"after": ["a"]}, "WAITING"),
        ({"every": "1h"}, "RETRYING"),
    ],
    ids=["by hand", "after", "every"],
)
def test_a_schedule_whose_retry_was_canceled_is_retrying_only_with_further_retries(
    policy: dict[str, Any], status: str
) -> None:
    play = Play(settled(replace(record(**policy), requests=(Run(T0, by="bob"),)), T0))
    play.at(1)
    play.fails(2)
    assert play.status == "RETRYING"
    play.at(12)
    assert play.status == "RETRYING"
    play.ends(Status.CANCELED, 13, Reason("USER_CANCELED", "by a person"))
    assert (play.status, play.record.failures, play.record.retries) == (status, 1, ())
    assert play.command("resume") == ("ALREADY" if status == "WAITING" else "REFUSED")
    assert play.command("run", 20) == "DONE"
    play.at(20)
    assert play.status == "RETRYING", "this run is another try"
    play.ends(Status.FINISHED, 30)
    assert (play.status, play.record.failures) == ("WAITING", 0)


def test_a_schedule_reports_that_the_clock_was_set_back_since_its_last_tick() -> None:
    play = Play(record())
    play.at(86400)
    play.ends(Status.FINISHED, 86401)
    play.at(120)
    told = state_of(play.record, play.now, None).waits
    assert told.startswith(
        f"the clock was set back: {tick_text(T0 + 86400)}, up to which ticks were decided, "
    )
    assert told.endswith("`unstuck schedule resume s` counts from now")


@pytest.mark.parametrize("given", ["resume", "run"])
@pytest.mark.parametrize("status", ["WAITING", "RUNNING", "RETRYING", "PAUSED", "HALTED"])
def test_after_a_fast_clock_a_user_can_restart_ticks_from_now(status: str, given: str) -> None:
    play = Play(record(retry={"max": 0 if status == "HALTED" else 3, "backoff": "1h"}, every="60s"))
    play.at(86400)
    if status in ("RETRYING", "HALTED"):
        play.fails(86401)
    elif status != "RUNNING":
        play.ends(Status.FINISHED, 86401)
    if status == "PAUSED":
        play.command("pause", 86402)
    play.now = T0 + 90
    assert play.status == status
    assert play.command(given, 90) == "DONE"
    assert play.command("resume", 91) in ("DONE", "ALREADY", "REFUSED")
    told = [event["text"] for event in play.events if event["kind"] == "COUNTS_FROM_NOW"]
    assert told == [
        f"the clock was set back, and ticks up to {tick_text(T0 + 86400)} had been decided; "
        "those since then had no run, and the next one is run"
    ]
    play.at(92)
    if play.record.runs:
        play.ends(Status.FINISHED, 93)
    play.at(130)
    assert play.submitted[-1] == key(120), "the next tick"
    play.ends(Status.FINISHED, 131)
    play.at(86399 + 60)
    again = key(86400)
    assert play.submitted[-1] == again, "the run of this tick stands under its key: the same job"
    assert play.submitted.count(again) == 2
    assert play.record.decided_to == T0 + 86400


def test_a_late_submit_by_a_fast_clock_skips_no_tick() -> None:
    play, ahead = Play(record()), T0 + 86400
    decision = decide(play.record, {}, ahead)
    (run,) = decision.submits(ahead)
    noted = not_submitted(decision.record, run, Reason("SPEC_INVALID", "no such"), True, ahead)
    assert noted is not None
    play.record = settled(noted[0], ahead)
    play.at(86401)
    assert play.command("resume", 90) == "DONE"
    play.at(91)
    assert play.submitted == [key(86400)]
    play.ends(Status.FINISHED, 92)
    play.at(120)
    assert play.submitted == [key(86400), key(120)]


def test_a_slightly_slow_clock_does_not_move_the_cursor_back() -> None:
    play = Play(record())
    play.at(60)
    play.ends(Status.FINISHED, 61)
    for given in ("pause", "resume", "run"):
        play.command(given, 30)
        assert play.record.cursor == T0 + 60
