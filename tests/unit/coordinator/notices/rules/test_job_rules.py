"""Of which changes of a job somebody is told, by the rules alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.support.jobs.job_in_memory import LOST, NO_JITTER, Job, failure, group
from unstuck import Status
from unstuck.coordinator.commands.retry_job import retried
from unstuck.coordinator.model.decision import Decision, Environment
from unstuck.coordinator.model.notice import TOLD_AGAIN_AFTER, Notice
from unstuck.coordinator.model.notice import Alert as OpenProblem
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.notices.message import message_of
from unstuck.coordinator.notices.rules.alerts import Alerting
from unstuck.coordinator.notices.rules.job_rules import notices_of_job
from unstuck.coordinator.notices.rules.subscriptions import subscriptions
from unstuck.coordinator.spec.notify_spec import FleetRule


class Told(Job):
    """A job in memory whose notices are kept as a coordinator keeps them."""

    def __init__(
        self, *groups: Any, on: list[Any], fleet: tuple[FleetRule, ...] = (), **spec: Any
    ) -> None:
        super().__init__(*groups, notify=[{"on": on, "to": "ops"}] if on else [], **spec)
        self.state.job = replace(self.state.job, commit="c1")
        self.notices: list[Notice] = []
        self.last = Alerting({}, (), None)
        self.usual = 0.0
        self.fleet = fleet

    def decide(self, *arguments: Any, **env: Any) -> Decision:
        decision = super().decide(*arguments, **env)
        self.told_with(decision)
        return decision

    def told_with(self, decision: Decision, state: JobState | None = None) -> None:
        state = state or self.state
        asked = subscriptions("job", self.plan.notify, self.fleet)
        self.last = notices_of_job(
            asked,
            decision.old,
            state,
            Environment(self.now, ""),
            decision.due,
            usual=lambda: self.usual,
        )
        state.job = replace(state.job, alerts=self.last.alerts)
        self.notices += self.last.notices

    def events(self) -> list[str]:
        return [notice.event for notice in self.notices]


ALL = [
    "failed",
    "halted",
    "finished",
    "recovered",
    {"retrying_for": "15m"},
    {"waiting_for_worker": "5m"},
]


def test_a_successful_job_is_notified_once_if_requested() -> None:
    job = Told(group("a"), on=["failed", "finished", "recovered"])
    job.decide()
    job.run("a", rows={})
    assert job.status() is Status.FINISHED
    (notice,) = job.notices
    assert (notice.event, notice.to, notice.status, notice.job) == (
        "finished",
        ("ops",),
        "FINISHED",
        "j",
    )
    assert notice.text.startswith("all groups are done")


def test_a_failure_notice_contains_reason_first_error_and_remedy() -> None:
    job = Told(group("a", retry={"max": 0}), on=["failed"])
    job.decide()
    job.run("a", failure())
    (notice,) = job.notices
    assert (notice.event, notice.status, notice.problem) == ("failed", "FAILED", "job:j")
    assert notice.text == "group a failed: BOOM: it went wrong"
    assert notice.first_error == "group a: BOOM: it went wrong"
    assert notice.next == "it has ended; this is final"
    assert notice.commands[0] == "unstuck retry j"
    assert Notice.from_json(notice.to_json()) == notice


def queue_timeout(job: Told) -> None:
    job.decide()
    job.now += 60
    job.decide()


def job_timeout(job: Told) -> None:
    job.decide()
    job.claim("a")
    job.decide()
    job.now += 3600
    job.renew("a")
    job.decide()


def lost_workers(job: Told) -> None:
    job.decide()
    while not job.state.job.terminal:
        if "a" in job.state.attempts:
            job.run("a", LOST)
        job.now += 20
        job.decide()


def stopped(job: Told) -> None:
    job.decide()
    job.tell("stop")
    job.decide()


def canceled(job: Told) -> None:
    job.decide()
    job.claim("a")
    job.decide()
    job.tell("cancel")
    job.decide()
    job.now += 61
    job.decide()


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (queue_timeout, "nobody"),
        (job_timeout, "timeout of 1h00m"),
        (lost_workers, "POISON"),
        (stopped, "ada asked for stop"),
        (canceled, "ada asked for cancel"),
    ],
)
def test_each_unsuccessful_end_is_notified_as_failed(end: Any, words: str) -> None:
    job = Told(group("a", queue_timeout="1m"), on=["failed"], timeout="1h")
    end(job)
    assert job.state.job.terminal
    (notice,) = job.notices
    assert (notice.event, notice.status) == ("failed", job.status())
    assert words in notice.text or end is queue_timeout, notice.text


def test_long_retrying_is_notified_at_its_limit_and_ends_once() -> None:
    job = Told(
        group("a", retry={**NO_JITTER, "max": 1000, "backoff": 400}),
        on=["recovered", {"retrying_for": "15m"}],
    )
    job.decide()
    job.run("a", failure())
    began = job.now
    assert job.notices == []
    assert job.last.look_at == began + 900
    for _ in range(2):
        job.now += 400
        job.decide()
        job.run("a", failure())
    assert job.notices == [], "13 minutes"
    job.now = began + 900
    job.decide()
    job.decide()
    (notice,) = job.notices
    assert (notice.event, notice.since, notice.at) == ("retrying_for", began, began + 900)
    assert notice.text == "a is tried again (backoff, attempt 3) after: it went wrong"
    assert notice.first_error == "group a: BOOM: it went wrong"
    assert notice.next == "attempt 4, at 1970-01-01T00:35:00Z"
    job.now += 400
    job.decide()
    job.run("a", rows={})
    assert job.events() == ["retrying_for", "recovered"]
    assert job.notices[1].problem == notice.problem
    assert job.notices[1].id != notice.id


def test_a_recurring_problem_is_notified_once_per_interval_without_loss() -> None:
    retry = {**NO_JITTER, "backoff": 1.0, "max_backoff": 1.0}
    job = Told(
        *(group(f"g{n}", *([f"g{n - 1}"] if n else []), retry=retry) for n in range(60)),
        on=["recovered", {"retrying_for": "1s"}],
    )
    began = job.now
    for _ in range(60):
        job.decide()
        (name,) = job.state.attempts
        job.run(name, failure())
        job.now += 5
        job.decide()
        job.run(name)
        job.now += 95
    told_at = [notice.at - began for notice in job.notices if notice.event == "retrying_for"]
    assert len(told_at) == 6000 // TOLD_AGAIN_AFTER + 1, "6,000 s in which 60 groups failed"
    assert all(later - one >= TOLD_AGAIN_AFTER for one, later in pairwise(told_at))
    assert job.events()[:4] == ["retrying_for", "recovered"] * 2


def test_a_clock_set_back_by_a_day_silences_no_problem_for_a_day() -> None:
    job = Told(group("a", retry={**NO_JITTER, "backoff": 300}), on=[{"retrying_for": "1m"}])
    job.decide()
    yesterday = OpenProblem(
        since=job.now + 86_000, at=job.now + 86_400, to=("ops",), over=job.now + 86_401
    )
    job.state.job = replace(job.state.job, alerts={"retrying_for:60": yesterday})
    job.run("a", failure())
    assert job.last.look_at == job.now + 60
    job.now += 60
    job.decide()
    assert job.events() == ["retrying_for"]


def test_a_queue_without_workers_is_notified_and_ends_when_the_offer_is_taken() -> None:
    job = Told(group("a", queue="heavy"), on=["recovered", {"waiting_for_worker": "5m"}])
    job.decide()
    began = job.now
    assert job.last.look_at == began + 300
    job.now += 300
    job.decide()
    (notice,) = job.notices
    assert (notice.event, notice.since) == ("waiting_for_worker", began)
    assert "heavy" in notice.text
    assert "celery -A unstuck.tasks worker -Q heavy" in notice.commands
    job.claim("a")
    job.decide()
    assert job.events() == ["waiting_for_worker", "recovered"]


def test_the_oldest_offer_on_a_queue_without_workers_is_notified() -> None:
    job = Told(
        group("a", queue="heavy"),
        group("x"),
        group("b", needs=["x"], queue="heavy"),
        on=[{"waiting_for_worker": "5m"}],
    )
    job.decide()
    began = job.now
    job.now += 200
    job.run("x")
    assert job.states()["b"] == "QUEUED"
    job.now = began + 300
    job.decide()
    (notice,) = job.notices
    assert notice.since == began


def test_an_offer_behind_running_groups_of_its_job_does_not_count_as_waiting_for_a_worker() -> None:
    job = Told(group("a"), group("b"), on=[{"waiting_for_worker": "5m"}])
    job.decide()
    job.claim("a")
    job.decide()
    job.now += 600
    job.renew("a")
    job.decide()
    assert job.notices == [], "a runs on that queue"
    job.run("a")
    assert job.notices == [], "only since now"
    job.now += 300
    job.decide()
    assert job.events() == ["waiting_for_worker"]


def test_a_job_that_exceeds_a_limit_or_its_usual_duration_is_notified() -> None:
    for on, usual in (("1h", 0.0), ("3 x usual", 1200.0)):
        job = Told(group("a"), on=[{"running_for": on}, "recovered"])
        job.usual = usual
        job.decide()
        job.now += 5000
        job.decide()
        assert job.notices == [], "it does not run"
        job.claim("a")
        job.decide()
        began = job.now
        assert job.last.look_at == began + 3600
        job.now += 3600
        job.renew("a")
        job.decide()
        assert job.events() == ["running_for"]
        job.run("a", rows={})
        assert job.events() == ["running_for", "recovered"]


def test_paused_time_does_not_count_as_running_time() -> None:
    job = Told(group("a"), group("b", "a"), on=[{"running_for": "1h"}])
    job.decide()
    job.run("a")
    job.tell("pause")
    job.decide()
    job.now += 10_000
    job.decide()
    job.tell("resume")
    job.decide()
    assert job.notices == []
    assert job.last.look_at == job.now + 3600


def test_without_a_usual_duration_no_job_is_unusually_long() -> None:
    job = Told(group("a"), on=[{"running_for": "3 x usual"}])
    job.decide()
    job.claim("a")
    job.decide()
    job.now += 100_000
    job.renew("a")
    job.decide()
    assert job.notices == []


def halt(job: Told) -> None:
    old = job.state.job
    halted = Reason("UNDECIDABLE", "the coordinator could not decide this job")
    job.state.job = replace(
        old, status=Status.HALTED, halted=halted, paused_at=old.paused_at or job.now
    )
    job.told_with(Decision(job.state.job, old))


def test_each_halt_is_notified_and_ended_by_the_resume() -> None:
    job = Told(group("a"), on=["halted", "recovered"])
    job.decide()
    halt(job)
    halt(job)
    assert job.events() == ["halted"], "the same halt"
    assert job.notices[0].text == "the coordinator could not decide this job"
    assert "unstuck resume j" in job.notices[0].commands
    job.now += 5
    job.tell("resume")
    job.decide()
    assert job.events() == ["halted", "recovered"]
    halt(job)
    job.now += 5
    job.tell("resume")
    halt(job)
    assert job.events() == ["halted", "recovered", "halted", "halted"], (
        "somebody had resumed it before each"
    )
    assert len({notice.id for notice in job.notices}) == 4


def test_targets_notified_of_a_failure_get_no_recovery_at_the_failure() -> None:
    job = Told(
        group("a", retry={"max": 1, "backoff": 2000}),
        on=["failed", "recovered", {"retrying_for": "15m"}],
    )
    job.decide()
    job.run("a", failure())
    job.now += 2000
    job.decide()
    job.run("a", failure())
    assert job.status() is Status.FAILED
    assert job.events() == ["retrying_for", "failed"]


def test_a_target_subscribed_only_to_waits_is_notified_of_their_end() -> None:
    job = Told(group("a"), on=["recovered", {"waiting_for_worker": "5m"}])
    job.decide()
    job.now += 300
    job.decide()
    job.tell("cancel")
    job.decide()
    assert job.events() == ["waiting_for_worker", "recovered"]
    assert job.notices[1].status == "CANCELED"
    assert "ada asked for cancel" in job.notices[1].text


def retry_of(failed: Told, *groups: Any, **options: Any) -> Told:
    retry = Told(*groups, **options)
    fields = retried(failed.state, (), False, "word").fields
    retry.state.job = replace(retry.state.job, **fields, id="j2")
    return retry


def test_a_successful_retry_ends_the_problem_of_the_failed_job() -> None:
    on = ["failed", "recovered", {"waiting_for_worker": "5m"}]
    first = Told(group("a", retry={"max": 0}), on=on)
    first.decide()
    first.run("a", failure())
    again = retry_of(first, group("a", retry={"max": 0}), on=on)
    again.decide()
    again.run("a", failure())
    last = retry_of(again, group("a"), on=on)
    last.decide()
    last.now += 300
    last.decide()
    assert last.events() == ["waiting_for_worker"]
    last.run("a", rows={})
    assert [*first.events(), *again.events()] == ["failed", "failed"]
    assert last.events() == ["waiting_for_worker", "recovered"], (
        "not well again before the failure is mended"
    )
    assert {one.problem for one in (*first.notices, *again.notices, *last.notices)} == {"job:j"}
    assert "its retry has ended well" in last.notices[1].text


def test_a_successful_retry_notifies_only_targets_notified_of_the_failure() -> None:
    first = Told(group("a", retry={"max": 0}), on=["halted", "recovered"])
    first.decide()
    first.run("a", failure())
    again = retry_of(first, group("a"), on=["failed", "recovered"])
    again.decide()
    again.run("a", rows={})
    assert again.notices == []


def rules_for(*targets: str) -> tuple[FleetRule, ...]:
    on = ["failed", "halted", "recovered", {"retrying_for": "15m"}, {"waiting_for_worker": "5m"}]
    return tuple(FleetRule.model_validate({"on": on, "to": one}) for one in targets)


@pytest.mark.parametrize("left", [("boss",), ()], ids=["the rule stays", "no rule stays"])
def test_a_target_removed_from_a_rule_is_notified_of_the_end_of_its_problem(
    left: tuple[str, ...],
) -> None:
    def events(job: Told, target: str) -> list[str]:
        return [notice.event for notice in job.notices if target in notice.to]

    waits = Told(group("a"), group("b", "a"), on=[], fleet=rules_for("ops", "boss"))
    waits.decide()
    waits.now += 300
    waits.decide()
    waits.fleet = rules_for(*left)
    waits.claim("a")
    waits.decide()
    assert not waits.state.job.terminal
    assert events(waits, "ops") == events(waits, "boss") == ["waiting_for_worker", "recovered"]

    halts = Told(group("a"), on=[], fleet=rules_for("ops", "boss"))
    halts.decide()
    halt(halts)
    halts.fleet = rules_for(*left)
    halts.now += 5
    halts.tell("resume")
    halts.decide()
    assert events(halts, "ops") == events(halts, "boss") == ["halted", "recovered"]

    failed = Told(group("a", retry={"max": 0}), on=[], fleet=rules_for("ops", "boss"))
    failed.decide()
    failed.run("a", failure())
    again = retry_of(failed, group("a", retry={"max": 0}), on=[], fleet=rules_for(*left))
    again.decide()
    again.run("a", failure())
    assert events(again, "ops") == [], "it has not ended"
    last = retry_of(again, group("a"), on=[], fleet=rules_for(*left))
    last.decide()
    last.run("a", rows={})
    assert events(last, "ops") == events(last, "boss") == ["recovered"]


def test_a_run_of_a_schedule_notifies_problems_but_not_its_end() -> None:
    job = Told(group("a", retry={"max": 0}), on=ALL)
    job.state.job = replace(job.state.job, schedule="nightly")
    job.decide()
    job.now += 300
    job.decide()
    job.run("a", failure())
    assert job.state.job.terminal
    assert job.events() == ["waiting_for_worker", "recovered"], (
        "its failure is a problem of the schedule"
    )
    first, over = job.notices
    assert first.problem == over.problem
    assert (
        message_of(over, "", job.now).title
        == f"job {over.name} is FAILED, which ends the earlier problem"
    )


def test_a_halted_run_of_a_schedule_is_notified() -> None:
    job = Told(group("a"), on=["halted", "recovered"])
    job.state.job = replace(job.state.job, schedule="nightly")
    job.decide()
    halt(job)
    job.now += 5
    job.tell("resume")
    job.decide()
    assert job.events() == ["halted", "recovered"]


def test_fleet_rules_apply_to_matching_jobs_and_notify_each_target_once() -> None:
    rules = (
        FleetRule.model_validate({"on": ["failed"], "to": ["ops", "boss"], "names": ["j*"]}),
        FleetRule.model_validate(
            {"on": ["failed"], "to": "others", "names": ["other", "another*"]}
        ),
    )
    job = Told(group("a", retry={"max": 0}), on=["failed"], fleet=rules)
    job.decide()
    job.run("a", failure())
    (notice,) = job.notices
    assert notice.to == ("ops", "boss")


def test_the_same_history_gives_the_same_notice_ids() -> None:
    def ids() -> list[str]:
        job = Told(group("a", retry={**NO_JITTER, "max": 1000, "backoff": 400}), on=ALL)
        job.decide()
        job.now += 300
        job.decide()
        job.run("a", failure())
        job.now += 900
        job.decide()
        job.run("a", rows={})
        return [notice.id for notice in job.notices]

    assert ids() == ids()
    assert len(set(ids())) == len(ids()) >= 4
