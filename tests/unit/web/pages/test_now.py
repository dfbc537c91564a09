"""The screen Now: what is not well comes first, each with its sentence, however many jobs there
are.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from starlette.testclient import TestClient

from tests.cli.conftest import ByHand, Cli
from tests.support.servers import RedisServer
from unstuck.client import now
from unstuck.client.now import MAX_JOBS_PER_SCAN, MAX_ROWS_SHOWN, Snapshot
from unstuck.coordinator.model.backlog import Backlog, StreamBacklog
from unstuck.coordinator.model.fleet import FleetInfo, QueueInfo
from unstuck.coordinator.model.notice import Alert
from unstuck.coordinator.model.schedule_record import RunSuccess
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.notices.rules.expected import Expected
from unstuck.coordinator.problems.detect import detect, detect_in_fleet, open_problems
from unstuck.coordinator.problems.problem import Limits, ProblemCode
from unstuck.coordinator.problems.state import InstallationState
from unstuck.coordinator.reconcile.expected_jobs import ExpectedJobs
from unstuck.coordinator.spec.notify_spec import FleetRule
from unstuck.coordinator.store.answers import CommitAnswer
from unstuck.coordinator.store.expected_job_store import ExpectedJobsStore
from unstuck.coordinator.store.job_store import Store
from unstuck.coordinator.store.schedule_store import ScheduleChange, ScheduleStore
from unstuck.read_model.job import JobInfo
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.process_info import CoordinatorInfo, RunnerInfo
from unstuck.tasks.protocol.processes import ProcessRegistry
from unstuck.views.installation import MAX_PROBLEMS_PER_KIND
from unstuck.web.actions import problem_actions

ALONE = {"name": "load", "retry": {"max": 0}}


def coordinator_lives(client: redis.Redis) -> None:
    one = CoordinatorInfo(id="c", host="host", pid=1, heard_at=0.0, queues=("control",))
    ProcessRegistry(client, Keys()).note(lambda now: replace(one, heard_at=now))


def lines(browser: TestClient) -> str:
    """The section of what is not well, without markup."""
    text = browser.get("/").text
    section = text[text.index('id="problems"') : text.index("</section>")]
    return " ".join(re.sub(r"<[^>]+>", " ", section).split())


def schedule(hand: ByHand, name: str = "nightly") -> None:
    step = {"name": "load", "spark": False, "steps": [{"python": "some.where:step"}]}
    hand.client.schedules.set({"name": name, "schedule": {"every": "1h"}, "groups": [step]})


def test_without_findings_the_report_is_ok(browser: TestClient, client: redis.Redis) -> None:
    coordinator_lives(client)
    assert lines(browser).endswith("All is well.")


def test_a_fleet_without_a_coordinator_comes_first(
    browser: TestClient, hand: ByHand, client: redis.Redis
) -> None:
    job = hand.submit(ALONE)
    hand.decide(job)
    hand.fail(job, "load", "no")
    assert "NO_COORDINATOR No coordinator is heard of" in lines(browser).split("FAILED")[0]
    coordinator_lives(client)
    assert "No coordinator" not in lines(browser)


def test_a_failed_job_is_shown_with_its_error_until_its_name_runs_again(
    browser: TestClient, hand: ByHand
) -> None:
    job = hand.submit(ALONE, name="night")
    hand.decide(job)
    hand.fail(job, "load", "no such column: price")
    assert "job night FAILED" in lines(browser)
    assert "no such column: price" in lines(browser)
    hand.client.retry(job)
    assert "night" not in lines(browser)


def test_a_retrying_job_shows_its_failure_and_its_next_try(
    browser: TestClient, hand: ByHand
) -> None:
    job = hand.submit({"name": "load", "retry": {"max": 3, "backoff": "1h"}}, name="night")
    hand.decide(job)
    hand.fail(job, "load", "the source is down", recoverable=True)
    hand.decide(job)
    assert hand.view(job).status is Status.RETRYING
    assert re.search(r"job night RETRYING .*the source is down", lines(browser))


def test_failing_late_and_behind_schedules_are_shown(
    browser: TestClient, hand: ByHand, client: redis.Redis
) -> None:
    for name in ("well", "late", "behind"):
        schedule(hand, name)
    store, now = ScheduleStore(client, Keys()), hand.client.fleet().at
    client.zadd(Keys().schedules_due, {"late": now - 600, "well": now + 600, "behind": now + 600})
    store.note_backlog(
        "behind", Backlog(now, {"/in": StreamBacklog(new=3, bytes=10, looked=3, since=now - 7200)})
    )
    found = lines(browser)
    assert "schedule late OVERDUE" in found
    assert re.search(r"schedule behind BEHIND /in: 3 unread files", found)
    assert "schedule well" not in found
    record = store.load("behind")
    assert record is not None
    for left, shown in (
        (0, False),
        (2, True),
    ):  # a run has ended since the look, and has read all, or all it may
        read = replace(record, last_success=RunSuccess("j", now, now + 1, left=left))
        assert (
            store.commit(ScheduleChange(f"c{left}", record.commit, read, (), due=now + 600))
            is CommitAnswer.APPLIED
        )
        assert ("schedule behind BEHIND" in lines(browser)) is shown
        record = store.load("behind")
        assert record is not None


def test_a_schedule_that_missed_its_deadline_without_a_failure_is_shown(
    browser: TestClient, hand: ByHand, client: redis.Redis
) -> None:
    """Nobody is told twice what is late: the notice that was sent stands on the record."""
    schedule(hand)
    store = ScheduleStore(client, Keys())
    record = store.load("nightly")
    assert record is not None
    told = {"late: 06:00": Alert(since=record.made_at, at=record.made_at, to=("ops",))}
    late = replace(record, alerts=told)
    store.commit(ScheduleChange("a", record.commit, late, (), due=record.made_at + 9e9))
    assert "schedule nightly LATE no run has ended well by its deadline" in lines(browser)
    over = replace(
        late, alerts={"late: 06:00": replace(told["late: 06:00"], over=record.made_at + 1)}
    )
    store.commit(ScheduleChange("b", "a", over, (), due=record.made_at + 9e9))
    assert "nightly" not in lines(browser)


def test_a_job_expected_by_a_fleet_rule_is_late_until_its_name_succeeds(
    browser: TestClient, hand: ByHand, client: redis.Redis
) -> None:
    """Given a deadline that has passed since it is expected, and a schedule that took over a late
    name.
    """
    store, long_ago = ExpectedJobsStore(client, Keys()), hand.client.fleet().at - 3 * 86400
    for name in ("export", "taken_over"):
        store.note(name, "", Expected(since=long_ago).to_json(), ())
    on = [{"late": "00:00 UTC"}, "recovered"]
    rules = (FleetRule.model_validate({"on": on, "to": "ops", "names": ["export", "taken_over"]}),)

    def look() -> str:
        ExpectedJobs(ExpectedJobsStore(client, Keys()), rules).run()
        schedule(hand, "taken_over")
        return lines(browser)

    assert re.search(
        r"job export LATE no run has ended well by 00:00 of [-\d]+ \(UTC\); no job of this name",
        look(),
    )
    job = hand.submit(ALONE, name="export")
    assert f"job {job}, the newest, is PENDING" in look()
    assert "taken_over" not in look()
    assert [one.name for one in hand.client.late_jobs()] == ["export"]
    hand.decide(job)
    hand.succeed(job, "load")
    hand.decide(job)
    assert "export" not in look()


def test_a_damaged_record_of_an_expected_job_hides_no_other_and_is_recreated(
    browser: TestClient,
    hand: ByHand,
    client: redis.Redis,
    redis_server: RedisServer,
    tmp_path: Path,
) -> None:
    cli = Cli(redis_server.url, tmp_path)
    store, at = ExpectedJobsStore(client, Keys()), hand.client.fleet().at
    late = Expected(
        since=at - 90, alerts={"late: 06:00": Alert(since=at - 60, at=at - 60, to=("ops",))}
    )
    store.note("export", "", late.to_json(), ())
    client.hset(Keys().expected_state, "damaged", "{")
    damaged, export = hand.client.late_jobs()
    assert (damaged.name, damaged.since, export.name, export.since) == (
        "damaged",
        0.0,
        "export",
        at - 60,
    )
    assert "not known: its record cannot be read" in damaged.text
    assert "job damaged UNREADABLE whether it is late is not known" in lines(browser)
    assert "damaged" in cli("list", "--late").stdout
    assert [one["since"] is None for one in cli.json("list", "--late")] == [True, False]
    ExpectedJobs(
        store,
        (FleetRule.model_validate({"on": [{"late": "06:00"}], "to": "ops", "names": ["damaged"]}),),
    ).run()
    assert [one.name for one in hand.client.late_jobs()] == ["export"]


def failed(hand: ByHand, name: str) -> str:
    job = hand.submit(ALONE, name=name)
    hand.decide(job)
    hand.fail(job, "load", "no source")
    return job


def test_a_failed_job_is_listed_until_another_job_of_its_name_is_submitted(hand: ByHand) -> None:
    def problems() -> list[str]:
        return [problem.job for problem in hand.client.problems() if problem.kind == "job"]

    first = failed(hand, "first")
    jobs = [hand.submit(ALONE, name=f"later{number}") for number in range(MAX_JOBS_PER_SCAN + 5)]
    assert first not in [job.id for job in hand.client.jobs(limit=MAX_JOBS_PER_SCAN)]
    assert problems() == [first]
    again = hand.submit(ALONE, name="first")
    assert problems() == []
    hand.decide(again)
    second = failed(hand, "first")
    assert problems() == [second]
    hand.succeed(again, "load")
    assert problems() == [second], "an older job of the name that finishes later says nothing of it"
    assert len(jobs) == MAX_JOBS_PER_SCAN + 5


def test_a_failed_job_removed_from_the_store_leaves_the_index_of_failed_jobs(
    hand: ByHand, client: redis.Redis
) -> None:
    kept, left = failed(hand, "kept"), failed(hand, "left")
    client.zadd(Keys().ended, {left: 1.0})
    assert Store(hand.settings, client).forget_ended(2.0) == 1
    assert client.hgetall(Keys().failed) == {"kept": kept}


def test_an_unreadable_schedule_hides_nothing(
    browser: TestClient, hand: ByHand, client: redis.Redis
) -> None:
    for name in ("damaged", "late"):
        schedule(hand, name)
    client.zadd(Keys().schedules_due, {"late": 1.0, "damaged": 1.0})
    client.hset(Keys().of_schedule("damaged").schedule, "record", "{")
    for name, line in (
        ("fine", "["),
        ("odd", '{"status": "WHAT"}'),
        ("less", '{"status": "WAITING"}'),
    ):
        schedule(hand, name)
        client.hset(Keys().schedules, name, line)
        client.hset(Keys().backlogs, name, "{")
    assert "schedule late OVERDUE" in lines(browser)
    assert "the record of schedule damaged cannot be read" in lines(browser)


def test_a_pool_without_slots_is_reported_while_work_waits(
    browser: TestClient, hand: ByHand
) -> None:
    hand.client.pools.set("jdbc", 0)
    assert "jdbc" not in lines(browser)
    hand.decide(hand.submit({**ALONE, "pool": "jdbc"}))
    assert "pool jdbc NO_SLOTS It has 0 slots" in lines(browser)


def test_an_acknowledged_problem_comes_last_uncounted_until_it_changes(
    browser: TestClient,
    hand: ByHand,
    client: redis.Redis,
    redis_server: RedisServer,
    tmp_path: Path,
) -> None:
    cli = Cli(redis_server.url, tmp_path)
    coordinator_lives(client)
    hand.client.dead_letters.add_refused("unstuck.submit", "no such file", {"by": "app"})
    job = failed(hand, "night")
    ids = ["fleet/dead-letters/DEAD_LETTERS", f"job/{job}/FAILED"]
    assert [problem.id for problem in hand.client.problems()] == ids
    assert cli("ack", ids[0], "--reason", "ann looks at it", "--by", "ann").returncode == 0
    assert [problem.id for problem in hand.client.problems()] == [ids[1], ids[0]]
    assert "[acknowledged by ann: ann looks at it] Dead letters wait" in lines(browser)
    assert cli("now").returncode == 1
    assert cli("ack", ids[1]).returncode == 0
    coordinator_lives(client)
    assert cli("now").returncode == 0, "both are acknowledged"
    hand.client.dead_letters.add_refused("unstuck.submit", "no such file", {"by": "app"})
    assert [each.acknowledged is None for each in hand.client.problems()] == [True, False]
    assert cli("ack", "pool/jdbc/NO_SLOTS").returncode == 3


def test_many_acknowledged_problems_hide_no_other(hand: ByHand, client: redis.Redis) -> None:
    coordinator_lives(client)
    jobs = [failed(hand, f"night-{number}") for number in range(MAX_PROBLEMS_PER_KIND + 1)]
    for job in jobs[1:]:
        hand.client.acknowledge(f"job/{job}/FAILED")
    assert [problem.job for problem in open_problems(hand.client.problems())] == [jobs[0]]


def test_an_unreadable_acknowledgement_hides_nothing(hand: ByHand, client: redis.Redis) -> None:
    coordinator_lives(client)
    job = failed(hand, "night")
    hand.client.acknowledge(f"job/{job}/FAILED")
    client.hset(Keys().acknowledged, f"job/{job}/FAILED", "{")
    assert [problem.job for problem in open_problems(hand.client.problems())] == [job]


def test_a_problem_can_be_acknowledged_on_the_page(browser: TestClient, hand: ByHand) -> None:
    (problem,) = hand.client.problems()
    (action,) = problem_actions(problem)
    form, origin = {"reason": "it starts soon", "once": "a"}, {"origin": str(browser.base_url)}
    answer = browser.post(action.href, data=form, headers=origin)
    assert (action.label, answer.headers["location"][:2]) == ("Acknowledge", "/?")
    assert "it starts soon] No coordinator is heard of" in lines(browser)


def test_dead_letters_are_counted(browser: TestClient, hand: ByHand) -> None:
    hand.client.dead_letters.add_refused("unstuck.submit", "no such file", {"by": "app"})
    assert "Dead letters wait for a person: 1" in lines(browser)


def fleet_of_runners(hand: ByHand, *runners: RunnerInfo, **more: Any) -> FleetInfo:
    return replace(hand.client.fleet(), runners=runners, **more)


def listed(number: int, status: Status, name: str = "night", **more: Any) -> JobInfo:
    at = 1_000_000.0 + number
    return JobInfo(
        id=f"job{number}",
        name=name,
        status=status,
        submitted_at=at,
        started_at=at,
        ended_at=at if status.terminal else 0.0,
        **more,
    )


def test_a_job_that_waits_long_for_its_first_worker_is_a_problem(
    hand: ByHand,
) -> None:
    def codes(submitted: float) -> list[str]:
        job = replace(listed(0, Status.PENDING), submitted_at=submitted, started_at=0.0)
        state = InstallationState(fleet_of_runners(hand, at=1000.0), [job])
        return [each.code for each in detect(state, Limits()) if each.kind == "job"]

    assert (codes(900.0), codes(990.0)) == (["WAITING"], [])


def test_a_queue_with_only_busy_runners_is_reported_after_its_work_waited(
    hand: ByHand,
) -> None:
    fleet = hand.client.fleet()
    busy = RunnerInfo(
        id="r",
        host="host",
        pid=1,
        worker_pid=1,
        queues=("light",),
        heard_at=fleet.at,
        job="j",
        group="g",
    )

    def told(waited: float) -> list[str]:
        queue = QueueInfo("light", 3, 1, fleet.at - waited)
        problems = detect_in_fleet(replace(fleet, runners=(busy,), queues=(queue,)), Limits())
        return [problem.name for problem in problems if problem.code is ProblemCode.BUSY]

    assert (told(300.0), told(5.0)) == (["light"], [])


def test_the_jobs_of_the_last_day_are_folded_by_name() -> None:
    jobs = [listed(n, Status.FINISHED) for n in range(5)] + [
        listed(9, Status.FAILED),
        listed(7, Status.RUNNING),
    ]
    jobs += [listed(8, Status.CANCELED, "other"), listed(-100_000, Status.FINISHED, "old")]
    night, other = Snapshot(1_000_010.0, (), (), (), jobs).ended
    assert (night.job, dict(night.counts)) == ("job9", {Status.FINISHED: 5, Status.FAILED: 1})
    assert (other.name, dict(other.counts)) == ("other", {Status.CANCELED: 1})


def test_the_screen_needs_a_fixed_number_of_queries_for_any_number_of_jobs(
    browser: TestClient, hand: ByHand, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And explains no more than it shows."""
    monkeypatch.setattr(now, "EXPLAIN_WITHIN_S", 600.0)  # else a busy machine asks fewer

    def questions() -> int:
        before = client.info("stats")["total_commands_processed"]
        assert browser.get("/").status_code == 200
        return int(client.info("stats")["total_commands_processed"] - before)

    def fill(count: int) -> None:
        for number in range(count):
            hand.submit(ALONE, name=f"job-{number}")
            schedule(hand, f"schedule-{number}")

    fill(2 * MAX_ROWS_SHOWN)
    few = questions()
    fill(4 * MAX_ROWS_SHOWN)
    assert questions() == pytest.approx(few, abs=5)
