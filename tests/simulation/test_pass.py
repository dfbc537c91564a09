"""One pass over one job, when the world outside misbehaves in ways nobody thought of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pytest

from tests.simulation.stage.fault_free import EmptyWarehouses, FaultFree, WakeUps
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.model.status import GroupState, Status
from unstuck.coordinator.store.answers import Begun
from unstuck.tasks.protocol.report import Failure, Outcome, OutcomeKind


class _Poisoned(EmptyWarehouses):
    """A warehouse whose client raises what no file system should, for one of the jobs."""

    def publish(self, state: JobState, answered: Callable[[], None]) -> PublishResult:
        if state.job.id == "a":
            raise KeyError("Contents")
        return PublishResult()


class _Mute(WakeUps):
    def send_wake_ups(self, wake_ups: Mapping[str, int]) -> None:
        raise ValueError("no such transport")


def test_a_job_that_cannot_be_published_does_not_stop_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fault_free = FaultFree(1, jobs=("a", "b"), warehouses=_Poisoned())
    for offer in fault_free.offers:
        fault_free.finish(fault_free.claim(offer))
    fault_free.stream.reports.clear()
    fault_free.sweep.run()
    stuck, ended = fault_free.core.jobs["a"].record, fault_free.core.jobs["b"].record
    assert ended.status is Status.FINISHED
    assert stuck.reason is not None
    assert stuck.reason.code == "PUBLISH_TROUBLE"
    assert "Contents" in stuck.reason.text
    assert fault_free.core.due["a"] <= fault_free.now + 60.0
    assert "job a could not be published" in caplog.text


def test_failing_wake_ups_do_not_stop_the_sweep(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fault_free = FaultFree(1, jobs=("a", "b"), dispatcher=_Mute())
    assert {job: record.groups["g[0]"].state for job, record in fault_free.core.jobs.items()} == {
        "a": "QUEUED",
        "b": "QUEUED",
    }
    assert "no wake-up could be sent" in caplog.text


def stands_still(
    fault_free: FaultFree, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]
) -> None:
    """The next pass stands still behind its lock, for so long that the lock lapses and another
    coordinator goes on.
    """
    begin = fault_free.reconciler.store.begin

    def late(job: str, owner: str, groups: Sequence[str] = ()) -> Begun:
        begun = begin(job, owner, groups)
        monkeypatch.setattr(fault_free.reconciler.store, "begin", begin)
        fault_free.now += 20.0
        meanwhile()
        fault_free.deliver()
        return begun

    monkeypatch.setattr(fault_free.reconciler.store, "begin", late)


def test_a_suspended_pass_reads_the_clock_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what others wrote meanwhile would read as written before the clock was set back, and
    count from before.
    """
    fault_free = FaultFree(1)
    began = fault_free.now
    stands_still(fault_free, monkeypatch, partial(fault_free.claim, fault_free.offers[0]))
    fault_free.reconciler.reconcile("j")
    record = fault_free.core.jobs["j"].record
    assert record.started_at == fault_free.now == began + 20
    assert record.counted_from == fault_free.now


def test_a_suspended_pass_starts_no_retry_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read with a time from before it was written, a backoff looks like one from before the clock
    was set back.
    """
    fault_free = FaultFree(1, retry={"max": 3, "backoff": "5s", "max_backoff": "5s"})
    token = fault_free.claim(fault_free.offers[0])
    fault_free.deliver()
    failed = Outcome(OutcomeKind.FAILED, failure=Failure("BOOM", "boom", True, ""))
    stands_still(fault_free, monkeypatch, lambda: fault_free.finish(token, failed))
    began = fault_free.now
    fault_free.reconciler.reconcile("j")
    assert fault_free.now == began + 20
    record = fault_free.core.jobs["j"].groups["g[0]"]
    assert record.state is GroupState.BACKOFF
    assert record.next_at > fault_free.now
