"""Promise 2: at most one attempt of a group can affect the world."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
import redis

from tests.support import fleet
from tests.support.coordinator import SUCCEEDED, Coordinator, failed, group
from tests.support.failpoints import Death, Died, Once, armed
from tests.support.network.lost_replies import LosesReplies, losing_reply
from tests.support.servers import RedisServer, wait_until
from unstuck import Status
from unstuck.coordinator.model.decision import Acks
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.model.status import GroupState
from unstuck.coordinator.store.answers import CommitAnswer
from unstuck.coordinator.store.submissions import Submissions
from unstuck.tasks.failpoints import Point
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind
from unstuck.tasks.transport.lease import Claim, Lease, record_outcome
from unstuck.tasks.transport.redis_client import connect

LOST = Outcome(OutcomeKind.LOST, failure=Failure("WORKER_LOST", "the runner was killed"))


def queued(coordinator: Coordinator, **more: object) -> tuple[str, object]:
    job = coordinator.submit(group("only", **more))
    coordinator.read()
    (offer,) = coordinator.offers()
    return job, offer


@pytest.mark.claim("If many runners race for one offer, exactly one of them claims it.")
@pytest.mark.parametrize("stands", ["once", "on eight queues"])
def test_an_offer_taken_by_many_runners_is_claimed_once(
    coordinator: Coordinator, redis_server: RedisServer, stands: str
) -> None:
    _, offer = queued(coordinator)
    queues = ["q0"] if stands == "once" else [f"q{number}" for number in range(8)]
    for queue in queues:
        coordinator.redis.zadd(coordinator.keys.ready(queue), {str(offer): 1})
    claims: list[Claim | None] = []
    start = threading.Barrier(8)

    def runner(number: int) -> None:
        with connect(redis_server.url) as client:
            lease = Lease(client, coordinator.keys, 15, f"runner{number}")
            client.ping()
            start.wait()
            claims.append(
                lease.take([queues[number % len(queues)]], f"runner{number}", "host", f"e{number}")
            )

    threads = [threading.Thread(target=runner, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claims) == 8
    (claim,) = [claim for claim in claims if claim is not None]
    assert claim.token.offer == offer
    assert not any(coordinator.redis.exists(coordinator.keys.ready(queue)) for queue in queues), (
        "it stands no more"
    )


@pytest.mark.claim("A lost reply from Redis changes no result.")
def test_a_take_whose_reply_was_lost_is_returned_to_the_same_runner(
    coordinator: Coordinator, lossy: redis.Redis
) -> None:
    job = coordinator.submit(group("only"), group("other"))
    coordinator.read()
    offer, other = coordinator.sent
    lease = Lease(lossy, coordinator.keys, 15, "runner1")
    LosesReplies.armed = 1
    claim = lease.take(["light"], "claimant1", "host", "event1")
    assert LosesReplies.lost == 1
    assert claim is not None
    assert claim.token == offer.held_by("claimant1")
    assert claim.work_order.plan.group.name == "only"

    assert coordinator.sent == [other], "the repeat took no second offer"
    assert coordinator.claim(offer, "runner2").answer == "REFUSED"
    coordinator.read()
    record = coordinator.show(job).groups[0].members[0]
    assert (record.state, record.attempt, record.failures, record.losses) == (
        GroupState.RUNNING,
        1,
        0,
        0,
    )
    assert coordinator.events(job, "only") == ["QUEUED", "RUNNING"]
    assert coordinator.events(job, "other") == ["QUEUED"]


def test_a_waiting_take_whose_reply_was_lost_is_returned_to_the_same_runner(
    coordinator: Coordinator, lossy: redis.Redis
) -> None:
    """The wait and the take are sent at once, and so are they again."""
    lease = Lease(lossy, coordinator.keys, 15, "runner1")
    assert lease.take(["light"], "before", "host", "event0") is None  # the script is loaded
    coordinator.submit(group("only"), group("other"))
    coordinator.read()
    offer, other = coordinator.sent
    LosesReplies.armed = 1
    claim = lease.take(["light"], "claimant1", "host", "event1", linger=0.2)
    assert LosesReplies.lost == 1
    assert claim is not None
    assert claim.token == offer.held_by("claimant1")
    assert coordinator.sent == [other], "the repeat took no second offer"


def test_a_runner_killed_while_waiting_takes_nothing(
    coordinator: Coordinator, redis_server: RedisServer
) -> None:
    """Its take is in the hands of Redis already, which must forget it with the connection."""
    client = connect(redis_server.url, timeout=60, repeats=0)
    lease = Lease(client, coordinator.keys, 15, "runner1")
    assert lease.take(["light"], "before", "host", "event0") is None  # the script is loaded

    def linger() -> None:
        with suppress(redis.ConnectionError):
            lease.take(["light"], "claimant1", "host", "event1", linger=30)

    def waits() -> bool:
        return any(
            one["cmd"] == "blpop" and "b" in one["flags"] for one in coordinator.redis.client_list()
        )

    runner = threading.Thread(target=linger)
    runner.start()
    wait_until(waits, 20, "the runner to wait")
    client.connection_pool.disconnect()
    runner.join()
    wait_until(lambda: not waits(), 20, "its connection to be gone")
    coordinator.submit(group("only"))
    coordinator.read()
    (offer,) = coordinator.sent
    assert coordinator.claim(offer, "runner2").answer == "CLAIMED"


@pytest.mark.claim("A lost reply from Redis changes no result.")
def test_a_commit_whose_reply_was_lost_is_applied_once_and_sends_its_wake_ups(
    make_coordinator: Callable[..., Coordinator], lossy: redis.Redis
) -> None:
    coordinator = make_coordinator(client=lossy)
    job = coordinator.submit(group("first"), group("second", "first"))
    coordinator.read()
    commit = coordinator.store.commit
    answers: list[CommitAnswer] = []

    def lose_the_reply(*args: object) -> CommitAnswer:
        LosesReplies.armed = 1
        answers.append(commit(*args))  # type: ignore[arg-type]
        return answers[-1]

    coordinator.store.commit = lose_the_reply  # type: ignore[method-assign, assignment]
    coordinator.work(coordinator.offers()[0])
    coordinator.wake_ups.clear()
    coordinator.read()

    assert LosesReplies.lost >= 1
    assert answers[0] is CommitAnswer.APPLIED
    assert [offer.group for offer in coordinator.sent] == ["second"]
    assert coordinator.wake_ups == {"light": 1}
    assert coordinator.events(job) == ["SUBMITTED", "QUEUED", "RUNNING", "SUCCEEDED", "QUEUED"]


def test_a_submit_whose_reply_was_lost_creates_one_job(
    make_coordinator: Callable[..., Coordinator],
    lossy: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = make_coordinator(client=lossy)
    monkeypatch.setattr(Submissions, "submit", losing_reply(Submissions.submit))
    job = coordinator.submit(group("only"), name="lossy")
    assert LosesReplies.lost == 1
    assert [line.id for line in coordinator.client.jobs(name="lossy")] == [job]
    assert coordinator.events(job) == ["SUBMITTED"]


def test_a_finish_whose_reply_was_lost_counts_once(
    coordinator: Coordinator, lossy: redis.Redis
) -> None:
    job, offer = queued(coordinator)
    coordinator.claim(offer)  # type: ignore[arg-type]
    lease = Lease(lossy, coordinator.keys, 15, "runner1")
    LosesReplies.armed = 1
    assert lease.finish(offer.held_by("runner1"), SUCCEEDED, "event") == "DUPLICATE"  # type: ignore[attr-defined]
    coordinator.read()
    assert coordinator.status(job) is Status.FINISHED
    assert coordinator.events(job, "only") == ["QUEUED", "RUNNING", "SUCCEEDED"]


def test_a_finish_and_take_whose_reply_was_lost_applies_once(
    coordinator: Coordinator, lossy: redis.Redis
) -> None:
    job = coordinator.submit(*(group(name) for name in "abcd"))
    coordinator.read()
    _, _, third, last = coordinator.sent
    lease = Lease(lossy, coordinator.keys, 15, "runner1")
    first = lease.take(["light"], "claimant1", "host", "event1")
    assert first is not None
    _, _, second = lease.finish_and_take(
        first.token, SUCCEEDED, "event2", ["light"], "claimant2", "host", "event3"
    )
    assert second is not None
    LosesReplies.armed = 1
    said, _, claim = lease.finish_and_take(
        second.token, SUCCEEDED, "event4", ["light"], "claimant3", "host", "event5"
    )
    assert LosesReplies.lost == 1
    assert said == "DUPLICATE"
    assert claim is not None
    assert claim.token == third.held_by("claimant3")
    assert coordinator.sent == [last], "the repeat took no second offer"
    coordinator.read()
    for name, wanted in zip(
        "abcd", (["RUNNING", "SUCCEEDED"], ["RUNNING", "SUCCEEDED"], ["RUNNING"], []), strict=True
    ):
        assert coordinator.events(job, name) == ["QUEUED", *wanted]


def test_a_runner_that_dies_after_a_combined_finish_and_take_keeps_the_outcome(
    coordinator: Coordinator,
) -> None:
    job = coordinator.submit(group("a"), group("b"))
    coordinator.read()
    lease = coordinator.lease_of("runner1")
    first = lease.take(["light"], "claimant1", "host", "event1")
    assert first is not None
    with armed(Death([Point.AFTER_FINISH])), pytest.raises(Died):
        lease.finish_and_take(
            first.token, SUCCEEDED, "event2", ["light"], "claimant2", "host", "event3"
        )
    assert not coordinator.sent, "it holds the second one"
    coordinator.read()
    lapse(coordinator, job, "b")
    coordinator.reconciler.reconcile(job)
    assert coordinator.drive(job) is Status.FINISHED
    assert coordinator.events(job, "a") == ["QUEUED", "RUNNING", "SUCCEEDED"]
    assert coordinator.events(job, "b") == [
        "QUEUED",
        "RUNNING",
        "BACKOFF",
        "QUEUED",
        "RUNNING",
        "SUCCEEDED",
    ]


def test_a_final_watchdog_report_whose_reply_was_lost_counts_once(coordinator: Coordinator) -> None:
    """The watchdog says it again until it is answered, with the same event: the first time was
    heard already.
    """
    job, offer = queued(coordinator, worker_losses=1)
    coordinator.claim(offer)  # type: ignore[arg-type]

    def lose_the_reply() -> None:
        raise redis.ConnectionError("the reply was lost")

    with armed(loss := Once(lose_the_reply, [Point.AFTER_FINISH])):
        lease = Lease(coordinator.redis, coordinator.keys, 15, "watchdog1")
        record_outcome(lease.finish, offer.held_by("runner1"), LOST)  # type: ignore[attr-defined]
    assert loss.at is Point.AFTER_FINISH
    coordinator.read()
    assert coordinator.status(job) is Status.FAILED
    assert [report["kind"] for report in fleet.reports(coordinator.redis)] == ["claimed", "lost"]
    assert coordinator.events(job, "only") == ["QUEUED", "RUNNING", "FAILED"]


def lapse(coordinator: Coordinator, job: str, group_id: str = "only") -> None:
    """As if the lease had run out long ago, under a sweep that was alive all the time."""
    keys = coordinator.keys.of(job)
    attempt = json.loads(str(coordinator.redis.hget(keys.attempts, group_id)))
    coordinator.redis.hset(keys.attempts, group_id, json.dumps({**attempt, "lease": 1.0}))
    coordinator.store.tick(coordinator.settings.sweep_every, coordinator.settings.lease_ttl)
    coordinator.redis.hset(coordinator.keys.alive, "grace_until", "0")


def test_an_expired_lease_is_taken_over_with_a_new_epoch(coordinator: Coordinator) -> None:
    job, offer = queued(coordinator)
    coordinator.claim(offer)  # type: ignore[arg-type]
    coordinator.read()
    lapse(coordinator, job)

    coordinator.reconciler.reconcile(job)

    (again,) = coordinator.offers()
    assert (again.epoch, again.nonce != offer.nonce) == (2, True)  # type: ignore[attr-defined]
    assert coordinator.events(job, "only") == ["QUEUED", "RUNNING", "BACKOFF", "QUEUED"]
    assert coordinator.finish(offer.held_by("runner1")) == "STALE"  # type: ignore[attr-defined]
    record = coordinator.show(job).groups[0].members[0]
    assert (record.losses, record.failures) == (1, 0), "a lost worker never eats a user's retry"


def test_a_finish_between_load_and_commit_prevents_the_takeover(
    coordinator: Coordinator,
) -> None:
    """What was concluded from absence is checked again inside the commit."""
    job, offer = queued(coordinator)
    coordinator.claim(offer)  # type: ignore[arg-type]
    coordinator.read()
    lapse(coordinator, job)
    commit = coordinator.store.commit
    answers: list[CommitAnswer] = []

    def finish_first(*args: object) -> CommitAnswer:
        if not answers:
            assert coordinator.finish(offer.held_by("runner1")) == "APPLIED"  # type: ignore[attr-defined]
        answers.append(commit(*args))  # type: ignore[arg-type]
        return answers[-1]

    coordinator.store.commit = finish_first  # type: ignore[method-assign, assignment]
    coordinator.reconciler.reconcile(job)

    assert answers[0] is CommitAnswer.GUARDED
    assert coordinator.status(job) is Status.FINISHED
    assert coordinator.events(job, "only") == ["QUEUED", "RUNNING", "SUCCEEDED"], (
        "no trace of the refused takeover"
    )
    assert not coordinator.sent


def test_a_renewal_between_load_and_commit_prevents_the_takeover(coordinator: Coordinator) -> None:
    job, offer = queued(coordinator)
    coordinator.claim(offer)  # type: ignore[arg-type]
    coordinator.read()
    lapse(coordinator, job)
    commit = coordinator.store.commit

    def renew_first(*args: object) -> CommitAnswer:
        assert coordinator.lease.renew(offer.held_by("runner1"), "host") == "CONTINUE"  # type: ignore[attr-defined]
        return commit(*args)  # type: ignore[arg-type]

    coordinator.store.commit = renew_first  # type: ignore[method-assign, assignment]
    coordinator.reconciler.reconcile(job)
    assert coordinator.events(job, "only") == ["QUEUED", "RUNNING"]


@pytest.mark.parametrize(
    ("field", "seconds"),
    [("at", -4.0), ("at", 60.0), ("grace_until", 60.0)],
    ids=["the sweep has died", "the clock was set back", "a grace has begun"],
)
def test_a_commit_takes_over_no_lease_while_the_sweep_may_be_dead(
    coordinator: Coordinator, field: str, seconds: float
) -> None:
    """Rule 2: a pass that saw the sweep alive, and stood still before its commit, must not use what
    it saw then.
    """
    job, offer = queued(coordinator)
    coordinator.claim(offer)  # type: ignore[arg-type]
    coordinator.read()
    lapse(coordinator, job)
    commit = coordinator.store.commit
    answers: list[CommitAnswer] = []

    def commit_late(*args: object) -> CommitAnswer:
        coordinator.redis.hset(
            coordinator.keys.alive, field, str(coordinator.show(job).at + seconds)
        )
        answers.append(commit(*args))  # type: ignore[arg-type]
        return answers[-1]

    coordinator.store.commit = commit_late  # type: ignore[method-assign, assignment]
    coordinator.reconciler.reconcile(job)

    assert answers == [CommitAnswer.GUARDED]
    assert coordinator.events(job, "only") == ["QUEUED", "RUNNING"], "nothing was taken over"
    assert coordinator.lease.renew(offer.held_by("runner1"), "host") == "CONTINUE"  # type: ignore[attr-defined]


def test_no_lease_expires_right_after_an_outage_of_the_sweep(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """Rule 7: a gap in the ticks gives every lease one more term, in the script that stamps the
    tick.
    """
    coordinator = make_coordinator(lease_ttl=600, sweep_every=60)  # nothing here takes minutes
    job, offer = queued(coordinator)
    coordinator.claim(offer)  # type: ignore[arg-type]
    coordinator.read()
    lapse(coordinator, job)
    coordinator.redis.hset(coordinator.keys.alive, "at", "1")  # nobody has swept for a long time
    coordinator.reconciler.reconcile(job)
    assert coordinator.events(job, "only") == ["QUEUED", "RUNNING"], (
        "no takeover without a fresh tick"
    )

    coordinator.sweep.run()  # the tick that ends the outage begins the grace
    coordinator.redis.zadd(coordinator.keys.due, {job: 0})
    coordinator.sweep.run()
    assert coordinator.events(job, "only") == ["QUEUED", "RUNNING"], "no takeover within the grace"

    coordinator.redis.hset(coordinator.keys.alive, "grace_until", "0")  # as if it was over
    wait_until(
        lambda: coordinator.sweep.run() >= 0 and bool(coordinator.sent),
        20,
        "the takeover after the grace",
    )
    assert coordinator.events(job, "only") == ["QUEUED", "RUNNING", "BACKOFF", "QUEUED"]


def test_the_first_sweep_is_not_logged_as_an_outage(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    coordinator.sweep.run()
    assert (
        "this is the first sweep on this Redis: no lease counts as lapsed for the next 15s"
        in caplog.text
    )
    assert "nobody had swept" not in caplog.text
    coordinator.redis.hset(coordinator.keys.alive, "at", "1")
    coordinator.sweep.run()
    assert "no sweep had run for" in caplog.text


def test_a_clock_that_was_set_back_starts_a_grace_period(coordinator: Coordinator) -> None:
    coordinator.store.tick(1, 15)
    coordinator.redis.hset(coordinator.keys.alive, "at", "99999999999")
    now, gap = coordinator.store.tick(1, 15)
    assert gap < 0
    assert float(
        str(coordinator.redis.hget(coordinator.keys.alive, "grace_until"))
    ) == pytest.approx(now + 15, abs=0.01)


@pytest.mark.parametrize(
    ("began", "ended", "left"), [(20, -5, 15), (40, 1, 5), (55, 10, -10), (80, 20, 15)]
)
def test_consecutive_outages_share_a_grace_period_of_at_most_three_leases(
    coordinator: Coordinator, began: float, ended: float, left: float
) -> None:
    """An outage ends now. The last grace began and ended so many seconds ago; ``left`` seconds of
    grace follow.
    """
    before = coordinator.store.tick(1, 15)[0]
    times = {"at": 1.0, "grace_since": before - began, "grace_until": before - ended}
    coordinator.redis.hset(coordinator.keys.alive, mapping=times)  # type: ignore[arg-type]
    after = coordinator.store.tick(1, 15)[0]
    grace = float(str(coordinator.redis.hget(coordinator.keys.alive, "grace_until")))
    assert before + left - 0.01 <= grace <= after + left + 0.01


def test_a_renewal_claims_its_attempt_again_after_a_rollback(
    coordinator: Coordinator,
) -> None:
    """Protocol rule 3: the store was rolled back to before the claim."""
    job, offer = queued(coordinator)
    keys = coordinator.keys.of(job)
    before = coordinator.redis.hgetall(keys.attempts)
    coordinator.claim(offer)  # type: ignore[arg-type]
    coordinator.redis.hset(keys.attempts, mapping=before)  # type: ignore[arg-type]
    coordinator.redis.xtrim(coordinator.keys.reports, maxlen=0)
    coordinator.redis.zadd(coordinator.keys.due, {job: coordinator.store.tick(1, 15)[0] + 60})

    assert coordinator.lease.renew(offer.held_by("runner1"), "host") == "CONTINUE"  # type: ignore[attr-defined]
    coordinator.sweep.run()
    assert coordinator.status(job) is Status.RUNNING, "the next sweep looks at it"
    assert coordinator.claim(offer, "runner2").answer == "REFUSED"  # type: ignore[arg-type]
    assert coordinator.lease.renew(offer.held_by("runner2"), "host") == "STALE"  # type: ignore[attr-defined]


def test_reports_of_an_older_epoch_are_counted_and_change_nothing(coordinator: Coordinator) -> None:
    job, offer = queued(coordinator, retry={"max": 3, "backoff": 0})
    coordinator.work(offer, failed())  # type: ignore[arg-type]
    coordinator.read()
    (second,) = coordinator.offers()
    coordinator.claim(second, "runner2")
    coordinator.read()
    commit = coordinator.record(job).commit
    assert coordinator.finish(offer.held_by("runner1")) == "STALE"  # type: ignore[attr-defined]
    coordinator.redis.xadd(
        coordinator.keys.reports,
        {
            "v": 1,
            "id": "late",
            "token": str(offer.held_by("runner1")),
            "kind": "succeeded",
            "at": 1,
        },  # type: ignore[attr-defined]
    )
    stale = coordinator.client.counters().get("STALE", 0)
    coordinator.read()
    assert coordinator.client.counters()["STALE"] == stale + 2
    assert coordinator.record(job).commit == commit
    assert coordinator.show(job).groups[0].members[0].attempt == 2


@pytest.mark.claim("Jobs end correctly even without the job lock: the commits decide.")
def test_everything_stays_correct_without_the_lock(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """Rule 8: the lock saves work and proves nothing.

    Deleted all the time, commits still decide who wins.
    """
    coordinators = [make_coordinator() for _ in range(3)]
    job = coordinators[0].submit(
        group("start"),
        group("wide", "start", for_each={"n": list(range(40))}),
        group("end", "wide"),
    )
    stop = threading.Event()

    def delete_locks() -> None:
        with connect(coordinators[0].settings.redis_url) as client:
            while not stop.is_set():
                client.delete(coordinators[0].keys.of(job).lock)

    def sweep(coordinator: Coordinator) -> None:
        while not stop.is_set():
            coordinator.reconciler.reconcile(job)
            coordinator.read()

    threads = [threading.Thread(target=delete_locks)] + [
        threading.Thread(target=sweep, args=(h,)) for h in coordinators
    ]
    for thread in threads:
        thread.start()
    try:

        def work() -> bool:
            for coordinator in coordinators:
                for offer in coordinator.offers():
                    if coordinator.claim(offer).answer == "CLAIMED":
                        coordinator.finish(offer.held_by("runner1"))
            return coordinators[0].status(job).terminal

        wait_until(work, 30, "the job to end without a lock")
    finally:
        stop.set()
        for thread in threads:
            thread.join()

    assert coordinators[0].status(job) is Status.FINISHED
    events = [(e.get("group"), e["kind"]) for _, e in coordinators[0].client.events(job)]
    assert len(events) == len(set(events)), "no event twice"
    assert len(events) == 1 + 42 * 3 + 1


def test_the_loser_of_two_racing_commits_writes_nothing(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    """Protocol rule 1."""
    from unstuck.coordinator.decide.decide import decide
    from unstuck.coordinator.model.decision import Environment

    coordinator = make_coordinator()
    job = coordinator.submit(group("only"))
    one, two = coordinator.store.load(job), coordinator.store.load(job)
    assert one is not None
    assert two is not None
    first = decide(one, None, Environment(now=10.0, nonce="n1"))
    second = decide(two, None, Environment(now=10.0, nonce="n2"))
    assert coordinator.store.commit(first, "c1", "0", Acks(), "{}") == "APPLIED"
    assert coordinator.store.commit(second, "c2", "0", Acks(("1-1",)), "{}") == "CONFLICT"
    assert coordinator.events(job) == ["SUBMITTED", "QUEUED"]
    attempts = coordinator.redis.hgetall(coordinator.keys.of(job).attempts)
    assert json.loads(attempts["only"])["nonce"] == "n1"
    assert coordinator.store.commit(first, "c1", "0", Acks(), "{}") == "APPLIED", (
        "its own id: the reply had been lost"
    )
    assert coordinator.events(job) == ["SUBMITTED", "QUEUED"]


@pytest.mark.claim("A terminal status appears only once all results are stored, and never changes.")
def test_a_terminal_job_never_changes(coordinator: Coordinator) -> None:
    job, offer = queued(coordinator)
    coordinator.work(offer)  # type: ignore[arg-type]
    coordinator.read()
    assert coordinator.status(job) is Status.FINISHED
    coordinator.redis.expire(coordinator.keys.of(job).events, 1000)

    def record() -> dict[str, object]:
        """All that is stored of the job, but for its log."""
        return {
            key: coordinator.redis.dump(key)
            for key in coordinator.redis.keys(f"*{{{job}}}*")
            if not key.endswith(":events")
        }

    before, log = record(), coordinator.events(job)

    assert coordinator.claim(offer, "late").answer == "REFUSED"  # type: ignore[arg-type]
    assert coordinator.lease.renew(offer.held_by("runner1"), "host") == "STALE"  # type: ignore[attr-defined]
    assert coordinator.finish(offer.held_by("runner1"), failed()) == "STALE"  # type: ignore[attr-defined]
    token = str(offer.held_by("runner1"))  # type: ignore[attr-defined]
    for kind in ("claimed", "failed", "lost", "succeeded"):
        coordinator.redis.xadd(
            coordinator.keys.reports, {"v": 1, "id": kind, "token": token, "kind": kind, "at": 1}
        )
    coordinator.read()
    coordinator.redis.zadd(coordinator.keys.due, {job: 0})
    coordinator.sweep.run()

    assert record() == before
    assert coordinator.events(job) == [*log, "REPORT_REFUSED"], (
        "the finish that was refused, and nothing else"
    )
    assert 0 < coordinator.redis.ttl(coordinator.keys.of(job).events) <= 1000, (
        "the log expires when it would have"
    )
    assert coordinator.redis.zscore(coordinator.keys.due, job) is None
    assert coordinator.client.counters()["TERMINAL"] == 5


def test_a_commit_refused_twice_for_the_same_error_halts_the_job_with_its_reason(
    coordinator: Coordinator,
) -> None:
    """Rule 9: instead of failing for ever, and without stopping the other jobs."""
    broken = coordinator.submit(group("only"), name="broken")
    fine = coordinator.submit(group("only"), name="fine")
    coordinator.redis.set(coordinator.keys.of(broken).groups, "not a hash any more")

    coordinator.sweep.run()
    coordinator.redis.zadd(coordinator.keys.due, {broken: 0})
    coordinator.redis.delete(coordinator.keys.of(broken).lock)
    coordinator.sweep.run()

    fields = coordinator.redis.hgetall(coordinator.keys.of(broken).job)
    assert fields["status"] == Status.HALTED
    assert json.loads(fields["halted"])["code"] == "UNDECIDABLE"
    assert "WRONGTYPE" in json.loads(fields["halted"])["text"]
    assert [listed.status for listed in coordinator.client.jobs(name="broken")] == [
        Status.HALTED
    ], "as the list says"
    assert [offer.job for offer in coordinator.sent] == [fine]
    assert coordinator.redis.zscore(coordinator.keys.due, broken) is not None, (
        "it stays due: a person may mend and resume it"
    )
    coordinator.read()
    assert coordinator.redis.xpending(coordinator.keys.reports, "coordinators")["pending"] == 0


def test_take_skips_offers_of_jobs_that_the_user_is_pausing_or_ending(
    coordinator: Coordinator,
) -> None:
    """Rule 4."""
    job, offer = queued(coordinator)
    coordinator.redis.hset(coordinator.keys.of(job).job, "intent", "pause")
    assert coordinator.claim(offer).answer == "REFUSED"  # type: ignore[arg-type]
    coordinator.redis.hset(coordinator.keys.of(job).job, "intent", "run")
    assert coordinator.claim(offer, "runner2").answer == "CLAIMED"  # type: ignore[arg-type]


def test_an_offer_of_a_halted_job_returns_only_after_the_resume(
    coordinator: Coordinator,
) -> None:
    """Rule 4: a job that could not be decided is HALTED, so nothing of it starts."""
    job, offer = queued(coordinator)
    coordinator.store.halt(job, Reason("UNDECIDABLE", "no"), "halted", coordinator.show(job).at)
    assert coordinator.status(job) is Status.HALTED
    assert coordinator.claim(offer).answer == "REFUSED"  # type: ignore[arg-type]
    coordinator.redis.zadd(coordinator.keys.due, {job: 0})
    coordinator.sweep.run()
    coordinator.read()
    assert not coordinator.sent
    assert coordinator.events(job, "only") == ["QUEUED"]

    coordinator.client.command(job, "resume")
    coordinator.read()
    assert coordinator.sent == [offer], "at once, not after the dispatch timeout"
    assert coordinator.claim(offer, "runner2").answer == "CLAIMED"  # type: ignore[arg-type]


@pytest.mark.claim("Every attempt of a group reads the inputs that the first attempt read.")
def test_every_later_attempt_reads_the_frozen_inputs(coordinator: Coordinator) -> None:
    """Rule 12."""
    job = coordinator.submit(
        group("first"), group("second", "first", retry={"max": 3, "backoff": 0})
    )
    coordinator.read()
    (offer,) = coordinator.offers()
    staging = offer.held_by("runner1").staging
    coordinator.work(offer, replace(SUCCEEDED, staging=staging))
    coordinator.read()
    (second,) = coordinator.offers()
    claim = coordinator.claim(second)
    assert claim.work_order is not None
    assert claim.work_order.frozen.inputs == {"first": (staging,)}
    coordinator.finish(second.held_by("runner1"), failed())
    coordinator.read()
    (third,) = coordinator.offers()
    again = coordinator.claim(third)
    assert again.work_order is not None
    assert again.work_order.frozen == claim.work_order.frozen
    assert again.work_order.fingerprint == claim.work_order.fingerprint
    assert coordinator.status(job) is Status.RETRYING
