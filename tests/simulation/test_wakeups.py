"""Nothing that is silent is forgotten while others talk.

A pass begins by pushing the job's due away, and a pass for a report looks at what the report speaks
of. While reports came in faster than the sweep, nobody ever looked at a dead worker, a lost offer
or a lost report of the same job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.simulation.stage.fault_free import FaultFree
from unstuck.coordinator.decide.receipts import Delivered
from unstuck.coordinator.model.status import GroupState
from unstuck.tasks.protocol.report import Report, ReportKind
from unstuck.tasks.protocol.token import Token

WIDTH = 60


@pytest.fixture
def busy() -> FaultFree:
    """A wide job."""
    return FaultFree(WIDTH)


def talk(
    busy: FaultFree, tokens: Sequence[Token], seconds: float, until: Callable[[], bool]
) -> bool:
    """Reports of ``tokens`` for some time, one every 50 ms, with the sweep as punctual as can
    be.
    """
    swept, end = busy.now, busy.now + seconds
    while busy.now < end and not until():
        for token in tokens:
            busy.core.renew(token, "w")
        # A report that says what is known already still is a pass.
        busy.deliver(Delivered("0-0", Report("again", tokens[0], ReportKind.CLAIMED, busy.now)))
        busy.now += 0.05
        if busy.now - swept >= 1.0:
            swept = busy.now
            busy.sweep.run()
    return until()


def test_a_dead_worker_is_found_while_others_report(busy: FaultFree) -> None:
    tokens = [busy.claim(offer) for offer in busy.offers]
    busy.deliver()
    dead, *living = tokens
    noticed = talk(
        busy, living, 15.0 + 3.0, lambda: busy.core.jobs["j"].groups[dead.group].epoch == 2
    )
    assert noticed, (
        f"{dead.group} is still {busy.state(dead.group)} three sweeps after its lease lapsed"
    )


def test_a_lost_offer_is_repeated_while_others_report(busy: FaultFree) -> None:
    lost, *others = busy.offers
    tokens = [busy.claim(offer) for offer in others]
    busy.lose(lost)
    assert talk(busy, tokens, 10.0 + 3.0, lambda: busy.offers == [lost])


def test_a_lost_wake_up_is_sent_again_by_the_next_sweep(busy: FaultFree) -> None:
    assert busy.dispatcher.wake_ups["spark"] == WIDTH
    busy.dispatcher.wake_ups.clear()
    busy.sweep.run()
    assert busy.dispatcher.wake_ups["spark"] == WIDTH


def test_a_lost_report_costs_one_sweep_while_others_report(busy: FaultFree) -> None:
    tokens = [busy.claim(offer) for offer in busy.offers]
    busy.deliver()
    silent, *others = tokens
    busy.finish(silent)
    busy.stream.reports.clear()
    assert talk(busy, others, 2.2, lambda: busy.state(silent.group) is GroupState.SUCCEEDED)


def test_a_report_does_not_delay_a_scan_that_is_due(busy: FaultFree) -> None:
    """A pass for a report pushed the due of a lapsed lease away by half a second, and the next
    sweep was too early.
    """
    tokens = [busy.claim(offer) for offer in busy.offers]
    busy.deliver()
    dead, *living = tokens
    for _ in range(14):
        busy.now += 1.0
        for token in living:
            busy.core.renew(token, "w")
        busy.sweep.run()
    busy.now += 0.5
    busy.core.due["j"] = (
        busy.now
    )  # all is looked at now, and the lease of the dead one ends in half a second
    busy.reconciler.reconcile("j", due=True)
    assert busy.state(dead.group) is GroupState.RUNNING

    busy.now += 0.6
    busy.deliver(Delivered("0-0", Report("again", living[0], ReportKind.CLAIMED, busy.now)))

    assert busy.state(dead.group) is GroupState.QUEUED, (
        "its lease is over, whatever the report was for"
    )
