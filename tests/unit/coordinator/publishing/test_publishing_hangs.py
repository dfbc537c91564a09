"""Publishing that hangs: what is said on the record, and what a coordinator does in its threads,
are one.
"""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest

from tests.support.jobs.job_in_memory import Job, group
from tests.support.servers import wait_until
from unstuck.coordinator.explain.explanation import Explanation
from unstuck.coordinator.explain.job import explain
from unstuck.coordinator.model.decision import Decision, Environment, PublishResult
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.publishing.background import Background

HOUR = 3600.0


class HangingPublisher:
    """A coordinator that publishes a job into a warehouse that never answers; its clock is the
    job's.
    """

    def __init__(self, job: Job) -> None:
        self.job, self.thaw, self.begun = job, threading.Event(), 0
        self._name = f"publisher of office {id(self)}"
        self._background = Background(2, self._name, clock=lambda: job.now)

    def obey(self, decision: Decision) -> bool:
        """As the reconciler does it. Returns whether another try of publishing was begun."""
        if not decision.publish:
            return False
        before = self._threads()
        self._background(
            "publish", "here", lambda _: bool(self.thaw.wait()) and None, new_try=decision.new_try
        )
        begun = self._threads() - before
        self.begun += begun
        return bool(begun)

    def _threads(self) -> int:
        return sum(one.name == self._name for one in threading.enumerate())


def publishing() -> tuple[Job, Decision]:
    job = Job(group("a"))
    job.decide()
    return job, job.run("a")


def told(job: Job, decision: Decision) -> Explanation:
    return explain(job.state, Environment(now=job.now, nonce=""), decision.due)[0]


@pytest.mark.parametrize("offices", [1, 2], ids=["one coordinator", "two that take turns"])
def test_every_promised_retry_starts_on_time(
    offices: int,
) -> None:
    job, decision = publishing()
    all_of_them = [HangingPublisher(job) for _ in range(offices)]
    tries, promised, looks = [], job.now, 0
    try:
        while job.now < 1000.0 + HOUR:
            begun = all_of_them[looks % offices].obey(decision)
            if decision.new_try:
                assert begun, "it was said to be tried now"
                assert job.now == promised
                tries.append(job.now)
            found = told(job, decision)
            if found.next.what == "publishing is tried again":
                assert job.state.job.reason is not None
                assert job.state.job.reason.code == "PUBLISH_HANGS"
                promised = found.next.at
            else:
                assert found.next.at > job.now
                hangs_at = tries[-1] + min(900.0, 120.0 * 2 ** min(len(tries) - 1, 3))
                assert ("counts as hanging" in found.next.what) == (found.next.at == hangs_at)
            assert decision.due is not None
            job.now, looks = decision.due, looks + 1
            decision = job.decide()
        waits = [later - earlier for earlier, later in pairwise(tries)]
        assert waits[:4] == [122.0, 244.0, 488.0, 916.0]
        assert max(waits) <= 900.0 + 60.0, (
            "a quarter of an hour, however long the warehouse hangs, and a wait"
        )
        assert sum(office.begun for office in all_of_them) <= len(tries) * offices, (
            "and no threads beside these"
        )
    finally:
        for office in all_of_them:
            office.thaw.set()
    wait_until(
        lambda: not [t for t in threading.enumerate() if t.name == "publisher"],
        5,
        "the threads to end",
    )


def test_messages_distinguish_running_waiting_and_retrying_publishes() -> None:
    job, decision = publishing()
    done = job.now
    job.now += 20.0
    found = told(job, decision)
    assert found.since == done
    assert (
        found.what == "all groups are done; the package is being published, last heard of 20s ago"
    )
    assert (found.tried, found.next.at) == ("", 1030.0)
    assert found.next.what == "if the coordinator that publishes has died, another does"
    assert found.line(job.now) == "publishing"

    job.decide(published=PublishResult(trouble=Reason("PUBLISH_TROUBLE", "no route")))
    found = told(job, job.decide())
    assert found.what == "all groups are done; the package could not be published yet"
    assert (found.tried, found.next.what) == ("tried once: no route", "publishing is tried again")
    assert found.line(job.now) == "publishing is tried again in 2.0s: no route"

    job.now += 2.0
    found = told(job, job.decide())
    assert (
        found.what == "all groups are done; the package is being published, last heard of 0.0s ago"
    )
    assert found.tried == "tried once: no route"
    assert found.line(job.now) == "publishing, try 2, after: no route"

    job.tell("cancel")
    found = told(job, job.decide())
    assert "the warehouse log is asked which was first, last heard of 0.0s ago" in found.what
