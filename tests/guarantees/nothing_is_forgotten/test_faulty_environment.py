"""A troubled world: stores that forget, clocks that jump, warehouses that hang, releases that differ.

Each of these was found by a hostile reader of the first version, with the test that stands here.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import pytest
import redis

from tests.guarantees.shown_is_true.test_states import staged
from tests.support.coordinator import Head, group
from tests.support.servers import RedisServer, wait_until
from unstuck.coordinator.commands.job import Command
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.publishing.background import Background
from unstuck.coordinator.spec.model import SpecError
from unstuck.tasks.warehouse.log import Warehouse


@pytest.mark.parametrize("base", ["noted at submit", "unknown"])
def test_a_store_rolled_back_to_just_after_submit_does_not_publish_twice(head: Head, base: str) -> None:
    """A rolled-back Redis cannot publish twice: the base is noted at submit, and never later."""
    job = head.submit(group("make"))
    if base == "unknown":
        head.redis.hdel(head.keys.of(job).job, "base")
    raw = redis.Redis(port=int(head.settings.redis_url.rsplit(":", 1)[1].split("/")[0]))
    saved = {key: raw.dump(key) for key in raw.keys("*")}

    def run() -> None:
        head.read()
        head.sweep.run()
        (hint,) = head.hints()
        head.claim(hint)
        head.finish(hint.held_by("runner1"), staged(head, hint, "data"))
        head.read()
        assert head.status(job) is Status.FINISHED

    run()
    assert Warehouse(head.settings.warehouse).head() == 1
    # Everysec AOF, or a failover to a replica: the last second is gone, the submit before it is not.
    raw.flushall()
    for key, value in saved.items():
        raw.restore(key, 0, value)
    raw.close()
    run()
    warehouse = Warehouse(head.settings.warehouse)
    entries = [warehouse.entry(n) for n in range(1, warehouse.head() + 1)]
    assert [e.publish_id for e in entries if e] == [job], "one package per job, whatever the store forgot"


def _shift(head: Head, job: str, seconds: float) -> None:
    """The store as it looks after the clock of Redis was set back by ``seconds``: every stamp lies ahead."""
    keys = head.keys.of(job)
    r = head.redis
    for name, text in r.hgetall(keys.groups).items():
        record = json.loads(text)
        for field in ("since", "hinted_at", "next_at", "started_at"):
            if record.get(field):
                record[field] += seconds
        r.hset(keys.groups, name, json.dumps(record))
    for name, text in r.hgetall(keys.attempts).items():
        attempt = json.loads(text)
        for field in ("lease", "claimed_at"):
            if attempt.get(field):
                attempt[field] += seconds
        r.hset(keys.attempts, name, json.dumps(attempt))
    r.zincrby(head.keys.due, seconds, job)
    at = r.hget(head.keys.alive, "at")
    if at:
        r.hset(head.keys.alive, "at", float(at) + seconds)
    head.reconciler.cache.clear()


def test_a_lost_hint_is_found_although_the_clock_was_set_back(make_head: Callable[..., Head]) -> None:
    head = make_head(dispatch_timeout=0.3, sweep_every=0.1, lease_ttl=0.6)
    job = head.submit(group("only"))
    head.read()
    head.sweep.run()
    head.hints()  # lost
    _shift(head, job, 3600.0)
    wait_until(lambda: head.sweep.run() >= 0 and head.sent, 20, "the hint to be sent again", every=0.05)


def test_a_lost_hint_is_found_although_the_clock_was_set_back_before_anybody_had_swept(
    make_head: Callable[..., Head],
) -> None:
    """Found by the simulator: the first tick of all has none to be behind of."""
    head = make_head(dispatch_timeout=0.3, sweep_every=0.1, lease_ttl=0.6)
    job = head.submit(group("only"))
    head.reconciler.reconcile(job)
    head.hints()  # lost
    _shift(head, job, 3600.0)
    assert head.redis.exists(head.keys.alive) == 0
    wait_until(lambda: head.sweep.run() >= 0 and head.sent, 20, "the hint to be sent again", every=0.05)


def test_a_job_submitted_in_an_outage_is_found_although_the_clock_was_set_back_by_less_than_the_outage(
    head: Head,
) -> None:
    """Found by the simulator: the ticks do not tell, since the clock did not go back behind the last one."""
    head.sweep.run()
    job = head.submit(group("only"))
    head.redis.xtrim(head.keys.reports, maxlen=0, approximate=False)  # the wake-up is lost
    now = head.show(job).at
    head.redis.hset(
        head.keys.alive, "at", str(now - 7200)
    )  # nobody has swept for two hours; then an hour was taken back
    head.redis.zadd(head.keys.due, {job: now + 3600})  # and the clock was set back by one

    head.sweep.run()
    assert head.events(job, "only") == ["QUEUED"]


def test_a_dead_worker_is_found_although_the_clock_was_set_back(make_head: Callable[..., Head]) -> None:
    """Rule 7: a lease never reads as longer than TIME + ttl, so one term after the jump it has lapsed."""
    head = make_head(dispatch_timeout=0.3, sweep_every=0.1, lease_ttl=0.6)
    job = head.submit(group("only"))
    head.read()
    head.sweep.run()
    (hint,) = head.hints()
    head.claim(hint)  # and dies
    head.read()
    _shift(head, job, 3600.0)
    head.redis.zadd(head.keys.due, {job: 0})  # the due index apart: see the test above
    wait_until(lambda: head.sweep.run() >= 0 and head.sent, 20, "the takeover, eight lease terms later", every=0.05)


def test_a_claim_that_the_store_forgot_under_a_commit_does_not_hang_its_group(make_head: Callable[..., Head]) -> None:
    """Rolled back to before the claim, the store then takes the commit that had read it; the runner has died."""
    head = make_head(sweep_every=0.1, lease_ttl=0.6)
    job = head.submit(group("only"))
    head.read()
    (hint,) = head.hints()
    attempts = head.keys.of(job).attempts
    forgotten = head.redis.hgetall(attempts)
    head.claim(hint)
    head.read()
    head.redis.hset(attempts, mapping=forgotten)
    assert head.events(job, "only") == ["QUEUED", "RUNNING"]
    wait_until(lambda: head.sweep.run() >= 0 and head.sent, 10, "another attempt, a term later", every=0.05)
    assert head.events(job, "only") == ["QUEUED", "RUNNING", "BACKOFF", "QUEUED"]


def test_a_clock_that_jumps_ahead_takes_nobodys_work(make_head: Callable[..., Head]) -> None:
    """By the new clock every lease lapsed an hour ago. Whoever lives renews within the grace."""
    head = make_head(sweep_every=0.1, lease_ttl=2.0)
    job = head.submit(group("only"))
    head.read()
    (hint,) = head.hints()
    head.claim(hint)
    head.read()
    _shift(head, job, -3600.0)
    head.reconciler.reconcile(job)  # before any sweep
    began = head.store.tick(0.1, 2.0)[0]
    for _ in range(3):
        head.redis.zadd(head.keys.due, {job: 0})
        head.sweep.run()  # and by sweeps that come before the renewal
    assert head.lease.renew(hint.held_by("runner1"), "host") == "CONTINUE"

    def grace_is_over() -> bool:
        head.redis.zadd(head.keys.due, {job: 0})
        head.sweep.run()
        head.lease.renew(hint.held_by("runner1"), "host")
        return head.store.tick(0.1, 2.0)[0] > began + 2.3

    wait_until(grace_is_over, 10, "sweeps after the grace", every=0.05)
    assert head.events(job, "only") == ["QUEUED", "RUNNING"]
    assert not head.sent


def test_a_lock_whose_holder_died_is_free_although_the_clock_was_set_back(head: Head) -> None:
    """A key's expiry is a time of Redis's clock: set back by an hour, a lock of 5 s would stand for an hour."""
    job = head.submit(group("only"))
    assert head.store.begin(job, "somebody who died").answer == "LOCKED"
    head.redis.pexpire(head.keys.of(job).lock, 3_600_000 + 4_000)
    head.redis.zadd(head.keys.due, {job: 0})
    head.sweep.run()
    assert [hint.group for hint in head.sent] == ["only"]


def test_a_cancel_has_its_deadline_although_the_clock_was_set_back(make_head: Callable[..., Head]) -> None:
    """Of a runner that renews and never lets go."""
    head = make_head(cancel_deadline=3.0)
    job = head.submit(group("only"))
    head.read()
    (hint,) = head.hints()
    head.claim(hint)
    head.sweep.run()
    head.client.command(job, Command.CANCEL)
    head.read()
    assert head.status(job) is Status.CANCELING
    at = float(head.redis.hget(head.keys.of(job).job, "intent_at"))
    head.redis.hset(head.keys.of(job).job, "intent_at", at + 3600.0)
    _shift(head, job, 3600.0)

    def ended() -> bool:
        head.lease.renew(hint.held_by("runner1"), "host:runner1")
        head.sweep.run()
        return head.status(job) is Status.CANCELED

    wait_until(ended, 10, "the cancel to end by its deadline")


def test_a_warehouse_that_hangs_under_one_job_does_not_stop_the_others(make_head: Callable[..., Head]) -> None:
    """Publishing is not done on the report consumer's own thread."""
    heads = [make_head(sweep_every=0.2, report_idle=0.5, background=Background(4)) for _ in range(2)]
    stuck = heads[0].submit(group("make"), name="stuck")
    heads[0].read()
    (hint,) = heads[0].hints(stuck)
    release = threading.Event()
    publishing = threading.Event()
    inside = []

    def hang() -> None:  # a hard NFS mount, a black-holed S3 endpoint, or 10,000 markers at 30 ms
        inside.append(threading.current_thread().name)
        publishing.set()
        release.wait(60)

    for head in heads:
        head.warehouses.before_publish = hang
    threads = [threading.Thread(target=head.consumer.run, name=f"c{i}") for i, head in enumerate(heads)]
    for thread in threads:
        thread.start()
    try:
        heads[0].claim(hint)
        heads[0].finish(hint.held_by("runner1"), staged(heads[0], hint, "data"))
        publishing.wait()

        def the_other_follows() -> bool:
            for head in heads:  # one of them has it in hand already
                head.redis.hset(head.keys.of(stuck).job, "publish_next", "1")  # as if publish_timeout had passed
                head.reconciler.cache.clear()
                head.reconciler.reconcile(stuck)
            return len(inside) == 2

        wait_until(the_other_follows, 5, "the second coordinator to begin publishing the same job")
        small = heads[0].submit(group("only"), name="small")
        wait_until(
            lambda: small in [hint.job for head in heads for hint in head.sent],
            5,
            "a small job to be queued while another's warehouse hangs",
        )
    finally:
        release.set()
        for head in heads:
            head.consumer.stopping.set()
        for thread in threads:
            thread.join()


