"""The end of a problem is notified although Redis has forgotten the problem in a rollback."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from tests.guarantees.nothing_is_forgotten.test_rolled_back_store import snapshot
from tests.support.coordinator import Coordinator, failed, group
from tests.support.network.receivers import Receiver, receiver
from unstuck import Status
from unstuck.coordinator.notices.open_problems import ForgottenProblems, OpenProblems
from unstuck.coordinator.notices.outbox import Outbox
from unstuck.coordinator.notices.sender import Sender
from unstuck.coordinator.notices.setting import notify_setting
from unstuck.coordinator.reconcile.wiring import mint
from unstuck.coordinator.store.expected_job_store import ExpectedJobsStore

DAY = 86400.0


class Notifying:
    """A coordinator that sends its notices to a receiver."""

    def __init__(self, coordinator: Coordinator, ops: Receiver, retention: float = 7 * DAY) -> None:
        self._ops = ops
        client, keys = coordinator.redis, coordinator.keys
        self._outbox, problems = Outbox(client, keys), OpenProblems(coordinator.settings)
        stores = (coordinator.store, coordinator.schedule_store, ExpectedJobsStore(client, keys))
        self._forgotten = ForgottenProblems(problems, self._outbox, *stores, retention)
        targets = json.dumps({"targets": {"ops": {"webhook": ops.url}}})
        setting = notify_setting(
            coordinator.settings.model_copy(update={"notify": SecretStr(targets)}), {}
        )
        self._sender = Sender(
            self._outbox, setting, mint, problems=problems, forgotten=self._forgotten
        )

    def received(self) -> list[str]:
        """Look for forgotten problems, send what waits, and return the events that the receiver
        has.
        """
        self._forgotten.look()
        self._outbox.spread()
        while self._sender.send_next("ops"):
            pass
        return [one.text["event"] for one in self._ops.received]


@pytest.fixture
def ops() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


def submitted(coordinator: Coordinator, *events: str) -> str:
    job = coordinator.submit(
        group("a", retry={"max": 0}), notify=[{"on": list(events), "to": "ops"}]
    )
    coordinator.read()
    return job


def fails(coordinator: Coordinator, job: str) -> None:
    coordinator.read()
    (offer,) = coordinator.offers(job)
    coordinator.work(offer, failed())
    coordinator.read()


@pytest.mark.claim(
    "The recovery from a problem is announced even if Redis has forgotten the problem."
)
def test_the_end_of_a_forgotten_failure_is_sent_when_the_job_succeeds(
    coordinator: Coordinator, ops: Receiver
) -> None:
    notifying = Notifying(coordinator, ops)
    job = submitted(coordinator, "failed", "recovered")
    back = snapshot(coordinator)
    fails(coordinator, job)
    assert notifying.received() == ["failed"]
    assert notifying.received() == ["failed"], "the problem is open"
    back()
    assert notifying.received() == ["failed"], (
        "it may fail again, which is a notice with the same id"
    )
    assert coordinator.drive(job) is Status.FINISHED
    expected = ["failed", "recovered"]
    assert [notifying.received(), notifying.received()] == [expected, expected]
    began, ended = (one.text for one in ops.received)
    assert began["problem"] == ended["problem"]
    assert "Redis was rolled back" in ended["text"]


@pytest.mark.claim(
    "The recovery from a problem is announced even if Redis has forgotten the problem."
)
def test_the_end_of_a_failure_is_sent_although_redis_lost_the_job(
    coordinator: Coordinator, ops: Receiver
) -> None:
    notifying = Notifying(coordinator, ops)
    coordinator.drive(coordinator.submit(group("a"), name="before"))
    back = snapshot(coordinator)
    fails(coordinator, submitted(coordinator, "failed", "recovered"))
    assert notifying.received() == ["failed"]
    back()
    assert [notifying.received(), notifying.received()] == [["failed", "recovered"]] * 2


@pytest.mark.variant
def test_a_rolled_back_retry_leaves_the_earlier_failure_open(
    coordinator: Coordinator, ops: Receiver
) -> None:
    notifying = Notifying(coordinator, ops)
    job = submitted(coordinator, "failed", "recovered")
    fails(coordinator, job)
    assert notifying.received() == ["failed"]
    back = snapshot(coordinator)
    fails(coordinator, coordinator.client.retry(job).id)
    assert notifying.received() == ["failed", "failed"]
    back()
    assert notifying.received() == ["failed", "failed"]
    assert coordinator.drive(coordinator.client.retry(job).id) is Status.FINISHED
    expected = ["failed", "failed", "recovered"]
    assert [notifying.received(), notifying.received()] == [expected, expected]


@pytest.mark.variant
def test_no_unrequested_end_of_a_forgotten_failure_is_sent(
    coordinator: Coordinator, ops: Receiver
) -> None:
    notifying = Notifying(coordinator, ops)
    back = snapshot(coordinator)
    fails(coordinator, submitted(coordinator, "failed"))
    assert notifying.received() == ["failed"]
    back()
    assert notifying.received() == ["failed"]
