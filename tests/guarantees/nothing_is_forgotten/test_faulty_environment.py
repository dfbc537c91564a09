"""A troubled world: stores that forget, clocks that jump, warehouses that hang, releases that
differ.

Each of these was found by a hostile reader of the first version, with the test that stands here.
"""

from __future__ import annotations

import io
import json
import logging
import threading
import time
from collections.abc import Callable

import pytest
import redis

from tests.guarantees.shown_is_true.test_states import staged
from tests.support.coordinator import Coordinator, group
from tests.support.servers import RedisServer, wait_until
from unstuck import SpecError, Status
from unstuck.coordinator.publishing.background import Background
from unstuck.doctor.redis_facts import record_facts
from unstuck.tasks.log_lines import JsonFormatter
from unstuck.tasks.warehouse.log import Warehouse


@pytest.mark.claim(
    "A Redis that was rolled back or refuses writes hangs no group and makes no job publish twice."
)
@pytest.mark.parametrize("base", ["noted at submit", "unknown"])
def test_a_store_rolled_back_to_the_submit_does_not_publish_twice(
    coordinator: Coordinator, base: str
) -> None:
    """A rolled-back Redis cannot publish twice: the base is noted at submit, and never later."""
    job = coordinator.submit(group("make"))
    if base == "unknown":
        coordinator.unwrite(job, "base")
    raw = redis.Redis(port=int(coordinator.settings.redis_url.rsplit(":", 1)[1].split("/")[0]))
    saved = {
        key: value for key in raw.keys("*") if (value := raw.dump(key)) is not None
    }  # not expired meanwhile

    def run() -> None:
        coordinator.read()
        coordinator.sweep.run()
        (offer,) = coordinator.offers()
        coordinator.claim(offer)
        coordinator.finish(offer.held_by("runner1"), staged(coordinator, offer, "data"))
        coordinator.read()
        assert coordinator.status(job) is Status.FINISHED

    run()
    assert Warehouse(coordinator.settings.warehouse).head() == 1
    # Everysec AOF, or a failover to a replica: the last second is gone, the submit before it is
    # not.
    raw.flushall()
    for key, value in saved.items():
        raw.restore(key, 0, value)
    raw.close()
    run()
    warehouse = Warehouse(coordinator.settings.warehouse)
    entries = [warehouse.entry(n) for n in range(1, warehouse.head() + 1)]
    assert [e.publish_id for e in entries if e] == [job], (
        "one package per job, whatever the store forgot"
    )


def set_clock_back(coordinator: Coordinator, job: str, seconds: float) -> None:
    """The store as it looks after the clock of Redis was set back by ``seconds``: every stamp lies
    ahead.
    """
    keys = coordinator.keys.of(job)
    r = coordinator.redis
    for name, text in r.hgetall(keys.groups).items():
        record = json.loads(text)
        for field in ("since", "next_at", "started_at"):
            if record.get(field):
                record[field] += seconds
        r.hset(keys.groups, name, json.dumps(record))
    for name, text in r.hgetall(keys.attempts).items():
        attempt = json.loads(text)
        for field in ("lease", "claimed_at"):
            if attempt.get(field):
                attempt[field] += seconds
        r.hset(keys.attempts, name, json.dumps(attempt))
    r.zincrby(coordinator.keys.due, seconds, job)
    at = r.hget(coordinator.keys.alive, "at")
    if at:
        r.hset(coordinator.keys.alive, "at", float(at) + seconds)
    coordinator.reconciler.cache.clear()