def test_a_report_that_is_no_utf8_is_parked_and_the_consumer_lives(head: Head, redis_server: RedisServer) -> None:
    """Cannot be read: parked."""
    job = head.submit(group("only"))
    head.read()
    (hint,) = head.hints()
    with redis.Redis(port=redis_server.port) as raw:
        raw.xadd(head.keys.reports, {b"v": b"1", b"id": b"e", b"token": b"\xff\xfe", b"kind": b"failed", b"at": b"1"})
    head.work(hint)
    died: list[BaseException] = []

    def consume() -> None:
        try:
            head.consumer.run()
        except BaseException as error:  # noqa: BLE001 - whatever ends the thread is what the test asks for
            died.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        wait_until(lambda: died or head.status(job) is Status.FINISHED, 5)
    finally:
        head.consumer.stopping.set()
        thread.join()
    assert not died, f"the coordinator's process ends, and its successor by XAUTOCLAIM as well: {died}"


def test_a_coordinator_whose_warehouse_client_fails_halts_no_job(make_head: Callable[..., Head]) -> None:
    """An error that is no OSError (botocore's EndpointConnectionError and NoCredentialsError, an ImportError on a host
    without s3fs) is trouble of the warehouse: another coordinator, or a minute, would help.
    """
    head = make_head()
    job = head.submit(group("only"))
    keys = head.keys.of(job)
    good = head.redis.hget(keys.job, "warehouse")
    head.redis.hset(keys.job, "warehouse", "s3://bucket/warehouse")  # s3fs is not installed here: ImportError, for real
    for _ in range(2):
        head.sweep.run()
        head.redis.delete(keys.lock)
        head.redis.zadd(head.keys.due, {job: 0})
    head.redis.hset(keys.job, "warehouse", str(good))  # the trouble is over
    head.sweep.run()
    view = head.show(job)
    assert view.job.halted is None, f"{view.job.status}: {view.job.halted}"


