"""From the outbox to a receiver: on a real store, with real receivers, and a clock that the test
sets.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import redis

from tests.support.network.proxy import Proxy
from tests.support.network.receivers import Holds, Receiver, answers_twice, notice, receiver, status
from tests.support.servers import RedisServer, wait_until
from unstuck.coordinator.model.notice import Notice
from unstuck.coordinator.notices.channels.channel import NoticeChannel
from unstuck.coordinator.notices.outbox import Outbox, TryEnd
from unstuck.coordinator.notices.sender import CROWDED_AT, LONGEST_WAIT, Sender
from unstuck.coordinator.notices.setting import NotifySetting, notify_setting
from unstuck.coordinator.reconcile.wiring import mint
from unstuck.coordinator.store.dead_letter_store import DeadLetterAnswer, DeadLetters
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.settings import Settings
from unstuck.tasks.transport.redis_client import connect

KEYS = Keys()


class SenderClock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = time.time()  # a replay counts from the clock of Redis

    def __call__(self) -> float:
        return self.now


def setting(**targets: Any) -> NotifySetting:
    return notify_setting(Settings(notify=json.dumps({"targets": targets})), {})


class SendingCoordinators:
    """Coordinators that send, one step at a time, by one clock."""

    def __init__(self, client: redis.Redis) -> None:
        self.client, self.clock = client, SenderClock()
        self.outbox = Outbox(client, KEYS, self.clock)

    def coordinator(self, elsewhere: Callable[[], Any] = frozenset, **targets: Any) -> Sender:
        return Sender(
            self.outbox, setting(**targets), mint, elsewhere, self.clock, lambda low, high: high
        )

    def tell(self, *notices: Notice) -> None:
        for one in notices:
            self.client.xadd(KEYS.outbox, {"notice": one.to_json()})
        self.outbox.spread()

    def letters(self) -> list[dict[str, str]]:
        return [fields for _, fields in self.client.xrange(KEYS.dead)]  # type: ignore[union-attr]


@pytest.fixture
def fleet(client: redis.Redis) -> SendingCoordinators:
    return SendingCoordinators(client)


@pytest.fixture
def ops() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


def hook(to: Receiver, **more: Any) -> dict[str, Any]:
    return {"webhook": to.url, "timeout": "30s", **more}


def test_a_permanent_refusal_is_a_dead_letter_immediately_and_names_the_location(
    fleet: SendingCoordinators, ops: Receiver
) -> None:
    ops.answer = status(308, Location="https://new.example.com/hook")
    sender = fleet.coordinator(ops=hook(ops))
    fleet.tell(notice(1), notice(2, problem="other"))
    assert [sender.send_next("ops") for _ in range(3)] == [TryEnd.DEAD, TryEnd.DEAD, None]
    (first, _) = fleet.letters()
    assert "a redirect to https://new.example.com/hook" in first["reason"]


def test_a_notice_reaches_each_target_once_and_is_removed(
    fleet: SendingCoordinators, ops: Receiver
) -> None:
    with receiver() as team:
        sender = fleet.coordinator(ops=hook(ops), team=hook(team))
        fleet.tell(notice(1, to=("ops", "team")))
        assert [sender.send_next(name) for name in ("ops", "team", "ops")] == [
            TryEnd.SENT,
            TryEnd.SENT,
            None,
        ]
        assert (ops.ids, team.ids) == (["n1"], ["n1"])
    kept = set(fleet.client.keys("*"))
    assert kept <= {KEYS.outbox, KEYS.notices_sent, KEYS.counters}
    assert fleet.client.xlen(KEYS.outbox) == 0
    assert [(one.to, one.notice.id, one.tries, one.reply) for one in fleet.outbox.sent()] == [
        ("team", "n1", 1, "200 OK: thanks"),
        ("ops", "n1", 1, "200 OK: thanks"),
    ]


@pytest.mark.claim(
    "Each notice reaches each of its targets, in order, also if a receiver is unreachable."
)
def test_an_unreachable_receiver_gets_every_notice_later_in_order_with_its_id(
    fleet: SendingCoordinators,
) -> None:
    away = Receiver()
    sender = fleet.coordinator(ops=hook(away))
    fleet.tell(
        notice(1, problem="p"), notice(2, problem="p", event="recovered"), notice(3, problem="q")
    )
    began, waits = fleet.clock.now, []
    while fleet.clock.now < began + 600:
        ended = sender.send_next("ops")
        assert ended in (TryEnd.AGAIN, None)
        if ended is None:
            fleet.clock.now += 1
        else:
            waits.append(fleet.clock.now - began)
    assert max(b - a for a, b in pairwise(waits)) <= LONGEST_WAIT + 1
    assert len(waits) < 20
    away.start()
    try:
        fleet.clock.now += LONGEST_WAIT
        sent = [sender.send_next("ops") for _ in range(4)]
    finally:
        away.stop()
    assert sorted(map(str, sent)) == ["None", "SENT", "SENT", "SENT"]
    assert sorted(away.ids) == ["n1", "n2", "n3"]
    assert away.ids.index("n1") < away.ids.index("n2")
    assert fleet.letters() == []


def test_a_notice_undeliverable_for_an_hour_becomes_a_dead_letter_for_replay(
    fleet: SendingCoordinators, ops: Receiver
) -> None:
    ops.answer = status(500, "no")
    sender = fleet.coordinator(ops=hook(ops))
    fleet.tell(notice(1), notice(2))
    began = fleet.clock.now
    while fleet.client.xlen(KEYS.dead) < 2:
        sender.send_next("ops")
        fleet.clock.now += 10
        assert fleet.clock.now < began + 4000
    assert fleet.clock.now >= began + 3600
    assert len(ops.received) < 60
    for letter in fleet.letters():
        assert letter["reason"] == "NOT_SENT: it answered 500 Internal Server Error: no"
        assert letter["to"] == "ops"
    assert fleet.outbox.waiting() == []
    letters = DeadLetters(fleet.client, KEYS)
    ops.answer, first = status(200), letters.all()[0]
    assert letters.replay(first.id, by="tester").answer is DeadLetterAnswer.REPLAYED
    assert letters.replay(first.id, by="tester").answer is DeadLetterAnswer.ALREADY
    assert letters.drop(letters.all()[0].id, by="tester").answer is DeadLetterAnswer.DROPPED
    fleet.clock.now += 200
    assert sender.send_next("ops") is TryEnd.SENT
    assert [one.notice.id for one in fleet.outbox.sent()] == [first.fields["id"]]
    assert letters.all() == []


def test_a_refused_notice_does_not_block_notices_of_other_problems(
    fleet: SendingCoordinators, ops: Receiver
) -> None:
    def refuses_one(request: Any) -> None:
        status(400 if ops.ids[-1] == "n1" else 200)(request)

    ops.answer = refuses_one
    sender = fleet.coordinator(ops=hook(ops))
    fleet.tell(
        notice(1, problem="p"), notice(2, problem="p", event="recovered"), notice(3, problem="q")
    )
    assert sender.send_next("ops") is TryEnd.AGAIN
    fleet.clock.now += 5
    assert sender.send_next("ops") is TryEnd.SENT
    assert ops.ids == ["n1", "n3"]


def test_many_notices_for_people_become_one_digest_per_minute_without_loss(
    fleet: SendingCoordinators, ops: Receiver
) -> None:
    sender = fleet.coordinator(ops={"slack": ops.url, "timeout": "30s"})
    fleet.tell(*(notice(number, problem=f"p{number}") for number in range(40)))
    fleet.tell(notice(40, problem="p39", event="recovered"))
    sent = [sender.send_next("ops") for _ in range(CROWDED_AT + 1)]
    assert sent == [TryEnd.SENT] * CROWDED_AT + [None], "the target has a rest"
    fleet.clock.now += 61
    ops.answer = status(500)
    assert sender.send_next("ops") is TryEnd.AGAIN
    ops.answer = status(200)
    fleet.clock.now += 61
    ops.received.clear()
    assert sender.send_next("ops") is TryEnd.SENT
    assert [sender.send_next("ops"), len(ops.received)] == [None, 1]
    assert json.loads(ops.received[0].body)["text"] == "30 notices"
    fleet.clock.now += 61
    assert sender.send_next("ops") is TryEnd.SENT
    ids = [entry.notice.id for entry in fleet.outbox.sent()]
    assert sorted(ids) == sorted(f"n{number}" for number in range(41))
    assert ids[0] == "n40", "the end of a problem comes after it"
    assert fleet.outbox.waiting() == []


def test_a_webhook_gets_each_notice_separately(fleet: SendingCoordinators, ops: Receiver) -> None:
    sender = fleet.coordinator(ops=hook(ops))
    fleet.tell(*(notice(number, problem=f"p{number}") for number in range(CROWDED_AT + 5)))
    assert [sender.send_next("ops") for _ in range(CROWDED_AT + 5)] == [TryEnd.SENT] * (
        CROWDED_AT + 5
    )


def test_a_retry_after_request_of_a_receiver_is_respected(
    fleet: SendingCoordinators, ops: Receiver
) -> None:
    ops.answer = status(429, Retry_After="100")
    sender = fleet.coordinator(ops=hook(ops))
    fleet.tell(notice(1))
    assert sender.send_next("ops") is TryEnd.AGAIN
    fleet.clock.now += 99
    assert sender.send_next("ops") is None
    fleet.clock.now += 2
    assert sender.send_next("ops") is TryEnd.AGAIN


def test_an_unacknowledged_notice_is_sent_again_with_the_same_id(
    fleet: SendingCoordinators, ops: Receiver
) -> None:
    ops.answer = answers_twice
    sender = fleet.coordinator(ops=hook(ops))
    fleet.tell(notice(1))
    assert sender.send_next("ops") is TryEnd.AGAIN
    ops.answer = status(200)
    fleet.clock.now += 5
    assert sender.send_next("ops") is TryEnd.SENT
    assert ops.ids == ["n1", "n1"]
    assert [one.headers["webhook-id"] for one in ops.received] == ["n1", "n1"]


def test_notices_being_sent_by_a_coordinator_are_reserved_until_its_timeout(
    fleet: SendingCoordinators, ops: Receiver
) -> None:
    ops.answer = holds = Holds()
    first, second = (fleet.coordinator(ops=hook(ops, timeout="2m")) for _ in range(2))
    fleet.tell(notice(1), notice(2))
    lost: list[Any] = []
    thread = threading.Thread(target=lambda: lost.append(first.send_next("ops")))
    thread.start()
    wait_until(lambda: ops.ids == ["n1"], 5, "the first coordinator to send")
    assert second.send_next("ops") is None
    # The first one counts as dead when its time is over, and the second one sends what it had.
    fleet.clock.now += 126
    ops.answer = status(200)
    assert second.send_next("ops") is TryEnd.SENT
    assert ops.ids == ["n1", "n1"]
    holds.released.set()
    thread.join()
    assert lost == [TryEnd.LOST], "who was taken for dead changes nothing"
    assert second.send_next("ops") is TryEnd.SENT
    assert ops.ids[2:] == ["n2"]
    assert fleet.outbox.waiting() == []


def test_a_hanging_target_blocks_neither_others_nor_the_scan_for_notices(
    fleet: SendingCoordinators, ops: Receiver, redis_server: RedisServer
) -> None:
    ops.answer = holds = Holds()
    with receiver() as team:
        outbox = Outbox(connect(redis_server.url), KEYS)
        sender = Sender(outbox, setting(ops=hook(ops, timeout="2m"), team=hook(team)), mint)
        thread = threading.Thread(target=sender.run)
        thread.start()
        try:
            for number in range(1, 6):
                fleet.client.xadd(
                    KEYS.outbox, {"notice": notice(number, to=("ops", "team")).to_json()}
                )
                wait_until(lambda number=number: len(team.ids) == number, 10, "the team to be told")
            assert ops.ids == ["n1"]
            assert [one.notice.id for one in outbox.waiting() if one.to == "ops"] == [
                "n1",
                "n2",
                "n3",
                "n4",
                "n5",
            ]
        finally:
            holds.released.set()
            sender.stopping.set()
            thread.join()
    assert team.ids == ["n1", "n2", "n3", "n4", "n5"]


class Endless(NoticeChannel):
    """A channel whose library never comes back."""

    kind = "endless"

    def send(self, message: Any, allowed: Any) -> str:
        threading.Event().wait()
        return ""


def test_a_library_that_never_returns_blocks_a_bounded_number_of_threads(
    fleet: SendingCoordinators,
) -> None:
    never = NotifySetting({"ops": Endless(timeout=0.1)})
    sender = Sender(fleet.outbox, never, mint, frozenset, fleet.clock, lambda low, high: high)
    fleet.tell(notice(1))
    threads = []
    for _ in range(3):
        assert sender.send_next("ops") is TryEnd.AGAIN
        threads.append(threading.active_count())
        fleet.clock.now += LONGEST_WAIT
    assert threads[0] == threads[2]
    assert fleet.outbox.waiting()[0].reply == "NOT_SENT: the try before this one has not ended"


def test_a_bug_in_the_sender_ends_neither_its_loop_nor_the_coordinator(
    fleet: SendingCoordinators,
    ops: Receiver,
    redis_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fleet.client.hset(KEYS.notices, "ops", "no JSON")
    fleet.client.set(KEYS.notices_due, "no index")
    sender = Sender(Outbox(connect(redis_server.url), KEYS), setting(ops=hook(ops)), mint)
    thread = threading.Thread(target=sender.run)
    thread.start()
    try:
        fleet.client.xadd(KEYS.outbox, {"notice": notice(1).to_json()})
        wait_until(lambda: "are tried again" in caplog.text, 10, "the fault to be told")
        fleet.client.delete(KEYS.notices_due)
        wait_until(lambda: ops.ids == ["n1"], 10, "the notice to be sent")
    finally:
        sender.stopping.set()
        thread.join()


def test_a_notice_to_an_unknown_target_becomes_a_dead_letter_with_a_remedy(
    fleet: SendingCoordinators, ops: Receiver
) -> None:
    sender = fleet.coordinator(ops=hook(ops))
    fleet.tell(notice(1, to=("opps",)), notice(2, to=("opps",)))
    sender.look()
    first, _second = fleet.letters()
    assert first["reason"] == (
        "UNKNOWN_TARGET: no target 'opps' is in UNSTUCK_NOTIFY of this coordinator; it knows ops; "
        "did you mean 'ops'?. Add it there and restart the coordinators, or correct to: in the spec"
    )


def test_a_target_known_only_to_another_coordinator_is_left_to_it(
    fleet: SendingCoordinators, ops: Receiver
) -> None:
    old, new = fleet.coordinator(lambda: {"ops"}), fleet.coordinator(ops=hook(ops))
    fleet.tell(notice(1))
    old.look()
    assert fleet.letters() == []
    assert new.send_next("ops") is TryEnd.SENT


def test_an_unreadable_notice_becomes_a_dead_letter_and_others_are_sent(
    fleet: SendingCoordinators, ops: Receiver
) -> None:
    fleet.client.xadd(KEYS.outbox, {"notice": "{"})
    fleet.client.xadd(KEYS.outbox, {"other": "x"})
    fleet.client.xadd(
        KEYS.outbox, {"notice": json.dumps({"id": "x", "problem": "p", "to": ["ops", {}]})}
    )
    strange = json.loads(notice(1).to_json()) | {"at": "never"}
    fleet.client.xadd(KEYS.outbox, {"notice": json.dumps(strange)})
    fleet.tell(notice(2, problem="q"))
    sender = fleet.coordinator(ops=hook(ops))
    assert sender.send_next("ops") is TryEnd.DEAD
    assert sender.send_next("ops") is TryEnd.SENT
    reasons = [letter["reason"].partition(":")[0] for letter in fleet.letters()]
    assert reasons == ["UNREADABLE"] * 4


def test_a_lone_surrogate_in_an_error_does_not_block_its_notice(
    fleet: SendingCoordinators, ops: Receiver
) -> None:
    fleet.tell(
        replace(notice(1), first_error="bad \ud83d text, and good \U0001f600\0", text="\udfff")
    )
    assert fleet.coordinator(ops=hook(ops)).send_next("ops") is TryEnd.SENT
    assert fleet.letters() == []
    (sent,) = fleet.outbox.sent()
    assert (sent.notice.text, sent.notice.first_error) == ("?", "bad ? text, and good \U0001f600\0")


def test_a_clock_set_back_by_a_day_delays_no_notice_for_a_day(
    fleet: SendingCoordinators, ops: Receiver
) -> None:
    sender = fleet.coordinator(ops=hook(ops))
    ops.answer = status(503)
    fleet.tell(notice(1, problem="p"))
    assert sender.send_next("ops") is TryEnd.AGAIN
    ops.answer = status(200)
    fleet.tell(notice(2, problem="q"))
    fleet.clock.now -= 86400
    assert fleet.outbox.spread() == ["ops"]
    assert [sender.send_next("ops") for _ in range(3)] == [TryEnd.SENT, TryEnd.SENT, None]
    assert set(ops.ids) == {"n1", "n2"}


def test_a_duplicate_notice_is_queued_once(fleet: SendingCoordinators) -> None:
    fleet.tell(notice(1, problem="p"), notice(1, problem="p"), notice(2, problem="p"))
    fleet.tell(notice(1, problem="p"))
    assert [one.notice.id for one in fleet.outbox.waiting()] == ["n1", "n2"]


def test_a_notice_recorded_twice_after_a_lost_reply_counts_once(fleet: SendingCoordinators) -> None:
    fleet.tell(notice(1, problem="p"), notice(2, problem="p"))
    taken = fleet.outbox.take("ops", "me", 10)
    assert taken == fleet.outbox.take("ops", "me", 10), "the reply to a take may be lost as well"
    assert taken is not None
    assert fleet.outbox.note_try(taken, "me", "sent", "ok") is TryEnd.SENT
    assert fleet.outbox.note_try(taken, "me", "sent", "ok") is TryEnd.LOST
    assert [one.notice.id for one in fleet.outbox.waiting()] == ["n2"]
    assert fleet.client.hget(KEYS.counters, "NOTICE_SENT") == "1"


@pytest.mark.claim(
    "Each notice reaches each of its targets, in order, also if a receiver is unreachable."
)
def test_two_coordinators_with_lost_replies_send_each_notice_once_in_order(
    fleet: SendingCoordinators, ops: Receiver, redis_server: RedisServer
) -> None:
    proxy = Proxy(redis_server.port)
    proxy.lose(0.1, silent=False)
    outboxes = [Outbox(connect(proxy.url), KEYS) for _ in range(2)]
    senders = [Sender(outbox, setting(ops=hook(ops)), mint) for outbox in outboxes]
    threads = [threading.Thread(target=sender.run) for sender in senders]
    for thread in threads:
        thread.start()
    try:
        for number in range(30):
            fleet.client.xadd(
                KEYS.outbox, {"notice": notice(number, problem=f"p{number % 3}").to_json()}
            )
        wait_until(
            lambda: fleet.client.hget(KEYS.counters, "NOTICE_SENT") == "30", 30, "all to be sent"
        )
    finally:
        for sender in senders:
            sender.stopping.set()
        for thread in threads:
            thread.join()
        proxy.close()
    assert proxy.lost > 3, "the line was bad"
    assert len(ops.ids) == 30
    for problem in range(3):
        numbers = [int(id_[1:]) for id_ in ops.ids if int(id_[1:]) % 3 == problem]
        assert numbers == sorted(numbers)


def test_sent_notices_are_kept_up_to_a_limit(fleet: SendingCoordinators) -> None:
    for number in range(1150):
        fleet.tell(notice(number, problem="p"))
        taken = fleet.outbox.take("ops", "me", 10)
        assert taken is not None
        fleet.outbox.note_try(taken, "me", "sent", "ok")
    assert 1000 <= fleet.client.xlen(KEYS.notices_sent) <= 1200
    assert fleet.outbox.sent(1)[0].notice.id == "n1149"


def test_no_reason_log_or_list_contains_the_secret_of_a_target(
    fleet: SendingCoordinators, ops: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    def echoes(request: Any) -> None:
        status(500, f"bad {request.path} of {request.headers['X-Key']}")(request)

    ops.answer = echoes
    target = {
        "webhook": f"{ops.url}/services/T0/B0/hushhushhush",
        "headers": {"X-Key": "hush-hush"},
    }
    sender = fleet.coordinator(ops=target)
    fleet.tell(notice(1))
    with caplog.at_level("DEBUG"):
        assert sender.send_next("ops") is TryEnd.AGAIN
        fleet.clock.now += 4000
        assert sender.send_next("ops") is TryEnd.DEAD
    stored = [
        json.dumps(fleet.client.xrange(KEYS.dead)),
        json.dumps(fleet.client.hgetall(KEYS.notices)),
    ]
    assert "it answered 500" in stored[0]
    for text in (*stored, caplog.text, repr(setting(ops=target))):
        assert "hush" not in text


@pytest.mark.parametrize("targets", [50])
def test_checking_an_empty_outbox_costs_one_script(
    fleet: SendingCoordinators, targets: int
) -> None:
    sender = fleet.coordinator(**{f"t{n}": {"slack": "https://h/x"} for n in range(targets)})
    before = int(fleet.client.info("commandstats")["cmdstat_evalsha"]["calls"])
    sender.look()
    assert int(fleet.client.info("commandstats")["cmdstat_evalsha"]["calls"]) == before + 1
