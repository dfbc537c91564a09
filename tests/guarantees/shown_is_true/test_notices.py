"""Guarantee 61: every change that a rule names is told at least once, with one id, and only what
was committed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import redis

from tests.support.coordinator import Coordinator, failed, group
from unstuck import Status
from unstuck.coordinator.model.decision import Decision
from unstuck.coordinator.model.notice import Notice
from unstuck.coordinator.reconcile import reconciler
from unstuck.coordinator.spec.notify_spec import FleetRule
from unstuck.coordinator.store.answers import CommitAnswer

OPS = [{"on": ["failed", "halted", "finished", "recovered"], "to": "ops"}]
FLEET = (FleetRule.model_validate(OPS[0]),)


def outbox(coordinator: Coordinator) -> list[Notice]:
    entries: Any = coordinator.redis.xrange(coordinator.keys.outbox)
    return [Notice.from_json(fields["notice"]) for _, fields in entries]


def told(coordinator: Coordinator) -> list[tuple[str, str]]:
    return [(notice.event, notice.status) for notice in outbox(coordinator)]


@pytest.mark.claim("The commit that changes a status also writes its notice, exactly once.")
def test_a_failure_notice_enters_the_outbox_with_the_commit(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("a", retry={"max": 0}), notify=OPS)
    coordinator.read()
    (offer,) = coordinator.offers()
    coordinator.work(offer, failed())
    assert outbox(coordinator) == [], "nobody has decided it yet"
    coordinator.read()
    (notice,) = outbox(coordinator)
    record = coordinator.show(job)
    assert (notice.event, notice.status, notice.job, notice.at) == (
        "failed",
        "FAILED",
        job,
        record.ended_at,
    )
    assert record.reason is not None
    assert notice.text == record.reason.text == "group a failed: STEP_FAILED: it broke"


@pytest.mark.claim("The commit that changes a status also writes its notice, exactly once.")
def test_notices_of_a_refused_commit_are_not_sent(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("a", retry={"max": 0}), notify=OPS)
    coordinator.read()
    (offer,) = coordinator.offers()
    coordinator.work(offer, failed())
    commit = coordinator.store.commit

    def after_a_cancel(decision: Decision, *args: Any) -> CommitAnswer:
        if decision.notices and not coordinator.show(job).intent_by:
            coordinator.client.command(job, "cancel")
            assert commit(decision, *args) is CommitAnswer.CONFLICT
            assert outbox(coordinator) == []
            return CommitAnswer.CONFLICT
        return commit(decision, *args)

    with patch.object(coordinator.store, "commit", after_a_cancel):
        coordinator.read()
    assert told(coordinator) == [("failed", coordinator.status(job))]


def test_a_commit_with_a_lost_reply_sends_one_notice(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    first, second = make_coordinator(rules=FLEET), make_coordinator(rules=FLEET)
    job = first.submit(group("a"))
    first.read()
    (offer,) = first.offers()
    first.work(offer)
    commit = first.store.commit

    def unanswered(*args: Any) -> CommitAnswer:
        commit(*args)
        raise redis.ConnectionError("the reply was lost")

    with patch.object(first.store, "commit", unanswered), pytest.raises(redis.ConnectionError):
        first.reconciler.reconcile(job)
    second.reconciler.reconcile(job)
    assert told(second) == [("finished", "FINISHED")]


def test_a_job_undecidable_from_the_start_is_notified_with_its_end(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(rules=FLEET)
    job = coordinator.submit(group("a"))
    with patch.object(reconciler, "decide", side_effect=ZeroDivisionError("a bug")):
        for _ in range(3):
            coordinator.reconciler.reconcile(job)
    assert told(coordinator) == [("halted", "HALTED")]
    assert "ZeroDivisionError: a bug" in outbox(coordinator)[0].text
    assert f"unstuck resume {job}" in outbox(coordinator)[0].commands
    coordinator.client.command(job, "resume")
    coordinator.read()
    assert told(coordinator) == [("halted", "HALTED"), ("recovered", "PENDING")]


def test_a_damaged_job_is_notified_as_halted_and_when_ended_by_force(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(rules=FLEET)
    job = coordinator.submit(group("a"), group("b", "a"))
    coordinator.read()
    coordinator.redis.delete(coordinator.keys.of(job).groups)
    for _ in range(3):
        coordinator.reconciler.cache.clear()
        coordinator.reconciler.reconcile(job)
    coordinator.client.command(job, "force-stop")
    coordinator.read()
    assert told(coordinator) == [("halted", "HALTED"), ("failed", "CANCELED")]
    assert coordinator.status_of_record(job) is Status.CANCELED


def test_a_rule_with_a_time_makes_the_job_due_then_and_the_sweep_notifies(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(dispatch_timeout=1000)
    rules = [{"on": [{"waiting_for_worker": "90s"}], "to": "ops"}]
    job = coordinator.submit(group("a", queue="heavy"), notify=rules)
    coordinator.read()
    assert 85 < coordinator.due_in(job) <= 90
    record = coordinator.redis.hget(coordinator.keys.of(job).groups, "a")
    since = coordinator.show(job).groups[0].members[0].since
    moved = str(record).replace(f"{since}", f"{since - 90}")
    coordinator.redis.hset(coordinator.keys.of(job).groups, "a", moved)
    coordinator.reconciler.cache.clear()
    coordinator.reconciler.reconcile(job)
    (notice,) = outbox(coordinator)
    assert (notice.event, notice.to) == ("waiting_for_worker", ("ops",))
    assert "heavy" in notice.text


def test_a_group_requeued_before_it_started_is_not_notified_as_retried(
    coordinator: Coordinator,
) -> None:
    rules = [{"on": [{"retrying_for": "15m"}], "to": "ops"}]
    job = coordinator.submit(group("a", retry={"max": 3, "backoff": "1h"}), notify=rules)
    coordinator.read()
    coordinator.work(coordinator.offers()[0], failed())
    coordinator.read()
    key = coordinator.keys.of(job).groups
    record = json.loads(str(coordinator.redis.hget(key, "a")))
    record["troubled_since"] -= 900
    coordinator.redis.hset(key, "a", json.dumps(record))
    coordinator.reconciler.cache.clear()
    assert coordinator.client.rerun(job, "a").answer == "DONE"
    coordinator.read()
    assert outbox(coordinator) == []


def test_the_usual_duration_comes_from_the_last_runs_of_the_job_name(
    coordinator: Coordinator,
) -> None:
    for _ in range(3):
        assert coordinator.store.usual("job", "") == 0.0
        coordinator.drive(coordinator.submit(group("a")))
        coordinator.drive(coordinator.submit(group("a"), name="another"))
    jobs = coordinator.client.jobs(name="job")
    took = sorted(job.ended_at - job.started_at for job in jobs)
    assert coordinator.store.usual("job", "") == pytest.approx(took[1])
    assert coordinator.store.usual("nobody", "") == 0.0


def test_a_rule_added_to_a_running_job_notifies_of_later_changes_only(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("a", retry={"max": 0}))
    coordinator.read()
    (offer,) = coordinator.offers()
    coordinator.claim(offer)
    coordinator.read()
    assert coordinator.client.alter(job, {"notify": OPS}).answer == "DONE"
    coordinator.finish(offer.held_by("runner1"), failed())
    coordinator.read()
    assert told(coordinator) == [("failed", "FAILED")]


def test_a_target_is_notified_of_the_end_after_all_rules_were_removed(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator()
    job = coordinator.submit(group("a", retry={"max": 0}), notify=OPS)
    coordinator.read()
    coordinator.work(coordinator.offers()[0], failed())
    coordinator.read()
    again = coordinator.client.retry(job).id
    assert coordinator.client.alter(again, {"notify": []}).answer == "DONE"
    assert coordinator.drive(again) is Status.FINISHED
    assert told(coordinator) == [("failed", "FAILED"), ("recovered", "FINISHED")]
    assert {(notice.problem, notice.to) for notice in outbox(coordinator)} == {
        (f"job:{job}", ("ops",))
    }


def commands(coordinator: Coordinator, job: str) -> dict[str, int]:
    """How many of which commands the commits take that decide ``job`` to its end."""
    commit, counts = coordinator.store.commit, Counter[str]()

    def counted(*args: Any) -> CommitAnswer:
        coordinator.redis.config_resetstat()
        answer = commit(*args)
        stats: Any = coordinator.redis.info("commandstats")
        counts.update({name: one["calls"] for name, one in stats.items()})
        return answer

    with patch.object(coordinator.store, "commit", counted):
        coordinator.drive(job)
    del counts[
        "cmdstat_lpush"
    ]  # an entry for polling runners, which stands for a moment or is made again
    return dict(counts)


def test_commits_without_notices_need_no_additional_commands(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    rules = [
        {
            "on": ["failed", "halted", {"retrying_for": "15m"}, {"running_for": "3h"}, "recovered"],
            "to": "ops",
        }
    ]
    plain, asked = (
        make_coordinator(),
        make_coordinator(rules=tuple(FleetRule.model_validate(one) for one in rules)),
    )
    groups = [group("a"), group("b", "a"), group("c", "a")]
    plain.drive(plain.submit(*groups))  # the scripts are loaded
    without = commands(plain, plain.submit(*groups))
    assert without["cmdstat_evalsha"] >= 3
    assert commands(asked, asked.submit(*groups)) == without
