"""What spares the consumer passes: outcomes that come fast are read together, and a claim waits for
its outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.coordinator import Coordinator, failed, group
from unstuck.coordinator.model.decision import Decision
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.reconcile.consumer import LINGER, WAIT, Consumer
from unstuck.coordinator.store.reports import StreamEntry


class _GivenBatches:
    """A report stream whose batches are given."""

    def __init__(self, *batches: Sequence[StreamEntry]) -> None:
        self._batches = list(batches)

    def read(self, count: int, block: float) -> Sequence[StreamEntry]:
        return self._batches.pop(0)

    def claim_idle(self, idle: float, count: int) -> Sequence[StreamEntry]:
        return ()

    def ack(self, entries: Sequence[StreamEntry]) -> None:
        assert not entries

    def trim(self) -> None:
        pass


@pytest.mark.parametrize(
    ("kinds", "lingers"),
    [
        (["succeeded", "succeeded"], True),
        (["succeeded"], False),
        ([], False),
        (["claimed", "claimed", "succeeded"], False),
    ],
    ids=["two outcomes", "one outcome", "nothing", "two claims and an outcome"],
)
def test_the_consumer_waits_for_more_after_a_batch_of_several_outcomes(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, kinds: list[str], lingers: bool
) -> None:
    batch = [StreamEntry(f"{n}-0", {"kind": kind}) for n, kind in enumerate(kinds)]
    waited: list[float] = []
    read: list[list[StreamEntry]] = []

    def apply(entries: Iterable[StreamEntry]) -> None:
        read.append(list(entries))

    stream: Any = _GivenBatches(batch, [])
    consumer = Consumer(
        stream,
        coordinator.reconciler,
        coordinator.sweep,
        coordinator.settings,
        coordinator.heartbeat,
    )
    monkeypatch.setattr(consumer, "apply", apply)
    monkeypatch.setattr(consumer, "stopping", cast(Any, SimpleNamespace(wait=waited.append)))
    consumer.step()
    assert waited == [], "nothing is known yet of how fast reports come"
    consumer.step()
    assert waited == [LINGER] * lingers
    assert batch in read


def test_a_claim_and_an_immediate_outcome_are_one_commit_with_both_events(
    make_coordinator: Callable[..., Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    coordinator = make_coordinator(clock=lambda: now[0])
    commits: list[Decision] = []
    commit = coordinator.store.commit

    def noted(decision: Decision, *args: Any) -> Any:
        commits.append(decision)
        return commit(decision, *args)

    job = coordinator.submit(group("a"), group("b", "a"))
    coordinator.read()
    monkeypatch.setattr(coordinator.store, "commit", noted)
    (offer,) = coordinator.offers()
    # Given a claim that came alone
    coordinator.claim(offer)
    coordinator.consumer.apply(coordinator.stream.read(500, 0.0))
    assert not coordinator.consumer.again(now[0])
    assert commits == []
    assert coordinator.status(job) is Status.PENDING
    # When the outcome comes before the claim has waited long
    now[0] += WAIT * 0.9
    coordinator.finish(offer.held_by("runner1"))
    coordinator.consumer.apply(coordinator.stream.read(500, 0.0))
    # Then one commit has applied both
    (both,) = commits
    kinds = [event["kind"] for event in both.events if event.get("group") == "a"]
    assert kinds == ["RUNNING", "SUCCEEDED"]
    # And a claim whose outcome does not come is applied when it has waited.
    (offer,) = coordinator.offers()
    coordinator.claim(offer)
    coordinator.consumer.apply(coordinator.stream.read(500, 0.0))
    assert len(commits) == 1
    assert coordinator.consumer.again(now[0] + WAIT)
    assert [event["kind"] for event in commits[1].events] == ["RUNNING"]


def test_only_successes_are_batched_while_runners_have_enough_work(
    make_coordinator: Callable[..., Coordinator],
) -> None:
    now = [1000.0]
    coordinator = make_coordinator(clock=lambda: now[0])
    job = coordinator.submit(
        group("fork", for_each={"n": list(range(12))}, retry={"max": 0}), on_failure="finish_others"
    )
    coordinator.read()
    offers = coordinator.offers()
    assert len(offers) == 12

    def report(*, fails: bool = False) -> None:
        offer = offers.pop()
        coordinator.claim(offer)
        coordinator.finish(
            offer.held_by("runner1"), *([failed(recoverable=False)] if fails else [])
        )
        coordinator.consumer.apply(coordinator.stream.read(500, 0.0))

    def applied() -> int:
        return sum(coordinator.events(job).count(kind) for kind in ("SUCCEEDED", "FAILED"))

    # Given five successes, one after the other, while twelve offers stood: none has a pass
    for _ in range(5):
        report()
    assert applied() == 0
    # When a sixth comes, runners might soon have nothing to take. Then one pass applies all
    report()
    assert applied() == 6
    # When one comes alone, it waits for a moment and no longer
    report()
    assert applied() == 6
    assert not coordinator.consumer.again(now[0] + WAIT / 2)
    assert coordinator.consumer.again(now[0] + WAIT)
    assert applied() == 7
    # A failure waits for nothing, and takes along what waits
    report()
    assert applied() == 7
    report(fails=True)
    assert applied() == 9
