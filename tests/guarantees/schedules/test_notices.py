"""Of what happens to a schedule, or to a job that is expected, somebody is told once, with the
commit that it is of.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.guarantees.schedules.test_backlog import spec as stream_spec
from tests.support.coordinator import Coordinator, failed, group
from tests.support.failpoints import Death, Died, armed
from tests.support.network.lost_replies import LosesReplies, losing_reply
from tests.support.servers import wait_until
from unstuck import Status
from unstuck.coordinator.model.notice import Notice
from unstuck.coordinator.notices.rules.expected import MAX_ABSENT
from unstuck.coordinator.reconcile import expected_jobs, submitted_jobs
from unstuck.coordinator.spec.notify_spec import FleetRule
from unstuck.tasks.failpoints import Point
from unstuck.tasks.protocol.report import Outcome


def told(coordinator: Coordinator) -> list[Notice]:
    entries: Any = coordinator.redis.xrange(coordinator.keys.outbox)
    return [Notice.from_json(fields["notice"]) for _, fields in entries]


def events(coordinator: Coordinator) -> list[str]:
    return [one.event for one in told(coordinator)]


def spec(*on: Any, **schedule: Any) -> dict[str, Any]:
    rules = [{"on": list(on), "to": "ops"}]
    return {
        "name": "ticking",
        "schedule": schedule,
        "groups": [group("a", retry={"max": 0})],
        "notify": rules,
    }


def run_of(coordinator: Coordinator, known: int = 0) -> str:
    def found() -> bool:
        coordinator.schedules.run()
        return len(coordinator.client.schedules.runs("ticking")) > known

    wait_until(found, 20, "a run")
    return coordinator.client.schedules.runs("ticking")[0].id


def fail(coordinator: Coordinator, job: str, outcome: Outcome | None = None) -> None:
    coordinator.read()
    coordinator.work(coordinator.offers(job)[0], outcome or failed())
    coordinator.read()
    assert coordinator.status(job) is Status.FAILED
    coordinator.schedules.run()


def test_a_failed_run_and_its_successful_retry_are_notified_only_by_the_schedule(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator()
    ticks = {"every": "2s", "retry": {"max": 3, "backoff": "100ms"}}
    coordinator.client.schedules.set(spec("failed", "recovered", **ticks))
    fail(coordinator, run_of(coordinator))
    assert events(coordinator) == ["failed"]
    again = run_of(coordinator, 1)
    assert coordinator.drive(again) is Status.FINISHED
    coordinator.schedules.run()
    assert events(coordinator) == ["failed", "recovered"]
    assert {one.problem for one in told(coordinator)} == {"schedule:ticking"}


@pytest.mark.claim("The commit that changes a status also writes its notice, exactly once.")
def test_a_lost_reply_or_a_second_coordinator_causes_no_duplicate_notice(
    make_coordinator: Callable[..., Coordinator],
    lossy: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = make_coordinator(client=lossy), make_coordinator()
    first.client.schedules.set(spec("failed"))
    first.client.schedules.run("ticking")
    job = run_of(first)
    monkeypatch.setattr(first.schedule_store, "commit", losing_reply(first.schedule_store.commit))
    fail(first, job)
    assert LosesReplies.lost
    second.schedules.decide("ticking")
    assert events(first) == ["failed"]


def test_removing_a_schedule_sends_the_end_of_its_problem_to_notified_targets(
    coordinator: Coordinator,
) -> None:
    coordinator.client.schedules.set(spec("failed", "recovered", every="1s", retry={"max": 0}))
    fail(coordinator, run_of(coordinator))
    coordinator.client.schedules.stop("ticking", by="anna")
    coordinator.client.schedules.remove("ticking", by="anna")
    failure, over = told(coordinator)
    assert (failure.event, over.event, over.status) == ("failed", "recovered", "REMOVED")
    assert (over.problem, over.to) == (failure.problem, failure.to)
    assert "anna has removed it" in over.text


def test_an_unrecoverable_failure_halts_the_schedule_and_is_notified(
    coordinator: Coordinator,
) -> None:
    coordinator.client.schedules.set(spec("halted", "recovered", every="2s"))
    fail(coordinator, run_of(coordinator), failed("TOO_MANY_REJECTED_ROWS", recoverable=False))
    (one,) = told(coordinator)
    assert (one.event, one.status) == ("halted", "HALTED")
    assert "no further try can mend it" in one.text
    assert "TOO_MANY_REJECTED_ROWS" in one.first_error
    assert "unstuck schedule resume ticking" in one.commands


def test_a_stream_backlog_is_notified_although_its_schedule_is_paused(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text('{"id": 1}')
    os.utime(folder / "a.json", (time.time() - 700, time.time() - 700))
    loads = {
        **stream_spec(folder, every="1d"),
        "notify": [{"on": [{"behind": "10m"}], "to": "ops"}],
    }
    coordinator.client.schedules.set(loads)
    coordinator.client.schedules.pause("loads", by="anna")
    coordinator.schedules.run()
    coordinator.schedules.run()  # the look has made it due
    (one,) = told(coordinator)
    assert (one.event, one.status) == ("behind", "PAUSED")
    assert "1 unread file" in one.text
    assert "paused by anna" in one.text


def a_minute_ago() -> str:
    return f"{datetime.now(UTC) - timedelta(minutes=1):%H:%M} UTC"


def test_a_job_submitted_by_cron_is_late_until_it_succeeds(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator()
    rules = [{"on": [{"late": a_minute_ago()}, "recovered"], "to": "ops"}]
    job = coordinator.submit(group("a"), name="nightly", notify=rules)
    look(coordinator)
    assert told(coordinator) == [], "it is expected from now on"
    as_if_expected_for_days(coordinator, "nightly")
    look(coordinator)
    look(coordinator)
    assert events(coordinator) == ["late"]
    assert f"job {job}, the newest, is PENDING" in told(coordinator)[0].text
    assert coordinator.drive(job) is Status.FINISHED
    look(coordinator)
    assert events(coordinator) == ["late", "recovered"]
    coordinator.submit(group("a"), name="nightly")
    look(coordinator)
    assert coordinator.redis.hlen(coordinator.keys.expected_state) == 0, (
        "its spec expects nothing any more"
    )


def test_changing_the_rule_of_a_late_job_sends_its_recovery(
    coordinator: Coordinator,
) -> None:
    def submit(late: str) -> str:
        return coordinator.submit(
            group("a"), name="nightly", notify=[{"on": [{"late": late}, "recovered"], "to": "ops"}]
        )

    submit(a_minute_ago())
    look(coordinator)
    as_if_expected_for_days(coordinator, "nightly")
    look(coordinator)
    later = f"{datetime.now(UTC) + timedelta(hours=2):%H:%M} UTC"
    assert coordinator.drive(submit(later)) is Status.FINISHED
    look(coordinator)
    assert events(coordinator) == ["late", "recovered"]


def test_the_end_of_lateness_is_sent_although_its_rule_was_removed(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    rules = [{"on": [{"late": a_minute_ago()}, "recovered"], "to": "ops"}]
    by_fleet = (FleetRule.model_validate({**rules[0], "names": ["weekly"]}),)
    coordinator, restarted = make_coordinator(rules=by_fleet), make_coordinator()
    coordinator.submit(group("a"), name="nightly", notify=rules)
    look(coordinator)
    for name in ("nightly", "weekly"):
        as_if_expected_for_days(coordinator, name)
    look(coordinator)
    assert events(coordinator) == ["late", "late"]
    for name in ("nightly", "weekly"):
        job = restarted.submit(group("a"), name=name)
        look(restarted)
        assert restarted.drive(job) is Status.FINISHED
        look(restarted)
    assert [(one.event, one.name, one.to) for one in told(restarted)[2:]] == [
        ("recovered", "nightly", ("ops",)),
        ("recovered", "weekly", ("ops",)),
    ]
    look(restarted)
    assert len(told(restarted)) == 4
    assert not restarted.redis.hexists(restarted.keys.expected_state, "nightly")


def test_a_successful_job_is_not_late_and_an_absent_job_is_eventually_dropped(
    coordinator: Coordinator,
) -> None:
    rules = [{"on": [{"late": a_minute_ago()}], "to": "ops"}]
    coordinator.drive(coordinator.submit(group("a"), name="nightly", notify=rules))
    look(coordinator)
    as_if_expected_for_days(coordinator, "nightly")
    look(coordinator)
    assert told(coordinator) == []
    coordinator.redis.delete(
        coordinator.keys.jobs, coordinator.keys.summary
    )  # as if that had been days ago
    for _ in range(MAX_ABSENT):
        as_if_expected_for_days(coordinator, "nightly", judged={})
        look(coordinator)
    assert events(coordinator) == ["late"] * MAX_ABSENT
    assert "until it is submitted again, it is not expected" in told(coordinator)[-1].text
    assert coordinator.redis.hlen(coordinator.keys.expected) == 0


@pytest.mark.parametrize("most", [1, 3, 100])
def test_the_relevant_run_is_found_among_many_jobs_and_each_is_read_once(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(submitted_jobs, "MAX_JOBS_PER_SCAN", most)
    monkeypatch.setattr(submitted_jobs, "OVERLAP_S", 0.0)
    read = Counter[str]()
    lines = coordinator.expected_store.lines

    def counted(names: Any, jobs: Any) -> Any:
        read.update(jobs)
        return lines(names, jobs)

    monkeypatch.setattr(coordinator.expected_store, "lines", counted)
    rules = [{"on": [{"late": a_minute_ago()}, "recovered"], "to": "ops"}]
    coordinator.drive(coordinator.submit(group("a"), name="nightly", notify=rules))
    look(coordinator)
    as_if_expected_for_days(coordinator, "nightly")
    others = [coordinator.submit(group("a"), name=f"other-{number}") for number in range(8)]
    look(coordinator)
    assert told(coordinator) == [], "it has ended well, before the others"
    as_if_expected_for_days(coordinator, "nightly", judged={})
    failed_later = coordinator.submit(group("a"), name="nightly", notify=rules)
    coordinator.redis.zrem(coordinator.keys.jobs, *others[:2])
    look(coordinator)
    assert told(coordinator) == [], f"{failed_later} is not the only one"
    assert max(read[job] for job in others[:-1]) == 1


def test_a_fleet_rule_notifies_of_a_job_that_was_never_submitted(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    written = {"on": [{"late": a_minute_ago()}], "to": "ops", "names": ["never", "some*"]}
    rules = (FleetRule.model_validate(written),)
    first, second = make_coordinator(rules=rules), make_coordinator(rules=rules)
    look(first)
    as_if_expected_for_days(first, "never")
    look(first)
    look(second)
    (one,) = told(first)
    assert (one.event, one.name, one.job, one.status) == ("late", "never", "", "ABSENT")
    assert "none was submitted" in one.text


def test_a_coordinator_without_a_fleet_rule_does_not_suppress_notices_of_others(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    written = {"on": [{"late": a_minute_ago()}], "to": "ops", "names": ["never"]}
    first, without = (
        make_coordinator(rules=(FleetRule.model_validate(written),)),
        make_coordinator(),
    )
    look(first)
    as_if_expected_for_days(first, "never")
    look(without)
    look(first)
    assert events(first) == ["late"]


@pytest.mark.claim("The commit that changes a status also writes its notice, exactly once.")
def test_a_coordinator_that_dies_during_a_submit_sends_no_notice_of_uncommitted_changes(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    first = make_coordinator(lock_ttl=0.5)
    first.client.schedules.set(spec("failed", "finished"))
    first.client.schedules.run("ticking")
    with armed(Death([Point.AFTER_SUBMIT])), pytest.raises(Died):
        first.schedules.run()
    assert told(first) == []
    second = make_coordinator(lock_ttl=0.5)
    assert second.drive(run_of(second)) is Status.FINISHED
    second.schedules.run()
    assert events(second) == ["finished"]


def look(coordinator: Coordinator) -> None:
    """Look once more, in as many turns as it takes to look at all jobs; each looks at one or
    more.
    """
    coordinator.clock.skip(expected_jobs.SCAN_INTERVAL_S)
    for _ in range(2 + len(coordinator.client.jobs(limit=None))):
        coordinator.expected.run()


def as_if_expected_for_days(coordinator: Coordinator, name: str, **more: Any) -> None:
    state = json.loads(str(coordinator.redis.hget(coordinator.keys.expected_state, name)))
    coordinator.redis.hset(
        coordinator.keys.expected_state,
        name,
        json.dumps({**state, "since": time.time() - 9 * 86400, **more}),
    )
