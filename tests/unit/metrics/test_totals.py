"""Totals in Redis: the commit that ends an attempt or a job counts it once, within bounds, and
costs others nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.guarantees.shown_is_true.test_states import staged
from tests.support.coordinator import SUCCEEDED, Coordinator, failed, group
from tests.support.network.lost_replies import LosesReplies, losing_reply
from tests.support.servers import RedisServer, wait_until
from tests.unit.metrics.test_scrape import scraped
from unstuck import Status
from unstuck.coordinator.store import totals
from unstuck.coordinator.store.answers import CommitAnswer
from unstuck.metrics.catalog import CATALOG
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind
from unstuck.tasks.transport.redis_client import connect


def run(coordinator: Coordinator, name: str, outcome: Outcome = SUCCEEDED) -> str:
    """A job of one group, which ends like that."""
    job = coordinator.submit(group("only", retry={"max": 0}), name=name)
    coordinator.read()
    for offer in coordinator.offers(job):
        coordinator.work(offer, outcome)
    coordinator.read()
    assert coordinator.status(job).terminal
    assert coordinator.redis.ttl(coordinator.keys.of(job).job) > 0, (
        "its last commit has ended whole"
    )
    assert not coordinator.reconciler.errors
    return job


def ended(samples: dict[str, Any]) -> dict[tuple[str, ...], float]:
    """The counters of ended jobs that are not 0."""
    return {labels: n for labels, n in samples["unstuck_jobs_ended_total"].items() if n}


def test_each_ended_job_is_counted_once_in_the_histogram_of_its_name(
    coordinator: Coordinator,
) -> None:
    run(coordinator, "nightly")
    run(coordinator, "nightly", failed())
    run(coordinator, "hourly")
    found = scraped(coordinator)
    assert ended(found) == {
        ("nightly", "finished"): 1,
        ("nightly", "failed"): 1,
        ("hourly", "finished"): 1,
    }
    assert found["unstuck_job_duration_seconds_count"] == {("nightly",): 2, ("hourly",): 1}
    assert found["unstuck_job_duration_seconds_bucket"][("nightly", "86400.0")] == 2
    assert 0 < found["unstuck_job_duration_seconds_sum"][("nightly",)] < 60


def test_counters_survive_a_restart_of_every_process(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, aof=True)
    counters = {name for spec in CATALOG if spec.kind != "gauge" for name in spec.samples}

    def counted(*jobs: Outcome) -> dict[str, Any]:
        """What a coordinator counts that ends these jobs, and an exporter that is started after
        it.
        """
        server.start()
        try:
            with connect(server.url) as client:
                coordinator = Coordinator(server.url, tmp_path / "warehouse", client)
                for outcome in jobs:
                    run(coordinator, "nightly", outcome)
                found = scraped(coordinator)
        finally:
            server.stop()
        return {name: values for name, values in found.items() if name in counters}

    before = counted(SUCCEEDED, failed())
    assert ended(before) == {
        ("nightly", "finished"): 1,
        ("nightly", "failed"): 1,
    }
    assert counted() == before
    assert ended(counted(SUCCEEDED)) == {
        ("nightly", "finished"): 2,
        ("nightly", "failed"): 1,
    }


def test_a_job_that_never_ran_is_counted_without_a_duration(coordinator: Coordinator) -> None:
    job = coordinator.submit(group("only"), name="nightly")
    coordinator.client.cancel(job)
    coordinator.read()
    coordinator.sweep.run()
    found = scraped(coordinator)
    assert ended(found) == {("nightly", "canceled"): 1}
    assert found["unstuck_job_duration_seconds_count"] == {("nightly",): 0}


def test_a_commit_whose_reply_was_lost_counts_once(
    make_coordinator: Callable[..., Coordinator],
    lossy: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = make_coordinator(client=lossy)
    monkeypatch.setattr(coordinator.store, "commit", losing_reply(coordinator.store.commit))
    run(coordinator, "nightly")
    assert LosesReplies.lost
    found = scraped(coordinator)
    assert ended(found) == {("nightly", "finished"): 1}
    assert found["unstuck_attempts_ended_total"][("succeeded",)] == 1


def test_attempts_are_counted_by_outcome(coordinator: Coordinator) -> None:
    for kind in OutcomeKind:
        job = coordinator.submit(group("only"))
        coordinator.read()
        (offer,) = coordinator.offers(job)
        coordinator.work(
            offer,
            Outcome(kind, failure=None if kind is OutcomeKind.SUCCEEDED else Failure("X", "x")),
        )
        coordinator.read()
    found = scraped(coordinator)
    assert found["unstuck_attempts_ended_total"] == {
        **{(str(kind),): 1 for kind in OutcomeKind},
        ("taken_over",): 0,
    }


def test_a_silent_worker_counts_as_takeover_and_its_late_report_as_stale(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(lease_ttl=0.2, lease_renew=0.05, sweep_every=0.05)
    job = coordinator.submit(group("only"))
    coordinator.read()
    (offer,) = coordinator.offers(job)
    coordinator.claim(offer)
    coordinator.read()

    def lost() -> bool:
        coordinator.sweep.run()
        return coordinator.status(job) is Status.RETRYING

    wait_until(lost, 30, "the lease to lapse")
    coordinator.finish(offer.held_by("runner1"))
    coordinator.read()
    found = scraped(coordinator)
    ended = found["unstuck_attempts_ended_total"]
    assert (ended[("taken_over",)], ended[("lost",)]) == (1, 0)
    assert found["unstuck_reports_refused_total"] == {("stale",): 1, ("terminal",): 0}


def test_names_beyond_the_limit_share_one_counter(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(totals, "MAX_NAMES", 2)
    for name in ("a", "b", "c", "d", "a"):
        run(coordinator, name)
    found = scraped(coordinator)
    assert ended(found) == {
        ("a", "finished"): 2,
        ("b", "finished"): 1,
        ("(other)", "finished"): 2,
    }
    # A name of which no job ended for the retention makes room.
    coordinator.redis.zadd(coordinator.keys.totals_names, {"b": 1.0})
    run(coordinator, "c")
    found = scraped(coordinator)
    assert ended(found) == {
        ("a", "finished"): 2,
        ("c", "finished"): 1,
        ("(other)", "finished"): 2,
    }


@pytest.mark.parametrize("damage", ["{", "[]", "7", '{"FINISHED": {}, "seconds": null}', None])
def test_damaged_totals_do_not_block_a_job(coordinator: Coordinator, damage: str | None) -> None:
    keys = coordinator.keys
    if damage is None:
        coordinator.redis.set(keys.totals, "no hash")
        coordinator.redis.set(keys.totals_names, "no set")
    else:
        coordinator.redis.hset(keys.totals, "job nightly", damage)
    run(coordinator, "nightly")
    found = scraped(coordinator)
    if damage is not None:
        assert ended(found) == {("nightly", "finished"): 1}


def test_rows_of_versions_are_summed_by_dataset(coordinator: Coordinator) -> None:
    for rows in (7, 5):
        job = coordinator.submit(group("make"))
        coordinator.read()
        (offer,) = coordinator.offers(job)
        coordinator.work(offer, staged(coordinator, offer, "data", rows=rows))
        coordinator.drive(job)
    found = scraped(coordinator)
    assert found["unstuck_dataset_rows_total"] == {("data",): 12}
    assert found["unstuck_publish_duration_seconds_count"] == {(): 2}
    assert 0 <= found["unstuck_publish_duration_seconds_sum"][()] < 60
    coordinator.redis.hset(
        coordinator.keys.published, "data__rejected@w", json.dumps(1) + " 2.0 30"
    )
    found = scraped(coordinator)
    assert found["unstuck_dataset_rejected_rows_total"] == {("data",): 30}
    assert found["unstuck_dataset_rows_total"] == {("data",): 12}


# Commands of a commit before anything was counted for metrics.
BEFORE = {
    "queue": 64,
    "claim": 26,
    "success": 33,
    "claim, success": 26,
    "success, failure": 30,
    "two successes": 29,
}


def test_metrics_add_no_commands_to_a_commit_of_a_running_job(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, taken = coordinator.store.commit, list[int]()

    def counted(*arguments: Any) -> CommitAnswer:
        before = calls()
        answer = commit(*arguments)
        taken.append(calls() - before)
        return answer

    def calls() -> int:
        stats = coordinator.redis.info("commandstats")
        return sum(
            one["calls"]
            for name, one in stats.items()
            if name not in ("cmdstat_info", "cmdstat_evalsha")
        )

    monkeypatch.setattr(coordinator.store, "commit", counted)
    seen: dict[str, int] = {}

    def step(what: str) -> None:
        taken.clear()
        coordinator.read()
        (seen[what],) = taken

    coordinator.submit(*(group(f"g{n}") for n in range(6)), group("last", needs=["g0"]))
    step("queue")
    offers = {offer.group: offer for offer in coordinator.offers()}
    coordinator.claim(offers["g0"], "r0")
    step("claim")
    coordinator.finish(offers["g0"].held_by("r0"))
    step("success")
    coordinator.claim(offers["g1"], "r1")
    coordinator.work(offers["g2"], claimant="r2")
    step("claim, success")
    coordinator.finish(offers["g1"].held_by("r1"))
    coordinator.work(offers["g3"], failed(), claimant="r3")
    step("success, failure")
    coordinator.work(offers["g4"], claimant="r4")
    coordinator.work(offers["g5"], claimant="r5")
    step("two successes")
    assert not {what: count for what, count in seen.items() if count > BEFORE[what]}, seen
    assert seen.keys() == BEFORE.keys()
