"""One pass over one job, when the world outside misbehaves in ways nobody thought of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pytest

from tests.simulation.stage.calm import Calm, EmptyWarehouses, Rung
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


class _Mute(Rung):
    def ring(self, wake_ups: Mapping[str, int]) -> None:
        raise ValueError("no such transport")


def test_a_job_that_cannot_be_published_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    calm = Calm(1, jobs=("a", "b"), warehouses=_Poisoned())
    for offer in calm.offers:
        calm.finish(calm.claim(offer))
    calm.stream.reports.clear()
    calm.sweep.run()
    stuck, ended = calm.core.jobs["a"].record, calm.core.jobs["b"].record
    assert ended.status is Status.FINISHED
    assert stuck.reason is not None
    assert stuck.reason.code == "PUBLISH_TROUBLE"
    assert "Contents" in stuck.reason.text
    assert calm.core.due["a"] <= calm.now + 60.0
    assert "job a could not be published" in caplog.text


def test_wake_ups_that_cannot_be_sent_do_not_stop_the_sweep(caplog: pytest.LogCaptureFixture) -> None:
    calm = Calm(1, jobs=("a", "b"), dispatcher=_Mute())
    assert {job: record.groups["g[0]"].state for job, record in calm.core.jobs.items()} == {
        "a": "QUEUED",
        "b": "QUEUED",
    }
    assert "no wake-up could be sent" in caplog.text


def stands_still(calm: Calm, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """The next pass stands still behind its lock, for so long that the lock lapses and another coordinator goes on."""
    begin = calm.reconciler.store.begin

    def late(job: str, owner: str, groups: Sequence[str] = ()) -> Begun:
        begun = begin(job, owner, groups)
        monkeypatch.setattr(calm.reconciler.store, "begin", begin)
        calm.now += 20.0
        meanwhile()
        calm.deliver()
        return begun

    monkeypatch.setattr(calm.reconciler.store, "begin", late)


def test_a_pass_that_stood_still_takes_its_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what others wrote meanwhile would read as written before the clock was set back, and count from before."""
    calm = Calm(1)
    began = calm.now
    stands_still(calm, monkeypatch, partial(calm.claim, calm.offers[0]))
    calm.reconciler.reconcile("j")
    record = calm.core.jobs["j"].record
    assert record.started_at == calm.now == began + 20
    assert record.counted_from == calm.now


def test_a_pass_that_stood_still_starts_no_retry_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read with a time from before it was written, a backoff looks like one from before the clock was set back."""
    calm = Calm(1, retry={"max": 3, "backoff": "5s", "max_backoff": "5s"})
    token = calm.claim(calm.offers[0])
    calm.deliver()
    failed = Outcome(OutcomeKind.FAILED, failure=Failure("BOOM", "boom", True, ""))
    stands_still(calm, monkeypatch, lambda: calm.finish(token, failed))
    began = calm.now
    calm.reconciler.reconcile("j")
    assert calm.now == began + 20
    record = calm.core.jobs["j"].groups["g[0]"]
    assert record.state is GroupState.BACKOFF
    assert record.next_at > calm.now