def test_a_lost_offer_is_found_after_the_clock_was_set_back(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    coordinator = make_coordinator(dispatch_timeout=0.3, sweep_every=0.1, lease_ttl=0.6)
    job = coordinator.submit(group("only"))
    coordinator.read()
    coordinator.sweep.run()
    coordinator.offers()  # lost
    set_clock_back(coordinator, job, 3600.0)
    wait_until(
        lambda: coordinator.sweep.run() >= 0 and coordinator.sent,
        20,
        "the offer to stand again",
        every=0.05,
    )


def test_a_lost_offer_is_found_after_the_clock_was_set_back_before_the_first_sweep(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """Found by the simulator: the first tick of all has none to be behind of."""
    coordinator = make_coordinator(dispatch_timeout=0.3, sweep_every=0.1, lease_ttl=0.6)
    job = coordinator.submit(group("only"))
    coordinator.reconciler.reconcile(job)
    coordinator.offers()  # lost
    set_clock_back(coordinator, job, 3600.0)
    assert coordinator.redis.exists(coordinator.keys.alive) == 0
    wait_until(
        lambda: coordinator.sweep.run() >= 0 and coordinator.sent,
        20,
        "the offer to stand again",
        every=0.05,
    )


def test_a_job_submitted_in_an_outage_is_found_after_the_clock_was_set_back(
    coordinator: Coordinator,
) -> None:
    """Found by the simulator: the ticks do not tell, since the clock did not go back behind the
    last one.
    """
    coordinator.sweep.run()
    job = coordinator.submit(group("only"))
    coordinator.redis.xtrim(
        coordinator.keys.reports, maxlen=0, approximate=False
    )  # the wake-up is lost
    now = coordinator.show(job).at
    coordinator.redis.hset(
        coordinator.keys.alive, "at", str(now - 7200)
    )  # nobody has swept for two hours; then an hour was taken back
    coordinator.redis.zadd(
        coordinator.keys.due, {job: now + 3600}
    )  # and the clock was set back by one

    coordinator.sweep.run()
    assert coordinator.events(job, "only") == ["QUEUED"]


def test_a_dead_worker_is_found_after_the_clock_was_set_back(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """Rule 7: a lease never reads as longer than TIME + ttl, so one term after the jump it has
    lapsed.
    """
    coordinator = make_coordinator(dispatch_timeout=0.3, sweep_every=0.1, lease_ttl=0.6)
    job = coordinator.submit(group("only"))
    coordinator.read()
    coordinator.sweep.run()
    (offer,) = coordinator.offers()
    coordinator.claim(offer)  # and dies
    coordinator.read()
    set_clock_back(coordinator, job, 3600.0)
    coordinator.redis.zadd(
        coordinator.keys.due, {job: 0}
    )  # the due index apart: see the test above
    wait_until(
        lambda: coordinator.sweep.run() >= 0 and coordinator.sent,
        20,
        "the takeover, eight lease terms later",
        every=0.05,
    )


@pytest.mark.claim(
    "A Redis that was rolled back or refuses writes hangs no group and makes no job publish twice."
)
def test_a_claim_lost_by_the_store_during_a_commit_does_not_hang_its_group(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """Rolled back to before the claim, the store then takes the commit that had read it; the runner
    has died.
    """
    coordinator = make_coordinator(sweep_every=0.1, lease_ttl=0.6)
    job = coordinator.submit(group("only"))
    coordinator.read()
    (offer,) = coordinator.offers()
    attempts = coordinator.keys.of(job).attempts
    forgotten = coordinator.redis.hgetall(attempts)
    coordinator.claim(offer)
    coordinator.read()
    coordinator.redis.hset(attempts, mapping=forgotten)
    assert coordinator.events(job, "only") == ["QUEUED", "RUNNING"]
    wait_until(
        lambda: coordinator.sweep.run() >= 0 and coordinator.sent,
        10,
        "another attempt, a term later",
        every=0.05,
    )
    assert coordinator.events(job, "only") == ["QUEUED", "RUNNING", "BACKOFF", "QUEUED"]


@pytest.mark.claim(
    "If the clock of a host jumps, no job is delayed by the jump and no attempt is taken over."
)
def test_a_clock_that_jumps_ahead_expires_no_lease(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """By the new clock every lease lapsed an hour ago. Whoever lives renews within the grace."""
    coordinator = make_coordinator(sweep_every=60, lease_ttl=600)  # nothing here takes minutes
    job = coordinator.submit(group("only"))
    coordinator.read()
    coordinator.sweep.run()
    coordinator.redis.hset(
        coordinator.keys.alive, "grace_until", "0"
    )  # as if that of the first sweep was over
    (offer,) = coordinator.offers()
    coordinator.claim(offer)
    coordinator.read()
    set_clock_back(coordinator, job, -3600.0)
    coordinator.reconciler.reconcile(job)  # before any sweep
    for _ in range(3):
        coordinator.redis.zadd(coordinator.keys.due, {job: 0})
        coordinator.sweep.run()  # and by sweeps that come before the renewal
    assert coordinator.lease.renew(offer.held_by("runner1"), "host") == "CONTINUE"
    coordinator.redis.hset(coordinator.keys.alive, "grace_until", "0")  # as if it was over
    for _ in range(3):
        coordinator.redis.zadd(coordinator.keys.due, {job: 0})
        coordinator.sweep.run()
        coordinator.read()
    assert coordinator.events(job, "only") == ["QUEUED", "RUNNING"]
    assert not coordinator.sent


@pytest.mark.claim(
    "If the clock of a host jumps, no job is delayed by the jump and no attempt is taken over."
)
def test_the_lock_of_a_dead_holder_expires_after_the_clock_was_set_back(
    coordinator: Coordinator,
) -> None:
    """A key's expiry is a time of Redis's clock: set back by an hour, a lock of 5 s would stand for
    an hour.
    """
    job = coordinator.submit(group("only"))
    assert coordinator.store.begin(job, "somebody who died").answer == "LOCKED"
    coordinator.redis.pexpire(coordinator.keys.of(job).lock, 3_600_000 + 4_000)
    coordinator.redis.zadd(coordinator.keys.due, {job: 0})
    coordinator.sweep.run()
    assert [offer.group for offer in coordinator.sent] == ["only"]


@pytest.mark.claim(
    "If the clock of a host jumps, no job is delayed by the jump and no attempt is taken over."
)
def test_a_cancel_meets_its_deadline_after_the_clock_was_set_back(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """Of a runner that renews and never lets go."""
    coordinator = make_coordinator(cancel_deadline=3.0)
    job = coordinator.submit(group("only"))
    coordinator.read()
    (offer,) = coordinator.offers()
    coordinator.claim(offer)
    coordinator.sweep.run()
    coordinator.client.command(job, "cancel")
    coordinator.read()
    assert coordinator.status(job) is Status.CANCELING
    at = float(coordinator.redis.hget(coordinator.keys.of(job).job, "intent_at"))
    coordinator.redis.hset(coordinator.keys.of(job).job, "intent_at", at + 3600.0)
    set_clock_back(coordinator, job, 3600.0)

    def ended() -> bool:
        coordinator.lease.renew(offer.held_by("runner1"), "host:runner1")
        coordinator.sweep.run()
        return coordinator.status(job) is Status.CANCELED

    wait_until(ended, 10, "the cancel to end by its deadline")


@pytest.mark.claim("A warehouse that hangs under one job does not stop the other jobs.")
def test_a_warehouse_that_hangs_for_one_job_does_not_stop_others(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """Publishing is not done on the report consumer's own thread."""
    coordinators = [
        make_coordinator(sweep_every=0.2, report_idle=0.5, background=Background(4))
        for _ in range(2)
    ]
    stuck = coordinators[0].submit(group("make"), name="stuck")
    coordinators[0].read()
    (offer,) = coordinators[0].offers(stuck)
    release = threading.Event()
    publishing = threading.Event()
    inside = []

    def hang() -> None:  # a hard NFS mount, a black-holed S3 endpoint, or 10,000 markers at 30 ms
        inside.append(threading.current_thread().name)
        publishing.set()
        release.wait()

    for coordinator in coordinators:
        coordinator.warehouses.before_publish = hang
    threads = [
        threading.Thread(target=coordinator.consumer.run, name=f"c{i}")
        for i, coordinator in enumerate(coordinators)
    ]
    for thread in threads:
        thread.start()
    try:
        coordinators[0].claim(offer)
        coordinators[0].finish(offer.held_by("runner1"), staged(coordinators[0], offer, "data"))
        publishing.wait()

        def the_other_follows() -> bool:
            for coordinator in coordinators:  # one of them has it in hand already
                coordinator.redis.hset(
                    coordinator.keys.of(stuck).job, "publish_next", "1"
                )  # as if publish_timeout had passed
                coordinator.reconciler.cache.clear()
                coordinator.reconciler.reconcile(stuck)
            return len(inside) == 2

        wait_until(the_other_follows, 5, "the second coordinator to begin publishing the same job")
        small = coordinators[0].submit(group("only"), name="small")
        wait_until(
            lambda: small in [offer.job for offer in coordinators[0].sent],
            5,
            "a small job to be queued while another's warehouse hangs",
        )
    finally:
        release.set()
        for coordinator in coordinators:
            coordinator.consumer.stopping.set()
        for thread in threads:
            thread.join()


def test_a_report_with_invalid_utf8_becomes_a_dead_letter_and_the_consumer_continues(
    coordinator: Coordinator, redis_server: RedisServer
) -> None:
    """Cannot be read: a dead letter."""
    job = coordinator.submit(group("only"))
    coordinator.read()
    (offer,) = coordinator.offers()
    with redis.Redis(port=redis_server.port) as raw:
        raw.xadd(
            coordinator.keys.reports,
            {b"v": b"1", b"id": b"e", b"token": b"\xff\xfe", b"kind": b"failed", b"at": b"1"},
        )
    coordinator.work(offer)
    died: list[BaseException] = []

    def consume() -> None:
        try:
            coordinator.consumer.run()
        except BaseException as error:  # noqa: BLE001 - whatever ends the thread is what the test asks for
            died.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        wait_until(lambda: died or coordinator.status(job) is Status.FINISHED, 5)
    finally:
        coordinator.consumer.stopping.set()
        thread.join()
    assert not died, (
        f"the coordinator's process ends, and its successor by XAUTOCLAIM as well: {died}"
    )


def test_a_coordinator_with_a_failing_warehouse_client_halts_no_job(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """An error that is no OSError (botocore's EndpointConnectionError and NoCredentialsError, an
    ImportError on a host without s3fs) is trouble of the warehouse: another coordinator, or a
    minute, would help.
    """
    coordinator = make_coordinator()
    job = coordinator.submit(group("only"))
    keys = coordinator.keys.of(job)
    good = coordinator.redis.hget(keys.job, "warehouse")
    coordinator.redis.hset(
        keys.job, "warehouse", "s3://bucket/warehouse"
    )  # s3fs is not installed here: ImportError, for real
    for _ in range(2):
        coordinator.sweep.run()
        coordinator.redis.delete(keys.lock)
        coordinator.redis.zadd(coordinator.keys.due, {job: 0})
    coordinator.redis.hset(keys.job, "warehouse", str(good))  # the trouble is over
    coordinator.sweep.run()
    view = coordinator.show(job)
    assert view.halted is None, f"{view.status}: {view.halted}"


@pytest.mark.claim(
    "A Redis that was rolled back or refuses writes hangs no group and makes no job publish twice."
)
def test_a_coordinator_waits_for_a_store_that_refuses_writes(coordinator: Coordinator) -> None:
    """NOREPLICAS, READONLY (a failover), MISCONF (a full disk) are trouble of the store; they kill
    the consumer.
    """
    coordinator.submit(group("only"))
    died: list[BaseException] = []

    def consume() -> None:
        try:
            coordinator.consumer.run()
        except BaseException as error:  # noqa: BLE001 - whatever ends the thread is what the test asks for
            died.append(error)

    def refused() -> int:
        found = coordinator.redis.info("errorstats").get("errorstat_NOREPLICAS", {"count": 0})
        return int(found["count"])

    before = refused()
    coordinator.redis.config_set("min-replicas-to-write", 1)
    thread = threading.Thread(target=consume)
    try:
        thread.start()
        wait_until(
            lambda: died or refused() >= before + 3,
            10,
            "the store to refuse what the coordinator writes",
        )
        coordinator.redis.config_set("min-replicas-to-write", 0)
        wait_until(lambda: died or coordinator.sent, 10, "the job to go on")
    finally:
        coordinator.redis.config_set("min-replicas-to-write", 0)
        coordinator.consumer.stopping.set()
        thread.join()
    assert not died, str(died[0])


@pytest.mark.parametrize("kept", ["expected", "expected_state", "summary"])
def test_a_damaged_record_of_an_expected_job_stops_no_sweep(
    coordinator: Coordinator, kept: str
) -> None:
    """Jobs that are due were decided after that look, and in no sweep then."""
    expected = coordinator.submit(
        group("a"), name="export", notify=[{"on": [{"late": "06:00"}], "to": "ops"}]
    )
    damaged = {"summary": (expected, '{"name":"export",')}.get(kept, ("export", "{"))
    coordinator.redis.hset(getattr(coordinator.keys, kept), *damaged)
    job = coordinator.submit(group("a"))
    coordinator.sweep.run()
    assert [offer.job for offer in coordinator.offers(job)] == [job]


def test_a_group_cannot_use_the_queue_of_the_coordinators(coordinator: Coordinator) -> None:
    """Its wake-ups would go to coordinators, which run no attempts: QUEUED for ever."""

    with pytest.raises(SpecError):
        coordinator.submit(group("x", queue="control"))


def test_a_job_of_a_newer_release_is_left_to_a_newer_coordinator(coordinator: Coordinator) -> None:
    """A rolling upgrade: an old coordinator neither halts nor decides what it cannot read."""
    job = coordinator.submit(group("only"))
    keys = coordinator.keys.of(job)
    coordinator.redis.hset(keys.job, "schema", "2")
    for _ in range(3):
        swept_at = coordinator.redis.time()[0]
        coordinator.redis.zadd(coordinator.keys.due, {job: 0})
        coordinator.sweep.run()
        due = float(coordinator.redis.zscore(coordinator.keys.due, job) or 0)
        assert swept_at < due < coordinator.redis.time()[0] + 10, "and it stays due"
    fields = coordinator.redis.hgetall(keys.job)
    assert (fields["status"], fields.get("halted", "")) == ("PENDING", "")
    assert not coordinator.sent
    coordinator.read()
    assert coordinator.redis.xpending(coordinator.keys.reports, "coordinators")["pending"] == 0
    assert record_facts(coordinator.redis, coordinator.keys).newer == (job,), "the doctor names it"


def test_a_log_line_of_a_coordinator_names_its_job(coordinator: Coordinator) -> None:
    jobs = [coordinator.submit(group("only")) for _ in range(2)]
    for job, schema in zip(jobs, ("2", "damaged"), strict=True):
        coordinator.redis.hset(coordinator.keys.of(job).job, "schema", schema)
        coordinator.redis.zadd(coordinator.keys.due, {job: 0})
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("unstuck.coordinator.reconcile")
    logger.addHandler(handler)
    try:
        wait_until(
            lambda: coordinator.sweep.run() or written.getvalue().count("\n") > 1,
            10,
            "both to be logged",
        )
    finally:
        logger.removeHandler(handler)
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert {one["job"] for one in lines} == set(jobs)
    for one in lines:
        assert one["job"] in one["message"]


@pytest.mark.parametrize(("schema", "counter"), [("2", "NEWER"), ("damaged", "HALTED")])
def test_unreadable_reports_of_an_ended_job_do_not_bind_it_to_this_release(
    coordinator: Coordinator, schema: str, counter: str
) -> None:
    job = coordinator.submit(group("only"))
    coordinator.read()
    (offer,) = coordinator.offers()
    coordinator.work(offer)
    coordinator.read()
    coordinator.redis.hset(coordinator.keys.of(job).job, "schema", schema)
    token = str(offer.held_by("runner1"))
    coordinator.redis.xadd(
        coordinator.keys.reports,
        {"v": 1, "id": "late", "token": token, "kind": "succeeded", "at": 1},
    )

    def counted() -> bool:
        coordinator.read()
        return counter in coordinator.client.counters()

    wait_until(counted, 10, "the report to be counted")
    assert coordinator.redis.zscore(coordinator.keys.due, job) is not None, "it stays due"


@pytest.mark.variant
def test_a_dead_worker_is_found_although_every_sweep_is_slow(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """A sweep longer than three periods is no outage: it ticks as it goes, or each would begin a
    new grace.
    """
    quick = {"lease_ttl": 1.0, "dispatch_timeout": 0.1}
    first = make_coordinator(**quick)
    for number in range(160):
        first.submit(
            *(group(f"g{n}", queue="nobody") for n in range(20)), name="waits", params={"n": number}
        )
    job = first.submit(group("only"), name="victim")
    first.read()
    (offer,) = first.offers(job)
    first.claim(offer)
    first.read()

    def seconds_of_a_sweep(coordinator: Coordinator) -> float:
        due = coordinator.redis.zrange(coordinator.keys.due, 0, -1)
        coordinator.redis.zadd(coordinator.keys.due, dict.fromkeys(due, 0.0))
        began = time.perf_counter()
        coordinator.sweep.run()
        return time.perf_counter() - began

    # A twentieth of the fastest of several on this machine; the decision of one job takes far less.
    period = min(seconds_of_a_sweep(first) for _ in range(3)) / 20
    coordinator = make_coordinator(**quick, sweep_every=period)

    def again() -> bool:
        assert seconds_of_a_sweep(coordinator) > 3 * period, "a slow sweep"
        return any(sent.job == job for sent in coordinator.sent)

    wait_until(again, 120, "the takeover", every=0.001)
