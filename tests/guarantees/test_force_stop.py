"""Force-stop needs nobody's help: no worker, no readable record of a group."""

from __future__ import annotations

import pytest
from guarantees.test_the_users_word import act, running
from head import Head

from coordinator.status import Status


@pytest.mark.parametrize(
    ("key", "text"),
    [("groups", "{"), ("groups", '{"state":"SUCCEEDED","epoch":"x"}'), ("attempts", "{"), ("forks", "[")],
    ids=["no JSON", "a state that cannot be", "attempt", "fork"],
)
def test_a_job_whose_records_cannot_be_read_is_halted_and_ended_by_force(head: Head, key: str, text: str) -> None:
    job = running(head)
    head.redis.hset(getattr(head.keys.of(job), key), "a", text)
    for _ in range(3):
        act(head, job)
    before = head.status_of_record(job)
    assert head.client.force_stop(job, reason="it is broken").answer == "DONE"
    act(head, job)
    assert before in (Status.PAUSED, Status.RUNNING)
    assert head.status_of_record(job) is Status.CANCELED
    assert job in {listed.id for listed in head.client.jobs(status=[Status.CANCELED])}
    assert not head.redis.zscore(head.keys.due, job)
