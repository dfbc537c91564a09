"""A scrape on a real Redis: what it says, within which bounds, and what becomes of it when entries
are damaged.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import redis
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.coordinator import Coordinator, group
from tests.support.network.receivers import notice
from unstuck import Status
from unstuck.coordinator.model.backlog import Backlog, StreamBacklog
from unstuck.coordinator.model.notice import Alert
from unstuck.coordinator.notices.outbox import Outbox
from unstuck.coordinator.notices.rules.expected import Expected
from unstuck.coordinator.problems.problem import ProblemCode
from unstuck.coordinator.store.pool_store import Pools
from unstuck.metrics import scrape
from unstuck.metrics.catalog import CATALOG
from unstuck.metrics.scrape import Exporter
from unstuck.tasks.protocol.keys import Keys

Samples = dict[str, dict[tuple[str, ...], float]]
SPECS = {name: spec for spec in CATALOG for name in spec.samples}


def scraped(coordinator: Coordinator) -> Samples:
    """What Prometheus reads: of each sample its values, by the values of its labels as the
    catalogue orders them.
    """
    text = generate_latest(Exporter(coordinator.redis, coordinator.settings)).decode()
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            spec, labels = SPECS[sample.name], dict(sample.labels)
            more = (labels.pop("le"),) if sample.name.endswith("_bucket") else ()
            assert set(labels) == set(spec.labels), sample
            key = (*(labels[name] for name in spec.labels), *more)
            assert key not in found.setdefault(sample.name, {}), (
                f"{sample} twice: Prometheus would refuse the scrape"
            )
            found[sample.name][key] = sample.value
    return found


def test_an_empty_store_is_up_and_has_no_jobs(coordinator: Coordinator) -> None:
    found = scraped(coordinator)
    assert found["unstuck_up"][()] == 1
    assert found["unstuck_jobs"] == {(status.lower(),): 0 for status in Status}
    assert "unstuck_scrape_left_out" not in found


def test_jobs_offers_slots_and_reports_are_counted_by_name(coordinator: Coordinator) -> None:
    Pools(coordinator.redis, coordinator.keys).set("jdbc", 3)
    coordinator.note_runner("idle", queues=("light",), idle_since=1.0)
    coordinator.note_runner(
        "busy", queues=("light", "big"), job="j", group="g", attempt=1, claimed_at=1.0
    )
    coordinator.note_runner("gone", heard=600.0)
    coordinator.submit(group("free"), group("pooled", pool="jdbc"), name="nightly")
    waits = scraped(coordinator)["unstuck_undecided_oldest_age_seconds"][("reports",)]
    coordinator.read()
    found = scraped(coordinator)
    assert found["unstuck_jobs"][("pending",)] + found["unstuck_jobs"][("running",)] == 1
    assert found["unstuck_offer_oldest_age_seconds"].keys() == {("light", ""), ("light", "jdbc")}
    assert found["unstuck_processes"] == {
        **{("runner", state): 1 for state in ("idle", "busy", "silent")},
        **{("runner", state): 0 for state in ("stopping", "unfit")},
        **{("coordinator", state): 0 for state in ("live", "silent")},
    }
    assert found["unstuck_queue_free_slots"] == {("light",): 1, ("big",): 0}
    assert (found["unstuck_pool_slots"], found["unstuck_pool_slots_used"]) == (
        {("jdbc",): 3},
        {("jdbc",): 0},
    )
    assert waits > 0, "the wake-up of a submit waits like a report"
    assert found["unstuck_undecided_oldest_age_seconds"][("reports",)] == 0


def test_the_age_of_the_oldest_offer_is_that_of_its_queued_group(coordinator: Coordinator) -> None:
    job = coordinator.submit(group("only"))
    coordinator.read()
    key = coordinator.keys.of(job).groups
    record = json.loads(str(coordinator.redis.hget(key, "only")))
    coordinator.redis.hset(
        key, "only", json.dumps({**record, "since": record["since"] - 500, "of_a_later_release": 1})
    )
    assert 500 <= scraped(coordinator)["unstuck_offer_oldest_age_seconds"][("light", "")] < 600


def test_the_age_of_a_report_read_but_not_applied_keeps_growing(
    coordinator: Coordinator,
) -> None:
    coordinator.redis.xadd(coordinator.keys.reports, {"kind": "due", "job": "j"}, id="1000-0")
    assert coordinator.stream.read(10, 0.0)
    assert scraped(coordinator)["unstuck_undecided_oldest_age_seconds"][("reports",)] > 1e9


def test_the_first_failure_of_a_schedule_is_visible_as_an_increase(
    coordinator: Coordinator,
) -> None:
    spec = {"name": "hourly", "schedule": {"every": "1h"}, "groups": [group("a")]}
    coordinator.client.schedules.set(spec)
    ended = scraped(coordinator)["unstuck_jobs_ended_total"]
    statuses = [status.lower() for status in Status if status.terminal]
    assert ended == {("hourly", status): 0 for status in statuses}


def test_the_problems_shown_by_now_are_counted_by_code(coordinator: Coordinator) -> None:
    coordinator.redis.xadd(coordinator.keys.dead, {"reason": "UNKNOWN_JOB: it", "report": "{}"})
    coordinator.submit(group("a"))
    shown = Counter(problem.code.lower() for problem in coordinator.client.problems())
    assert shown == {"no_coordinator": 1, "no_worker": 1, "dead_letters": 1}
    counted = scraped(coordinator)["unstuck_problems"]
    assert {code: count for (code,), count in counted.items() if count} == shown
    assert len(counted) == len(ProblemCode)


@pytest.mark.parametrize(
    "name", ["alive", "due", "reports", "counters", "processes", "lanes", "published", "schedules"]
)
def test_a_key_of_the_wrong_type_hides_only_its_own_metrics(
    coordinator: Coordinator, name: str
) -> None:
    job = coordinator.submit(group("only"))
    coordinator.read()
    whole = scraped(coordinator)
    coordinator.redis.delete(getattr(coordinator.keys, name))
    coordinator.redis.set(getattr(coordinator.keys, name), "no such thing")
    found = scraped(coordinator)
    assert found["unstuck_up"][()] == 1
    assert found["unstuck_scrape_left_out"], "it is told that something is missing"
    assert found["unstuck_jobs"] == whole["unstuck_jobs"], job
    assert len(whole.keys() - found.keys()) <= 6


def test_a_part_that_fails_between_two_reads_does_not_shift_other_replies(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(pipe: Any, keys: Keys, sheet: Any) -> Any:
        pipe.ping()
        yield
        pipe.echo("nobody waits for this")
        raise ValueError("of a kind that nobody thought of")

    coordinator.submit(group("only"))
    coordinator.read()
    whole = scraped(coordinator)
    monkeypatch.setattr(scrape, "PARTS", (broken, *scrape.PARTS))
    found = scraped(coordinator)
    ages = "unstuck_offer_oldest_age_seconds"
    assert found[ages].keys() == whole[ages].keys() != set()
    assert found["unstuck_scrape_left_out"] == {("broken", "unreadable"): 1}


def test_damaged_entries_are_skipped_and_counted(coordinator: Coordinator) -> None:
    coordinator.note_runner("well", idle_since=1.0)
    keys, store = coordinator.keys, coordinator.redis
    store.hset(keys.processes, "odd", "{")
    store.hset(keys.published, mapping={"a@w": "3 1000.5", "b@w": "3", "c@w": "x y"})
    lines = {
        "good": {"status": "WAITING", "failures": 2, "succeeded_at": 5.0},
        "odd": {"status": "WHAT"},
        "bad": [],
    }
    store.hset(keys.schedules, mapping={name: json.dumps(line) for name, line in lines.items()})
    store.hset(keys.counters, mapping={"STALE": "many", "OF_A_LATER_RELEASE": "1"})
    found = scraped(coordinator)
    assert found["unstuck_processes"][("runner", "idle")] == 1
    assert found["unstuck_dataset_last_version_timestamp_seconds"] == {("a",): 1000.5}
    assert found["unstuck_schedule_consecutive_failures"] == {("good",): 2}
    assert found["unstuck_scrape_left_out"] == {
        (what, "unreadable"): count
        for what, count in (("processes", 1), ("published", 2), ("schedules", 2))
    }


def test_the_backlog_age_of_a_schedule_starts_at_its_oldest_unread_file(
    coordinator: Coordinator,
) -> None:
    streams = {
        "/a": StreamBacklog(new=3, since=2000.0),
        "/b": StreamBacklog(new=1, since=1000.0),
        "/c": StreamBacklog(),
    }
    texts = {
        "loads": Backlog(5000.0, streams).to_json(),
        "idle": Backlog(5000.0, {}).to_json(),
        "odd": "{",
    }
    coordinator.redis.hset(coordinator.keys.backlogs, mapping=texts)
    found = scraped(coordinator)
    seconds, _ = coordinator.redis.time()
    ages = found["unstuck_schedule_backlog_oldest_age_seconds"]
    assert ages[("idle",)] == 0
    assert abs(ages[("loads",)] - (seconds - 1000)) < 60
    assert found["unstuck_scrape_left_out"] == {("backlogs", "unreadable"): 1}


def test_a_job_without_a_schedule_is_late_since_its_first_notified_deadline(
    coordinator: Coordinator,
) -> None:
    told = {"late: 06:00": Alert(2000.0, 2000.0, ()), "late: 05:00": Alert(1000.0, 1000.0, ())}
    over = {name: replace(one, over=3000.0) for name, one in told.items()}
    states = {name: Expected(alerts=told).to_json() for name in ("export", "scheduled")}
    states |= {"well": Expected(alerts=over).to_json(), "odd": "{"}
    coordinator.redis.hset(coordinator.keys.expected_state, mapping=states)
    coordinator.redis.hset(
        coordinator.keys.schedules, "scheduled", json.dumps({"status": "WAITING"})
    )
    found = scraped(coordinator)
    seconds, _ = coordinator.redis.time()
    assert found["unstuck_job_late_seconds"].keys() == {("export",)}
    assert abs(found["unstuck_job_late_seconds"][("export",)] - (seconds - 1000)) < 60
    assert found["unstuck_scrape_left_out"] == {("expected", "unreadable"): 1}


def test_a_notice_ages_in_the_outbox_and_then_per_target(coordinator: Coordinator) -> None:
    keys, outbox = coordinator.keys, Outbox(coordinator.redis, coordinator.keys)
    text = notice().to_json()
    coordinator.redis.xadd(keys.outbox, {"notice": text}, id="1000-0")
    assert scraped(coordinator)["unstuck_notice_oldest_age_seconds"][("(outbox)",)] > 1e9
    outbox.spread()
    ages = scraped(coordinator)["unstuck_notice_oldest_age_seconds"]
    assert ages.keys() == {("(outbox)",), *((target,) for target in notice().to)}
    assert ages[("(outbox)",)] == 0
    coordinator.redis.hincrby(keys.counters, "NOTICE_SENT", 3)
    assert scraped(coordinator)["unstuck_notices_ended_total"] == {("sent",): 3, ("dead",): 0}


def test_a_dataset_in_two_warehouses_is_one_series(coordinator: Coordinator) -> None:
    coordinator.redis.hset(
        coordinator.keys.published, mapping={"a@one": "3 1000", "a@two": "9 2000"}
    )
    assert scraped(coordinator)["unstuck_dataset_last_version_timestamp_seconds"] == {("a",): 2000}


def test_labels_are_limited_and_omissions_are_reported(coordinator: Coordinator) -> None:
    lines = {f"s{n}": json.dumps({"status": "WAITING", "failures": n}) for n in range(1200)}
    coordinator.redis.hset(coordinator.keys.schedules, mapping=lines)
    found = scraped(coordinator)
    shown = found["unstuck_schedule_consecutive_failures"]
    assert len(shown) == 1000
    assert shown[("s1199",)] == 1199, "the worst are shown"
    assert found["unstuck_scrape_left_out"] == {
        ("unstuck_schedule_consecutive_failures", "too_many"): 200
    }
    assert found["unstuck_schedules"][("waiting",)] == 1200


def test_a_busy_redis_counts_as_down_and_not_as_an_exporter_bug(
    coordinator: Coordinator,
) -> None:
    coordinator.redis.execute_command(
        "ACL", "SETUSER", "busy", "on", ">p", "~*", "+@read", "+ping", "-time"
    )
    pool = coordinator.redis.connection_pool.connection_kwargs
    with redis.Redis(
        host=pool["host"], port=pool["port"], username="busy", password="p", decode_responses=True
    ) as eye:
        text = generate_latest(Exporter(eye, coordinator.settings)).decode()
    coordinator.redis.execute_command("ACL", "DELUSER", "busy")
    assert "unstuck_up 0.0" in text
    assert "unstuck_jobs" not in text


def test_a_redis_user_without_memory_permission_sees_the_other_metrics(
    coordinator: Coordinator,
) -> None:
    coordinator.redis.execute_command(
        "ACL", "SETUSER", "eye", "on", ">p", "~*", "+@read", "+ping", "+time", "-info"
    )
    pool = coordinator.redis.connection_pool.connection_kwargs
    with redis.Redis(
        host=pool["host"], port=pool["port"], username="eye", password="p", decode_responses=True
    ) as eye:
        text = generate_latest(Exporter(eye, coordinator.settings)).decode()
    coordinator.redis.execute_command("ACL", "DELUSER", "eye")
    assert "unstuck_up 1.0" in text
    assert 'unstuck_scrape_left_out{reason="unreadable",what="memory"} 1.0' in text
    assert 'unstuck_jobs{status="pending"} 0.0' in text