def test_a_store_that_refuses_writes_for_a_while_is_waited_for(head: Head) -> None:
    """NOREPLICAS, READONLY (a failover), MISCONF (a full disk) are trouble of the store; they kill the consumer."""
    head.submit(group("only"))
    died: list[BaseException] = []

    def consume() -> None:
        try:
            head.consumer.run()
        except BaseException as error:  # noqa: BLE001 - whatever ends the thread is what the test asks for
            died.append(error)

    head.redis.config_set("min-replicas-to-write", 1)
    thread = threading.Thread(target=consume)
    try:
        thread.start()
        thread.join(2)
    finally:
        head.redis.config_set("min-replicas-to-write", 0)
        head.consumer.stopping.set()
        thread.join()
    assert not died, str(died[0])


def test_a_group_cannot_ask_for_the_coordinators_own_queue(head: Head) -> None:
    """Its hints go to coordinators, which know no ``tasks.runner.attempt`` and drop them: QUEUED for ever."""

    with pytest.raises(SpecError):
        head.submit(group("x", queue="control"))


def test_a_job_of_a_newer_release_is_left_to_a_newer_coordinator(head: Head) -> None:
    """A rolling upgrade: an old coordinator neither halts nor decides what it cannot read."""
    job = head.submit(group("only"))
    keys = head.keys.of(job)
    head.redis.hset(keys.job, "schema", "2")
    for _ in range(3):
        head.redis.zadd(head.keys.due, {job: 0})
        head.sweep.run()
    fields = head.redis.hgetall(keys.job)
    assert (fields["status"], fields["halted"]) == ("PENDING", "")
    assert not head.sent
    assert 0 < float(head.redis.zscore(head.keys.due, job) or 0) - time.time() < 10, "and it stays due"
    head.read()
    assert head.redis.xpending(head.keys.reports, "coordinators")["pending"] == 0


def test_a_dead_worker_is_noticed_although_every_sweep_is_slow(make_head: Callable[..., Head]) -> None:
    """A sweep longer than three periods is no outage: it ticks as it goes, or each would begin a new grace."""
    head = make_head(lease_ttl=1, dispatch_timeout=0.1, sweep_every=0.05)
    for number in range(160):
        head.submit(*(group(f"g{n}", queue="nobody") for n in range(20)), name="waits", params={"n": number})
    job = head.submit(group("only"), name="victim")
    head.read()
    (hint,) = head.hints(job)
    head.claim(hint)
    head.read()

    def again() -> bool:
        began = time.perf_counter()
        head.redis.zadd(head.keys.due, dict.fromkeys(head.redis.zrange(head.keys.due, 0, -1), 0.0))
        head.sweep.run()
        assert time.perf_counter() - began > 3 * 0.05, "a slow sweep"
        return any(sent.job == job for sent in head.sent)

    wait_until(again, 120, "the takeover", every=0.001)
